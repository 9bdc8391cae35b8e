//! `TB.REFUND`: tokens given back, never above the capacity and never into a key that does not exist.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::cell::RefCell;
use std::thread;

use family::{Listener, TOKEN, ints, tokens, units};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Client, Server, on_a_frozen_clock};

fn refund(client: &mut Client, line: &str) -> [i64; 3] {
    ints(client, &format!("TB.REFUND {line}")).try_into().expect("three integers")
}

#[test]
fn gives_back_what_was_taken() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 0 8"), [1, 2, 0]);
    assert_eq!(refund(&mut client, "k 10 0 3"), [1, 5, 0]);
    assert_eq!(refund(&mut client, "k 10 0 0.5"), [1, 5, 0]);
    assert_eq!(refund(&mut client, "k 10 0 0.5"), [1, 6, 0]);
    assert_eq!(client.take("k 10 0 6"), [1, 0, 0]);
    assert_eq!(client.take("k 10 0 0.000000001"), [0, 0, -1]);
}

#[test]
fn never_lifts_a_bucket_above_its_capacity() {
    for (capacity, taken, amount, left) in [
        ("10", "4", "4", "10"),
        ("10", "4", "3.999999999", "9.999999999"),
        ("10", "4", "4.000000001", "10"),
        ("10", "4", "1e15", "10"),
        ("0.3", "0.1", "0.1", "0.3"),
        ("0.3", "0.1", "0.2", "0.3"),
        ("1e15", "1", "1", "1000000000000000"),
        ("1e15", "1", "1e15", "1000000000000000"),
        ("1e15", "1e15", "999999999999999.999999999", "999999999999999.999999999"),
    ] {
        let (_server, _clock, mut client) = on_a_frozen_clock();
        client.take(&format!("k {capacity} 0 {taken}"));
        let line = format!("k {capacity} 0 {amount}");
        let answer = refund(&mut client, &line);
        assert_eq!(tokens(&mut client, "k"), units(left), "{line}");
        assert_eq!(answer.map(i128::from), [1, units(left) / TOKEN, 0], "{line}");
        refund(&mut client, &format!("k {capacity} 0 1e15"));
        assert!(tokens(&mut client, "k") <= units(if capacity == "1e15" { "1000000000000000" } else { capacity }));
    }
}

#[test]
fn creates_no_key() {
    let (server, clock, mut client) = on_a_frozen_clock();
    let mut listener = Listener::of(&server);
    for amount in ["0", "0.000000001", "5", "10", "11", "1e15"] {
        assert_eq!(refund(&mut client, &format!("k 10 1 {amount}")), [1, 10, 0]);
        assert_eq!(client.int("EXISTS k"), 0);
    }
    assert_eq!(refund(&mut client, "none 0 1 5"), [1, 0, 0]);
    listener.nothing("refunds to buckets that are full");
    client.take("k 10 1 10");
    clock.advance_s(20);
    assert_eq!(refund(&mut client, "k 1000 1 5"), [1, 1000, 0], "an expired bucket is a full one");
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn counts_the_refill_up_to_now_first() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
    clock.advance_ms(2500);
    assert_eq!(refund(&mut client, "k 10 1 3"), [1, 5, 0]);
    assert_eq!(tokens(&mut client, "k"), units("5.5"));
    assert_eq!(client.ask("TB.STATE k").field("last_refill_us").int(), clock.now());
    clock.advance_ms(4000);
    assert_eq!(refund(&mut client, "k 10 1 3"), [1, 10, 0]);
    clock.advance_ms(400);
    assert_eq!(client.take("k 10 1 10"), [1, 0, 0], "nothing comes in above the capacity");
    assert_eq!(client.take("k 10 1 1"), [0, 0, 1000]);
}

#[test]
fn a_lower_capacity_clamps_and_a_higher_one_gives_room() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 100 0 10");
    assert_eq!(refund(&mut client, "k 20 0 5"), [1, 20, 0]);
    assert_eq!(refund(&mut client, "k 100 0 30"), [1, 50, 0]);
    assert_eq!(refund(&mut client, "k 0 0 30"), [1, 0, 0]);
    assert_eq!(client.take("k 100 0 0"), [1, 0, 0]);
}

#[test]
fn pays_debt_first() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(ints(&mut client, "TB.DEBIT k 10 1 25"), [0, 0, 15_000]);
    assert_eq!(refund(&mut client, "k 10 1 5"), [1, 0, 0]);
    assert_eq!(tokens(&mut client, "k"), -10 * TOKEN);
    assert_eq!(client.take("k 10 1 0"), [0, 0, 10_000]);
    clock.advance_s(4);
    assert_eq!(refund(&mut client, "k 10 1 6"), [1, 0, 0]);
    assert_eq!(client.take("k 10 1 0"), [1, 0, 0], "paid to the token");
    assert_eq!(client.take("k 10 1 1"), [0, 0, 1000]);
    assert_eq!(refund(&mut client, "k 10 1 1.5"), [1, 1, 0]);
    assert_eq!(client.take("k 10 1 1"), [1, 0, 0]);
}

#[test]
fn pays_the_deepest_debt_of_the_largest_bucket() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    ints(&mut client, "TB.DEBIT k 0 0 1e15");
    assert_eq!(refund(&mut client, "k 1e15 0 1e15"), [1, 0, 0]);
    assert_eq!(tokens(&mut client, "k"), 0);
    assert_eq!(refund(&mut client, "k 1e15 0 1e15"), [1, 1_000_000_000_000_000, 0]);
}

