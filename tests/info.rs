//! The section `INFO tokenbucket`: every counter moves by exactly what it counts, and nothing is in the way of a crash
//! report.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use std::collections::BTreeMap;
use std::thread;

use family::{READERS, WRITERS};
use support::{Client, ReplicationStream, Server, eventually};

const NUMBERS: [&str; 8] = [
    "calls_granted",
    "calls_refused",
    "calls_refused_forever",
    "wrong_type_hits",
    "rejected_inputs",
    "tokens_granted",
    "tokens_refunded",
    "tokens_debited",
];

/// The section's fields, without the module's name before each.
fn section(client: &mut Client) -> BTreeMap<String, String> {
    let text = String::from_utf8(client.bytes("INFO tokenbucket")).expect("ASCII");
    let mut lines = text.lines().filter(|line| !line.is_empty());
    assert_eq!(lines.next(), Some("# tokenbucket"));
    let field = |line: &str| {
        let (name, value) = line.split_once(':').expect("a field");
        (name.strip_prefix("tokenbucket_").expect("the module's name").to_owned(), value.to_owned())
    };
    lines.map(field).collect()
}

/// What rose between two looks, in the order of [`NUMBERS`], as `NAME +DIFFERENCE`; amounts in tokens.
fn rose(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let billionths = |fields: &BTreeMap<String, String>, name: &str| family::units(&fields[name]) / 1000;
    let difference = |name: &&str| {
        let by = billionths(after, name) - billionths(before, name);
        let (whole, rest) = (by / 1_000_000_000, format!("{:09}", by.abs() % 1_000_000_000));
        let rest = rest.trim_end_matches('0');
        let point = if rest.is_empty() { "" } else { "." };
        (by != 0).then(|| format!("{name} +{whole}{point}{rest}"))
    };
    NUMBERS.iter().filter_map(difference).collect()
}

#[test]
fn begins_at_nothing_and_names_the_version() {
    let server = Server::start();
    let fields = section(&mut server.client());
    assert_eq!(fields["version"], env!("CARGO_PKG_VERSION"));
    for name in NUMBERS {
        assert!(fields[name].bytes().all(|byte| byte == b'0' || byte == b'.'), "{name} begins at {}", fields[name]);
    }
    assert_eq!(fields.len(), NUMBERS.len() + 1, "an unknown field in {fields:?}");
}

#[test]
fn every_call_moves_exactly_what_it_should() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("SET text hello");
    for (line, risen) in [
        ("TB.TAKE k 10 1 2.5", &["calls_granted +1", "tokens_granted +2.5"][..]),
        ("TB.TAKE k 10 1", &["calls_granted +1", "tokens_granted +1"]),
        ("TB.TAKE k 10 1 0.000000001", &["calls_granted +1", "tokens_granted +0.000000001"]),
        ("TB.TAKE k 10 1 0", &["calls_granted +1"]),
        ("TB.TAKE k 10 1 7", &["calls_refused +1"]),
        ("TB.TAKE k 10 1 11", &["calls_refused +1", "calls_refused_forever +1"]),
        ("TB.TAKE k 10 0 7", &["calls_refused +1", "calls_refused_forever +1"]),
        ("TB.TAKE text 10 1", &["wrong_type_hits +1"]),
        ("TB.TAKE k ten 1", &["rejected_inputs +1"]),
        ("TB.TAKE k 10 one", &["rejected_inputs +1"]),
        ("TB.TAKE k 10 1 -1", &["rejected_inputs +1"]),
        ("TB.TAKE k 10 1 1 1", &["rejected_inputs +1"]),
        // The server itself refuses too few, and too many where their number never varies.
        ("TB.TAKE k 10", &[]),
        ("TB.STATE k k", &[]),
        ("TB.DEBIT k 10 1", &[]),
        ("TB.REFUND k 10 1 1 1", &[]),
        ("TB.PEEK k 10 1 1", &[]),
        ("TB.PEEK k 10 1 11", &[]),
        ("TB.PEEK text 10 1", &["wrong_type_hits +1"]),
        ("TB.PEEK k 10 1 x", &["rejected_inputs +1"]),
        ("TB.MTAKE m 10 1 1.5 n 10 1 2", &["calls_granted +1", "tokens_granted +3.5"]),
        ("TB.MTAKE m 10 1 1 n 10 1 0", &["calls_granted +1", "tokens_granted +1"]),
        ("TB.MTAKE m 10 1 1 n 10 1 9", &["calls_refused +1"]),
        ("TB.MTAKE m 10 1 9 n 10 1 11", &["calls_refused +1", "calls_refused_forever +1"]),
        ("TB.MTAKE m 10 1 1 text 10 1 1", &["wrong_type_hits +1"]),
        ("TB.MTAKE m 10 1 1 m 10 1 1", &["rejected_inputs +1"]),
        ("TB.MTAKE m 10 1 1 n 10 1", &["rejected_inputs +1"]),
        ("TB.MTAKE m 10 1 1 n 10 1 x", &["rejected_inputs +1"]),
        ("TB.LEASE l 10 1 4", &["calls_granted +1", "tokens_granted +4"]),
        ("TB.LEASE l 10 1 100", &["calls_granted +1", "tokens_granted +6"]),
        ("TB.LEASE l 10 1 1", &["calls_refused +1"]),
        ("TB.LEASE l 10 1 20 11", &["calls_refused +1", "calls_refused_forever +1"]),
        ("TB.LEASE l 10 1 1.5", &["rejected_inputs +1"]),
        ("TB.LEASE l 10 1 0", &["rejected_inputs +1"]),
        ("TB.LEASE l 10 1 1 2", &["rejected_inputs +1"]),
        ("TB.LEASE text 10 1 1", &["wrong_type_hits +1"]),
        ("TB.REFUND l 10 1 2.5", &["tokens_refunded +2.5"]),
        ("TB.REFUND l 10 1 -1", &["rejected_inputs +1"]),
        ("TB.REFUND text 10 1 1", &["wrong_type_hits +1"]),
        ("TB.DEBIT d 10 1 4", &["tokens_debited +4"]),
        ("TB.DEBIT d 10 1 14.25", &["tokens_debited +14.25"]),
        ("TB.DEBIT d 10 1 0", &[]),
        ("TB.DEBIT d 10 1 1e15", &["rejected_inputs +1"]),
        ("TB.DEBIT text 10 1 1", &["wrong_type_hits +1"]),
        ("TB.STATE k", &[]),
        ("TB.STATE absent", &[]),
        ("TB.STATE text", &["wrong_type_hits +1"]),
    ] {
        let before = section(&mut client);
        client.ask(line);
        assert_eq!(rose(&before, &section(&mut client)), risen, "{line}");
    }
}

