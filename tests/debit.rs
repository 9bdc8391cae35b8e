//! `TB.DEBIT`: a cost known only afterwards. The balance may go below zero, and refill pays that back before anything else
//! is granted.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::thread;

use family::{Listener, TOKEN, ints, tokens, units};
use support::{Client, NEVER, START_US, Server, WallClock, Witness, on_a_frozen_clock};

fn debit(client: &mut Client, line: &str) -> [i64; 3] {
    ints(client, &format!("TB.DEBIT {line}")).try_into().expect("three integers")
}

#[test]
fn is_covered_down_to_nothing_and_not_below() {
    for (capacity, cost, answer, left) in [
        ("10", "4", [1, 6, 0], "6"),
        ("10", "10", [1, 0, 0], "0"),
        ("10", "9.999999999", [1, 0, 0], "0.000000001"),
        ("10", "10.000000001", [0, 0, 1], "-0.000000001"),
        ("10", "11", [0, 0, 1000], "-1"),
        ("0.3", "0.3", [1, 0, 0], "0"),
        ("0.3", "0.4", [0, 0, 100], "-0.1"),
        ("0", "1", [0, 0, 1000], "-1"),
    ] {
        let (_server, _clock, mut client) = on_a_frozen_clock();
        assert_eq!(debit(&mut client, &format!("k {capacity} 1 {cost}")), answer, "{cost} of {capacity}");
        assert_eq!(tokens(&mut client, "k"), units(left), "{cost} of {capacity}");
    }
}

#[test]
fn always_charges_however_deep_the_debt_is_already() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    for n in 1..=50 {
        let [covered, left, wait_ms] = debit(&mut client, "k 10 2 3.5");
        let balance_in_halves = 20 - 7 * n;
        assert_eq!(covered, i64::from(balance_in_halves >= 0));
        assert_eq!(left, balance_in_halves.max(0) / 2);
        assert_eq!(wait_ms, (-balance_in_halves).max(0) * 250);
    }
    assert_eq!(tokens(&mut client, "k"), units("-165"));
}

#[test]
fn refill_pays_the_debt_before_anything_is_granted() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(debit(&mut client, "k 10 2 14"), [0, 0, 2000]);
    for waited_ms in (0..2000).step_by(125) {
        clock.set(START_US + waited_ms * 1000);
        let owed_ms = 2000 - waited_ms;
        assert_eq!(client.take("k 10 2 0"), [0, 0, owed_ms], "a cost of nothing after {waited_ms} ms");
        assert_eq!(client.take("k 10 2 1"), [0, 0, owed_ms + 500], "after {waited_ms} ms");
        assert_eq!(ints(&mut client, "TB.LEASE k 10 2 5 2"), [0, 0, owed_ms + 1000], "after {waited_ms} ms");
        assert_eq!(ints(&mut client, "TB.PEEK k 10 2 10"), [0, 0, owed_ms + 5000], "after {waited_ms} ms");
    }
    clock.set(START_US + 2_000_000);
    assert_eq!(client.take("k 10 2 0"), [1, 0, 0]);
    assert_eq!(client.take("k 10 2 1"), [0, 0, 500]);
    clock.set(START_US + 2_500_000);
    assert_eq!(client.take("k 10 2 1"), [1, 0, 0]);
    clock.set(START_US + 7_500_000);
    assert_eq!(client.take("k 10 2 10"), [1, 0, 0], "the bucket fills up to its capacity as ever");
}

