//! `TB.MTAKE`: from every bucket or from none, with one verdict over all and every bucket's own answer. What replicas and
//! files see of it is in `replication_mtake.rs`.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::cell::RefCell;
use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use family::{Chance, Listener, TOKEN, ints, tokens};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Client, NEVER, Reply, START_US, Server, WallClock, Witness, eventually, on_a_frozen_clock};

/// An answer: the verdict, and each bucket's own.
type Answer = ([i64; 3], Vec<[i64; 3]>);

fn answer(reply: &Reply) -> Answer {
    let [allowed, remaining, retry, each] = reply.items() else { panic!("not four elements: {reply:?}") };
    let three = |reply: &Reply| reply.ints().try_into().expect("three integers");
    ([allowed.int(), remaining.int(), retry.int()], each.items().iter().map(three).collect())
}

fn mtake(client: &mut Client, line: &str) -> Answer {
    answer(&client.ask(&format!("TB.MTAKE {line}")))
}

/// Sends a call that must fail; nothing may have changed about any of `keys`.
fn fails(client: &mut Client, call: &[&str], keys: &[&str]) -> String {
    let looks = |client: &mut Client| keys.iter().map(|key| Witness::of(client, key.as_bytes())).collect::<Vec<_>>();
    let before = looks(client);
    let reply = client.call(call);
    assert!(reply.is_error(), "{call:?} was answered with {reply:?}");
    assert_eq!(looks(client), before, "{call:?} changed something");
    reply.error().to_owned()
}

#[test]
fn takes_each_cost_from_its_bucket() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    let line = "user 10 1 3 org 100 10/60 5 all 1000 50 1";
    assert_eq!(mtake(&mut client, line), ([1, 7, 0], vec![[1, 7, 0], [1, 95, 0], [1, 999, 0]]));
    assert_eq!(mtake(&mut client, line), ([1, 4, 0], vec![[1, 4, 0], [1, 90, 0], [1, 998, 0]]));
    clock.advance_s(2);
    assert_eq!(client.take("user 10 1 0"), [1, 6, 0]);
    assert_eq!(client.take("org 100 10/60 0"), [1, 90, 0]);
    assert_eq!(client.take("all 1000 50 0"), [1, 1000, 0]);
}

#[test]
fn takes_from_none_where_one_refuses_wherever_that_stands() {
    for position in 0..4 {
        let (_server, _clock, mut client) = on_a_frozen_clock();
        client.take("drained 5 1 5");
        let mut groups = vec!["a 10 1 2", "b 10 1 3", "c 10 1 4"];
        groups.insert(position, "drained 5 1 2");
        let (verdict, each) = mtake(&mut client, &groups.join(" "));
        assert_eq!(verdict, [0, 0, 2000]);
        for (number, answer) in each.into_iter().enumerate() {
            let peeked = ints(&mut client, &format!("TB.PEEK {}", groups[number]));
            assert_eq!(answer.to_vec(), peeked, "{}", groups[number]);
            assert_eq!(answer, if number == position { [0, 0, 2000] } else { [1, 10, 0] });
        }
        assert_eq!(client.int("EXISTS a b c"), 0);
    }
}

#[test]
fn of_one_bucket_answers_as_a_take() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for (wait_ms, cost) in [(0, "4"), (0, "0"), (100, "6"), (0, "1"), (0, "11"), (3000, "2.5")] {
        clock.advance_ms(wait_ms);
        let taken = client.take(&format!("one 10 1 {cost}"));
        let (verdict, each) = mtake(&mut client, &format!("other 10 1 {cost}"));
        assert_eq!((verdict, each), (taken, vec![taken]), "cost {cost}");
        assert_eq!(client.bytes("GET one"), client.bytes("GET other"));
    }
}

#[test]
fn the_verdict_is_the_smallest_remaining_and_the_longest_wait() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("fast 10 10 10");
    client.take("slow 10 0.1 8");
    client.take("part 10 1 6");
    let (verdict, each) = mtake(&mut client, "fast 10 10 1 slow 10 0.1 3 part 10 1 6 fresh 50 1 1");
    assert_eq!(each, [[0, 0, 100], [0, 2, 10_000], [0, 4, 2000], [1, 50, 0]]);
    assert_eq!(verdict, [0, 0, 10_000]);
    let (verdict, each) = mtake(&mut client, "slow 10 0.1 1 part 10 1 2 fresh 50 1 1");
    assert_eq!((verdict, each), ([1, 1, 0], vec![[1, 1, 0], [1, 2, 0], [1, 49, 0]]));
}

