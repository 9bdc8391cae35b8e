//! `TB.STATE`: what is stored, for people. The balance as of its stamp, the stamp, and the time to live.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use family::{Listener, ints};
use support::{Client, Reply, START_US, Server, WallClock, Witness, on_a_frozen_clock};

fn state(client: &mut Client, key: &str) -> (String, i64, i64) {
    let state = client.ask(&format!("TB.STATE {key}"));
    (state.field("tokens").text().to_owned(), state.field("last_refill_us").int(), state.field("ttl_ms").int())
}

#[test]
fn is_a_map_on_resp3_and_a_flat_array_on_resp2() {
    let (server, _clock, mut two) = on_a_frozen_clock();
    let mut three = server.client();
    three.ask("HELLO 3");
    two.take("k 10 0 2.5");
    let text = |text: &str| Reply::Text(text.into());
    let pairs = [
        (text("tokens"), text("7.5")),
        (text("last_refill_us"), Reply::Int(START_US)),
        (text("ttl_ms"), Reply::Int(-1)),
    ];
    assert_eq!(three.ask("TB.STATE k"), Reply::Map(pairs.to_vec()));
    assert_eq!(
        two.ask("TB.STATE k"),
        Reply::Array(pairs.into_iter().flat_map(|(field, value)| [field, value]).collect())
    );
}

#[test]
fn is_nil_where_there_is_no_bucket() {
    let (server, clock, mut two) = on_a_frozen_clock();
    let mut three = server.client();
    three.ask("HELLO 3");
    for client in [&mut two, &mut three] {
        assert_eq!(client.ask("TB.STATE absent"), Reply::Nil);
        client.take("k 10 1 10");
        clock.advance_s(20);
        assert_eq!(client.ask("TB.STATE k"), Reply::Nil, "the key has expired");
    }
}

#[test]
fn tells_the_balance_to_the_last_digit() {
    for (calls, tokens) in [
        (&["TB.TAKE k 10 0 3"][..], "7"),
        (&["TB.TAKE k 10 0 10"], "0"),
        (&["TB.TAKE k 0.3 0 0.1"], "0.2"),
        (&["TB.TAKE k 10 0 0.000000001"], "9.999999999"),
        (&["TB.TAKE k 1e15 0 0.000000001"], "999999999999999.999999999"),
        (&["TB.TAKE k 1e15 0 1"], "999999999999999"),
        (&["TB.TAKE k 123.456 0 23.406"], "100.05"),
        (&["TB.DEBIT k 10 0 11"], "-1"),
        (&["TB.DEBIT k 10 0 10.000000001"], "-0.000000001"),
        (&["TB.DEBIT k 10 0 1e15", "TB.DEBIT k 10 0 10"], "-1000000000000000"),
        (&["TB.TAKE k 10 0 3", "TB.REFUND k 10 0 1.5"], "8.5"),
        (&["TB.LEASE k 7.25 0 100"], "0.25"),
        (&["TB.MTAKE k 10 0 1.25 l 10 0 1"], "8.75"),
    ] {
        let (_server, _clock, mut client) = on_a_frozen_clock();
        calls.iter().for_each(|call| assert!(!client.ask(call).is_error(), "{call}"));
        assert_eq!(state(&mut client, "k").0, tokens, "{calls:?}");
    }
}

#[test]
fn the_finest_refill_shows_in_the_twelfth_decimal() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 0.000001 10");
    clock.advance(1);
    client.ask("TB.DEBIT k 10 0.000001 0.000000001");
    assert_eq!(state(&mut client, "k").0, "-0.000000000999");
    clock.advance_s(1);
    client.ask("TB.REFUND k 10 0.000001 1");
    assert_eq!(state(&mut client, "k").0, "1.000000999001");
}

#[test]
fn shows_what_is_stored_and_not_what_has_come_back_since() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1/60 4");
    let before = state(&mut client, "k");
    assert_eq!((before.0.as_str(), before.1), ("6", START_US));
    clock.advance_s(120);
    assert_eq!(state(&mut client, "k"), (before.0, before.1, before.2 - 120_000));
    assert_eq!(client.take("k 10 1/60 1"), [1, 7, 0]);
    let after = state(&mut client, "k");
    assert_eq!((after.0.as_str(), after.1), ("7", START_US + 120_000_000));
}

