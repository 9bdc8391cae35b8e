//! When a bucket's key expires: never before the bucket would be full, never much later, and moved by refusals only
//! where the quota has become slower.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Client, START_US, Server, eventually};

/// The contract's slack: the setting's default of one second, and the rounding of the stored deadline.
const SLACK_US: i128 = 2_000_000;
/// The unit of the stored deadline.
const DEADLINE_UNIT_MS: i64 = 512;
const NO_EXPIRY: i64 = -1;

/// A quota in whole numbers: `tokens` every `seconds`.
#[derive(Clone, Copy, Debug)]
struct Quota {
    capacity: i64,
    tokens: i64,
    seconds: i64,
}

impl Quota {
    fn args(self) -> String {
        format!("{} {}/{}", self.capacity, self.tokens, self.seconds)
    }

    fn refill_us(self, missing: i64) -> i128 {
        let (tokens, seconds) = (i128::from(self.tokens), i128::from(self.seconds));
        (i128::from(missing) * seconds * 1_000_000 + tokens - 1) / tokens
    }

    /// Holds `key` against the contract, as written at `stamp` with `balance` tokens left.
    fn check(self, client: &mut Client, key: &str, stamp: i64, balance: i64) {
        let deadline = client.int(&format!("PEXPIRETIME {key}"));
        if self.tokens == 0 {
            assert_eq!(deadline, NO_EXPIRY, "a bucket that never refills has no expiry");
            return;
        }
        assert_eq!(deadline % DEADLINE_UNIT_MS, 0, "the key's expiry {deadline} is not the one stored");
        let lives = i128::from(deadline) * 1000 - i128::from(stamp);
        let full = self.refill_us(self.capacity - balance);
        assert!(lives >= full, "{self:?} with {balance} is full after {full} us but lives {lives} us");
        let most = self.refill_us(self.capacity.max(self.capacity - balance)) + SLACK_US;
        assert!(lives <= most, "{self:?} with {balance} may live {most} us but lives {lives} us");
    }
}

const SLOW: Quota = Quota { capacity: 100, tokens: 1, seconds: 60 };
const FAST: Quota = Quota { capacity: 10, tokens: 1000, seconds: 1 };
const YEARLY: Quota = Quota { capacity: 10, tokens: 1, seconds: 31_557_600 };
const NEVER: Quota = Quota { capacity: 10, tokens: 0, seconds: 1 };

#[test]
fn a_new_bucket_lives_until_it_is_full_and_not_much_longer() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    for quota in [SLOW, FAST, YEARLY, NEVER] {
        for cost in [1, 5, 10] {
            client.ok("FLUSHALL");
            assert_eq!(client.take(&format!("k {} {cost}", quota.args()))[0], 1);
            quota.check(&mut client, "k", START_US, quota.capacity - cost);
        }
    }
}

#[test]
fn the_bounds_hold_at_every_fraction_of_a_second() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    for step in 0..200 {
        clock.set(START_US + step * 10_007);
        client.ok("FLUSHALL");
        client.take(&format!("k {} 7", FAST.args()));
        FAST.check(&mut client, "k", clock.now(), 3);
        client.take(&format!("l {} 7", SLOW.args()));
        SLOW.check(&mut client, "l", clock.now(), 93);
    }
}

#[test]
fn a_deadline_that_the_format_cannot_hold_is_no_expiry() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    assert_eq!(client.take("k 1e15 1e-18 1e15"), [1, 0, 0]);
    assert_eq!(client.int("PTTL k"), NO_EXPIRY);
    clock.advance_s(1_000_000_000);
    assert_eq!(client.take("k 1e15 1e-18 1")[0], 0, "the drained bucket was forgotten");
}

#[test]
fn a_key_that_has_expired_was_full() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 100", SLOW.args()));
    let deadline = client.int("PEXPIRETIME k");
    clock.set((deadline - 1) * 1000);
    assert_eq!(client.take(&format!("k {} 0", SLOW.args())), [1, 100, 0]);
    assert_eq!(client.int("EXISTS k"), 1);
    clock.set((deadline + 1) * 1000);
    assert_eq!(client.int("EXISTS k"), 0);
    assert_eq!(client.take(&format!("k {}", SLOW.args())), [1, 99, 0]);
}

#[test]
fn buckets_that_nobody_asks_for_again_vanish_by_themselves() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    let takes: Vec<Vec<String>> =
        (0..2000).map(|n| ["TB.TAKE".into(), format!("k{n}"), "10".into(), "1".into()].into()).collect();
    client.pipeline(&takes);
    assert_eq!(client.int("DBSIZE"), 2000);
    clock.advance_s(13);
    eventually("the server has removed the full buckets", || (client.int("DBSIZE") == 0).then_some(()));
}

#[test]
fn a_grant_under_a_slower_quota_lives_longer_and_under_a_faster_one_shorter() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let half_as_slow = Quota { seconds: 30, ..SLOW };
    client.take(&format!("k {} 50", half_as_slow.args()));
    half_as_slow.check(&mut client, "k", START_US, 50);
    client.take(&format!("k {} 1", SLOW.args()));
    SLOW.check(&mut client, "k", START_US, 49);
    client.take(&format!("k {} 1", FAST.args()));
    FAST.check(&mut client, "k", START_US, 9);
    client.take(&format!("k {} 1", YEARLY.args()));
    YEARLY.check(&mut client, "k", START_US, 8);
}

