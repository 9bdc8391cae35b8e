//! Memory: what eviction does to limits, what is refused when there is none left, that a million buckets leave nothing
//! behind, and that no call leaks, neither by the server's own count nor by valgrind's.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::{Folder, Process, exchange_module};
use crate::random::Random;
use crate::short_or_long;
use crate::support::{Client, Server, eventually, free_port, module_path, server_binary};

type Call = Vec<Vec<u8>>;

fn call(line: &str) -> Call {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn an_evicted_bucket_is_a_full_one_and_no_other_gains_a_token() {
    for policy in ["allkeys-lru", "allkeys-lfu", "volatile-ttl", "volatile-random"] {
        let (server, _clock) = Server::frozen();
        let mut client = server.client();
        let limit = client.info_int("used_memory") + 1_500_000;
        client.ok("CONFIG SET notify-keyspace-events Ee");
        client.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        client.ok(&format!("CONFIG SET maxmemory {limit}"));
        let mut events = server.client();
        events.ask("SUBSCRIBE __keyevent@0__:evicted");
        let (mut random, mut granted, mut evictions) = (Random::new(7), HashMap::new(), HashMap::new());
        let mut seen = 0;
        for _ in 0..short_or_long(60, 600) {
            // A third of the calls go to a few tenants, the rest to many who come once in a while.
            let keys: Vec<u64> =
                (0..500).map(|_| if random.once_in(3) { random.below(50) } else { random.below(40_000) }).collect();
            let takes: Vec<Call> = keys.iter().map(|key| call(&format!("TB.TAKE k{key} 3 1/3600"))).collect();
            for (key, reply) in keys.iter().zip(client.pipeline(&takes)) {
                *granted.entry(*key).or_insert(0) += reply.ints()[0];
            }
            let total = client.info_int("evicted_keys");
            while seen < total {
                let event = events.read();
                let key =
                    event.items()[2].text().strip_prefix('k').expect("our keys").parse::<u64>().expect("a number");
                *evictions.entry(key).or_insert(0) += 1;
                seen += 1;
            }
        }
        assert!(seen > 1000, "{policy}: only {seen} evictions");
        for (key, granted) in &granted {
            let lives = 1 + evictions.get(key).copied().unwrap_or(0);
            assert!(*granted <= 3 * lives, "{policy}: k{key} got {granted} tokens in {lives} lives");
        }
        let always_there = granted.keys().filter(|key| !evictions.contains_key(key)).count();
        println!("{policy}: {seen} evictions among {} buckets, {always_there} never evicted", granted.len());
    }
}

#[test]
fn without_eviction_full_memory_refuses_new_buckets_only_and_refusing_costs_no_memory() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    let limit = client.info_int("used_memory") + 2_000_000;
    client.ok(&format!("CONFIG SET maxmemory {limit}"));
    let mut there = 0;
    let refusal = loop {
        let takes: Vec<Call> = (there..there + 500).map(|key| call(&format!("TB.TAKE k{key} 3 1/3600"))).collect();
        let replies = client.pipeline(&takes);
        let granted = replies.iter().take_while(|reply| !reply.is_error()).count();
        there += granted;
        if granted < replies.len() {
            break replies[granted].clone();
        }
    };
    assert!(refusal.error().starts_with("OOM "), "{refusal:?}");
    assert!(there > 1000, "only {there} buckets in two megabytes");
    // Clearly below what is in use: the servers' own buffers come and go.
    let used = client.info_int("used_memory");
    client.ok(&format!("CONFIG SET maxmemory {}", used - 500_000));
    for _ in 0..20 {
        let new: Vec<Call> = (0..500).map(|key| call(&format!("TB.TAKE new{key} 3 1/3600"))).collect();
        assert!(client.pipeline(&new).iter().all(|reply| reply.error().starts_with("OOM ")));
    }
    let old: Vec<Call> = (0..there).map(|key| call(&format!("TB.TAKE k{key} 3 1/3600 2"))).collect();
    for batch in old.chunks(500) {
        assert!(client.pipeline(batch).iter().all(|reply| reply.ints() == [1, 0, 0]));
    }
    let grown = client.info_int("used_memory") - used;
    assert!(grown < 100_000, "{grown} bytes more after refusals and takes from what was there");
    clock.advance_s(3 * 3600 + 3);
    eventually("the old buckets are forgotten", || (client.int("DBSIZE") == 0).then_some(()));
    assert_eq!(client.take("new 3 1/3600"), [1, 2, 0]);
}