#[test]
fn a_call_that_fails_for_want_of_memory_counts_as_nothing() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("CONFIG SET maxmemory 1");
    let before = section(&mut client);
    for line in ["TB.TAKE k 10 1", "TB.MTAKE k 10 1 1 l 10 1 1", "TB.LEASE k 10 1 1", "TB.DEBIT k 10 1 1"] {
        assert!(client.ask(line).error().starts_with("OOM "), "{line}");
    }
    assert_eq!(rose(&before, &section(&mut client)), Vec::<String>::new());
}

#[test]
fn sums_are_exact_beyond_what_a_double_can_hold() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    for n in 0..40 {
        client.take(&format!("k{n} 1e15 0 999999999999999.999999999"));
    }
    assert_eq!(section(&mut client)["tokens_granted"], "39999999999999999.999999960");
}

#[test]
fn counts_the_calls_of_many_clients() {
    let (server, _clock) = Server::frozen();
    let work = || {
        let mut client = server.client();
        for _ in 0..25 {
            client.take("k 400 0 1");
        }
    };
    thread::scope(|scope| (0..40).for_each(|_| drop(scope.spawn(work))));
    let fields = section(&mut server.client());
    assert_eq!((&*fields["calls_granted"], &*fields["calls_refused"]), ("400", "600"));
    assert_eq!(fields["tokens_granted"], "400.000000000");
}

#[test]
fn what_replicas_apply_is_not_counted_again_and_looking_changes_nothing() {
    let (server, clock) = Server::frozen();
    let replica = Server::setup().clock(&clock).start();
    replica.follow(&server);
    let mut client = server.client();
    let mut stream = ReplicationStream::of(&server);
    WRITERS.iter().for_each(|line| assert!(!client.ask(line).is_error()));
    replica.catch_up(&server);
    let fields = section(&mut replica.client());
    assert_eq!((&*fields["calls_granted"], &*fields["tokens_granted"]), ("0", "0.000000000"));
    stream.drain();
    let before = section(&mut client);
    READERS.iter().for_each(|line| assert!(!client.ask(line).is_error()));
    assert_eq!(section(&mut client), before);
    assert_eq!(stream.drain().len(), 0);
}

#[test]
fn is_in_the_sections_that_hold_everything_and_on_both_protocols() {
    let server = Server::start();
    let (mut two, mut three) = (server.client(), server.client());
    three.ask("HELLO 3");
    two.take("k 10 1");
    for client in [&mut two, &mut three] {
        for sections in ["everything", "modules", "tokenbucket"] {
            let text = client.bytes(&format!("INFO {sections}"));
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("# tokenbucket\r\n"), "INFO {sections}");
            assert!(text.contains("\r\ntokenbucket_calls_granted:1\r\n"), "INFO {sections}");
        }
        assert!(
            !String::from_utf8_lossy(&client.bytes("INFO")).contains("tokenbucket_"),
            "the default is the server's own"
        );
        assert!(!String::from_utf8_lossy(&client.bytes("INFO all")).contains("tokenbucket_"));
    }
}

#[test]
fn a_crash_report_is_complete() {
    for crash in ["DEBUG SEGFAULT", "DEBUG PANIC"] {
        // Without the test of the memory after a crash, in which Valkey crashes again or hangs, module or not.
        let mut server = Server::setup().config("crash-memcheck-enabled", "no").start();
        let mut client = server.client();
        client.take("k 10 1");
        client.send(&crash.split(' ').collect::<Vec<_>>());
        let log = eventually("the report is written", || {
            let log = server.log();
            log.contains("BUG REPORT END").then_some(log)
        });
        server.kill();
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        for part in ["BUG REPORT START", "MODULES INFO OUTPUT", "CONFIG DEBUG OUTPUT", "BUG REPORT END"] {
            assert_eq!(count(part), 1, "{part} after {crash}:\n{log}");
        }
        assert_eq!(count("tokenbucket_calls"), 0, "a signal handler filled our section after {crash}");
        assert!(count("name=tokenbucket") >= 1, "the module is not listed after {crash}:\n{log}");
    }
}
