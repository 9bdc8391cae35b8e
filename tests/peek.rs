//! `TB.PEEK`: the answer that `TB.TAKE` would give, from a look that leaves no trace, wherever reading is allowed.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::cell::RefCell;

use family::{Listener, TOKEN, ints, tokens, units};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{Client, NEVER, START_US, Server, WallClock, Witness, on_a_frozen_clock};

/// As `TB.PEEK` with the arguments in `line` answers.
fn peek(client: &mut Client, line: &str) -> [i64; 3] {
    ints(client, &format!("TB.PEEK {line}")).try_into().expect("three integers")
}

#[test]
fn shows_the_tokens_before_taking_however_often_it_is_asked() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1 4"), [1, 6, 0]);
    for _ in 0..3 {
        assert_eq!(peek(&mut client, "k 10 1 1"), [1, 6, 0]);
        assert_eq!(peek(&mut client, "k 10 1 6"), [1, 6, 0]);
        assert_eq!(peek(&mut client, "k 10 1 7"), [0, 6, 1000]);
        assert_eq!(peek(&mut client, "k 10 1 11"), [0, 6, NEVER]);
    }
    clock.advance_ms(1500);
    assert_eq!(peek(&mut client, "k 10 1 8"), [0, 7, 500]);
    assert_eq!(client.take("k 10 1 7"), [1, 0, 0]);
}

#[test]
fn a_call_without_a_cost_asks_for_one() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 10");
    assert_eq!(peek(&mut client, "k 10 1"), [0, 0, 1000]);
    assert_eq!(peek(&mut client, "k 10 1"), peek(&mut client, "k 10 1 1"));
}

#[test]
fn an_absent_bucket_is_full_and_stays_absent() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(peek(&mut client, "k 10 1"), [1, 10, 0]);
    assert_eq!(peek(&mut client, "k 0.5 1 0.5"), [1, 0, 0]);
    assert_eq!(peek(&mut client, "k 0 1"), [0, 0, NEVER]);
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn an_expired_bucket_is_full() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 10");
    clock.advance_s(20);
    assert_eq!(peek(&mut client, "k 100 1 100"), [1, 100, 0]);
}

#[test]
fn the_wait_it_tells_is_exact() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for quota in ["10 1", "10 3", "100 100/60", "1 1/86400", "7.5 1/7"] {
        client.ok("FLUSHALL");
        clock.set(START_US + 499);
        let capacity = quota.split(' ').next().unwrap();
        client.take(&format!("k {quota} {capacity}"));
        let cost = format!("k {quota} {capacity}");
        let [allowed, _, retry_ms] = peek(&mut client, &cost);
        assert_eq!(allowed, 0);
        let asked_at = clock.now();
        clock.set(asked_at + (retry_ms - 1) * 1000);
        assert_eq!(peek(&mut client, &cost)[0], 0, "{quota}: one millisecond before {retry_ms} have passed");
        clock.set(asked_at + retry_ms * 1000);
        assert_eq!(peek(&mut client, &cost)[0], 1, "{quota}: after {retry_ms} ms");
        assert_eq!(client.take(&cost)[0], 1);
    }
}

/// A server that writes an append-only file, with a bucket in every state under a key of that name. What is false about
/// `ahead-too-far` and `goes-too-early` would be put right by a take, even by one that is refused.
fn every_state() -> (Server, WallClock, Client) {
    let clock = WallClock::frozen();
    let setup = Server::setup().append_only().config("repl-ping-replica-period", "3600");
    let server = setup.clock(&clock).start();
    let mut client = server.client();
    clock.advance_s(3600);
    client.take("ahead-too-far 10 1/60 10");
    clock.advance_s(-3590);
    client.take("ahead-a-little 10 1/60 10");
    clock.advance_s(-10);
    client.take("partly 10 1/60 4");
    client.take("drained 10 1/60 10");
    ints(&mut client, "TB.DEBIT in-debt 10 1/60 25.5");
    client.take("goes-too-early 10 100 10");
    client.take("never-goes 10 0 3");
    client.take("persisted 10 1/60 4");
    assert_eq!(client.int("PERSIST persisted"), 1);
    (server, clock, client)
}

