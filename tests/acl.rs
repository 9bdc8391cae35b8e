//! Who may take: users by command, by category where the server lets a module have one, and by key pattern.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, Server};

/// A connection of a new user with these rules.
fn user(server: &Server, rules: &str) -> Client {
    server.client().ok(&format!("ACL SETUSER someone reset on >secret {rules}"));
    let mut client = server.client();
    client.ok("AUTH someone secret");
    client
}

fn refused(client: &mut Client, line: &str) -> bool {
    let reply = client.ask(line);
    if reply.is_error() {
        assert!(reply.error().starts_with("NOPERM "), "{line}: {reply:?}");
    }
    reply.is_error()
}

/// Redis from 7.4 and Valkey let a module name a category and put its commands in categories.
fn has_categories_for_modules(server: &Server) -> bool {
    server.is_valkey() || server.version() >= (7, 4)
}

#[test]
fn a_user_may_take_where_the_command_and_the_key_are_allowed() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+tb.take ~rl:*");
    assert_eq!(client.take("rl:1 10 1"), [1, 9, 0]);
    assert!(refused(&mut client, "TB.TAKE other 10 1"));
    assert!(refused(&mut client, "GET rl:1"));
    assert_eq!(server.client().int("EXISTS other"), 0);
}

#[test]
fn numbers_are_not_taken_for_keys() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+tb.take ~only-this");
    assert_eq!(client.take("only-this 10 1 3"), [1, 7, 0]);
}

#[test]
fn a_user_without_the_command_may_not_take() {
    let (server, _clock) = Server::frozen();
    for rules in ["~* +@all -tb.take", "~* +get +set", "~*"] {
        assert!(refused(&mut user(&server, rules), "TB.TAKE k 10 1"), "{rules}");
    }
    assert_eq!(server.client().int("EXISTS k"), 0);
}

#[test]
fn reading_or_writing_the_key_alone_is_not_enough() {
    let (server, _clock) = Server::frozen();
    assert!(refused(&mut user(&server, "+tb.take %R~k"), "TB.TAKE k 10 1"));
    assert!(refused(&mut user(&server, "+tb.take %W~k"), "TB.TAKE k 10 1"));
    assert!(!refused(&mut user(&server, "+tb.take %RW~k"), "TB.TAKE k 10 1"));
}

#[test]
fn a_selector_can_allow_takes_on_some_keys() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+get ~* (+tb.take ~rl:*)");
    assert_eq!(client.take("rl:1 10 1"), [1, 9, 0]);
    assert!(refused(&mut client, "TB.TAKE other 10 1"));
}

#[test]
fn a_script_may_take_no_more_than_its_user() {
    let (server, _clock) = Server::frozen();
    let mut client = user(&server, "+eval +tb.take ~rl:*");
    let script = "return redis.call('TB.TAKE', ARGV[1], '10', '1')";
    assert_eq!(client.call(&["EVAL", script, "0", "rl:1"]).ints(), [1, 9, 0]);
    assert!(client.call(&["EVAL", script, "0", "other"]).is_error());
    assert_eq!(server.client().int("EXISTS other"), 0);
}

#[test]
fn the_command_is_in_the_categories_write_fast_and_ratelimit_where_the_server_can() {
    let (server, _clock) = Server::frozen();
    for category in ["@write", "@fast", "@ratelimit"] {
        let made = server.client().ask(&format!("ACL SETUSER someone reset on >secret ~* +{category}"));
        if has_categories_for_modules(&server) {
            assert_eq!(made.text(), "OK", "{category}");
            let mut client = server.client();
            client.ok("AUTH someone secret");
            assert!(!refused(&mut client, "TB.TAKE k 10 1"), "{category} does not hold TB.TAKE");
        } else if category == "@ratelimit" {
            assert!(made.is_error(), "a category on a server that was thought to have none");
        }
    }
}

#[test]
fn a_category_taken_away_takes_the_command_away() {
    let (server, _clock) = Server::frozen();
    if !has_categories_for_modules(&server) {
        println!("this server does not let modules have categories");
        return;
    }
    for category in ["@write", "@fast", "@ratelimit"] {
        let mut client = user(&server, &format!("~* +@all -{category}"));
        assert!(refused(&mut client, "TB.TAKE k 10 1"), "{category} does not hold TB.TAKE");
    }
    assert!(!refused(&mut user(&server, "~* +@all -@read"), "TB.TAKE k 10 1"), "taking is not reading");
}

#[test]
fn a_dry_run_knows_the_key() {
    let (server, _clock) = Server::frozen();
    user(&server, "+tb.take ~rl:*");
    let mut client = server.client();
    client.ok("ACL DRYRUN someone TB.TAKE rl:1 10 1");
    let refusal = client.ask("ACL DRYRUN someone TB.TAKE other 10 1");
    assert!(refusal.text().contains("permissions to access"), "{refusal:?}");
}
