//! `TB.LEASE`: as many whole tokens as there are, up to `want`, and none below `least`.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::thread;

use family::{Listener, TOKEN, ints, tokens, units};
use support::{Client, NEVER, START_US, Server, Witness, on_a_frozen_clock};

fn lease(client: &mut Client, line: &str) -> [i64; 3] {
    ints(client, &format!("TB.LEASE {line}")).try_into().expect("three integers")
}

#[test]
fn grants_what_is_wanted_while_it_is_there_and_then_what_there_is() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(lease(&mut client, "k 10 1 4"), [4, 6, 0]);
    assert_eq!(lease(&mut client, "k 10 1 6"), [6, 0, 0]);
    assert_eq!(lease(&mut client, "k 10 1 6"), [0, 0, 1000]);
    clock.advance_s(3);
    assert_eq!(lease(&mut client, "k 10 1 6"), [3, 0, 0]);
    clock.advance_s(100);
    assert_eq!(lease(&mut client, "k 10 1 1000"), [10, 0, 0]);
}

#[test]
fn parts_of_tokens_stay_in_the_bucket() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1 7.3"), [1, 2, 0]);
    assert_eq!(lease(&mut client, "k 10 1 5"), [2, 0, 0]);
    assert_eq!(tokens(&mut client, "k"), units("0.7"));
    assert_eq!(lease(&mut client, "k 10 1 5"), [0, 0, 300]);
    clock.advance_ms(300);
    assert_eq!(lease(&mut client, "k 10 1 5"), [1, 0, 0]);
    assert_eq!(tokens(&mut client, "k"), 0);
}

#[test]
fn grants_nothing_below_the_least_and_waits_for_that() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 2 7"), [1, 3, 0]);
    assert_eq!(lease(&mut client, "k 10 2 8 4"), [0, 3, 500]);
    assert_eq!(lease(&mut client, "k 10 2 8 8"), [0, 3, 2500]);
    assert_eq!(lease(&mut client, "k 10 2 8 3"), [3, 0, 0]);
    clock.advance(2_000_000 - 1);
    assert_eq!(lease(&mut client, "k 10 2 8 4"), [0, 3, 1]);
    clock.advance(1);
    assert_eq!(lease(&mut client, "k 10 2 8 4"), [4, 0, 0]);
}

#[test]
fn the_wait_is_exact_to_the_millisecond() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for (quota, least) in
        [("10 3", 1), ("10 3", 7), ("100 100/60", 33), ("5 1/86400", 2), ("7.5 1/7", 7), ("1000 700", 999)]
    {
        client.ok("FLUSHALL");
        clock.set(START_US + 499);
        lease(&mut client, &format!("k {quota} 1000000"));
        let [granted, _, retry_ms] = lease(&mut client, &format!("k {quota} 1000 {least}"));
        assert_eq!(granted, 0, "{quota}");
        let asked_at = clock.now();
        clock.set(asked_at + (retry_ms - 1) * 1000);
        let early = lease(&mut client, &format!("k {quota} 1000 {least}"));
        assert_eq!((early[0], early[2]), (0, 1), "{quota}: one millisecond before {retry_ms} have passed");
        clock.set(asked_at + retry_ms * 1000);
        let granted = lease(&mut client, &format!("k {quota} 1000 {least}"))[0];
        assert!((least..=least + 1).contains(&granted), "{quota}: {granted} of at least {least}");
    }
}

#[test]
fn a_least_above_the_capacity_is_never_there_and_a_want_above_it_may_be() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(lease(&mut client, "k 10 1 20 11"), [0, 10, NEVER]);
    assert_eq!(lease(&mut client, "part 2.5 1 3 3"), [0, 2, NEVER]);
    assert_eq!(lease(&mut client, "half 0.5 1 1"), [0, 0, NEVER]);
    assert_eq!(lease(&mut client, "none 0 1 1"), [0, 0, NEVER]);
    assert_eq!(client.int("DBSIZE"), 0);
    assert_eq!(lease(&mut client, "k 10 1 20 10"), [10, 0, 0]);
    assert_eq!(lease(&mut client, "part 2.5 1 3 2"), [2, 0, 0]);
    assert_eq!(tokens(&mut client, "part"), units("0.5"));
}