const STATES: [&str; 9] = [
    "ahead-too-far",
    "ahead-a-little",
    "partly",
    "drained",
    "in-debt",
    "goes-too-early",
    "never-goes",
    "persisted",
    "absent",
];

const QUOTAS: [&str; 5] = ["10 1/60", "10 1", "3 1/60", "100 1/86400", "10 0"];

#[test]
fn leaves_no_trace_in_any_state_under_any_quota() {
    let (server, clock, mut client) = every_state();
    let mut listener = Listener::of(&server);
    for key in STATES {
        let before = Witness::of(&mut client, key.as_bytes());
        for quota in QUOTAS {
            for cost in ["0", "1", "6", "10", "1000"] {
                let line = format!("{key} {quota} {cost}");
                peek(&mut client, &line);
                clock.advance(333);
                peek(&mut client, &line);
            }
        }
        assert_eq!(Witness::of(&mut client, key.as_bytes()), before, "{key}");
        listener.nothing(key);
    }
}

#[test]
fn what_a_refused_take_would_put_right_is_left_as_it_is() {
    for (line, wait_ms) in [("ahead-too-far 10 1/60 1", 60_000), ("goes-too-early 10 1/60 1", 60_000)] {
        let (server, _clock, mut client) = every_state();
        let mut listener = Listener::of(&server);
        assert_eq!(peek(&mut client, line), [0, 0, wait_ms], "as if it had been put right");
        listener.nothing(line);
        assert_eq!(client.take(line), [0, 0, wait_ms]);
        assert_eq!(listener.written().changes, 1, "there was nothing to put right for {line}");
        assert_eq!(peek(&mut client, line), [0, 0, wait_ms]);
    }
}

#[test]
fn disturbs_no_transaction_that_watches_the_bucket_and_no_clients_cache() {
    let (server, _clock, mut client) = every_state();
    let (mut watching, mut caching) = (server.client(), server.client());
    caching.ask("HELLO 3");
    caching.ok("CLIENT TRACKING ON");
    for key in STATES {
        watching.ok(&format!("WATCH {key}"));
        caching.ask(&format!("GET {key}"));
        for quota in QUOTAS {
            peek(&mut client, &format!("{key} {quota} 1"));
        }
    }
    watching.ok("MULTI");
    watching.ask("PING");
    assert_eq!(watching.ask("EXEC").texts(), ["PONG"]);
    caching.ask("PING");
    assert_eq!(caching.pushes(), []);
}

#[test]
fn looks_once_whatever_is_there() {
    let (_server, _clock, mut client) = every_state();
    client.ok("SET text 123456789012345678901234");
    client.ok("CONFIG RESETSTAT");
    let mut looks = 0;
    for key in STATES.into_iter().chain(["text"]) {
        for quota in QUOTAS {
            for cost in ["0", "1", "1000"] {
                client.ask(&format!("TB.PEEK {key} {quota} {cost}"));
                looks += 1;
                let looked = client.info_int("keyspace_hits") + client.info_int("keyspace_misses");
                assert_eq!(looked, looks, "TB.PEEK {key} {quota} {cost}");
            }
        }
    }
}

#[test]
fn never_moves_an_expiry() {
    let (_server, clock, mut client) = every_state();
    let deadlines = |client: &mut Client| STATES.map(|key| client.int(&format!("PEXPIRETIME {key}")));
    let before = deadlines(&mut client);
    for key in STATES {
        for quota in QUOTAS {
            peek(&mut client, &format!("{key} {quota} 1"));
            clock.advance(1000);
        }
    }
    assert_eq!(deadlines(&mut client), before);
}

/// A step of the walk below.
#[derive(Clone, Debug)]
enum Step {
    Call { command: &'static str, quota: &'static str, nanos: u64 },
    Move { by_us: i64 },
}