#[test]
fn one_never_makes_it_never() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("slow 10 1e-18 10");
    client.take("dry 10 0 10");
    for (line, each) in [
        ("dry 10 0 1 slow 10 1e-18 1", [NEVER, i64::MAX]),
        ("slow 10 1e-18 1 dry 10 0 1", [i64::MAX, NEVER]),
        ("slow 10 1e-18 1 fresh 10 1 11", [i64::MAX, NEVER]),
        ("fresh 0 1 0.1 slow 10 1e-18 1", [NEVER, i64::MAX]),
    ] {
        let (verdict, answers) = mtake(&mut client, line);
        assert_eq!(verdict[2], NEVER, "{line}");
        assert_eq!([answers[0][2], answers[1][2]], each, "{line}");
    }
    assert_eq!(mtake(&mut client, "slow 10 1e-18 1 fresh 10 1 1").0, [0, 0, i64::MAX]);
}

#[test]
fn waiting_as_told_passes_and_a_millisecond_less_does_not() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    clock.advance(123);
    let line = "a 10 1/3 7.5 b 20 7 20 c 1 1/60 1";
    assert_eq!(mtake(&mut client, line).0[0], 1);
    for _ in 0..3 {
        let (verdict, _) = mtake(&mut client, line);
        let asked_at = clock.now();
        assert!(verdict[0] == 0 && verdict[2] > 1, "{verdict:?}");
        clock.set(asked_at + (verdict[2] - 1) * 1000);
        assert_eq!(mtake(&mut client, line).0, [0, 0, 1]);
        clock.set(asked_at + verdict[2] * 1000);
        assert_eq!(mtake(&mut client, line).0[0], 1);
        clock.advance(456);
    }
}

#[test]
fn a_group_that_costs_nothing_is_asked_but_not_written() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    let mut listener = Listener::of(&server);
    assert_eq!(mtake(&mut client, "a 5 1 0 k 10 1 0 b 7 1 0"), ([1, 5, 0], vec![[1, 5, 0], [1, 6, 0], [1, 7, 0]]));
    listener.nothing("costs of nothing");
    assert_eq!(mtake(&mut client, "a 5 1 0 k 10 1 2"), ([1, 4, 0], vec![[1, 5, 0], [1, 4, 0]]));
    listener.one_write("k", "tb.mtake");
    assert_eq!(client.int("EXISTS a b"), 0);
}

#[test]
fn a_bucket_in_debt_refuses_all_even_for_nothing() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    ints(&mut client, "TB.DEBIT owing 10 1 12");
    assert_eq!(mtake(&mut client, "a 10 1 1 owing 10 1 0"), ([0, 0, 2000], vec![[1, 10, 0], [0, 0, 2000]]));
    clock.advance_s(2);
    assert_eq!(mtake(&mut client, "a 10 1 1 owing 10 1 0"), ([1, 0, 0], vec![[1, 9, 0], [1, 0, 0]]));
}

#[test]
fn the_same_key_twice_is_an_error_wherever_the_two_stand() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    for line in [
        "k 10 1 1 k 10 1 1",
        "k 10 1 0 k 10 1 0",
        "k 10 1 1 k 20 2 2",
        "a 10 1 1 k 10 1 1 b 10 1 1 k 10 1 1",
        "k 10 1 1 a 10 1 1 b 10 1 1 k 10 1 1",
        "a 10 1 1 b 10 1 1 k 10 1 1 k 10 1 1",
    ] {
        let call: Vec<&str> = std::iter::once("TB.MTAKE").chain(line.split(' ')).collect();
        assert_eq!(fails(&mut client, &call, &["k", "a", "b"]), "ERR the same key is named twice", "{line}");
    }
    assert_eq!(mtake(&mut client, "k 10 1 1 K 10 1 1 k\0 10 1 1 kk 10 1 1").0, [1, 5, 0], "these are four keys");
}

/// A call over `groups` buckets of a quota that gives each one token at a time.
fn many(groups: usize) -> Vec<String> {
    let mut call = vec!["TB.MTAKE".to_owned()];
    // Keys in no order, so that equal ones are not neighbours by chance.
    call.extend((0..groups).flat_map(|n| [format!("{:x}", n * 7919 % 100_003), "3".into(), "0".into(), "1".into()]));
    call
}

#[test]
fn the_same_key_is_found_among_a_thousand() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let mut chance = Chance::new(7);
    for _ in 0..200 {
        let mut call = many(1000);
        let (one, other) = (chance.below(1000) as usize, chance.below(1000) as usize);
        call[1 + 4 * one] = call[1 + 4 * other].clone();
        let reply = client.call(&call);
        match one == other {
            true => assert_eq!(answer(&reply).0[0], 1),
            false => assert_eq!(reply.error(), "ERR the same key is named twice", "at {one} and {other}"),
        }
        client.ok("FLUSHALL");
    }
}