#[test]
fn buckets_that_nobody_asks_for_again_are_gone_after_their_time_and_the_memory_with_them() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    let buckets = short_or_long(200_000, 1_000_000);
    let empty = client.info_int("used_memory");
    let numbers: Vec<u32> = (0..buckets).collect();
    for batch in numbers.chunks(2000) {
        let takes: Vec<[String; 4]> =
            batch.iter().map(|key| ["TB.TAKE".into(), format!("k{key}"), "10".into(), "1".into()]).collect();
        let takes: Vec<Vec<&str>> = takes.iter().map(|take| take.iter().map(String::as_str).collect()).collect();
        assert!(client.pipeline(&takes).iter().all(|reply| reply.ints() == [1, 9, 0]));
    }
    assert_eq!(client.int("DBSIZE"), i64::from(buckets));
    let full = client.info_int("used_memory");
    clock.advance_s(13);
    // The server forgets by itself; whoever scans helps.
    eventually("all are gone", || {
        client.ask("SCAN 0 COUNT 20000");
        (client.int("DBSIZE") == 0).then_some(())
    });
    eventually("the memory is back", || (client.info_int("used_memory") < empty + (full - empty) / 50).then_some(()));
    let bytes = (full - empty) / i64::from(buckets);
    println!("{buckets} buckets at {bytes} bytes each; {} bytes left", client.info_int("used_memory") - empty);
}

/// Calls of every kind, good and bad, on few keys.
fn mixture(random: &mut Random) -> Call {
    let key = random.below(20);
    call(&match random.below(25) {
        0..4 => format!("TB.TAKE k{key} 10 1/60"),
        4 => format!("TB.TAKE k{key} 10 1/60 11"),
        5 => format!("TB.TAKE k{key} 10 1000000 0.5"),
        6 => format!("TB.PEEK k{key} 10 1/60"),
        7 => format!("TB.MTAKE k{key} 10 1 1 other{key} 5 1/7 1 third{key} 100 0 1"),
        8 => format!("TB.MTAKE k{key} 10 1 1 k{key} 5 1/7 1"),
        9 => format!("TB.LEASE k{key} 10 1/60 5 2"),
        10 => format!("TB.REFUND k{key} 10 1/60 3"),
        11 => format!("TB.DEBIT k{key} 10 1/60 4"),
        12 => format!("TB.STATE k{key}"),
        13 => format!("TB.STATE absent{key}"),
        14 => format!("TB.TAKE k{key} ten 1"),
        15 => format!("TB.TAKE k{key} 10 1/0 1"),
        16 => format!("TB.TAKE k{key} 10 1 1 1 1"),
        17 => "TB.TAKE stranger 10 1".to_owned(),
        18 => "TB.MTAKE k1 10 1 1 stranger 10 1 1".to_owned(),
        19 => format!("TB.LEASE k{key} 10 1/60 1 2"),
        20 => "TB.DEBIT k1 10 1 1e999".to_owned(),
        21 => "TB.DEBIT indebted 10 0 1e15".to_owned(),
        22 => format!("DEL k{key}"),
        23 => format!("TB.LEASE k{key} 10 1/60 1.5"),
        _ => "INFO tokenbucket".to_owned(),
    })
}

/// A part of the calls comes when memory is full.
fn run_mixture(client: &mut Client, random: &mut Random, calls: usize) {
    client.ok("SET stranger hello");
    for number in 0..calls.div_ceil(500) {
        let batch: Vec<Call> = (0..500).map(|_| mixture(random)).collect();
        if number % 100 == 1 {
            client.ok("CONFIG SET maxmemory 1");
            client.pipeline(&batch);
            assert!(client.ask("TB.TAKE new 10 1").error().starts_with("OOM "));
            client.ok("CONFIG SET maxmemory 0");
        } else {
            client.pipeline(&batch);
        }
    }
}

/// The least of a few readings: what the server does besides comes and goes.
fn least(client: &mut Client, field: &str) -> i64 {
    (0..5).map(|_| client.info_int(field)).min().expect("five readings")
}