#[test]
fn a_rate_of_nothing_leases_the_capacity_once() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(lease(&mut client, "k 5 0 3"), [3, 2, 0]);
    assert_eq!(lease(&mut client, "k 5 0 3"), [2, 0, 0]);
    clock.advance_s(1_000_000);
    assert_eq!(lease(&mut client, "k 5 0 3"), [0, 0, NEVER]);
}

#[test]
fn grants_nothing_in_debt_until_that_is_paid_and_the_least_is_there() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(ints(&mut client, "TB.DEBIT k 10 1 14"), [0, 0, 4000]);
    assert_eq!(lease(&mut client, "k 10 1 5"), [0, 0, 5000]);
    assert_eq!(lease(&mut client, "k 10 1 5 3"), [0, 0, 7000]);
    clock.advance_s(4);
    assert_eq!(lease(&mut client, "k 10 1 5"), [0, 0, 1000], "the debt is paid, and no more");
    clock.advance(999_999);
    assert_eq!(lease(&mut client, "k 10 1 5"), [0, 0, 1]);
    clock.advance(1);
    assert_eq!(lease(&mut client, "k 10 1 5"), [1, 0, 0]);
}

#[test]
fn counts_up_to_the_largest_bucket() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(lease(&mut client, "k 1e15 1 999999999999999"), [999_999_999_999_999, 1, 0]);
    assert_eq!(lease(&mut client, "k 1e15 1 1e15"), [1, 0, 0]);
    assert_eq!(lease(&mut client, "all 1e15 1 1e15 1e15"), [1_000_000_000_000_000, 0, 0]);
}

#[test]
fn whole_numbers_are_taken_in_any_spelling() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    for (want, granted) in [("3", 3), ("1e3", 1000), ("3.0", 3), ("3.", 3), ("003", 3), ("0.3e1", 3), ("30e-1", 3)] {
        client.ok("FLUSHALL");
        assert_eq!(lease(&mut client, &format!("k 5000 1 {want}"))[0], granted, "want {want}");
        assert_eq!(lease(&mut client, &format!("k 5000 1 5000 {want}"))[0], 5000 - granted, "least {want}");
    }
}

#[test]
fn what_is_no_whole_number_of_tokens_is_refused() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let mut listener = Listener::of(&server);
    for (args, start) in [
        ("1.5", "ERR invalid want: "),
        ("0.5", "ERR invalid want: "),
        ("1e-9", "ERR invalid want: "),
        ("1e-1", "ERR invalid want: "),
        ("2.000000001", "ERR invalid want: "),
        ("-1", "ERR invalid want: "),
        ("+1", "ERR invalid want: "),
        ("", "ERR invalid want: "),
        ("all", "ERR invalid want: "),
        ("1e16", "ERR invalid want: "),
        ("1/1", "ERR invalid want: "),
        ("0", "ERR invalid "),
        ("0 0", "ERR invalid "),
        ("3 1.5", "ERR invalid least: "),
        ("3 -1", "ERR invalid least: "),
        ("3 ", "ERR invalid least: "),
        ("3 nan", "ERR invalid least: "),
        ("3 1e16", "ERR invalid least: "),
        ("3 0", "ERR invalid "),
        ("3 0.0", "ERR invalid "),
        ("2 3", "ERR invalid "),
        ("1 1e15", "ERR invalid "),
    ] {
        for key in ["k", "absent"] {
            let reply = client.ask(&format!("TB.LEASE {key} 10 1 {args}"));
            assert!(reply.error().starts_with(start), "{args:?}: {reply:?}");
        }
    }
    listener.nothing("leases that are none");
    assert_eq!(client.int("EXISTS absent"), 0);
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    for (line, start) in [
        ("TB.LEASE", "ERR wrong number of arguments for 'tb.lease'"),
        ("TB.LEASE k", "ERR wrong number of arguments for 'tb.lease'"),
        ("TB.LEASE k 10", "ERR wrong number of arguments for 'tb.lease'"),
        ("TB.LEASE k 10 1", "ERR wrong number of arguments for 'tb.lease'"),
        ("TB.LEASE k 10 1 1 1 1", "ERR wrong number of arguments for 'tb.lease'"),
        ("TB.LEASE k ten 1 1", "ERR invalid capacity: "),
        ("TB.LEASE k 10 1/0 1", "ERR invalid rate: "),
    ] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with(start), "{line}: {reply:?}");
    }
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn a_lease_is_one_write_and_a_refused_one_is_none() {
    let (server, clock, mut client) = on_a_frozen_clock();
    let mut listener = Listener::of(&server);
    for quota in ["10 1/60", "10 0"] {
        client.ok("FLUSHALL");
        listener.written();
        assert_eq!(lease(&mut client, &format!("k {quota} 4")), [4, 6, 0]);
        listener.one_write("k", "tb.lease");
        clock.advance_ms(1);
        assert_eq!(lease(&mut client, &format!("k {quota} 10")), [6, 0, 0]);
        listener.one_write("k", "tb.lease");
        let before = Witness::of(&mut client, b"k");
        for args in ["1", "10", "10 5", "20 11"] {
            assert_eq!(lease(&mut client, &format!("k {quota} {args}"))[0], 0);
        }
        assert_eq!(lease(&mut client, "absent 10 1 20 11")[0], 0);
        assert_eq!(Witness::of(&mut client, b"k"), before);
        listener.nothing("refused leases");
    }
}