#[test]
fn ten_thousand_buckets_take_the_server_no_longer_each_than_a_thousand() {
    let server = Server::start();
    let mut client = server.client();
    // The processor's time, which others on the machine do not lengthen.
    let spent_us = |client: &mut Client| -> f64 {
        let seconds = |field: &str, client: &mut Client| client.info(field).parse::<f64>().expect("seconds");
        (seconds("used_cpu_user", client) + seconds("used_cpu_sys", client)) * 1e6
    };
    let mut best_us = |groups: usize| -> f64 {
        let call = many(groups);
        let times = (0..7).map(|_| {
            client.ok("FLUSHALL");
            let before = spent_us(&mut client);
            let (verdict, each) = answer(&client.call(&call));
            assert_eq!((verdict, each.len()), ([1, 2, 0], groups));
            spent_us(&mut client) - before
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let (thousand, ten_thousand) = (best_us(1000), best_us(10_000));
    // Ten times as many, and room for caches that are too small; comparing each with each would be a hundred times.
    assert!(ten_thousand < thousand * 30.0, "1000 take {thousand} us, 10,000 take {ten_thousand} us");
    assert!(ten_thousand < 1e6, "10,000 buckets take {ten_thousand} us");
}

#[test]
fn of_ten_thousand_buckets_one_that_refuses_keeps_all_as_they_were() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let call = many(10_000);
    client.take(&format!("{} 3 0 3", call[1 + 4 * 9_999]));
    let (verdict, each) = answer(&client.call(&call));
    assert_eq!(verdict, [0, 0, NEVER]);
    assert_eq!(each.iter().filter(|answer| answer[0] == 1).count(), 9_999);
    assert_eq!(client.int("DBSIZE"), 1);
}

#[test]
fn incomplete_groups_are_refused() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let words = "TB.MTAKE a 10 1 1 b 10 1 1 c 10 1 1";
    let words: Vec<&str> = words.split(' ').collect();
    for len in 1..=words.len() {
        if (len - 1) % 4 == 0 && len > 1 {
            continue;
        }
        let error = fails(&mut client, &words[..len], &["a", "b", "c"]);
        assert!(error.starts_with("ERR wrong number of arguments for 'tb.mtake'"), "{len} words: {error}");
    }
    assert_eq!(answer(&client.call(&words)).0, [1, 9, 0]);
}

#[test]
fn a_bad_number_in_any_group_takes_nothing_from_any() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("a 10 1 1");
    for group in 0..3 {
        for (argument, name, bad) in [
            (1, "capacity", "ten"),
            (1, "capacity", "-1"),
            (1, "capacity", "1e16"),
            (2, "rate", ""),
            (2, "rate", "1/0"),
            (2, "rate", "1e13"),
            (3, "cost", "nan"),
            (3, "cost", "0x1"),
            (3, "cost", "1e-10"),
        ] {
            let line = "TB.MTAKE a 10 1 1 b 10 1 1 c 10 1 1";
            let mut call: Vec<&str> = line.split(' ').collect();
            call[1 + 4 * group + argument] = bad;
            let error = fails(&mut client, &call, &["a", "b", "c"]);
            assert!(error.starts_with(&format!("ERR invalid {name}: ")), "{call:?}: {error}");
        }
    }
}

#[test]
fn a_strangers_value_under_any_key_takes_nothing_from_any() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("a 10 1 1");
    client.ok("SET text hello");
    client.ok("SET as-long-as-a-bucket 123456789012345678901234");
    client.ask("RPUSH list a b c");
    for stranger in ["text", "as-long-as-a-bucket", "list"] {
        for position in 0..3 {
            let mut keys = vec!["a", "b"];
            keys.insert(position, stranger);
            let mut call = vec!["TB.MTAKE"];
            call.extend(keys.iter().flat_map(|key| [*key, "10", "1", "1"]));
            assert!(fails(&mut client, &call, &keys).starts_with("WRONGTYPE "));
        }
    }
    assert_eq!(mtake(&mut client, "a 10 1 1 b 10 1 1"), ([1, 8, 0], vec![[1, 8, 0], [1, 9, 0]]));
}