fn decimal(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let quota = prop::sample::select(vec![
        "10 1",
        "10 0.1",
        "10 7/3",
        "25 1/60",
        "5 0",
        "0 1",
        "0.3 0.1",
        "1000 500",
        "1e15 1e12",
        "1e15 1e-18",
        "2.5 1/7",
    ]);
    let nanos = prop_oneof![
        (0..30_u64).prop_map(|tokens| tokens * 1_000_000_000),
        0..12_000_000_000_u64,
        Just(1_u64),
        Just(1_000_000_000_000_000_u64),
    ];
    let command = prop::sample::select(vec!["TB.TAKE", "TB.TAKE", "TB.DEBIT", "TB.REFUND"]);
    let call = (command, quota, nanos).prop_map(|(command, quota, nanos)| Step::Call { command, quota, nanos });
    let by_us = prop_oneof![0..3_000_000_i64, -3_000_000..3_000_000_i64, -500_000_000..100_000_000_i64, 0..3_i64];
    prop::collection::vec(prop_oneof![3 => call, 2 => by_us.prop_map(|by_us| Step::Move { by_us })], 1..30)
}

#[test]
fn answers_what_a_take_then_answers_from_any_state() {
    let (_server, clock, client) = on_a_frozen_clock();
    let client = RefCell::new(client);
    let (allowed_calls, refused_calls) = (RefCell::new(0), RefCell::new(0));
    let mut runner = TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&steps(), |steps| {
        let mut client = client.borrow_mut();
        client.ok("FLUSHALL");
        clock.set(START_US);
        for step in steps {
            let (command, quota, cost) = match step {
                Step::Move { by_us } => {
                    clock.advance(by_us);
                    continue;
                }
                Step::Call { command, quota, nanos } => (command, quota, decimal(nanos)),
            };
            let line = format!("k {quota} {cost}");
            let stored = (client.ask("GET k"), client.int("PEXPIRETIME k"));
            let [foretold, before, wait] = peek(&mut client, &line);
            prop_assert_eq!((client.ask("GET k"), client.int("PEXPIRETIME k")), stored, "PEEK {} wrote", line);
            if command != "TB.TAKE" {
                client.ask(&format!("{command} {line}"));
                continue;
            }
            let [allowed, left, retry] = client.take(&line);
            prop_assert_eq!((foretold, wait), (allowed, retry), "{}", line);
            if allowed == 0 || units(&cost) == 0 {
                prop_assert_eq!(before, left, "{}", line);
            } else {
                let there = tokens(&mut client, "k") + units(&cost);
                prop_assert_eq!(i128::from(before), there / TOKEN, "{}: {} were there", line, there);
            }
            *(if allowed == 1 { &allowed_calls } else { &refused_calls }).borrow_mut() += 1;
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
    let (allowed, refused) = (allowed_calls.into_inner(), refused_calls.into_inner());
    assert!(allowed > 300 && refused > 300, "a lopsided walk: {allowed} allowed, {refused} refused");
}

/// A primary in all states, and a replica that follows it.
fn replicated() -> (Server, Server, WallClock) {
    let (primary, clock, _) = every_state();
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&primary);
    (primary, replica, clock)
}

#[test]
fn a_replica_answers_as_its_primary_and_changes_nothing() {
    let (primary, replica, clock) = replicated();
    let (mut here, mut there) = (primary.client(), replica.client());
    assert!(there.ask("TB.TAKE drained 10 1/60").error().starts_with("READONLY "));
    // Short waits, in which no key expires.
    for wait_ms in [0, 200, 300] {
        clock.advance_ms(wait_ms);
        for key in STATES {
            let before = Witness::of(&mut there, key.as_bytes());
            for quota in QUOTAS {
                let line = format!("{key} {quota} 3");
                assert_eq!(peek(&mut there, &line), peek(&mut here, &line), "{line}");
            }
            assert_eq!(Witness::of(&mut there, key.as_bytes()), before, "{key} changed on the replica");
        }
    }
}

#[test]
fn a_bucket_that_has_expired_is_full_on_a_replica_too() {
    let (_primary, replica, clock) = replicated();
    let mut client = replica.client();
    assert_eq!(peek(&mut client, "drained 10 1/60"), [0, 0, 60_000]);
    clock.advance_s(700);
    assert_eq!(peek(&mut client, "drained 10 1/60 10"), [1, 10, 0]);
    assert_eq!(peek(&mut client, "drained 1000 1/60 1000"), [1, 1000, 0]);
}

#[test]
fn runs_in_read_only_scripts_and_functions() {
    let (server, _clock, mut client) = every_state();
    let script = "return redis.call('TB.PEEK', KEYS[1], ARGV[1], ARGV[2], ARGV[3])";
    let library = "#!lua name=looks\n\
        redis.register_function{function_name='look', flags={'no-writes'}, callback=function(keys, args) \
        return redis.call('TB.PEEK', keys[1], args[1], args[2], args[3]) end}";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]).text(), "looks");
    let sha = client.call(&["SCRIPT", "LOAD", script]).text().to_owned();
    let declared = format!("#!lua flags=no-writes\n{script}");
    let mut listener = Listener::of(&server);
    for key in STATES {
        let direct = peek(&mut client, &format!("{key} 10 1/60 3"));
        for (command, what) in [
            ("EVAL", script),
            ("EVAL_RO", script),
            ("EVALSHA_RO", &sha),
            ("EVAL", &declared),
            ("FCALL", "look"),
            ("FCALL_RO", "look"),
        ] {
            let reply = client.call(&[command, what, "1", key, "10", "1/60", "3"]);
            assert_eq!(reply.ints(), direct, "{command} on {key}");
        }
    }
    listener.nothing("scripts that look");
}

