//! The server's wall clock, standing, running, stepping forward and back: waits are exact, seconds are credited once, and
//! nobody is locked out for longer than a refill.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Client, ReplicationStream, START_US, Server, WallClock};

const SECOND: i64 = 1_000_000;
const HOUR_S: i64 = 3600;

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..Default::default() })
}

/// Waits as told and not a millisecond less; returns whether there was anything to wait for.
fn waits_exactly(client: &mut Client, clock: &WallClock, args: &str) -> bool {
    let [allowed, _, retry_ms] = client.take(args);
    if allowed == 1 {
        return false;
    }
    assert!(retry_ms >= 1, "{args} can be granted, but the wait is {retry_ms}");
    let asked_at = clock.now();
    clock.set(asked_at + (retry_ms - 1) * 1000);
    let [early, _, rest_ms] = client.take(args);
    assert_eq!((early, rest_ms), (0, 1), "{args}: one millisecond before {retry_ms} have passed");
    clock.set(asked_at + retry_ms * 1000);
    assert_eq!(client.take(args)[0], 1, "{args}: after {retry_ms} ms");
    true
}

#[test]
fn one_millisecond_less_than_told_is_refused_and_exactly_that_is_granted() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    #[rustfmt::skip]
    let quotas = [
        "10 1", "10 3", "1 1/86400", "1 0.000011574074074074074", "100 100/60", "1000 1000/60", "0.3 0.7", "5 333.333",
        "20 1500", "10 700", "10 700000", "6000 6000", "1e15 1e12", "7.5 1/7", "2 1/31557600", "999999.999999999 7/3",
    ];
    for quota in quotas {
        for offset_us in [0, 1, 499, 999, 123_456] {
            clock.set(START_US + offset_us);
            client.ok("FLUSHALL");
            let capacity = quota.split(' ').next().unwrap();
            assert_eq!(client.take(&format!("k {quota} {capacity}"))[0], 1);
            assert!(waits_exactly(&mut client, &clock, &format!("k {quota} {capacity}")));
        }
    }
}

#[test]
fn the_wait_is_exact_for_any_quota() {
    let (server, clock) = Server::frozen();
    let client = RefCell::new(server.client());
    let rate = prop_oneof![
        (1..1_000_000_u32).prop_map(|rate| rate.to_string()),
        (1..1000_u32, 1..100_000_u32).prop_map(|(tokens, seconds)| format!("{tokens}/{seconds}")),
        (0..1000_u32, 1..999_999_999_u32).prop_map(|(whole, nanos)| format!("{whole}.{nanos:09}")),
    ];
    let capacity_nanos = prop_oneof![1..5_000_000_000_u64, 1..1_000_000_000_000_u64];
    let input = (capacity_nanos, 0.0..1.0_f64, rate, 0..2_000_000_i64, 0..2_000_000_i64);
    let outcome = runner(400).run(&input, |(capacity, share, rate, offset_us, pause_us)| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        clock.set(START_US + offset_us);
        let decimal = |nanos: u64| format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
        let cost = decimal(((capacity as f64 * share) as u64).clamp(1, capacity));
        let capacity = decimal(capacity);
        assert_eq!(client.take(&format!("k {capacity} {rate} {capacity}"))[0], 1);
        clock.advance(pause_us);
        waits_exactly(&mut client, &clock, &format!("k {capacity} {rate} {cost}"));
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn whoever_sleeps_as_told_is_granted_on_the_true_clock() {
    let server = Server::start();
    let mut client = server.client();
    client.take("k 1 500");
    for _ in 0..100 {
        let [allowed, _, retry_ms] = client.take("k 1 500");
        if allowed == 0 {
            thread::sleep(Duration::from_millis(retry_ms.try_into().expect("a wait that ends")));
            assert_eq!(client.take("k 1 500")[0], 1, "slept {retry_ms} ms for nothing");
        }
    }
}

#[test]
fn a_small_step_back_credits_no_second_twice() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    assert_eq!(client.take("k 10 1 5"), [1, 5, 0]);
    clock.advance_s(-5);
    assert_eq!(client.take("k 10 1 5"), [1, 0, 0], "tokens that are there are granted");
    clock.set(START_US);
    assert_eq!(client.take("k 10 1"), [0, 0, 1000], "the five seconds were credited twice");
    clock.advance_s(1);
    assert_eq!(client.take("k 10 1"), [1, 0, 0]);
}

#[test]
fn the_wait_after_a_small_step_back_includes_the_time_until_the_clock_has_caught_up() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
    clock.advance_s(-4);
    assert_eq!(client.take("k 10 1"), [0, 0, 5000]);
    assert!(waits_exactly(&mut client, &clock, "k 10 1"));
    assert_eq!(clock.now(), START_US + SECOND);
}

#[test]
fn a_step_back_by_more_than_a_refill_locks_nobody_out() {
    for back_s in [11, 60, HOUR_S, 24 * HOUR_S, 365 * 24 * HOUR_S] {
        let (server, clock) = Server::frozen();
        let mut client = server.client();
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        clock.advance_s(-back_s);
        assert_eq!(client.take("k 10 1"), [0, 0, 1000], "the balance is kept, and refills from now on");
        clock.advance_s(1);
        assert_eq!(client.take("k 10 1"), [1, 0, 0]);
        clock.advance_s(10);
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
    }
}