#[test]
fn a_refusal_writes_nothing() {
    let clock = WallClock::frozen();
    let server = Server::setup().append_only().clock(&clock).start();
    let mut client = server.client();
    client.take("a 10 1/60 4");
    client.take("drained 10 1/60 10");
    let mut listener = Listener::of(&server);
    let (mut watching, mut caching) = (server.client(), server.client());
    watching.ok("WATCH a drained fresh");
    caching.ask("HELLO 3");
    caching.ok("CLIENT TRACKING ON");
    caching.bytes("GET a");
    let keys = ["a", "drained", "fresh"];
    let look = |client: &mut Client| keys.map(|key| Witness::of(client, key.as_bytes()));
    let before = look(&mut client);
    for _ in 0..100 {
        clock.advance_ms(10);
        assert_eq!(mtake(&mut client, "a 10 1/60 1 drained 10 1/60 1 fresh 5 1 1").0[0], 0);
        assert_eq!(mtake(&mut client, "fresh 5 1 1 a 10 1/60 7").0[0], 0);
    }
    assert_eq!(look(&mut client), before);
    listener.nothing("200 refusals");
    watching.ok("MULTI");
    watching.ask("PING");
    assert_eq!(watching.ask("EXEC").texts(), ["PONG"]);
    caching.ask("PING");
    assert_eq!(caching.pushes(), []);
}

#[test]
fn a_refusal_puts_right_a_false_stamp_and_a_deadline_that_comes_too_early_and_no_more() {
    let (server, clock, mut client) = on_a_frozen_clock();
    clock.advance_s(3600);
    client.take("ahead 10 1 3");
    clock.set(START_US);
    client.take("too-early 10 100 10");
    client.take("as-ever 10 1/60 4");
    client.take("drained 10 1/60 10");
    let mut listener = Listener::of(&server);
    let before = tokens(&mut client, "ahead");
    let line = "ahead 10 1 1 too-early 10 1/60 0 as-ever 10 1/60 1 absent 10 1 1 drained 10 1/60 1";
    assert_eq!(mtake(&mut client, line).0, [0, 0, 60_000]);
    let written = listener.written();
    let keys: Vec<&[u8]> = written.sent.iter().filter(|sent| sent.len() > 1).map(|sent| &sent[1][..]).collect();
    assert_eq!(keys, [b"ahead".as_slice(), b"too-early"]);
    assert_eq!((written.changes, written.events), (2, vec![]), "a refusal is no event");
    assert_eq!(tokens(&mut client, "ahead"), before, "the balance is kept");
    assert_eq!(client.ask("TB.STATE ahead").field("last_refill_us").int(), START_US);
    let full_in_ms = 10 * 60 * 1000;
    assert!(client.int("PTTL too-early") >= full_in_ms);
    mtake(&mut client, line);
    listener.nothing("once is enough");
}

#[test]
fn a_group_that_costs_nothing_pushes_back_an_expiry_that_would_come_too_early() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 100 10");
    let mut listener = Listener::of(&server);
    assert_eq!(mtake(&mut client, "a 10 1 1 k 10 1/60 0"), ([1, 0, 0], vec![[1, 9, 0], [1, 0, 0]]));
    let written = listener.written();
    assert_eq!((written.changes, &written.events[..]), (2, &["tb.mtake a".to_owned()][..]));
    assert!(client.int("PTTL k") >= 600_000);
    mtake(&mut client, "a 10 1 1 k 10 1/60 0");
    listener.one_write("a", "tb.mtake");
}

#[test]
fn a_grant_is_one_event_and_one_change_for_each_bucket() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("a 10 1 1");
    let mut listener = Listener::of(&server);
    let (mut watching, mut caching) = (server.client(), server.client());
    caching.ask("HELLO 3");
    caching.ok("CLIENT TRACKING ON");
    for key in ["a", "b", "c"] {
        watching.ok("UNWATCH");
        watching.ok(&format!("WATCH {key}"));
        caching.ask(&format!("GET {key}"));
        assert_eq!(mtake(&mut client, "a 10 1 1 b 10 1 1 c 10 1 1").0[0], 1);
        let written = listener.written();
        assert_eq!(written.events, ["tb.mtake a", "tb.mtake b", "tb.mtake c"]);
        assert_eq!(written.changes, 3);
        watching.ok("MULTI");
        watching.ask("PING");
        assert_eq!(watching.ask("EXEC"), Reply::Nil, "a grant on {key} went unnoticed");
        caching.ask("PING");
        let invalidated = vec![Reply::Text(b"invalidate".into()), Reply::Array(vec![Reply::Text(key.into())])];
        assert_eq!(caching.pushes(), [Reply::Push(invalidated)]);
    }
}