#[test]
fn the_debt_is_paid_at_the_very_microsecond() {
    for (quota, cost, paid_after_us) in [
        ("10 1000000", "13", 3),
        ("10 1", "10.000001", 1),
        ("0 1", "0.000007", 7),
        ("5 1/60", "6", 60_000_000),
        ("5 7", "6", 142_858),
        ("1 1/86400", "1.5", 43_200_000_000),
    ] {
        let (_server, clock, mut client) = on_a_frozen_clock();
        assert_eq!(debit(&mut client, &format!("k {quota} {cost}"))[0], 0);
        let wait_ms = (paid_after_us + 999) / 1000;
        assert_eq!(ints(&mut client, &format!("TB.PEEK k {quota} 0"))[2], wait_ms, "{quota}");
        clock.set(START_US + paid_after_us - 1);
        assert_eq!(client.take(&format!("k {quota} 0")), [0, 0, 1], "{quota}: a microsecond before");
        clock.set(START_US + paid_after_us);
        assert_eq!(client.take(&format!("k {quota} 0")), [1, 0, 0], "{quota}: at the microsecond");
    }
}

#[test]
fn the_wait_is_until_the_debt_is_paid_and_exact() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for quota in ["10 3", "10 1/7", "100 100/60", "5 0.333", "0 1000"] {
        client.ok("FLUSHALL");
        clock.set(START_US + 123);
        let [covered, _, retry_ms] = debit(&mut client, &format!("k {quota} 123.456"));
        assert_eq!(covered, 0);
        clock.set(START_US + 123 + (retry_ms - 1) * 1000);
        assert_eq!(client.take(&format!("k {quota} 0")), [0, 0, 1], "{quota}: one millisecond before {retry_ms}");
        clock.set(START_US + 123 + retry_ms * 1000);
        assert_eq!(client.take(&format!("k {quota} 0"))[0], 1, "{quota}: after {retry_ms} ms");
    }
}

#[test]
fn a_debt_that_nothing_pays_back_is_for_ever() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(debit(&mut client, "k 10 0 10"), [1, 0, 0]);
    assert_eq!(debit(&mut client, "k 10 0 1"), [0, 0, NEVER]);
    assert_eq!(client.int("PTTL k"), -1);
    clock.advance_s(1_000_000);
    assert_eq!(client.take("k 10 0 0"), [0, 0, NEVER]);
    assert_eq!(debit(&mut client, "long 1 1e-18 1e15"), [0, 0, i64::MAX]);
}

#[test]
fn counts_the_refill_up_to_now_first() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(debit(&mut client, "k 10 1 10"), [1, 0, 0]);
    clock.advance_ms(2500);
    assert_eq!(debit(&mut client, "k 10 1 2"), [1, 0, 0]);
    assert_eq!(debit(&mut client, "k 10 1 2"), [0, 0, 1500]);
    clock.advance_s(100);
    assert_eq!(debit(&mut client, "k 10 1 12"), [0, 0, 2000], "no more than the capacity had come back");
}

#[test]
fn a_lower_capacity_clamps_before_the_charge() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 100 1 1");
    assert_eq!(debit(&mut client, "k 5 1 6"), [0, 0, 1000]);
    assert_eq!(tokens(&mut client, "k"), -TOKEN);
}

#[test]
fn after_a_small_step_back_of_the_clock_the_wait_includes_the_time_until_it_has_caught_up() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(debit(&mut client, "k 10 1 12"), [0, 0, 2000]);
    clock.advance_s(-5);
    assert_eq!(debit(&mut client, "k 10 1 1"), [0, 0, 8000]);
    clock.advance_s(8);
    assert_eq!(client.take("k 10 1 0"), [1, 0, 0]);
}

#[test]
fn a_step_back_by_more_than_a_refill_keeps_the_debt_and_counts_from_now() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(debit(&mut client, "k 10 1 12"), [0, 0, 2000]);
    clock.advance_s(-3600);
    assert_eq!(debit(&mut client, "k 10 1 1"), [0, 0, 3000]);
    clock.advance_s(3);
    assert_eq!(client.take("k 10 1 0"), [1, 0, 0]);
}

