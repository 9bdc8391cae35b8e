//! Buckets outlive their server: in an AOF, in an RDB, in DUMP payloads and copies, on servers without the module, and
//! across unloading and loading it.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;

use support::{Client, Reply, Server, Setup, WallClock, eventually, module_path};

const KEYS: [&str; 4] = ["slow", "fast", "never", "drained"];

/// Four buckets, each written more than once and at more than one time.
fn fill(client: &mut Client, clock: &WallClock) {
    client.take("slow 100 1/60 40");
    client.take("fast 10 5 7");
    client.take("never 5 0 2");
    client.take("drained 10 1/10 10");
    clock.advance(1_234_567);
    client.take("slow 100 1/60 1");
    client.take("never 5 0 1");
    assert_eq!(client.take("drained 10 1/10 1")[0], 0);
}

/// What is stored under [`KEYS`], deadlines included, and how many keys there are.
fn contents(client: &mut Client) -> (Vec<(Reply, i64)>, i64) {
    let held = KEYS.map(|key| (client.ask(&format!("GET {key}")), client.int(&format!("PEXPIRETIME {key}"))));
    (held.to_vec(), client.int("DBSIZE"))
}

/// What the buckets of [`fill`] answer, half a second after they were last written.
fn go_on(client: &mut Client, clock: &WallClock) {
    clock.advance_ms(500);
    assert_eq!(client.take("slow 100 1/60 0"), [1, 59, 0]);
    assert_eq!(client.take("fast 10 5 1"), [1, 9, 0]);
    assert_eq!(client.take("never 5 0 1"), [1, 1, 0]);
    assert_eq!(client.take("drained 10 1/10 1"), [0, 0, 8266]);
}

fn setup(clock: &WallClock) -> Setup {
    Server::setup().clock(clock)
}

#[test]
fn a_killed_server_finds_every_balance_in_its_append_only_file() {
    let clock = WallClock::frozen();
    let mut server = setup(&clock).append_only().start();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    server.kill();
    server.restart();
    let mut client = server.client();
    assert_eq!(contents(&mut client), before);
    go_on(&mut client, &clock);
}

#[test]
fn time_that_passed_while_the_server_was_down_is_credited_once() {
    let clock = WallClock::frozen();
    let mut server = setup(&clock).append_only().start();
    assert_eq!(server.client().take("k 10 1 10"), [1, 0, 0]);
    clock.advance_s(7);
    server.kill();
    server.restart();
    let mut client = server.client();
    assert_eq!(client.take("k 10 1 0"), [1, 7, 0], "the take was replayed at a later clock");
    assert_eq!(client.take("k 10 1 7"), [1, 0, 0]);
    clock.advance_s(9);
    server.kill();
    server.restart();
    assert_eq!(server.client().take("k 10 1 0"), [1, 9, 0]);
}

#[test]
fn the_append_only_file_never_holds_the_call() {
    let clock = WallClock::frozen();
    let server = setup(&clock).append_only().start();
    let mut client = server.client();
    fill(&mut client, &clock);
    client.ok("MULTI");
    client.ask("TB.TAKE slow 100 1/60");
    client.ask("EXEC");
    let logged = files_below(server.dir(), "aof");
    assert!(logged.contains("SET") && logged.contains("PXAT"), "{logged}");
    assert!(!logged.to_ascii_uppercase().contains("TB.TAKE"), "{logged}");
}

#[test]
fn a_rewritten_append_only_file_holds_every_balance() {
    for preamble in ["yes", "no"] {
        let clock = WallClock::frozen();
        let mut server = setup(&clock).append_only().config("aof-use-rdb-preamble", preamble).start();
        let mut client = server.client();
        fill(&mut client, &clock);
        let before = contents(&mut client);
        client.ask("BGREWRITEAOF");
        eventually("the rewrite is done", || {
            let busy = client.info_int("aof_rewrite_in_progress") + client.info_int("aof_rewrite_scheduled");
            (busy == 0).then_some(())
        });
        assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
        assert_eq!(contents(&mut client), before);
        server.kill();
        server.restart();
        let mut client = server.client();
        assert_eq!(contents(&mut client), before, "with a preamble: {preamble}");
        go_on(&mut client, &clock);
    }
}

#[test]
fn a_snapshot_holds_every_balance() {
    let clock = WallClock::frozen();
    let mut server = setup(&clock).start();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    client.ok("SAVE");
    server.shutdown();
    server.restart();
    let mut client = server.client();
    assert_eq!(contents(&mut client), before);
    go_on(&mut client, &clock);
}

#[test]
fn buckets_go_on_after_a_reload_in_place() {
    let clock = WallClock::frozen();
    let server = setup(&clock).append_only().start();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    client.ok("DEBUG RELOAD");
    assert_eq!(contents(&mut client), before);
    client.ok("DEBUG LOADAOF");
    assert_eq!(contents(&mut client), before);
    go_on(&mut client, &clock);
}

