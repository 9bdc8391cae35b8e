//! What replicas and the append-only file see of `TB.MTAKE`: all of a call or nothing of it, wherever it is cut off.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use family::{Listener, TOKEN, assert_absolute, tokens};
use support::{Client, Reply, START_US, Server, WallClock, eventually};

/// Sends a call that must be granted or, where `allowed` is 0, refused.
fn mtake(client: &mut Client, line: &str, allowed: i64) {
    let reply = client.ask(&format!("TB.MTAKE {line}"));
    assert_eq!(reply.items()[0].int(), allowed, "{line}: {reply:?}");
}

#[test]
fn several_buckets_are_one_unit_in_the_stream() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    let mut listener = Listener::of(&server);
    for round in 0..10 {
        clock.advance_ms(100 * round);
        mtake(&mut client, "a 100 1/60 1 b 50 10 2.5 c 100 0 3", 1);
        let written = listener.written();
        assert_eq!(written.names(), ["MULTI", "SET", "SET", "SET", "EXEC"], "round {round}");
        for (command, key) in written.sent[1..4].iter().zip(["a", "b", "c"]) {
            assert_absolute(&mut client, command, key);
        }
    }
}

#[test]
fn only_what_was_written_is_in_the_stream() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let mut listener = Listener::of(&server);
    for (line, allowed, names) in [
        ("a 10 1 1", 1, &["SET"][..]),
        ("a 10 1 1 b 10 1 0", 1, &["SET"]),
        ("a 10 1 1 b 10 1 0 c 10 1 1", 1, &["MULTI", "SET", "SET", "EXEC"]),
        ("a 10 1 0 b 10 1 0 c 10 1 0", 1, &[]),
        ("a 10 1 1 b 10 1 11", 0, &[]),
        ("b 10 1 11 a 10 1 1", 0, &[]),
    ] {
        mtake(&mut client, line, allowed);
        assert_eq!(listener.written().names(), names, "{line}");
    }
}

#[test]
fn what_a_refusal_puts_right_in_several_buckets_is_one_unit_too() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    clock.advance_s(3600);
    mtake(&mut client, "a 10 1 10 b 10 1 4", 1);
    clock.set(START_US);
    let mut listener = Listener::of(&server);
    mtake(&mut client, "a 10 1 1 b 10 1 1", 0);
    let written = listener.written();
    assert_eq!(written.names(), ["MULTI", "SET", "SET", "EXEC"]);
    assert_absolute(&mut client, &written.sent[1], "a");
    assert_absolute(&mut client, &written.sent[2], "b");
    mtake(&mut client, "a 10 1 1 b 10 1 1", 0);
    listener.nothing("once is enough");
}

#[test]
fn transactions_and_scripts_around_it_stay_one_unit() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let mut listener = Listener::of(&server);
    client.ok("MULTI");
    client.ask("TB.MTAKE a 10 1 1 b 10 1 1");
    client.ask("TB.MTAKE a 10 1 100 b 10 1 1");
    client.ask("TB.TAKE c 10 1");
    client.ask("EXEC");
    assert_eq!(listener.written().names(), ["MULTI", "SET", "SET", "SET", "EXEC"]);
    let script = "redis.call('TB.MTAKE', 'a', 10, 1, 1, 'b', 10, 1, 1); return redis.call('TB.TAKE', 'c', 10, 1)";
    client.call(&["EVAL", script, "0"]);
    assert_eq!(listener.written().names(), ["MULTI", "SET", "SET", "SET", "EXEC"]);
}

#[test]
fn replicas_with_and_without_the_module_hold_the_same_bytes_and_deadlines() {
    let (primary, clock) = Server::frozen();
    let replicas = [Server::setup().clock(&clock).start(), Server::setup().without_module().clock(&clock).start()];
    replicas.iter().for_each(|replica| replica.follow(&primary));
    let mut client = primary.client();
    for round in 0..40 {
        clock.advance_ms(round * 37);
        let line = format!("user{} 20 1/60 1.5 org{} 100 10 3 all 1000 1/7 1 never 1e15 0 7", round % 5, round % 2);
        client.ask(&format!("TB.MTAKE {line}"));
    }
    let keys = client.ask("KEYS *");
    assert!(keys.items().len() >= 8, "{keys:?}");
    for replica in &replicas {
        replica.catch_up(&primary);
        let mut there = replica.client();
        assert_eq!(there.int("DBSIZE"), client.int("DBSIZE"));
        for key in keys.texts() {
            for look in ["GET", "PEXPIRETIME"] {
                let line = format!("{look} {key}");
                assert_eq!(there.ask(&line), client.ask(&line), "{line}");
            }
        }
    }
}

#[test]
fn a_bucket_that_had_expired_is_removed_before_it_is_made_anew() {
    let (primary, clock) = Server::frozen();
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&primary);
    let mut client = primary.client();
    mtake(&mut client, "a 10 1/60 1 short 10 100 10 b 10 1/60 1", 1);
    clock.advance_s(10);
    mtake(&mut client, "a 10 1/60 1 short 20 100 15 b 10 1/60 1", 1);
    assert_eq!(tokens(&mut client, "short"), 5 * TOKEN);
    replica.catch_up(&primary);
    for line in ["MGET a short b", "PEXPIRETIME short", "DBSIZE"] {
        assert_eq!(replica.client().ask(line), client.ask(line), "{line}");
    }
}