/// A server that has two buckets and no memory for a third.
fn full() -> (Server, Client) {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.take("a 10 1 4");
    client.take("b 10 1 4");
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("SET other x").error().starts_with("OOM "));
    (server, client)
}

#[test]
fn where_one_key_would_have_to_be_created_in_full_memory_nothing_is_taken() {
    let (_server, mut client) = full();
    for order in [["a", "b", "new"], ["a", "new", "b"], ["new", "a", "b"]] {
        let mut call = vec!["TB.MTAKE"];
        call.extend(order.iter().flat_map(|key| [*key, "10", "1", "1"]));
        assert!(fails(&mut client, &call, &order).starts_with("OOM "));
    }
}

#[test]
fn buckets_that_exist_are_taken_from_in_full_memory() {
    let (_server, mut client) = full();
    assert_eq!(mtake(&mut client, "a 10 1 1 b 10 1 2"), ([1, 4, 0], vec![[1, 5, 0], [1, 4, 0]]));
    assert_eq!(mtake(&mut client, "a 10 1 1 new 10 1 0"), ([1, 4, 0], vec![[1, 4, 0], [1, 10, 0]]));
    assert_eq!(mtake(&mut client, "new 10 1 1 a 10 1 11"), ([0, 4, NEVER], vec![[1, 10, 0], [0, 4, NEVER]]));
    assert_eq!(client.int("EXISTS new"), 0);
}

#[test]
fn any_bytes_are_keys() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let huge = vec![b'x'; 1 << 20];
    let keys: [&[u8]; 7] = [b"", b" ", b"\0", b"\r\n", b"\xff\xfe", b"%s%n", &huge];
    let mut call: Vec<&[u8]> = vec![b"TB.MTAKE"];
    call.extend(keys.iter().flat_map(|key| [*key, b"10", b"1", b"1"]));
    assert_eq!(answer(&client.call(&call)).0, [1, 9, 0]);
    for key in keys {
        assert_eq!(client.take_of(key, "10 1 0"), [1, 9, 0], "{}", key.escape_ascii());
    }
    let twice: [&[u8]; 9] = [b"TB.MTAKE", &huge, b"10", b"1", b"1", &huge, b"10", b"1", b"1"];
    assert_eq!(client.call(&twice).error(), "ERR the same key is named twice");
}

#[test]
fn a_transaction_takes_in_order() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.ok("MULTI");
    for line in ["a 3 1 2 b 3 1 1", "a 3 1 2 b 3 1 1", "a 3 1 1 b 3 1 1"] {
        assert_eq!(client.ask(&format!("TB.MTAKE {line}")).text(), "QUEUED");
    }
    let replies = client.ask("EXEC");
    let answers: Vec<Answer> = replies.items().iter().map(answer).collect();
    assert_eq!(answers[0], ([1, 1, 0], vec![[1, 1, 0], [1, 2, 0]]));
    assert_eq!(answers[1], ([0, 1, 1000], vec![[0, 1, 1000], [1, 2, 0]]));
    assert_eq!(answers[2], ([1, 0, 0], vec![[1, 0, 0], [1, 1, 0]]));
}

#[test]
fn a_script_takes_and_gets_integers_and_a_read_only_one_may_not() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let script = "return redis.call('TB.MTAKE', KEYS[1], 10, 1, ARGV[1], KEYS[2], 10, 1, ARGV[2])";
    let mut eval = |command: &str, a: &str, b: &str| client.call(&[command, script, "2", "a", "b", a, b]);
    assert_eq!(answer(&eval("EVAL", "3", "4")), ([1, 6, 0], vec![[1, 7, 0], [1, 6, 0]]));
    assert_eq!(answer(&eval("EVAL", "1", "7")), ([0, 6, 1000], vec![[1, 7, 0], [0, 6, 1000]]));
    assert!(eval("EVAL", "1", "seven").error().contains("invalid cost"));
    assert!(eval("EVAL_RO", "1", "1").error().contains("Write commands are not allowed"));
    assert_eq!(client.take("a 10 1 0"), [1, 7, 0]);
}

#[test]
fn the_answer_is_the_same_on_both_protocols() {
    let (server, _clock) = Server::frozen();
    let (mut two, mut three) = (server.client(), server.client());
    three.ask("HELLO 3");
    for line in ["@a 3 1 2 @b 3 1 1", "@a 3 1 2 @b 3 1 1", "@a 3 1 9 @b 3 0 9", "@a 3 1 1 @b 3 one 1"] {
        let old = two.ask(&format!("TB.MTAKE {}", line.replace('@', "two")));
        let new = three.ask(&format!("TB.MTAKE {}", line.replace('@', "three")));
        assert_eq!(new, old, "{line}");
    }
}