#[test]
fn a_rate_of_nothing_takes_the_expiry_away_and_a_rate_gives_it_back() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 1", FAST.args()));
    FAST.check(&mut client, "k", START_US, 9);
    client.take(&format!("k {} 1", NEVER.args()));
    NEVER.check(&mut client, "k", START_US, 8);
    client.take(&format!("k {} 1", FAST.args()));
    FAST.check(&mut client, "k", START_US, 7);
}

#[test]
fn a_refusal_under_a_slower_quota_pushes_the_expiry_back() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 10", FAST.args()));
    let stamp = clock.now();
    clock.advance_ms(1);
    let slow = Quota { capacity: 10, tokens: 1, seconds: 60 };
    assert_eq!(client.take(&format!("k {} 5", slow.args()))[0], 0);
    let deadline = client.int("PEXPIRETIME k");
    assert!(i128::from(deadline) * 1000 >= i128::from(stamp) + slow.refill_us(9), "full after the key has gone");
    clock.advance_s(300);
    assert_eq!(client.take(&format!("k {} 10", slow.args()))[0], 0, "the key expired under the slower quota");
}

#[test]
fn a_cost_of_nothing_under_a_slower_quota_pushes_the_expiry_back() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 10", FAST.args()));
    let before = client.int("PEXPIRETIME k");
    let slow = Quota { capacity: 10, tokens: 1, seconds: 60 };
    assert_eq!(client.take(&format!("k {} 0", slow.args())), [1, 0, 0]);
    let after = client.int("PEXPIRETIME k");
    assert!(after > before, "{after} is not after {before}");
    assert!(i128::from(after) * 1000 >= i128::from(clock.now()) + slow.refill_us(10));
}

#[test]
fn a_refusal_under_a_rate_of_nothing_takes_the_expiry_away() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 10", FAST.args()));
    assert_eq!(client.take(&format!("k {}", NEVER.args())), [0, 0, -1]);
    assert_eq!(client.int("PEXPIRETIME k"), NO_EXPIRY);
    clock.advance_s(1_000_000);
    assert_eq!(client.take(&format!("k {}", NEVER.args())), [0, 0, -1]);
}

#[test]
fn a_refusal_never_brings_the_expiry_forward() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 100", SLOW.args()));
    let before = (client.bytes("GET k"), client.int("PEXPIRETIME k"));
    for quota in [FAST, Quota { capacity: 1, ..FAST }, Quota { tokens: 2, ..SLOW }, Quota { capacity: 50, ..SLOW }] {
        assert_eq!(client.take(&format!("k {} 1", quota.args()))[0], 0);
        assert_eq!(client.take(&format!("k {} 0", quota.args()))[0], 1);
        assert_eq!((client.bytes("GET k"), client.int("PEXPIRETIME k")), before, "moved by {quota:?}");
    }
}

#[test]
fn a_persisted_bucket_gets_its_expiry_back_when_the_deadline_next_moves() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 50", SLOW.args()));
    assert_eq!(client.int("PERSIST k"), 1);
    assert_eq!(client.take(&format!("k {} 1", SLOW.args())), [1, 49, 0]);
    clock.advance_s(120);
    assert_eq!(client.take(&format!("k {} 51", SLOW.args())), [1, 0, 0]);
    SLOW.check(&mut client, "k", clock.now(), 0);
}

#[test]
fn an_expiry_shortened_by_hand_costs_the_bucket_and_is_put_right_when_the_deadline_next_moves() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take(&format!("k {} 50", SLOW.args()));
    assert_eq!(client.int("PEXPIRE k 5000"), 1);
    let slower = Quota { seconds: 120, ..SLOW };
    assert_eq!(client.take(&format!("k {} 50", slower.args())), [1, 0, 0]);
    slower.check(&mut client, "k", clock.now(), 0);
    assert_eq!(client.int("PEXPIRE k 1"), 1);
    clock.advance_ms(2);
    assert_eq!(client.take(&format!("k {} 1", SLOW.args())), [1, 99, 0], "an absent bucket is a full one");
}

#[test]
fn the_bounds_hold_after_every_grant_of_any_sequence() {
    let (server, clock) = Server::frozen();
    let client = RefCell::new(server.client());
    let quota = prop_oneof![
        Just(Quota { capacity: 10, tokens: 1, seconds: 1 }),
        Just(Quota { capacity: 1000, tokens: 1, seconds: 1 }),
        Just(Quota { capacity: 10, tokens: 1000, seconds: 1 }),
        Just(Quota { capacity: 50, tokens: 3, seconds: 1 }),
        Just(NEVER),
    ];
    let step = (quota, 0..20_i64, prop_oneof![0..5_i64, 0..2000_i64]);
    let mut runner = TestRunner::new(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&prop::collection::vec(step, 1..25), |steps| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        clock.set(START_US);
        let mut due_at_ms = NO_EXPIRY;
        for (quota, cost, wait_s) in steps {
            clock.advance_s(wait_s);
            let [allowed, remaining, _] = client.take(&format!("k {} {cost}", quota.args()));
            let deadline = client.int("PEXPIRETIME k");
            if allowed == 1 && cost > 0 {
                // Whole rates over whole seconds: what remains is the whole balance.
                quota.check(&mut client, "k", clock.now(), remaining);
            } else if due_at_ms != NO_EXPIRY && deadline >= 0 {
                prop_assert!(deadline >= due_at_ms || clock.now() / 1000 >= due_at_ms, "brought forward");
            }
            due_at_ms = deadline.max(NO_EXPIRY);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}
