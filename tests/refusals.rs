//! A refusal leaves no trace: nothing to save, replicate, log, abort, invalidate or announce. A grant leaves exactly one
//! of each.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, ReplicationStream, Reply, Server, WallClock, Witness};

/// Calls that change nothing where `k` is a drained bucket of `2 1/60` and `absent` is no key.
const WITHOUT_EFFECT: [&str; 8] = [
    "TB.TAKE k 2 1/60",
    "TB.TAKE k 2 1/60 2",
    "TB.TAKE k 2 1/60 3",
    "TB.TAKE k 2 1/60 0",
    "TB.TAKE absent 2 1/60 0",
    "TB.TAKE absent 2 1/60 3",
    "TB.TAKE absent 0 1/60",
    "TB.TAKE k 2 1/60 nonsense",
];

struct Drained {
    server: Server,
    clock: WallClock,
    client: Client,
}

/// A server with all that listens for writes switched on, and with the drained bucket `k`.
fn drained() -> Drained {
    let clock = WallClock::frozen();
    let setup = Server::setup().append_only().config("repl-ping-replica-period", "3600");
    let server = setup.config("notify-keyspace-events", "KEA").clock(&clock).start();
    let mut client = server.client();
    assert_eq!(client.take("k 2 1/60 2"), [1, 0, 0]);
    Drained { server, clock, client }
}

fn repeat_all_without_effect(client: &mut Client, times: usize) {
    for line in WITHOUT_EFFECT {
        let command: Vec<&str> = line.split(' ').collect();
        for reply in client.pipeline(&vec![command; times]) {
            match reply {
                Reply::Error(_) => assert!(line.ends_with("nonsense"), "{line}: {reply:?}"),
                _ => assert_eq!(reply.ints()[0], i64::from(line.ends_with(" 0")), "{line}: {reply:?}"),
            }
        }
    }
}

#[test]
fn refuses_when_empty_and_writes_nothing() {
    let Drained { server, clock, mut client } = drained();
    let mut stream = ReplicationStream::of(&server);
    let before = Witness::of(&mut client, b"k");
    for _ in 0..10 {
        repeat_all_without_effect(&mut client, 20);
        clock.advance_ms(100);
    }
    assert_eq!(Witness::of(&mut client, b"k"), before);
    assert_eq!(client.int("EXISTS absent"), 0);
    assert_eq!(stream.drain(), Vec::<Vec<Vec<u8>>>::new(), "something was replicated");
}

#[test]
fn a_grant_counts_as_one_change_and_is_replicated_and_logged() {
    let Drained { server, clock, mut client } = drained();
    let mut stream = ReplicationStream::of(&server);
    for granted in 1..=5 {
        clock.advance_s(60);
        let dirty = client.info_int("rdb_changes_since_last_save");
        let offset = client.info_int("master_repl_offset");
        let logged = client.info_int("aof_current_size");
        assert_eq!(client.take("k 2 1/60"), [1, 0, 0], "grant {granted}");
        assert_eq!(client.info_int("rdb_changes_since_last_save"), dirty + 1);
        assert!(client.info_int("master_repl_offset") > offset);
        assert!(client.info_int("aof_current_size") > logged);
        assert_eq!(stream.drain().len(), 1);
    }
}

#[test]
fn a_refusal_does_not_abort_a_transaction_that_watches_the_bucket() {
    let Drained { server, client: mut other, .. } = drained();
    let mut watching = server.client();
    watching.ok("WATCH k absent");
    repeat_all_without_effect(&mut other, 1);
    watching.ok("MULTI");
    assert_eq!(watching.ask("PING").text(), "QUEUED");
    assert_eq!(watching.ask("EXEC").texts(), ["PONG"]);
}

