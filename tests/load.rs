//! Loading the module: what the server says about it, and what it refuses to load.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, Reply, Server, module_path};

#[test]
fn the_module_is_listed_under_its_name() {
    let server = Server::start();
    let mut client = server.client();
    let modules = listed(&mut client);
    let [module] = modules.as_slice() else { panic!("listed once, not {modules:?}") };
    assert_eq!(module.field("name").text(), "tokenbucket");
    assert!(module.field("ver").int() > 0);
    assert_eq!(module.field("path").text(), module_path().to_str().unwrap());
    assert!(module.field("args").items().is_empty());
}

#[test]
fn the_module_loads_into_a_running_server() {
    let server = Server::setup().without_module().start();
    let mut client = server.client();
    assert!(client.ask("TB.TAKE k 10 1").error().starts_with("ERR unknown command"));
    client.ok(&format!("MODULE LOAD {}", module_path().display()));
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
}

#[test]
fn the_module_loads_with_loadex() {
    let server = Server::setup().without_module().start();
    let mut client = server.client();
    client.ok(&format!("MODULE LOADEX {}", module_path().display()));
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
}

#[test]
fn loading_it_twice_fails_and_harms_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.take("k 10 1");
    assert!(client.ask(&format!("MODULE LOAD {}", module_path().display())).is_error());
    assert_eq!(client.take("k 10 1")[0], 1);
    assert_eq!(listed(&mut client).len(), 1);
}

#[test]
fn unknown_arguments_keep_the_server_from_starting_and_the_log_says_why() {
    for args in [vec!["surprise"], vec!["max-cost", "77"], vec![""], vec!["%s%n%s%n"]] {
        let outcome = Server::setup().module_args(&args).try_start();
        let log = outcome.err().unwrap_or_else(|| panic!("loaded with {args:?}"));
        assert!(says_why(&log), "with {args:?} the log says:\n{log}");
    }
}

#[test]
fn unknown_arguments_keep_a_running_server_from_loading_and_the_log_says_why() {
    let server = Server::setup().without_module().start();
    let mut client = server.client();
    let module = module_path().into_os_string().into_encoded_bytes();
    let hostile: [&[u8]; 6] = [b"surprise", b"", b"%s%n", b"\xff\xfe\0x", b"a\r\nb", &[b'x'; 100_000]];
    for argument in hostile {
        let reply = client.call(&[b"MODULE".as_slice(), b"LOAD", &module, argument]);
        assert!(reply.is_error(), "loaded with {}", argument.escape_ascii());
        assert!(listed(&mut client).is_empty());
        assert!(!client.knows("tb.take"));
    }
    assert!(says_why(&server.log()), "the log says:\n{}", server.log());
    assert_eq!(client.call(&[b"MODULE".as_slice(), b"LOAD", &module]).text(), "OK");
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
}

/// Our lines of `MODULE LIST`; some servers list parts of their own there.
fn listed(client: &mut Client) -> Vec<Reply> {
    let ours = |module: &&Reply| module.field("name").text() == "tokenbucket";
    client.ask("MODULE LIST").items().iter().filter(ours).cloned().collect()
}

/// A line of ours that names the trouble.
fn says_why(log: &str) -> bool {
    log.lines().any(|line| line.contains("<tokenbucket>") && line.contains("argument"))
}