#[test]
fn the_stamp_stands_up_to_a_whole_refill_and_gives_way_a_microsecond_later() {
    for (back_us, wait_ms) in [(10 * SECOND, 11_000), (10 * SECOND + 1, 1000)] {
        let (server, clock) = Server::frozen();
        let mut client = server.client();
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        clock.advance(-back_us);
        assert_eq!(client.take("k 10 1"), [0, 0, wait_ms]);
        assert!(waits_exactly(&mut client, &clock, "k 10 1"));
    }
}

#[test]
fn a_stamp_that_cannot_be_true_is_put_right_even_by_a_refusal() {
    for cost in ["1", "10", "11", "0"] {
        let (server, clock) = Server::frozen();
        let mut client = server.client();
        let mut stream = ReplicationStream::of(&server);
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        assert_eq!(stream.drain().len(), 1);
        clock.advance_s(-HOUR_S);
        let before = client.bytes("GET k");
        client.take(&format!("k 10 1 {cost}"));
        let after = client.bytes("GET k");
        assert_ne!(after, before, "cost {cost}: the stamp was not stored");
        let sent = stream.drain();
        assert_eq!(sent.len(), 1, "cost {cost}");
        assert_eq!(sent[0][..3], [b"SET".to_vec(), b"k".to_vec(), after.clone()]);
        client.take(&format!("k 10 1 {cost}"));
        assert_eq!(client.bytes("GET k"), after, "cost {cost}: once is enough");
        assert_eq!(stream.drain().len(), 0);
    }
}

#[test]
fn a_step_back_in_a_bucket_that_never_refills_changes_nothing() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    assert_eq!(client.take("k 5 0 3"), [1, 2, 0]);
    clock.advance_s(-HOUR_S);
    assert_eq!(client.take("k 5 0 3"), [0, 2, -1]);
    assert_eq!(client.take("k 5 0 2"), [1, 0, 0]);
}

#[test]
fn a_step_forward_grants_one_full_bucket_at_most() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    for ahead_s in [HOUR_S, 24 * HOUR_S, 10 * 365 * 24 * HOUR_S] {
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        clock.advance_s(ahead_s);
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        assert_eq!(client.take("k 10 1"), [0, 0, 1000]);
        clock.advance_s(10);
    }
}

#[test]
fn a_clock_gone_mad_and_come_back_locks_nobody_out() {
    let year_2500 = 16_725_225_600 * SECOND;
    for madness in [SECOND, 86_400 * SECOND, year_2500, (1 << 52) - 1, 1 << 52, 1 << 53, 1 << 55] {
        let (server, clock) = Server::frozen();
        let mut client = server.client();
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
        clock.set(madness);
        for cost in [1, 0, 10, 11] {
            assert!(client.take(&format!("k 10 1 {cost}"))[1] <= 10, "at {madness} us");
        }
        clock.set(START_US + SECOND);
        let [allowed, _, retry_ms] = client.take("k 10 1 1");
        assert!(allowed == 1 || retry_ms <= 11_000, "locked out for {retry_ms} ms after {madness} us");
        clock.advance_s(20);
        assert_eq!(client.take("k 10 1 10"), [1, 0, 0], "after {madness} us");
    }
}

#[test]
fn no_steps_of_the_clock_grant_more_than_the_time_that_passed() {
    let (server, clock) = Server::frozen();
    let client = RefCell::new(server.client());
    let step = (-5000..6000_i64, 1..4_i64);
    let outcome = runner(100).run(&prop::collection::vec(step, 1..60), |steps| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        clock.set(START_US);
        let mut granted = client.take("k 10 1 1")[0];
        let (mut now, mut latest) = (START_US, START_US);
        for (by_ms, cost) in steps {
            // Never further back than a refill of 10 s, or the stamp would rightly give way.
            now = (now + by_ms * 1000).max(latest - 10 * SECOND);
            latest = latest.max(now);
            clock.set(now);
            granted += client.take(&format!("k 10 1 {cost}"))[0] * cost;
            prop_assert!(granted * SECOND <= 10 * SECOND + (latest - START_US), "{granted} granted");
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn time_stands_within_a_script_where_the_server_has_it_stand() {
    let server = Server::start();
    let mut client = server.client();
    let script = "
        local function us() local t = redis.call('TIME'); return t[1] * 1000000 + t[2] end
        local before = us()
        local first = redis.call('TB.TAKE', KEYS[1], '1', '1000')
        for i = 1, 3000000 do end
        local second = redis.call('TB.TAKE', KEYS[1], '1', '1000')
        return {first[1], second[1], us() - before}";
    let answers = client.call(&["EVAL", script, "1", "k"]).ints();
    assert_eq!(answers[0], 1);
    match answers[2] {
        0 => assert_eq!(answers[1], 0, "the script's time stood, yet the bucket refilled"),
        spent_us => assert_eq!(answers[1], i64::from(spent_us > 1000), "after {spent_us} us"),
    }
}

#[test]
fn time_stands_within_a_transaction_where_the_server_has_it_stand() {
    let server = Server::start();
    let mut client = server.client();
    client.ok("MULTI");
    for line in ["TIME", "TB.TAKE k 1 1000", "DEBUG SLEEP 0.02", "TB.TAKE k 1 1000", "TIME"] {
        client.ask(line);
    }
    let replies = client.ask("EXEC");
    let [before, first, _, second, after] = replies.items() else { panic!("{replies:?}") };
    assert_eq!(first.ints()[0], 1);
    assert_eq!(second.ints()[0], i64::from(before != after), "{replies:?}");
}