fn used_memory(client: &mut Client) -> i64 {
    least(client, "used_memory")
}

#[test]
fn memory_stays_where_it_is_over_calls_of_every_kind_good_and_bad() {
    let server = Server::start();
    let (mut client, mut random) = (server.client(), Random::new(11));
    let (first, all) = short_or_long((50_000, 350_000), (2_000_000, 10_000_000));
    run_mixture(&mut client, &mut random, first);
    let mut readings = || ["used_memory", "used_memory_rss"].map(|field| least(&mut client, field));
    let before = readings();
    run_mixture(&mut server.client(), &mut random, all - first);
    let after = readings();
    let [used, resident] = [after[0] - before[0], after[1] - before[1]];
    println!("{used} bytes more in use and {resident} more resident after {all} calls than after {first}");
    // What leaks outside of the server's allocator shows in the latter only; pages come and go.
    assert!(used < 64 * 1024 && resident < 2 << 20, "{used} bytes more in use, {resident} more resident");
}

#[test]
fn loading_and_unloading_the_module_again_and_again_keeps_next_to_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let mut exchange = |times: i64| {
        for _ in 0..times {
            exchange_module(&mut client);
            assert_eq!(client.take("k 1000000 0")[0], 1);
        }
        used_memory(&mut client)
    };
    let before = exchange(10);
    let times = short_or_long(200, 1000);
    let each = (exchange(times) - before) / times;
    // Servers keep an entry or two of their own (the ACL category, statistics of errors) for every load.
    assert!(each < 4096, "{each} bytes are kept by every exchange of the module");
    println!("{each} bytes are kept by every exchange of the module");
}

/// Whether a program can be watched by valgrind: it must be there, and the server no script that starts another.
fn can_be_watched() -> bool {
    let server = server_binary();
    let path = if Path::new(&server).is_absolute() {
        server.clone().into()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|dir| dir.join(&server)).find(|file| file.is_file()).unwrap_or_default()
    };
    let is_script = fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!"));
    !is_script && Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn valgrind_finds_no_leak_and_no_wrong_access_in_the_module() {
    if !can_be_watched() {
        println!("skipped: no valgrind, or the server is started by a script");
        return;
    }
    let (folder, port) = (Folder::new("valgrind"), free_port());
    let report = folder.path().join("report");
    let mut command = Command::new("valgrind");
    command.args([
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--num-callers=40",
        "--error-limit=no",
        "--keep-debuginfo=yes",
    ]);
    // The server's allocator is then valgrind's, so that what the module allocates is watched too.
    command.arg("--soname-synonyms=somalloc=*jemalloc*").arg(format!("--log-file={}", report.display()));
    command.arg(server_binary()).args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]);
    command.arg(folder.path()).args(["--enable-module-command", "yes", "--loadmodule"]).arg(module_path());
    let mut server = Process::start(command, port, folder.path());
    let (mut client, mut random) = (server.client(), Random::new(13));
    assert!(!client.ask("CONFIG SET tokenbucket.expiry-slack-ms 77").is_error());
    run_mixture(&mut client, &mut random, short_or_long(4_000, 200_000));
    exchange_module(&mut client);
    run_mixture(&mut client, &mut random, 1_000);
    server.shutdown();
    let report = fs::read_to_string(report).expect("valgrind's report");
    assert!(report.contains("ERROR SUMMARY"), "the report is not whole:\n{report}");
    assert!(report.contains("definitely lost") || report.contains("All heap blocks were freed"), "{report}");
    // Paragraphs are set off by lines that hold the process id only.
    let ours = |paragraph: &&str| paragraph.contains(" at 0x") && paragraph.contains("redis_token_bucket");
    let paragraphs: Vec<String> = report
        .lines()
        .map(|line| line.split_once("== ").map_or("", |(_, text)| text))
        .collect::<Vec<_>>()
        .join("\n")
        .split("\n\n")
        .map(str::to_owned)
        .collect();
    let found: Vec<&str> = paragraphs.iter().map(String::as_str).filter(ours).collect();
    assert!(found.is_empty(), "valgrind found in the module:\n{}", found.join("\n\n"));
    println!("{}", report.lines().find(|line| line.contains("ERROR SUMMARY")).unwrap_or_default());
}
