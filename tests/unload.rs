//! MODULE UNLOAD on a server that others use: the module goes where nobody is harmed, and stays where the server would
//! follow a pointer to a command that is gone.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use support::{Client, Server, module_path};

const UNLOAD: &str = "MODULE UNLOAD tokenbucket";

fn refused(server: &Server, client: &mut Client) {
    let refusal = client.ask(UNLOAD);
    assert!(refusal.error().starts_with("ERR Error unloading module"), "{refusal:?}");
    assert!(server.log().contains("not unloaded: a connection has used or queued a command of the module"));
}

/// Whether the server keeps each connection's last command by its pointer: Redis 8 does, and newer Valkeys may.
fn keeps_last_commands(server: &Server) -> bool {
    server.version() >= (8, 0)
}

/// The exchange that the log advises: nobody is left who could hold on to a command.
fn exchange_in_one_transaction(admin: &mut Client) {
    admin.ok("MULTI");
    for line in ["CLIENT KILL TYPE normal", UNLOAD, &format!("MODULE LOAD {}", module_path().display())] {
        assert_eq!(admin.ask(line).text(), "QUEUED");
    }
    let replies = admin.ask("EXEC");
    let [_, unloaded, loaded] = replies.items() else { panic!("{replies:?}") };
    assert_eq!((unloaded.text(), loaded.text()), ("OK", "OK"));
}

#[test]
fn stays_while_another_connection_has_a_transaction_open() {
    let server = Server::start();
    let (mut client, mut admin) = (server.client(), server.client());
    client.ok("MULTI");
    assert_eq!(client.ask("TB.TAKE k 5 0").text(), "QUEUED");
    assert_eq!(client.ask("PING").text(), "QUEUED");
    refused(&server, &mut admin);
    assert_eq!(client.ask("EXEC").items()[0].ints(), [1, 4, 0]);
    assert_eq!(client.ask("PING").text(), "PONG");
    admin.ok(UNLOAD);
}

#[test]
fn stays_while_another_connection_could_repeat_its_last_command() {
    let server = Server::start();
    let (mut client, mut admin) = (server.client(), server.client());
    client.take("k 5 0");
    if keeps_last_commands(&server) {
        refused(&server, &mut admin);
        assert_eq!(client.take("k 5 0"), [1, 3, 0]);
        assert_eq!(client.ask("PING").text(), "PONG");
    }
    admin.ok(UNLOAD);
    assert!(client.ask("TB.TAKE k 5 0").error().starts_with("ERR unknown command"));
    admin.ok(&format!("MODULE LOAD {}", module_path().display()));
    client.take("k 5 0");
}

#[test]
fn stays_while_an_acl_rule_names_one_of_its_commands() {
    let server = Server::start();
    let mut admin = server.client();
    for rule in ["+tb.take", "-TB.DEBIT", "nocommands (+tb.peek ~k)"] {
        admin.ok(&format!("ACL SETUSER limiter on nopass ~* {rule}"));
        if server.version() < (7, 4) {
            admin.ok(UNLOAD);
            admin.ok(&format!("MODULE LOAD {}", module_path().display()));
            continue;
        }
        // Valkey 9.1 refuses by itself, in its own words.
        assert!(admin.ask(UNLOAD).is_error(), "{rule}");
        assert_eq!(admin.ask("PING").text(), "PONG");
        admin.ok("ACL SETUSER limiter reset");
    }
    if server.version() >= (7, 4) {
        admin.ok("ACL SETUSER limiter on nopass ~* +@ratelimit");
    }
    admin.ok(UNLOAD);
    assert_eq!(admin.ask("PING").text(), "PONG");
}

#[test]
fn goes_where_only_the_name_of_a_user_looks_like_one_of_its_commands() {
    let server = Server::start();
    let mut admin = server.client();
    admin.ok("ACL SETUSER tb.take on nopass ~tb.* &tb.* +@all");
    admin.ok(UNLOAD);
    assert_eq!(admin.ask("PING").text(), "PONG");
}

#[test]
fn is_exchanged_in_one_transaction_whatever_others_are_about() {
    let server = Server::start();
    let port = server.port();
    let (mut admin, mut queued) = (server.client(), server.client());
    queued.ok("MULTI");
    assert_eq!(queued.ask("TB.TAKE k 1e15 0").text(), "QUEUED");
    let stop = AtomicBool::new(false);
    let granted: i64 = thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut granted = 0;
                    while !stop.load(Relaxed) {
                        granted += calls_until_cut_off(port, &stop);
                    }
                    granted
                })
            })
            .collect();
        for _ in 0..20 {
            exchange_in_one_transaction(&mut admin);
        }
        stop.store(true, Relaxed);
        callers.into_iter().map(|caller| caller.join().expect("a caller")).sum()
    });
    let state = admin.ask("TB.STATE k");
    let taken = if state.items().is_empty() {
        0
    } else {
        1_000_000_000_000_000 - state.field("tokens").text().parse::<i64>().expect("a number")
    };
    // A call whose connection was cut before its answer came may have been carried out: one for each caller and exchange.
    assert!((granted..=granted + 80).contains(&taken), "{granted} granted, {taken} taken");
}

/// Takes until the connection is cut; how many were granted.
fn calls_until_cut_off(port: u16, stop: &AtomicBool) -> i64 {
    let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
    let Ok(mut connection) = client.get_connection() else { return 0 };
    let mut granted = 0;
    while !stop.load(Relaxed) {
        match redis::cmd("TB.TAKE").arg("k").arg("1e15").arg("0").query::<(i64, i64, i64)>(&mut connection) {
            Ok((allowed, ..)) => granted += allowed,
            Err(_) => return granted,
        }
    }
    granted
}