#[test]
fn the_time_to_live_is_the_keys() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for call in
        ["TB.TAKE k 10 1/60 4", "TB.TAKE k 10 1 1", "TB.DEBIT k 10 1 100", "TB.TAKE k 10 1/3600 0", "PEXPIRE k 1234"]
    {
        client.ask(call);
        clock.advance_ms(7);
        let ttl = client.int("PTTL k");
        assert!(ttl > 0);
        assert_eq!(state(&mut client, "k").2, ttl, "after {call}");
    }
    assert_eq!(client.int("PERSIST k"), 1);
    assert_eq!(state(&mut client, "k").2, -1);
    client.take("never 10 0 1");
    assert_eq!(state(&mut client, "never").2, -1);
    client.take("not-held 1e15 1e-18 1e15");
    assert_eq!(state(&mut client, "not-held").2, -1);
}

#[test]
fn a_stamp_ahead_of_the_clock_is_shown_as_it_is() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1/60 4");
    clock.advance_s(-7200);
    assert_eq!(state(&mut client, "k").1, START_US);
}

#[test]
fn leaves_no_trace() {
    let clock = WallClock::frozen();
    let server = Server::setup().append_only().clock(&clock).start();
    let mut client = server.client();
    client.take("k 10 1/60 4");
    ints(&mut client, "TB.DEBIT ahead 10 1/60 15");
    clock.advance_s(-7200);
    let mut listener = Listener::of(&server);
    let mut watching = server.client();
    watching.ok("WATCH k ahead absent");
    for key in ["k", "ahead", "absent"] {
        let before = Witness::of(&mut client, key.as_bytes());
        (0..20).for_each(|_| drop(client.ask(&format!("TB.STATE {key}"))));
        assert_eq!(Witness::of(&mut client, key.as_bytes()), before);
        listener.nothing("looking");
    }
    watching.ok("MULTI");
    watching.ask("PING");
    assert_eq!(watching.ask("EXEC").texts(), ["PONG"]);
}

#[test]
fn a_replica_shows_the_same() {
    let (primary, clock, mut client) = on_a_frozen_clock();
    let replica = Server::setup().clock(&clock).start();
    client.take("before 10 1/60 4.5");
    replica.follow(&primary);
    client.take("after 10 1/60 7");
    ints(&mut client, "TB.DEBIT owing 10 1/60 123.4");
    client.take("never 10 0 1");
    replica.catch_up(&primary);
    clock.advance_s(1);
    for key in ["before", "after", "owing", "never"] {
        assert_eq!(state(&mut replica.client(), key), state(&mut client, key), "{key}");
    }
    assert_eq!(replica.client().ask("TB.STATE absent"), Reply::Nil);
}

#[test]
fn runs_in_read_only_scripts() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 0 2.5");
    let flat = client.call(&["EVAL_RO", "return redis.call('TB.STATE', KEYS[1])", "1", "k"]);
    assert_eq!(flat, client.ask("TB.STATE k"));
    let map = "redis.setresp(3); local s = redis.call('TB.STATE', KEYS[1]); return s.map.tokens .. ' ' .. s.map.ttl_ms";
    assert_eq!(client.call(&["EVAL_RO", map, "1", "k"]).text(), "7.5 -1");
    let nothing = "return redis.call('TB.STATE', KEYS[1]) == false";
    assert_eq!(client.call(&["EVAL_RO", nothing, "1", "absent"]).int(), 1);
}

#[test]
fn bad_calls_are_refused() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.ok("SET text hello");
    client.ok("SET as-long-as-a-bucket 123456789012345678901234");
    client.ask("RPUSH list a b c");
    for (line, start) in [
        ("TB.STATE", "ERR wrong number of arguments for 'tb.state'"),
        ("TB.STATE k k", "ERR wrong number of arguments for 'tb.state'"),
        ("TB.STATE text", "WRONGTYPE "),
        ("TB.STATE as-long-as-a-bucket", "WRONGTYPE "),
        ("TB.STATE list", "WRONGTYPE "),
    ] {
        let reply = client.ask(line);
        assert!(reply.error().starts_with(start), "{line}: {reply:?}");
    }
}