#[test]
fn our_snapshot_loads_on_a_server_without_the_module() {
    let clock = WallClock::frozen();
    let mut server = setup(&clock).start();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    client.ok("SAVE");
    there_and_back(&mut server, setup(&clock), &before, &clock);
}

#[test]
fn our_append_only_file_loads_on_a_server_without_the_module() {
    let clock = WallClock::frozen();
    let mut server = setup(&clock).append_only().start();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    there_and_back(&mut server, setup(&clock).append_only(), &before, &clock);
}

/// Starts the killed server without the module, then with it again; nothing may have changed.
fn there_and_back(server: &mut Server, with: Setup, before: &(Vec<(Reply, i64)>, i64), clock: &WallClock) {
    server.kill();
    server.restart_with(with.clone().without_module());
    let mut client = server.client();
    assert_eq!(contents(&mut client), *before);
    assert!(client.ask("TB.TAKE slow 100 1/60").error().starts_with("ERR unknown command"));
    server.kill();
    server.restart_with(with);
    let mut client = server.client();
    assert_eq!(contents(&mut client), *before);
    go_on(&mut client, clock);
}

#[test]
fn unloading_and_loading_the_module_keeps_every_bucket() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    fill(&mut client, &clock);
    let before = contents(&mut client);
    let module = module_path();
    for _ in 0..3 {
        client.ok("MODULE UNLOAD tokenbucket");
        assert!(client.ask("TB.TAKE slow 100 1/60").error().starts_with("ERR unknown command"));
        assert_eq!(contents(&mut client), before);
        client.ok(&format!("MODULE LOAD {}", module.display()));
        assert_eq!(contents(&mut client), before);
    }
    go_on(&mut client, &clock);
}

#[test]
fn a_dumped_bucket_goes_on_where_it_is_restored() {
    let (server, clock) = Server::frozen();
    let elsewhere = Server::setup().clock(&clock).start();
    let (mut here, mut there) = (server.client(), elsewhere.client());
    here.take("k 100 1/60 40");
    let payload = here.bytes("DUMP k");
    let deadline = here.int("PEXPIRETIME k").to_string();
    let restore = [b"RESTORE".as_slice(), b"k", deadline.as_bytes(), &payload, b"ABSTTL"];
    assert_eq!(there.call(&restore).text(), "OK");
    assert_eq!(there.int("PEXPIRETIME k"), here.int("PEXPIRETIME k"));
    clock.advance_s(120);
    assert_eq!(there.take("k 100 1/60 2"), [1, 60, 0]);
    assert_eq!(here.take("k 100 1/60 2"), [1, 60, 0]);
    assert_eq!(there.bytes("GET k"), here.bytes("GET k"));
}

#[test]
fn a_bucket_restored_without_its_expiry_gets_one_when_the_deadline_next_moves() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take("k 100 1/60 40");
    let payload = client.bytes("DUMP k");
    assert_eq!(client.call(&[b"RESTORE".as_slice(), b"new", b"0", &payload]).text(), "OK");
    assert_eq!(client.int("PTTL new"), -1);
    assert_eq!(client.take("new 100 1/60 1"), [1, 59, 0]);
    clock.advance_s(600);
    assert_eq!(client.take("new 100 1/60 69"), [1, 0, 0]);
    let ttl = client.int("PTTL new");
    assert!((6_000_000..=6_002_000).contains(&ttl), "{ttl}");
}

#[test]
fn a_copied_bucket_is_one_of_its_own() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take("k 100 1/60 40");
    assert_eq!(client.int("COPY k copy"), 1);
    assert_eq!(client.bytes("GET copy"), client.bytes("GET k"));
    assert_eq!(client.int("PEXPIRETIME copy"), client.int("PEXPIRETIME k"));
    clock.advance_s(60);
    assert_eq!(client.take("copy 100 1/60 11"), [1, 50, 0]);
    assert_eq!(client.take("k 100 1/60 1"), [1, 60, 0]);
}

#[test]
fn a_renamed_and_a_moved_bucket_go_on() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take("k 100 1/60 40");
    let deadline = client.int("PEXPIRETIME k");
    client.ok("RENAME k renamed");
    clock.advance_s(60);
    assert_eq!(client.take("renamed 100 1/60 0"), [1, 61, 0]);
    assert_eq!(client.int("PEXPIRETIME renamed"), deadline);
    assert_eq!(client.int("MOVE renamed 1"), 1);
    assert_eq!(client.take("k 100 1/60 1"), [1, 99, 0]);
    client.ok("SELECT 1");
    assert_eq!(client.take("renamed 100 1/60 1"), [1, 60, 0]);
}

/// All files below `dir` whose name ends so, as text.
fn files_below(dir: &Path, ending: &str) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &files_below(&path, ending);
        } else if path.extension().is_some_and(|found| found == ending) {
            text += &String::from_utf8_lossy(&fs::read(&path).unwrap());
        }
    }
    text
}
