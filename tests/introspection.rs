//! What the server tells clients and people about the commands: arity, flags, keys, documentation.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Reply, Server};

fn has(list: &Reply, word: &str) -> bool {
    list.texts().contains(&word)
}

#[test]
fn command_info_tells_arity_flags_and_the_key() {
    let server = Server::start();
    let mut client = server.client();
    let info = client.ask("COMMAND INFO tb.take");
    let [name, arity, flags, first_key, last_key, step, ..] = info.items()[0].items() else { panic!("{info:?}") };
    assert_eq!(name.text(), "tb.take");
    assert_eq!(arity.int(), -4);
    assert_eq!([first_key.int(), last_key.int(), step.int()], [1, 1, 1]);
    for flag in ["write", "fast", "module"] {
        assert!(has(flags, flag), "{flag} is missing in {flags:?}");
    }
    // Buckets that exist go on at maxmemory, so the server must not refuse on the command's behalf.
    for flag in ["denyoom", "readonly", "noscript", "admin", "blocking", "movablekeys", "no_mandatory_keys"] {
        assert!(!has(flags, flag), "{flag} is wrong in {flags:?}");
    }
}

#[test]
fn the_key_is_read_and_updated() {
    let server = Server::start();
    let mut client = server.client();
    let info = client.ask("COMMAND INFO tb.take");
    let specs = &info.items()[0].items()[8];
    let [spec] = specs.items() else { panic!("one key spec, not {specs:?}") };
    for flag in ["RW", "access", "update"] {
        let flags = spec.field("flags").texts();
        assert!(flags.iter().any(|found| found.eq_ignore_ascii_case(flag)), "{flag} is missing in {flags:?}");
    }
    let begin = spec.field("begin_search");
    assert_eq!(begin.field("type").text(), "index");
    assert_eq!(begin.field("spec").field("index").int(), 1);
    let find = spec.field("find_keys");
    assert_eq!(find.field("type").text(), "range");
    assert_eq!(find.field("spec").field("lastkey").int(), 0);
    assert_eq!(find.field("spec").field("keystep").int(), 1);
}

#[test]
fn command_getkeys_finds_the_key_alone() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.ask("COMMAND GETKEYS tb.take k 10 1 2").texts(), ["k"]);
    assert_eq!(client.ask("COMMAND GETKEYS tb.take k 10 1").texts(), ["k"]);
    let keys = client.ask("COMMAND GETKEYSANDFLAGS tb.take k 10 1 2");
    let [key] = keys.items() else { panic!("one key, not {keys:?}") };
    assert_eq!(key.items()[0].text(), "k");
    assert!(has(&key.items()[1], "RW"), "{keys:?}");
}

#[test]
fn command_docs_explain_the_command_and_every_argument() {
    let server = Server::start();
    let mut client = server.client();
    let docs = client.ask("COMMAND DOCS tb.take");
    let docs = docs.field("tb.take");
    assert!(docs.field("summary").text().len() > 20, "{docs:?}");
    assert!(docs.field("complexity").text().starts_with("O(1)"), "{docs:?}");
    let since = docs.field("since").text();
    assert!(since.split('.').all(|number| number.parse::<u32>().is_ok()), "since {since:?}");
    assert_eq!(docs.field("group").text(), "module");
    assert_eq!(docs.field("module").text(), "tokenbucket");
    let arguments = docs.field("arguments").items();
    let names: Vec<&str> = arguments.iter().map(|argument| argument.field("name").text()).collect();
    assert_eq!(names, ["key", "capacity", "rate", "cost"]);
    assert_eq!(arguments[0].field("type").text(), "key");
    assert_eq!(arguments[0].field("key_spec_index").int(), 0);
    assert!(has(arguments[3].field("flags"), "optional"), "{:?}", arguments[3]);
}

#[test]
fn docs_and_info_are_the_same_on_resp3() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("HELLO 3");
    assert_eq!(client.ask("COMMAND DOCS tb.take").field("tb.take").field("module").text(), "tokenbucket");
    let info = client.ask("COMMAND INFO tb.take");
    assert!(has(&info.items()[0].items()[2], "write"));
}

#[test]
fn the_modules_commands_can_be_listed() {
    let server = Server::start();
    let mut client = server.client();
    let commands = client.ask("COMMAND LIST FILTERBY MODULE tokenbucket");
    assert!(has(&commands, "tb.take"), "{commands:?}");
    assert!(commands.texts().iter().all(|name| name.starts_with("tb.")), "{commands:?}");
}

#[test]
fn calls_and_refusals_by_error_are_counted_by_the_server() {
    let server = Server::start();
    let mut client = server.client();
    client.take("k 10 1");
    client.ask("TB.TAKE k 10 one");
    client.ask("TB.TAKE k");
    let stats = client.info("cmdstat_tb.take");
    assert!(
        stats.contains("calls=2,") && stats.contains("failed_calls=1") && stats.contains("rejected_calls=1"),
        "{stats}"
    );
    assert_eq!(client.info("errorstat_ERR"), "count=2");
}
