//! Who may do what with the whole family: users by command, by category where the server lets a module have one, and by
//! the pattern of every key.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod family;
mod support;

use family::{READERS, WRITERS};
use support::{Client, Server};

const FAMILY: [&str; 7] = ["tb.take", "tb.peek", "tb.mtake", "tb.lease", "tb.refund", "tb.debit", "tb.state"];

/// A connection of a new user with these rules.
fn user(server: &Server, rules: &str) -> Client {
    server.client().ok(&format!("ACL SETUSER someone reset on >secret {rules}"));
    let mut client = server.client();
    client.ok("AUTH someone secret");
    client
}

fn may(client: &mut Client, line: &str) -> bool {
    let reply = client.ask(line);
    if reply.is_error() {
        assert!(reply.error().starts_with("NOPERM "), "{line}: {reply:?}");
    }
    !reply.is_error()
}

/// Redis from 7.4 and Valkey let a module name a category and put its commands in categories.
fn has_categories_for_modules(server: &Server) -> bool {
    server.is_valkey() || server.version() >= (7, 4)
}

fn everything() -> impl Iterator<Item = &'static str> {
    WRITERS.into_iter().chain(READERS)
}

/// The same call on another key.
fn on(line: &str, key: &str) -> String {
    line.replacen(" k", &format!(" {key}"), 1)
}

#[test]
fn a_user_of_peek_on_some_keys_can_do_just_that() {
    let (server, _clock) = Server::frozen();
    server.client().take("rl:1 10 1 4");
    let mut client = user(&server, "+tb.peek ~rl:*");
    assert_eq!(client.ask("TB.PEEK rl:1 10 1").ints(), [1, 6, 0]);
    assert_eq!(client.ask("TB.PEEK rl:absent 10 1").ints(), [1, 10, 0]);
    assert!(!may(&mut client, "TB.PEEK other 10 1"));
    for line in everything().filter(|line| !line.starts_with("TB.PEEK ")) {
        assert!(!may(&mut client, &on(line, "rl:1")), "{line}");
    }
    for line in ["GET rl:1", "DEL rl:1", "SET rl:1 x", "EXISTS rl:1", "KEYS *", "INFO", "CONFIG GET *"] {
        assert!(!may(&mut client, line), "{line}");
    }
    assert_eq!(server.client().take("rl:1 10 1 0"), [1, 6, 0]);
}

#[test]
fn each_command_can_be_allowed_alone() {
    let (server, _clock) = Server::frozen();
    for allowed in FAMILY {
        let mut client = user(&server, &format!("+{allowed} ~k"));
        for line in everything() {
            let is_it = line.split(' ').next().unwrap().eq_ignore_ascii_case(allowed);
            assert_eq!(may(&mut client, line), is_it, "+{allowed}: {line}");
        }
    }
}

#[test]
fn each_command_can_be_forbidden_alone() {
    let (server, _clock) = Server::frozen();
    for forbidden in FAMILY {
        let mut client = user(&server, &format!("+@all -{forbidden} ~k"));
        for line in everything() {
            let is_it = line.split(' ').next().unwrap().eq_ignore_ascii_case(forbidden);
            assert_eq!(may(&mut client, line), !is_it, "-{forbidden}: {line}");
        }
    }
}

#[test]
fn a_key_that_may_be_read_is_enough_to_look_and_not_to_change() {
    let (server, _clock) = Server::frozen();
    let mut reader = user(&server, "+@all %R~k");
    for line in READERS {
        assert!(may(&mut reader, line), "{line}");
    }
    for line in WRITERS {
        assert!(!may(&mut reader, line), "{line}");
    }
    let mut blind = user(&server, "+@all %W~k");
    for line in everything() {
        assert!(!may(&mut blind, line), "{line}");
    }
    let mut both = user(&server, "+@all %RW~k");
    for line in everything() {
        assert!(may(&mut both, line), "{line}");
    }
}

#[test]
fn every_key_of_a_take_from_several_must_match() {
    let (server, _clock) = Server::frozen();
    let mut admin = server.client();
    admin.take("rl:a 10 1 1");
    admin.take("other 10 1 1");
    let mut client = user(&server, "+tb.mtake ~rl:*");
    assert!(may(&mut client, "TB.MTAKE rl:a 10 1 1 rl:b 10 1 1 rl:c 10 1 1"));
    for line in [
        "TB.MTAKE other 10 1 1 rl:a 10 1 1 rl:b 10 1 1",
        "TB.MTAKE rl:a 10 1 1 other 10 1 1 rl:b 10 1 1",
        "TB.MTAKE rl:a 10 1 1 rl:b 10 1 1 other 10 1 1",
        "TB.MTAKE rl:a 10 1 1 rl:b 10 1 1 other 10 1 0",
        "TB.MTAKE other 10 1 1",
    ] {
        assert!(!may(&mut client, line), "{line}");
    }
    let mut mixed = user(&server, "+tb.mtake ~rl:a %R~rl:b");
    assert!(!may(&mut mixed, "TB.MTAKE rl:a 10 1 1 rl:b 10 1 1"), "a key that may only be read");
    for (key, left) in [("rl:a", 8), ("rl:b", 9), ("rl:c", 9), ("other", 9)] {
        assert_eq!(admin.take(&format!("{key} 10 1 0")), [1, left, 0], "{key}");
    }
}

