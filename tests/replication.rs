//! What a replica gets: the resulting bytes and an absolute deadline, never the call; so it holds what its primary holds,
//! with or without the module.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, ReplicationStream, Reply, Server, WallClock};

/// Buckets of every kind: slow, fast, without expiry, drained, changed in their quota, moved by a refusal, persisted.
fn fill(client: &mut Client, clock: &WallClock) {
    client.take("slow 100 1/60 40");
    client.take("fast 10 1000 7");
    client.take("never 5 0 2");
    client.take("fractions 2.5 1/3 0.7");
    client.take("huge 1e15 1e12 1e15");
    client.take("unheld 1e15 1e-18 1e15");
    client.take("drained 10 1/10 10");
    client.take("drained 10 1/10 1");
    client.take("quicker 100 1/60 40");
    client.take("quicker 100 10 1");
    client.take("slower 100 10 40");
    client.take("slower 100 1/60 1");
    client.take("stopped 100 10 40");
    client.take("stopped 100 0 1");
    client.take("pushed-back 10 100 10");
    assert_eq!(client.take("pushed-back 10 1/60 10")[0], 0);
    client.take("pushed-back-by-nothing 10 100 10");
    assert_eq!(client.take("pushed-back-by-nothing 10 1/60 0")[0], 1);
    client.take("persisted 100 1/60 40");
    assert_eq!(client.int("PERSIST persisted"), 1);
    client.take("persisted 100 1/60 1");
    client.take("persisted-then-moved 100 1/60 40");
    assert_eq!(client.int("PERSIST persisted-then-moved"), 1);
    client.take("shortened 100 1/60 40");
    assert_eq!(client.int("PEXPIRE shortened 50000"), 1);
    client.take("shortened 100 1/60 1");
    for _ in 0..20 {
        clock.advance(1_234_567);
        client.take("slow 100 1/60 1");
        client.take("busy 1000 1 3");
    }
    client.take("persisted-then-moved 100 1/60 20");
    client.take("\u{0}\r\n%s%n 10 1");
}

/// Every key with its bytes and its deadline.
fn contents(client: &mut Client) -> Vec<(Vec<u8>, Reply, i64)> {
    let keys = client.ask("KEYS *");
    let mut all: Vec<_> = (keys.items().iter())
        .map(|key| {
            let key = key.bytes();
            let value = client.call(&[b"GET", key]);
            (key.to_vec(), value, client.call(&[b"PEXPIRETIME", key]).int())
        })
        .collect();
    all.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    all
}

#[test]
fn a_replica_holds_the_same_bytes_and_the_same_deadlines() {
    let (primary, clock) = Server::frozen();
    let replica = Server::setup().clock(&clock).start();
    let mut client = primary.client();
    client.take("before-the-link 10 1 4");
    replica.follow(&primary);
    fill(&mut client, &clock);
    replica.catch_up(&primary);
    let held = contents(&mut client);
    assert!(held.len() >= 12, "most buckets have expired");
    assert_eq!(contents(&mut replica.client()), held);
}

#[test]
fn a_replica_without_the_module_holds_the_same() {
    let (primary, clock) = Server::frozen();
    let replica = Server::setup().without_module().clock(&clock).start();
    let mut client = primary.client();
    client.take("before-the-link 10 1 4");
    replica.follow(&primary);
    fill(&mut client, &clock);
    replica.catch_up(&primary);
    assert_eq!(contents(&mut replica.client()), contents(&mut client));
    assert_eq!(replica.client().info("unexpected_error_replies"), "0");
}

#[test]
fn the_true_clocks_of_two_servers_do_not_show_in_the_deadlines() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let mut client = primary.client();
    for n in 0..200 {
        client.take(&format!("k{} 10 1/7 1", n % 50));
    }
    replica.catch_up(&primary);
    assert_eq!(contents(&mut replica.client()), contents(&mut client));
}

#[test]
fn the_stream_holds_one_absolute_set_for_every_grant_and_nothing_else() {
    let (primary, clock) = Server::frozen();
    let mut client = primary.client();
    let mut stream = ReplicationStream::of(&primary);
    let mut sent = Vec::new();
    let mut kept = 0;
    for round in 0..50 {
        clock.advance_ms(300 * (round % 4));
        for line in ["a 10 1 3", "b 5 1/10 1", "c 3 0 1", "d 1000 1 1"] {
            let key = line.split(' ').next().unwrap();
            let allowed = client.take(line)[0];
            sent.extend(stream.drain());
            assert_eq!(sent.len() as i64, allowed, "{line} sent {sent:?}");
            let Some(command) = sent.pop() else { continue };
            let deadline = client.int(&format!("PEXPIRETIME {key}")).to_string();
            let value = client.bytes(&format!("GET {key}"));
            let text: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            match text[..] {
                [b"SET", name, bytes, b"PXAT", at] => {
                    assert_eq!((name, bytes, at), (key.as_bytes(), &value[..], deadline.as_bytes()));
                }
                [b"SET", name, bytes, b"KEEPTTL"] => {
                    kept += 1;
                    assert_eq!((name, bytes), (key.as_bytes(), &value[..]));
                }
                [b"SET", name, bytes] => {
                    assert_eq!((name, bytes, &deadline[..]), (key.as_bytes(), &value[..], "-1"));
                }
                _ => panic!("{line} was replicated as {command:?}"),
            }
        }
    }
    assert!(kept > 0, "the deadline never stood");
}

#[test]
fn an_expiry_pushed_back_by_a_refusal_is_replicated_too() {
    let (primary, _clock) = Server::frozen();
    let mut client = primary.client();
    client.take("k 10 100 10");
    let mut stream = ReplicationStream::of(&primary);
    assert_eq!(client.take("k 10 1/60 10")[0], 0);
    let sent = stream.drain();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0][0].to_ascii_uppercase(), b"SET");
    let deadline = client.int("PEXPIRETIME k").to_string();
    assert_eq!(sent[0][2..], [client.bytes("GET k"), b"PXAT".to_vec(), deadline.into_bytes()]);
}

#[test]
fn a_replica_refuses_to_take() {
    let (primary, clock) = Server::frozen();
    let replica = Server::setup().clock(&clock).start();
    primary.client().take("k 10 1 10");
    replica.follow(&primary);
    let mut client = replica.client();
    for line in ["TB.TAKE k 10 1", "TB.TAKE k 10 1 0", "TB.TAKE other 10 1"] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with("READONLY "), "{line}: {reply:?}");
    }
    assert_eq!(client.int("DBSIZE"), 1);
}

#[test]
fn a_promoted_replica_goes_on_where_its_primary_was() {
    let (mut primary, clock) = Server::frozen();
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&primary);
    let mut client = primary.client();
    client.take("k 10 1 8");
    clock.advance_s(3);
    client.take("k 10 1 1");
    replica.catch_up(&primary);
    primary.kill();
    let mut client = replica.client();
    client.ok("REPLICAOF NO ONE");
    assert_eq!(client.take("k 10 1 0"), [1, 4, 0]);
    assert_eq!(client.take("k 10 1 4"), [1, 0, 0]);
    assert_eq!(client.take("k 10 1 1"), [0, 0, 1000]);
}