#[test]
fn a_grant_aborts_a_transaction_that_watches_the_bucket() {
    let Drained { server, clock, client: mut other } = drained();
    for (key, wait_s) in [("k", 60), ("absent", 0)] {
        let mut watching = server.client();
        watching.ok(&format!("WATCH {key}"));
        clock.advance_s(wait_s);
        assert_eq!(other.take(&format!("{key} 2 1/60"))[0], 1);
        watching.ok("MULTI");
        watching.ask("PING");
        assert_eq!(watching.ask("EXEC"), Reply::Nil, "a grant on {key} went unnoticed");
    }
}

#[test]
fn a_refusal_invalidates_no_clients_cache() {
    for tracking in ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST"] {
        let Drained { server, client: mut other, .. } = drained();
        let mut caching = server.client();
        caching.ask("HELLO 3");
        caching.ok(tracking);
        caching.bytes("GET k");
        assert_eq!(caching.ask("GET absent"), Reply::Nil);
        repeat_all_without_effect(&mut other, 1);
        caching.ask("PING");
        assert_eq!(caching.pushes(), [], "{tracking}");
    }
}

#[test]
fn a_grant_invalidates_clients_caches_once() {
    for tracking in ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST"] {
        let Drained { server, clock, client: mut other } = drained();
        let mut caching = server.client();
        caching.ask("HELLO 3");
        caching.ok(tracking);
        caching.bytes("GET k");
        clock.advance_s(60);
        assert_eq!(other.take("k 2 1/60"), [1, 0, 0]);
        // Broadcasts are sent when the server has nothing else to do: before it reads the next command.
        other.ask("PING");
        caching.ask("PING");
        let invalidation =
            Reply::Push(vec![Reply::Text(b"invalidate".into()), Reply::Array(vec![Reply::Text(b"k".into())])]);
        assert_eq!(caching.pushes(), [invalidation], "{tracking}");
    }
}

#[test]
fn a_refusal_fires_no_keyspace_event() {
    let Drained { server, client: mut other, .. } = drained();
    let mut listening = listener(&server);
    repeat_all_without_effect(&mut other, 1);
    assert_eq!(events(&mut listening, &mut other), Vec::<String>::new());
}

#[test]
fn a_grant_fires_one_event_named_after_the_command() {
    let Drained { server, clock, client: mut other } = drained();
    let mut listening = listener(&server);
    clock.advance_s(60);
    let told = |key: &str| [format!("__keyspace@0__:{key} tb.take"), format!("__keyevent@0__:tb.take {key}")];
    for line in ["k 2 1/60", "fresh 2 1/60", "fresh 2 1/30", "fresh-without-expiry 2 0"] {
        assert_eq!(other.take(line)[0], 1);
        let key = line.split(' ').next().unwrap();
        assert_eq!(events(&mut listening, &mut other), told(key), "events of {line}");
    }
}

#[test]
fn the_event_is_of_the_modules_class_and_of_no_other() {
    let Drained { server, clock, client: mut other } = drained();
    let mut listening = listener(&server);
    clock.advance_s(60);
    other.ok("CONFIG SET notify-keyspace-events KEg$lshzxet");
    assert_eq!(other.take("k 2 1/60")[0], 1);
    assert_eq!(events(&mut listening, &mut other), Vec::<String>::new());
    clock.advance_s(60);
    other.ok("CONFIG SET notify-keyspace-events Ed");
    assert_eq!(other.take("k 2 1/60")[0], 1);
    assert_eq!(events(&mut listening, &mut other), ["__keyevent@0__:tb.take k"]);
}

fn listener(server: &Server) -> Client {
    let mut client = server.client();
    assert_eq!(client.ask("PSUBSCRIBE __key*").items()[0].text(), "psubscribe");
    client
}

/// The events since the last call, each as its channel and its message.
fn events(listening: &mut Client, other: &mut Client) -> Vec<String> {
    other.int("PUBLISH __key-end .");
    let mut events = Vec::new();
    loop {
        let message = listening.read();
        match message.texts()[..] {
            ["pmessage", _, "__key-end", _] => return events,
            ["pmessage", _, channel, text] => events.push(format!("{channel} {text}")),
            _ => panic!("not a message: {message:?}"),
        }
    }
}