#[test]
fn numbers_are_not_taken_for_keys() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+@all ~k ~l");
    for line in everything().chain(["TB.MTAKE k 10 1 1 l 10 1 1", "TB.LEASE k 10 1 1 1"]) {
        assert!(may(&mut client, line), "{line}");
    }
    assert!(!may(&mut user(&server, "+@all ~10 ~1"), "TB.MTAKE k 10 1 1 l 10 1 1"));
}

#[test]
fn a_dry_run_knows_every_key() {
    let (server, _clock) = Server::frozen();
    user(&server, "+tb.mtake +tb.peek ~rl:*");
    let mut client = server.client();
    client.ok("ACL DRYRUN someone TB.MTAKE rl:a 10 1 1 rl:b 10 1 1");
    client.ok("ACL DRYRUN someone TB.PEEK rl:a 10 1");
    for call in ["TB.MTAKE rl:a 10 1 1 other 10 1 1", "TB.PEEK other 10 1"] {
        let refusal = client.ask(&format!("ACL DRYRUN someone {call}"));
        assert!(refusal.text().contains("permissions to access"), "{call}: {refusal:?}");
    }
    assert!(client.ask("ACL DRYRUN someone TB.DEBIT rl:a 10 1 1").text().contains("permissions to run"));
}

#[test]
fn a_script_may_do_no_more_than_its_user() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+eval +tb.mtake +tb.peek ~rl:*");
    let mtake = "return redis.call('TB.MTAKE', 'rl:a', 10, 1, 1, ARGV[1], 10, 1, 1)";
    assert_eq!(client.call(&["EVAL", mtake, "0", "rl:b"]).items()[0].int(), 1);
    assert!(client.call(&["EVAL", mtake, "0", "other"]).is_error());
    let debit = "return redis.call('TB.DEBIT', 'rl:a', 10, 1, 1)";
    assert!(client.call(&["EVAL", debit, "0"]).is_error());
    assert_eq!(server.client().take("rl:a 10 1 0"), [1, 9, 0]);
}

#[test]
fn the_modules_category_is_the_whole_family_and_nothing_else() {
    let (server, _clock) = Server::frozen();
    if !has_categories_for_modules(&server) {
        let made = server.client().ask("ACL SETUSER someone reset on >secret ~* +@ratelimit");
        assert!(made.is_error(), "a category on a server that was thought to have none");
        return;
    }
    let mut client = user(&server, "+@ratelimit ~k");
    for line in everything() {
        assert!(may(&mut client, line), "{line}");
    }
    for line in ["GET k", "DEL k", "PTTL k", "PING"] {
        assert!(!may(&mut client, line), "{line}");
    }
    // Not ACL CAT, which on the older of these servers lists no commands of modules.
    let listed = server.client().ask("COMMAND LIST FILTERBY ACLCAT ratelimit");
    let mut listed: Vec<&str> = listed.texts().into_iter().filter(|name| *name != "tb.panic").collect();
    let mut family = FAMILY.to_vec();
    listed.sort_unstable();
    family.sort_unstable();
    assert_eq!(listed, family);
}

#[test]
fn looking_and_changing_are_apart_where_the_server_has_categories_for_modules() {
    let (server, _clock) = Server::frozen();
    if !has_categories_for_modules(&server) {
        return;
    }
    for (rules, may_write, may_read) in [
        ("+@write ~k", true, false),
        ("+@read ~k", false, true),
        ("+@all -@write ~k", false, true),
        ("+@all -@read ~k", true, false),
        ("+@ratelimit -@write ~k", false, true),
        ("+@ratelimit -@read ~k", true, false),
        ("+@all -@ratelimit ~k", false, false),
    ] {
        let mut client = user(&server, rules);
        for line in WRITERS {
            assert_eq!(may(&mut client, line), may_write, "{rules}: {line}");
        }
        for line in READERS {
            assert_eq!(may(&mut client, line), may_read, "{rules}: {line}");
        }
    }
    // A call over many buckets is not fast.
    let mut fast = user(&server, "+@fast ~k");
    for line in everything() {
        assert_eq!(may(&mut fast, line), !line.starts_with("TB.MTAKE "), "{line}");
    }
}

#[test]
fn nothing_is_dangerous_or_administrative() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+@all -@dangerous -@admin -@slow ~k");
    for line in everything().filter(|line| !line.starts_with("TB.MTAKE ")) {
        assert!(may(&mut client, line), "{line}");
    }
}

#[test]
fn the_category_outlives_a_reload_of_the_module() {
    let (server, _clock) = Server::frozen();
    if !has_categories_for_modules(&server) {
        return;
    }
    let mut admin = server.client();
    admin.ok("MODULE UNLOAD tokenbucket");
    admin.ok(&format!("MODULE LOAD {}", support::module_path().display()));
    let mut client = user(&server, "+@ratelimit ~k");
    for line in everything() {
        assert!(may(&mut client, line), "{line}");
    }
}