#[test]
fn a_debit_of_nothing_creates_no_key_and_changes_no_balance() {
    let (server, clock, mut client) = on_a_frozen_clock();
    let mut listener = Listener::of(&server);
    assert_eq!(debit(&mut client, "k 5 1 0"), [1, 5, 0]);
    assert_eq!(debit(&mut client, "none 0 0 0.0"), [1, 0, 0]);
    assert_eq!(client.int("DBSIZE"), 0);
    listener.nothing("debits of nothing");
    debit(&mut client, "k 5 1 8");
    assert_eq!(debit(&mut client, "k 5 1 0"), [0, 0, 3000]);
    assert_eq!(tokens(&mut client, "k"), -3 * TOKEN);
    clock.advance_s(4);
    assert_eq!(debit(&mut client, "k 5 1 0"), [1, 1, 0]);
    assert_eq!(client.take("k 5 1 1"), [1, 0, 0]);
}

#[test]
fn the_debt_ends_at_a_million_billion_and_beyond_it_nothing_changes() {
    for (capacity, first, too_much, most) in [
        ("0", "1e15", "0.000000001", "0"),
        ("5", "1e15", "5.000000001", "5"),
        ("5", "1e15", "1e15", "5"),
        ("1e15", "1e15", "1e15", "1e15"),
        ("10", "999999999999999.5", "10.500000001", "10.5"),
    ] {
        let (server, _clock, mut client) = on_a_frozen_clock();
        debit(&mut client, &format!("k {capacity} 0 {first}"));
        if capacity == "1e15" {
            debit(&mut client, "k 1e15 0 0.000000001");
        }
        let mut listener = Listener::of(&server);
        let before = Witness::of(&mut client, b"k");
        let reply = client.ask(&format!("TB.DEBIT k {capacity} 0 {too_much}"));
        assert!(reply.error().starts_with("ERR invalid cost: "), "{too_much} more: {reply:?}");
        assert_eq!(Witness::of(&mut client, b"k"), before, "{too_much} more");
        listener.nothing("a debit beyond the limit");
        if capacity != "1e15" {
            assert_eq!(debit(&mut client, &format!("k {capacity} 0 {most}")), [0, 0, NEVER]);
            assert_eq!(tokens(&mut client, "k"), units("-1000000000000000"), "{most} more");
        }
    }
}

#[test]
fn a_debit_beyond_the_limit_puts_nothing_right_either() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    debit(&mut client, "k 10 1 1e15");
    clock.advance_s(-3600);
    let before = Witness::of(&mut client, b"k");
    assert!(client.ask("TB.DEBIT k 10 1 1e15").error().starts_with("ERR invalid cost: "));
    assert!(client.ask("TB.DEBIT k 10 1/3600 1e15").error().starts_with("ERR invalid cost: "));
    assert_eq!(Witness::of(&mut client, b"k"), before);
}

#[test]
fn a_bucket_in_debt_is_kept_until_it_would_be_full() {
    for (quota, cost, refill_s, capacity_s) in
        [("10 1", "4", 4, 10), ("10 1", "35", 35, 10), ("2 1/60", "1000", 60_000, 120)]
    {
        let (_server, clock, mut client) = on_a_frozen_clock();
        debit(&mut client, &format!("k {quota} {cost}"));
        let ttl = client.int("PTTL k");
        assert!(ttl >= refill_s * 1000, "{cost} of {quota}: gone after {ttl} ms");
        assert!(ttl <= refill_s.max(capacity_s) * 1000 + 2000, "{cost} of {quota}: kept for {ttl} ms");
        clock.advance_s(refill_s - 1);
        let capacity: i64 = quota.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(client.take(&format!("k {quota} 0"))[1], capacity - 1);
    }
}

#[test]
fn a_debit_is_one_write() {
    let (server, clock, mut client) = on_a_frozen_clock();
    for quota in ["10 1/60", "10 0"] {
        client.ok("FLUSHALL");
        let mut listener = Listener::of(&server);
        for cost in ["3", "6.5", "100", "0.000000001"] {
            clock.advance_ms(1);
            debit(&mut client, &format!("k {quota} {cost}"));
            listener.one_write("k", "tb.debit");
        }
    }
}