#[test]
fn a_refused_lease_under_a_slower_quota_pushes_the_expiry_back() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 100 10");
    let mut listener = Listener::of(&server);
    assert_eq!(lease(&mut client, "k 10 1/60 5")[0], 0);
    assert_eq!(listener.written().names(), ["SET"]);
    assert!(client.int("PTTL k") >= 600_000);
    assert_eq!(lease(&mut client, "k 10 1/60 5")[0], 0);
    listener.nothing("once is enough");
}

#[test]
fn a_lease_outlives_its_refill() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    lease(&mut client, "k 10 1 10");
    let ttl = client.int("PTTL k");
    assert!((10_000..=12_000).contains(&ttl), "{ttl}");
    clock.advance_s(13);
    assert_eq!(lease(&mut client, "k 20 1 20"), [20, 0, 0], "an absent bucket is a full one");
}

#[test]
fn leases_of_many_clients_never_add_up_to_more_than_there_is() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    let work = |number: i64| -> i64 {
        let mut client = server.client();
        (0..20).map(|call| lease(&mut client, &format!("k 5000.5 0 {}", 1 + (number + call) % 17))[0]).sum()
    };
    let granted: i64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..60).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).sum()
    });
    assert_eq!(granted, 5000);
    assert_eq!(tokens(&mut client, "k"), TOKEN / 2);
}

#[test]
fn is_refused_on_replicas_in_read_only_scripts_and_where_there_is_no_memory_for_a_new_key() {
    let (server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&server);
    assert!(replica.client().ask("TB.LEASE k 10 1 1").error().starts_with("READONLY "));
    let script = "return redis.call('TB.LEASE', KEYS[1], 10, 1, 2)";
    assert!(client.call(&["EVAL_RO", script, "1", "k"]).error().contains("Write commands are not allowed"));
    assert_eq!(client.call(&["EVAL", script, "1", "k"]).ints(), [2, 4, 0]);
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("TB.LEASE new 10 1 1").error().starts_with("OOM "));
    assert_eq!(lease(&mut client, "new 10 1 11 11"), [0, 10, NEVER]);
    assert_eq!(lease(&mut client, "k 10 1 1"), [1, 3, 0]);
    assert_eq!(client.int("EXISTS new"), 0);
}

#[test]
fn what_is_not_a_bucket_is_refused_and_left_as_it_is() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.ok("SET k 123456789012345678901234");
    assert!(client.ask("TB.LEASE k 10 1 1").error().starts_with("WRONGTYPE "));
    assert_eq!(client.bytes("GET k"), b"123456789012345678901234");
}