#[test]
fn the_server_knows_every_key_and_how_it_is_used() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let call = "tb.mtake a 10 1 1 b 20 2 2 c 30 3 3";
    assert_eq!(client.ask(&format!("COMMAND GETKEYS {call}")).texts(), ["a", "b", "c"]);
    assert_eq!(client.ask("COMMAND GETKEYS tb.mtake a 10 1 1").texts(), ["a"]);
    let keys = client.ask(&format!("COMMAND GETKEYSANDFLAGS {call}"));
    let names: Vec<&str> = keys.items().iter().map(|key| key.items()[0].text()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for key in keys.items() {
        assert_eq!(key.items()[1].texts(), ["RW", "access", "update"]);
    }
    let hundred = many(100);
    let mut getkeys = vec!["COMMAND".to_owned(), "GETKEYS".to_owned()];
    getkeys.extend(hundred.clone());
    let wanted: Vec<&str> = hundred[1..].iter().step_by(4).map(String::as_str).collect();
    assert_eq!(client.call(&getkeys).texts(), wanted);
}

/// A cluster of one server that holds every slot.
fn cluster() -> (Server, Client) {
    let port = TcpListener::bind(("127.0.0.1", 0)).expect("a free port").local_addr().expect("bound").port();
    let setup = Server::setup().config("cluster-enabled", "yes").config("cluster-port", &port.to_string());
    let server = setup.start();
    let mut client = server.client();
    client.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("the cluster is up", || {
        let info = client.bytes("CLUSTER INFO");
        String::from_utf8_lossy(&info).contains("cluster_state:ok").then_some(())
    });
    (server, client)
}

#[test]
fn in_a_cluster_keys_of_different_slots_are_refused_before_anything_is_taken() {
    let (_server, mut client) = cluster();
    assert_eq!(client.take("a{org} 10 0 1"), [1, 9, 0]);
    for line in [
        "a{org} 10 0 1 b{other} 10 0 1",
        "a{org} 10 0 1 b{org} 10 0 1 c 10 0 1",
        "c 10 0 1 a{org} 10 0 1",
        "a{org} 10 0 1 b{org} 10 0 1 c{org} 10 0 1 d{org} 10 0 1 e{grop} 10 0 1",
    ] {
        let reply = client.ask(&format!("TB.MTAKE {line}"));
        assert!(reply.error().starts_with("CROSSSLOT "), "{line}: {reply:?}");
        assert_eq!(client.int("DBSIZE"), 1, "{line}");
        assert_eq!(client.take("a{org} 10 0 0"), [1, 9, 0], "{line}");
    }
    let (verdict, each) = mtake(&mut client, "a{org} 10 0 1 b{org} 10 0 1 {org} 10 0 3");
    assert_eq!((verdict, each), ([1, 7, 0], vec![[1, 8, 0], [1, 9, 0], [1, 7, 0]]));
}

/// `MTAKE` over `keys` as a client of the crowd below sends it.
fn random_call(chance: &mut Chance, keys: u64, capacity: u64) -> (Vec<String>, Vec<(usize, i64)>) {
    let (mut wanted, groups): (Vec<(usize, i64)>, _) = (Vec::new(), 2 + chance.below(3) as usize);
    while wanted.len() < groups {
        let key = chance.below(keys) as usize;
        if wanted.iter().all(|(other, _)| *other != key) {
            wanted.push((key, chance.below(4) as i64));
        }
    }
    let mut call = vec!["TB.MTAKE".to_owned()];
    for (key, cost) in &wanted {
        call.extend([format!("k{key}"), capacity.to_string(), "0".to_owned(), cost.to_string()]);
    }
    (call, wanted)
}