#[test]
fn no_look_at_a_replica_finds_half_of_a_call() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let done = AtomicBool::new(false);
    let take = || {
        let mut client = primary.client();
        while !done.load(Ordering::Relaxed) {
            mtake(&mut client, "a 1e9 1/60 1 b 1e9 1/60 1 c 1e9 1/60 1", 1);
        }
    };
    let mut seen = BTreeSet::new();
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(take)));
        let mut client = replica.client();
        eventually("the replica has many states to show", || {
            // Taken from together, at one moment, under one quota: the bytes are the same.
            let look = client.ask("MGET a b c");
            let [a, b, c] = look.items() else { panic!("{look:?}") };
            if a != b || b != c {
                done.store(true, Ordering::Relaxed);
                panic!("half of a call: {look:?}");
            }
            if let Reply::Text(bytes) = a {
                seen.insert(bytes.clone());
            }
            (seen.len() > 500).then_some(())
        });
        done.store(true, Ordering::Relaxed);
    });
    replica.catch_up(&primary);
    assert_eq!(replica.client().ask("MGET a b c"), primary.client().ask("MGET a b c"));
}

/// The newest append-only file in a server's directory.
fn aof(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir.join("appendonlydir")).expect("the directory of append-only files");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    files.into_iter().max().expect("an append-only file")
}

/// Cuts the record of one call at every `step`th byte from `first` on, and has the server load what is left.
fn cut(first: usize, step: usize) -> usize {
    let clock = WallClock::frozen();
    let setup = Server::setup().append_only().config("aof-load-truncated", "yes").clock(&clock);
    let mut server = setup.clone().start();
    let mut client = server.client();
    mtake(&mut client, "a 10 1/60 1 b 10 1/60 1", 1);
    let before = client.ask("MGET a b");
    let file = aof(server.dir());
    let start = fs::read(&file).expect("the file").len();
    clock.advance_s(300);
    mtake(&mut client, "a 10 1/120 3 b 10 1/60 3", 1);
    let after = client.ask("MGET a b");
    let whole = fs::read(&file).expect("the file");
    let record = String::from_utf8_lossy(&whole[start..]).into_owned();
    for word in ["MULTI", "PXAT", "KEEPTTL", "EXEC"] {
        assert!(record.contains(word), "no {word} in {record}");
    }
    let mut cuts = 0;
    for end in (start + first..=whole.len()).step_by(step) {
        server.kill();
        fs::write(&file, &whole[..end]).expect("the file");
        server.restart_with(setup.clone());
        let wanted = if end == whole.len() { &after } else { &before };
        assert_eq!(server.client().ask("MGET a b"), *wanted, "cut at {} of {} bytes", end - start, whole.len() - start);
        cuts += 1;
    }
    cuts
}

#[test]
fn a_record_cut_off_at_any_byte_is_loaded_whole_or_not_at_all() {
    const AT_ONCE: usize = 4;
    let cuts: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|first| scope.spawn(move || cut(first, AT_ONCE))).collect();
        threads.into_iter().map(|thread| thread.join().expect("every cut")).sum()
    });
    assert!(cuts > 150, "a record of {cuts} bytes");
}

#[test]
fn a_server_killed_under_load_has_taken_whole_calls_and_every_one_that_it_answered() {
    const PAIRS: usize = 5;
    const CLIENTS: usize = 10;
    let mut server = Server::setup().append_only().start();
    let acknowledged: [AtomicI64; PAIRS] = Default::default();
    let port = server.port();
    for round in 1..=4 {
        let work = |number: usize| {
            let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
            let mut connection = client.get_connection().expect("a connection");
            for call in 0.. {
                let pair = (number + call) % PAIRS;
                let mut mtake = redis::cmd("TB.MTAKE");
                for side in ["a", "b"] {
                    mtake.arg(format!("pair{pair}{side}")).arg("1e9").arg("0").arg("1");
                }
                // An error is the server's death.
                let Ok(redis::Value::Array(answer)) = mtake.query(&mut connection) else { return };
                assert_eq!(answer[0], redis::Value::Int(1));
                acknowledged[pair].fetch_add(1, Ordering::Relaxed);
            }
        };
        let total = || acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).sum::<i64>();
        let enough = total() + 300 + 100 * round;
        thread::scope(|scope| {
            (0..CLIENTS).for_each(|number| drop(scope.spawn(move || work(number))));
            eventually("there was load", || (total() > enough).then_some(()));
            server.kill();
        });
        server.restart();
        let mut client = server.client();
        for (pair, acknowledged) in acknowledged.iter().enumerate() {
            let sides = client.ask(&format!("MGET pair{pair}a pair{pair}b"));
            let [a, b] = sides.items() else { panic!("{sides:?}") };
            assert_eq!(a, b, "round {round}: half of a call survived");
            let taken = (1_000_000_000 * TOKEN - tokens(&mut client, &format!("pair{pair}a"))) / TOKEN;
            let answered = acknowledged.load(Ordering::Relaxed);
            let in_flight = CLIENTS as i128 * i128::from(round);
            assert!(taken >= i128::from(answered), "round {round}: {taken} taken, {answered} answered");
            assert!(taken <= i128::from(answered) + in_flight, "round {round}: {taken} taken, {answered} answered");
        }
    }
}