#[test]
fn takes_and_refunds_in_any_order_add_up_below_the_capacity() {
    let (_server, clock, client) = on_a_frozen_clock();
    let client = RefCell::new(client);
    let mut runner = TestRunner::new(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() });
    let step = (any::<bool>(), 0..7_000_000_000_i128, 0..3_000_i64);
    let outcome = runner.run(&prop::collection::vec(step, 1..40), |steps| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        // In units of 1e-9 token, at one token a millisecond: a million a microsecond.
        let (capacity, mut there, mut exists) = (10_000_000_000_i128, 10_000_000_000_i128, false);
        for (takes, nanos, wait_us) in steps {
            clock.advance(wait_us);
            there = capacity.min(there + i128::from(wait_us) * 1_000_000);
            let amount = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
            if takes {
                let allowed = client.take(&format!("k 10 1000 {amount}"))[0];
                prop_assert_eq!(allowed == 1, nanos <= there, "{} of {}", nanos, there);
                there -= i128::from(allowed) * nanos;
                exists |= allowed == 1 && nanos > 0;
            } else {
                let remaining = refund(&mut client, &format!("k 10 1000 {amount}"))[1];
                there = capacity.min(there + nanos);
                prop_assert_eq!(i128::from(remaining), there / 1_000_000_000);
            }
            prop_assert_eq!(client.int("EXISTS k") == 1, exists);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn many_clients_that_give_back_what_they_took_leave_the_bucket_full() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    let work = |number: i64| {
        let mut client = server.client();
        for call in 0..20 {
            let amount = 1 + (number + call) % 5;
            if client.take(&format!("k 20 0 {amount}"))[0] == 1 {
                refund(&mut client, &format!("k 20 0 {amount}"));
            }
        }
    };
    thread::scope(|scope| (0..40).for_each(|number| drop(scope.spawn(move || work(number)))));
    assert_eq!(tokens(&mut client, "k"), 20 * TOKEN);
}

#[test]
fn after_a_small_step_back_of_the_clock_no_second_is_credited_twice() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1 10"), [1, 0, 0]);
    clock.advance_s(-5);
    assert_eq!(refund(&mut client, "k 10 1 2"), [1, 2, 0]);
    clock.advance_s(5);
    assert_eq!(client.take("k 10 1 3"), [0, 2, 1000]);
}

#[test]
fn a_refund_is_one_write() {
    let (server, clock, mut client) = on_a_frozen_clock();
    for quota in ["10 1/60", "10 0"] {
        client.ok("FLUSHALL");
        client.take(&format!("k {quota} 10"));
        let mut listener = Listener::of(&server);
        for amount in ["3", "0.5", "100"] {
            clock.advance_ms(1);
            refund(&mut client, &format!("k {quota} {amount}"));
            listener.one_write("k", "tb.refund");
        }
        let deadline = client.int("PTTL k");
        assert!(if quota == "10 0" { deadline == -1 } else { deadline > 0 }, "{deadline}");
    }
}

#[test]
fn is_refused_on_replicas_and_in_read_only_scripts() {
    let (server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&server);
    for key in ["k", "absent"] {
        assert!(replica.client().ask(&format!("TB.REFUND {key} 10 1 1")).error().starts_with("READONLY "));
    }
    let script = "return redis.call('TB.REFUND', KEYS[1], 10, 1, 2)";
    assert!(client.call(&["EVAL_RO", script, "1", "k"]).error().contains("Write commands are not allowed"));
    assert_eq!(client.call(&["EVAL", script, "1", "k"]).ints(), [1, 8, 0]);
}

#[test]
fn is_answered_when_memory_is_full() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    client.ok("CONFIG SET maxmemory 1");
    assert_eq!(refund(&mut client, "k 10 1 2"), [1, 8, 0]);
    assert_eq!(refund(&mut client, "absent 10 1 2"), [1, 10, 0]);
    assert_eq!(client.int("EXISTS absent"), 0);
}

#[test]
fn bad_arguments_are_refused_by_name_and_change_nothing() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let mut listener = Listener::of(&server);
    for (line, start) in [
        ("TB.REFUND", "ERR wrong number of arguments for 'tb.refund'"),
        ("TB.REFUND k", "ERR wrong number of arguments for 'tb.refund'"),
        ("TB.REFUND k 10", "ERR wrong number of arguments for 'tb.refund'"),
        ("TB.REFUND k 10 1", "ERR wrong number of arguments for 'tb.refund'"),
        ("TB.REFUND k 10 1 1 1", "ERR wrong number of arguments for 'tb.refund'"),
        ("TB.REFUND k ten 1 1", "ERR invalid capacity: "),
        ("TB.REFUND k 10 one 1", "ERR invalid rate: "),
        ("TB.REFUND k 10 1 -1", "ERR invalid amount: "),
        ("TB.REFUND k 10 1 ", "ERR invalid amount: "),
        ("TB.REFUND k 10 1 nan", "ERR invalid amount: "),
        ("TB.REFUND k 10 1 1e-10", "ERR invalid amount: "),
        ("TB.REFUND k 10 1 1000000000000001", "ERR invalid amount: "),
    ] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with(start), "{line}: {reply:?}");
    }
    client.ok("SET stranger 123456789012345678901234");
    listener.written();
    assert!(client.ask("TB.REFUND stranger 10 1 1").error().starts_with("WRONGTYPE "));
    listener.nothing("refused refunds");
    assert_eq!(tokens(&mut client, "k"), 6 * TOKEN);
}