#[test]
fn three_hundred_clients_take_exactly_what_is_gone_from_overlapping_buckets() {
    const CLIENTS: u64 = 300;
    const CALLS: usize = 12;
    const KEYS: u64 = 16;
    const CAPACITY: u64 = 400;
    let (server, _clock, mut client) = on_a_frozen_clock();
    let start = Barrier::new(CLIENTS as usize);
    let work = |number: u64| -> ([i64; KEYS as usize], usize, usize) {
        let mut client = server.client();
        let mut chance = Chance::new(number + 1);
        let (mut taken, mut granted, mut refused) = ([0; KEYS as usize], 0, 0);
        start.wait();
        for _ in 0..CALLS {
            let (call, wanted) = random_call(&mut chance, KEYS, CAPACITY);
            let ([allowed, ..], each) = answer(&client.call(&call));
            assert_eq!(each.len(), wanted.len());
            if allowed == 0 {
                refused += 1;
                continue;
            }
            granted += 1;
            wanted.iter().for_each(|(key, cost)| taken[*key] += cost);
        }
        (taken, granted, refused)
    };
    let all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    let (granted, refused): (usize, usize) =
        all.iter().fold((0, 0), |(granted, refused), (_, g, r)| (granted + g, refused + r));
    assert!(granted > 300 && refused > 300, "{granted} granted and {refused} refused prove little");
    for key in 0..KEYS as usize {
        let taken: i64 = all.iter().map(|(taken, ..)| taken[key]).sum();
        let gone = i128::from(CAPACITY) * TOKEN - tokens(&mut client, &format!("k{key}"));
        assert_eq!(i128::from(taken) * TOKEN, gone, "k{key}: {taken} granted, but {gone} units are gone");
        assert!(taken <= CAPACITY as i64);
    }
}

#[test]
fn a_crowd_of_all_commands_balances_to_the_last_token() {
    const CLIENTS: u64 = 120;
    let (server, _clock, mut client) = on_a_frozen_clock();
    let start = Barrier::new(CLIENTS as usize);
    // Answers what one client has on balance taken from each bucket.
    let work = |number: u64| -> [i64; 4] {
        let mut client = server.client();
        let mut chance = Chance::new(number + 1000);
        let mut taken = [0; 4];
        start.wait();
        for _ in 0..25 {
            let (one, cost) = (chance.below(4) as usize, chance.below(5) as i64 + 1);
            let other = (one + 1 + chance.below(3) as usize) % 4;
            match chance.below(6) {
                0 => taken[one] += client.take(&format!("k{one} 900 0 {cost}"))[0] * cost,
                1 => taken[one] += ints(&mut client, &format!("TB.LEASE k{one} 900 0 {cost}"))[0],
                2 => {
                    ints(&mut client, &format!("TB.DEBIT k{one} 900 0 {cost}"));
                    taken[one] += cost;
                }
                // Nobody gives back more than was taken, so a refund is never cut at the capacity.
                3 if taken[one] >= cost => {
                    ints(&mut client, &format!("TB.REFUND k{one} 900 0 {cost}"));
                    taken[one] -= cost;
                }
                _ => {
                    let allowed = mtake(&mut client, &format!("k{one} 900 0 {cost} k{other} 900 0 2")).0[0];
                    taken[one] += allowed * cost;
                    taken[other] += allowed * 2;
                }
            }
        }
        taken
    };
    let all: Vec<[i64; 4]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    for key in 0..4 {
        let taken: i64 = all.iter().map(|taken| taken[key]).sum();
        let left = tokens(&mut client, &format!("k{key}"));
        assert_eq!(left, (900 - i128::from(taken)) * TOKEN, "k{key}: {taken} taken on balance");
        assert!(taken > 500, "only {taken} taken prove little");
    }
}

#[test]
fn refused_calls_take_nothing_while_others_take() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.take("drained 1 0 1");
    let refused_all_along = |order: &str| {
        let mut client = server.client();
        for _ in 0..200 {
            assert_eq!(mtake(&mut client, order).0[0], 0);
        }
    };
    let takes = || -> i64 {
        let mut client = server.client();
        (0..200).map(|_| client.take("shared 5000 0 3")[0] * 3).sum()
    };
    let granted: i64 = thread::scope(|scope| {
        for order in ["shared 5000 0 7 drained 1 0 1", "drained 1 0 1 shared 5000 0 7"] {
            (0..10).for_each(|_| drop(scope.spawn(move || refused_all_along(order))));
        }
        let takers: Vec<_> = (0..10).map(|_| scope.spawn(takes)).collect();
        takers.into_iter().map(|taker| taker.join().expect("a taker")).sum()
    });
    assert_eq!(granted, 5000 / 3 * 3);
    assert_eq!(tokens(&mut client, "shared"), i128::from(5000 - granted) * TOKEN);
}

