//! Takes at the memory limit: only a call that would create a key is refused, and eviction works as with any key.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, Server, Witness};

/// A server that has two buckets and no memory for a third.
fn full() -> (Server, Client) {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take("drained 10 1 10");
    client.take("k 10 1 4");
    // A step out of the buckets' first instant, so that a refusal is not refused for a reason of its own.
    clock.advance_ms(1);
    client.ok("CONFIG SET maxmemory-policy noeviction");
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("SET other x").error().starts_with("OOM "));
    (server, client)
}

#[test]
fn a_bucket_that_would_be_new_is_refused_at_the_limit() {
    let (_server, mut client) = full();
    let before = Witness::of(&mut client, b"new");
    for line in ["TB.TAKE new 10 1", "TB.TAKE new 10 1 10", "TB.TAKE new 10 0"] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with("OOM "), "{line}: {reply:?}");
    }
    assert_eq!(Witness::of(&mut client, b"new"), before);
}

#[test]
fn buckets_that_exist_go_on_at_the_limit() {
    let (_server, mut client) = full();
    assert_eq!(client.take("k 10 1 3"), [1, 3, 0]);
    assert_eq!(client.take("k 10 1/60 3"), [1, 0, 0]);
    assert_eq!(client.take("drained 10 1 2"), [0, 0, 1999]);
    assert_eq!(client.take("drained 10 1 0"), [1, 0, 0]);
}

#[test]
fn a_call_that_creates_nothing_is_answered_at_the_limit() {
    let (_server, mut client) = full();
    assert_eq!(client.take("new 10 1 11"), [0, 10, -1]);
    assert_eq!(client.take("new 10 1 0"), [1, 10, 0]);
    assert_eq!(client.take("new 0 1 1"), [0, 0, -1]);
    assert!(client.ask("TB.TAKE new ten 1").error().starts_with("ERR invalid capacity"));
    assert_eq!(client.int("EXISTS new"), 0);
}

#[test]
fn takes_in_scripts_and_transactions_meet_the_same_limit() {
    let (server, mut client) = full();
    let script = "return redis.call('TB.TAKE', KEYS[1], '10', '1')";
    assert_eq!(client.call(&["EVAL", script, "1", "k"]).ints(), [1, 5, 0]);
    assert!(client.call(&["EVAL", script, "1", "new"]).error().starts_with("OOM "));
    // At the limit the server queues nothing, so the transaction is queued before.
    client.ok("CONFIG SET maxmemory 0");
    let mut queueing = server.client();
    queueing.ok("MULTI");
    queueing.ask("TB.TAKE k 10 1");
    queueing.ask("TB.TAKE new 10 1");
    client.ok("CONFIG SET maxmemory 1");
    let replies = queueing.ask("EXEC");
    assert_eq!(replies.items()[0].ints(), [1, 4, 0]);
    assert!(replies.items()[1].error().starts_with("OOM "));
    assert_eq!(client.int("EXISTS new"), 0);
}

#[test]
fn new_buckets_are_granted_again_when_there_is_memory() {
    let (_server, mut client) = full();
    assert!(client.ask("TB.TAKE new 10 1").is_error());
    client.ok("CONFIG SET maxmemory 0");
    assert_eq!(client.take("new 10 1"), [1, 9, 0]);
}

#[test]
fn buckets_are_evicted_like_any_key() {
    for policy in ["allkeys-lru", "allkeys-lfu", "volatile-ttl"] {
        let (server, _clock) = Server::frozen();
        let mut client = server.client();
        client.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        let limit = client.info_int("used_memory") + 3_000_000;
        client.ok(&format!("CONFIG SET maxmemory {limit}"));
        for batch in 0..100 {
            let key = |n: i32| format!("bucket-of-tenant-{batch}-{n}");
            let take = |n| vec!["TB.TAKE".to_owned(), key(n), "10".to_owned(), "1/60".to_owned()];
            for reply in client.pipeline(&(0..300).map(take).collect::<Vec<_>>()) {
                assert_eq!(reply.ints(), [1, 9, 0], "{policy}");
            }
        }
        assert!(client.info_int("evicted_keys") > 0, "nothing had to go under {policy}");
        assert!(client.int("DBSIZE") > 1000, "hardly anything was kept under {policy}");
    }
}

#[test]
fn a_bucket_costs_no_more_than_a_string_of_its_size() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let usage = |client: &mut Client, fill: &dyn Fn(String) -> Vec<String>| {
        client.ok("FLUSHALL");
        let before = client.info_int("used_memory_dataset");
        for batch in 0..20 {
            let commands: Vec<_> = (0..500).map(|n| fill(format!("tenant-{batch:02}-{n:03}"))).collect();
            assert!(client.pipeline(&commands).iter().all(|reply| !reply.is_error()));
        }
        client.info_int("used_memory_dataset") - before
    };
    let set = |key: String| ["SET", &key, &"x".repeat(24), "PX", "9000000"].map(str::to_owned).to_vec();
    let take = |key: String| ["TB.TAKE", &key, "100", "1/60", "50"].map(str::to_owned).to_vec();
    let (strings, buckets) = (usage(&mut client, &set), usage(&mut client, &take));
    // One allocation class above the embedded string at most.
    assert!(buckets <= strings + 10_000 * 24, "10,000 buckets take {buckets} bytes, strings {strings}");
}

#[test]
fn a_server_that_evicts_takes_new_buckets_whatever_commands_were_renamed_away() {
    let server = Server::setup().config("rename-command SETRANGE", "nothing").start();
    let mut client = server.client();
    let limit = client.info_int("used_memory") + 300_000;
    client.ok("CONFIG SET maxmemory-policy allkeys-lru");
    client.ok(&format!("CONFIG SET maxmemory {limit}"));
    for key in 0..4_000 {
        client.take(&format!("bucket-{key} 10 1/60"));
    }
    assert!(client.info_int("evicted_keys") > 0);
    client.ok("CONFIG SET maxmemory-policy noeviction");
    client.ok("CONFIG SET maxmemory 1");
    assert!(client.ask("TB.TAKE new 10 1").error().starts_with("OOM "));
}