#[test]
fn a_replica_and_a_restart_hold_the_same_debt() {
    let clock = WallClock::frozen();
    let mut server = Server::setup().append_only().clock(&clock).start();
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&server);
    let mut client = server.client();
    debit(&mut client, "k 10 1/60 123.456789");
    debit(&mut client, "never 10 0 1e15");
    replica.catch_up(&server);
    let contents = |client: &mut Client| {
        ["k", "never"].map(|key| (client.bytes(&format!("GET {key}")), client.int(&format!("PEXPIRETIME {key}"))))
    };
    let before = contents(&mut client);
    assert_eq!(contents(&mut replica.client()), before);
    server.kill();
    clock.advance_s(60);
    server.restart();
    let mut client = server.client();
    assert_eq!(contents(&mut client), before);
    assert_eq!(client.take("k 10 1/60 0"), [0, 0, 6_747_408], "112.456789 tokens at one a minute");
}

#[test]
fn debits_of_many_clients_all_count() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    let work = || {
        let mut client = server.client();
        for _ in 0..20 {
            debit(&mut client, "k 100 0 1.5");
        }
    };
    thread::scope(|scope| (0..50).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(tokens(&mut client, "k"), units("-1400"));
}

#[test]
fn is_refused_on_replicas_in_read_only_scripts_and_where_there_is_no_memory_for_a_new_key() {
    let (server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&server);
    assert!(replica.client().ask("TB.DEBIT k 10 1 1").error().starts_with("READONLY "));
    let script = "return redis.call('TB.DEBIT', KEYS[1], 10, 1, 8)";
    assert!(client.call(&["EVAL_RO", script, "1", "k"]).error().contains("Write commands are not allowed"));
    assert_eq!(client.call(&["EVAL", script, "1", "k"]).ints(), [0, 0, 2000]);
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("TB.DEBIT new 10 1 1").error().starts_with("OOM "));
    assert_eq!(debit(&mut client, "new 10 1 0"), [1, 10, 0]);
    assert_eq!(debit(&mut client, "k 10 1 1"), [0, 0, 3000]);
    assert_eq!(client.int("EXISTS new"), 0);
}

#[test]
fn bad_arguments_are_refused_by_name_and_change_nothing() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.ok("SET stranger 123456789012345678901234");
    client.take("k 10 1 4");
    let mut listener = Listener::of(&server);
    for (line, start) in [
        ("TB.DEBIT", "ERR wrong number of arguments for 'tb.debit'"),
        ("TB.DEBIT k", "ERR wrong number of arguments for 'tb.debit'"),
        ("TB.DEBIT k 10", "ERR wrong number of arguments for 'tb.debit'"),
        ("TB.DEBIT k 10 1", "ERR wrong number of arguments for 'tb.debit'"),
        ("TB.DEBIT k 10 1 1 1", "ERR wrong number of arguments for 'tb.debit'"),
        ("TB.DEBIT k ten 1 1", "ERR invalid capacity: "),
        ("TB.DEBIT k 10 one 1", "ERR invalid rate: "),
        ("TB.DEBIT k 10 1 -1", "ERR invalid cost: "),
        ("TB.DEBIT k 10 1 ", "ERR invalid cost: "),
        ("TB.DEBIT k 10 1 inf", "ERR invalid cost: "),
        ("TB.DEBIT k 10 1 1e-10", "ERR invalid cost: "),
        ("TB.DEBIT k 10 1 1000000000000000.000000001", "ERR invalid cost: "),
        ("TB.DEBIT stranger 10 1 1", "WRONGTYPE "),
    ] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with(start), "{line}: {reply:?}");
    }
    listener.nothing("refused debits");
    assert_eq!(tokens(&mut client, "k"), 6 * TOKEN);
}