#[test]
fn runs_in_a_transaction_between_takes() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.ok("MULTI");
    for line in ["TB.PEEK k 2 1", "TB.TAKE k 2 1 2", "TB.PEEK k 2 1", "TB.TAKE k 2 1"] {
        assert_eq!(client.ask(line).text(), "QUEUED");
    }
    let replies = client.ask("EXEC");
    let answers: Vec<Vec<i64>> = replies.items().iter().map(support::Reply::ints).collect();
    assert_eq!(answers, [[1, 2, 0], [1, 0, 0], [0, 0, 1000], [0, 0, 1000]]);
}

#[test]
fn is_answered_when_memory_is_full() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("SET other x").error().starts_with("OOM "));
    assert_eq!(peek(&mut client, "k 10 1"), [1, 6, 0]);
    assert_eq!(peek(&mut client, "absent 10 1"), [1, 10, 0]);
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1 4");
    for (line, start) in [
        ("TB.PEEK", "ERR wrong number of arguments"),
        ("TB.PEEK k", "ERR wrong number of arguments"),
        ("TB.PEEK k 10", "ERR wrong number of arguments"),
        ("TB.PEEK k 10 1 1 1", "ERR wrong number of arguments"),
        ("TB.PEEK k ten 1", "ERR invalid capacity: "),
        ("TB.PEEK k 10 -1", "ERR invalid rate: "),
        ("TB.PEEK k 10 1/0", "ERR invalid rate: "),
        ("TB.PEEK k 10 1 1e16", "ERR invalid cost: "),
        ("TB.PEEK k 10 1 ", "ERR invalid cost: "),
    ] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with(start), "{line}: {reply:?}");
    }
    assert_eq!(peek(&mut client, "k 10 1"), [1, 6, 0]);
}

#[test]
fn what_is_not_a_bucket_is_refused_and_left_as_it_is() {
    let (server, _clock, mut client) = on_a_frozen_clock();
    client.ok("SET text hello");
    client.ok("SET number 12345678901234567");
    client.ok("SET as-long-as-a-bucket 123456789012345678901234");
    client.ask("RPUSH list a b c");
    client.ask("HSET hash a b");
    let mut listener = Listener::of(&server);
    for key in ["text", "number", "as-long-as-a-bucket", "list", "hash"] {
        let before = Witness::of(&mut client, key.as_bytes());
        let reply = client.ask(&format!("TB.PEEK {key} 10 1"));
        assert!(reply.error().starts_with("WRONGTYPE "), "{key}: {reply:?}");
        assert_eq!(Witness::of(&mut client, key.as_bytes()), before, "{key}");
    }
    listener.nothing("strangers' values");
}