#[test]
fn a_crowd_on_the_true_clock_gets_no_more_than_capacity_and_refill() {
    let server = Server::start();
    let started = Instant::now();
    let work = |number: u64| -> [i64; 3] {
        let mut client = server.client();
        let mut taken = [0; 3];
        for call in 0..40 {
            let (one, other) = ((number + call) % 3, (number + call + 1) % 3);
            let allowed = mtake(&mut client, &format!("k{one} 50 100 1 k{other} 50 100 1")).0[0];
            taken[one as usize] += allowed;
            taken[other as usize] += allowed;
        }
        taken
    };
    let all: Vec<[i64; 3]> = thread::scope(|scope| {
        let threads: Vec<_> = (0..100).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
    });
    let most = 50.0 + started.elapsed().as_secs_f64() * 100.0;
    for key in 0..3 {
        let taken: i64 = all.iter().map(|taken| taken[key]).sum();
        assert!(taken as f64 <= most, "k{key}: {taken} granted, at most {most} were there");
        assert!(taken >= 50, "k{key}: {taken} granted of a burst of 50");
    }
}

/// A bucket of the walk below: how it came to be as it is, and what is asked of it.
#[derive(Clone, Debug)]
struct Bucket {
    past: Vec<(&'static str, u64, i64)>,
    quota: &'static str,
    nanos: u64,
}

fn bucket() -> impl Strategy<Value = Bucket> {
    let quota =
        prop::sample::select(vec!["10 1", "10 7/3", "25 1/60", "5 0", "0 1", "0.3 0.1", "1e15 1e12", "1e15 1e-18"]);
    let nanos = prop_oneof![
        (0..12_u64).prop_map(|tokens| tokens * 1_000_000_000),
        0..12_000_000_000_u64,
        Just(100_000_000_u64),
        Just(0_u64)
    ];
    let command = prop::sample::select(vec!["TB.TAKE", "TB.TAKE", "TB.DEBIT", "TB.REFUND"]);
    let past = prop::collection::vec((command, nanos.clone(), -200_000_000..20_000_000_i64), 0..3);
    (past, quota, nanos).prop_map(|(past, quota, nanos)| Bucket { past, quota, nanos })
}

#[test]
fn is_as_many_takes_when_all_pass_and_as_many_peeks_when_not() {
    let (_server, clock, client) = on_a_frozen_clock();
    let client = RefCell::new(client);
    let (granted, refused) = (RefCell::new(0), RefCell::new(0));
    let mut runner = TestRunner::new(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() });
    let decimal = |nanos: u64| format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let outcome = runner.run(&prop::collection::vec(bucket(), 1..7), |buckets| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        let now = START_US + 1_000_000_000;
        let mut call = String::from("TB.MTAKE");
        for (number, Bucket { past, quota, nanos }) in buckets.iter().enumerate() {
            // The same past for two keys: one is taken from together with others, the other alone.
            for (command, nanos, since_us) in past {
                clock.set(now - since_us);
                for name in ["together", "alone"] {
                    client.ask(&format!("{command} {name}{number} {quota} {}", decimal(*nanos)));
                }
            }
            call += &format!(" together{number} {quota} {}", decimal(*nanos));
        }
        clock.set(now);
        let (verdict, each) = answer(&client.ask(&call));
        let singly = |client: &mut Client, command: &str| -> Vec<[i64; 3]> {
            let call = |(number, Bucket { quota, nanos, .. }): (usize, &Bucket)| {
                ints(client, &format!("{command} alone{number} {quota} {}", decimal(*nanos))).try_into().unwrap()
            };
            buckets.iter().enumerate().map(call).collect()
        };
        let peeked = singly(&mut client, "TB.PEEK");
        let all = peeked.iter().all(|[allowed, ..]| *allowed == 1);
        prop_assert_eq!(verdict[0], i64::from(all), "{}", call);
        let alone = if all { singly(&mut client, "TB.TAKE") } else { peeked };
        prop_assert_eq!(&each, &alone, "{}", call);
        prop_assert_eq!(verdict[1], alone.iter().map(|[_, left, _]| *left).min().unwrap());
        let waits = || alone.iter().map(|[_, _, wait]| *wait);
        let longest = if waits().any(|wait| wait == NEVER) { NEVER } else { waits().max().unwrap() };
        prop_assert_eq!(verdict[2], longest);
        for (number, Bucket { quota, .. }) in buckets.iter().enumerate() {
            if !all {
                // A take of nothing puts right what any refusal would, and no more.
                client.take(&format!("alone{number} {quota} 0"));
            }
            let [together, alone] = ["together", "alone"].map(|name| {
                (client.ask(&format!("GET {name}{number}")), client.int(&format!("PEXPIRETIME {name}{number}")))
            });
            prop_assert_eq!(together, alone, "{}: bucket {}", call, number);
        }
        *(if all { &granted } else { &refused }).borrow_mut() += 1;
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
    let (granted, refused) = (granted.into_inner(), refused.into_inner());
    assert!(granted > 80 && refused > 80, "a lopsided walk: {granted} granted, {refused} refused");
}
