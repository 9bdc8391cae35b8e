//! Takes inside transactions, scripts and functions, and on RESP3 connections: the same three integers everywhere.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{Client, ReplicationStream, Reply, Server};

const TAKE_IN_LUA: &str = "return redis.call('TB.TAKE', KEYS[1], ARGV[1], ARGV[2], ARGV[3])";

fn eval(client: &mut Client, command: &str, script: &str, key: &str, args: &[&str]) -> Reply {
    let mut call = vec![command, script, "1", key];
    call.extend(args);
    client.call(&call)
}

#[test]
fn a_transaction_takes_in_order() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("MULTI");
    for _ in 0..3 {
        assert_eq!(client.ask("TB.TAKE k 2 1").text(), "QUEUED");
    }
    let replies = client.ask("EXEC");
    let answers: Vec<Vec<i64>> = replies.items().iter().map(Reply::ints).collect();
    assert_eq!(answers, [[1, 1, 0], [1, 0, 0], [0, 0, 1000]]);
}

#[test]
fn a_discarded_transaction_takes_nothing() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("MULTI");
    client.ask("TB.TAKE k 2 1");
    client.ok("DISCARD");
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn a_wrong_number_of_arguments_aborts_the_transaction_and_a_wrong_number_does_not() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("MULTI");
    client.ask("TB.TAKE k 2 1");
    assert!(client.ask("TB.TAKE k 2").error().starts_with("ERR wrong number of arguments"));
    assert!(client.ask("EXEC").error().starts_with("EXECABORT "));
    assert_eq!(client.int("EXISTS k"), 0);
    client.ok("MULTI");
    client.ask("TB.TAKE k 2 one");
    client.ask("TB.TAKE k 2 1");
    let replies = client.ask("EXEC");
    assert!(replies.items()[0].error().starts_with("ERR invalid rate"));
    assert_eq!(replies.items()[1].ints(), [1, 1, 0]);
}

#[test]
fn a_script_takes_and_gets_integers() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    assert_eq!(eval(&mut client, "EVAL", TAKE_IN_LUA, "k", &["3", "1", "2"]).ints(), [1, 1, 0]);
    assert_eq!(eval(&mut client, "EVAL", TAKE_IN_LUA, "k", &["3", "1", "2"]).ints(), [0, 1, 1000]);
    let sum = "local r = redis.call('TB.TAKE', KEYS[1], '3', '1', '2'); return r[1] + r[2] + r[3]";
    assert_eq!(eval(&mut client, "EVAL", sum, "k", &[]).int(), 1001);
    let sha = client.call(&["SCRIPT", "LOAD", TAKE_IN_LUA]).text().to_owned();
    assert_eq!(eval(&mut client, "EVALSHA", &sha, "k", &["3", "1", "1"]).ints(), [1, 0, 0]);
}

#[test]
fn a_script_may_give_the_numbers_as_lua_numbers() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let script = "return redis.call('TB.TAKE', KEYS[1], 100, 0.5, 7)";
    assert_eq!(eval(&mut client, "EVAL", script, "k", &[]).ints(), [1, 93, 0]);
}

#[test]
fn a_script_can_catch_an_error() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    client.ok("SET k hello");
    let script = "local r = redis.pcall('TB.TAKE', KEYS[1], '3', '1'); return r.err";
    assert!(eval(&mut client, "EVAL", script, "k", &[]).text().starts_with("WRONGTYPE "));
    assert!(eval(&mut client, "EVAL", TAKE_IN_LUA, "k", &["3", "1", "1"]).error().starts_with("WRONGTYPE "));
    assert!(eval(&mut client, "EVAL", TAKE_IN_LUA, "l", &["3", "1", "-1"]).error().contains("invalid cost"));
    assert_eq!(client.bytes("GET k"), b"hello");
}

#[test]
fn a_function_takes() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let library = "#!lua name=limits\n\
        redis.register_function('take', function(keys, args) \
        return redis.call('TB.TAKE', keys[1], args[1], args[2]) end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]).text(), "limits");
    assert_eq!(client.ask("FCALL take 1 k 2 1").ints(), [1, 1, 0]);
    assert_eq!(client.ask("FCALL take 1 k 2 1").ints(), [1, 0, 0]);
    assert_eq!(client.ask("FCALL take 1 k 2 1").ints(), [0, 0, 1000]);
    assert!(client.ask("FCALL_RO take 1 k 2 1").is_error());
}

#[test]
fn read_only_scripts_may_not_take() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let refused = eval(&mut client, "EVAL_RO", TAKE_IN_LUA, "k", &["3", "1", "1"]);
    assert!(refused.error().contains("Write commands are not allowed"), "{refused:?}");
    let declared = format!("#!lua flags=no-writes\n{TAKE_IN_LUA}");
    assert!(eval(&mut client, "EVAL", &declared, "k", &["3", "1", "1"]).is_error());
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn transactions_and_scripts_are_replicated_as_what_they_wrote() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let mut stream = ReplicationStream::of(&server);
    client.ok("MULTI");
    client.ask("TB.TAKE a 2 1");
    client.ask("TB.TAKE b 2 1");
    client.ask("TB.TAKE b 2 1 2");
    client.ask("EXEC");
    let names = |commands: Vec<Vec<Vec<u8>>>| -> Vec<String> {
        let first = |args: &Vec<Vec<u8>>| String::from_utf8_lossy(&args[0]).to_uppercase();
        commands.iter().map(first).collect()
    };
    assert_eq!(names(stream.drain()), ["MULTI", "SET", "SET", "EXEC"]);
    let twice = "redis.call('TB.TAKE', KEYS[1], '5', '1'); return redis.call('TB.TAKE', KEYS[1], '5', '1')";
    eval(&mut client, "EVAL", twice, "c", &[]);
    assert_eq!(names(stream.drain()), ["MULTI", "SET", "SET", "EXEC"]);
    eval(&mut client, "EVAL", TAKE_IN_LUA, "c", &["5", "1", "9"]);
    assert_eq!(names(stream.drain()), Vec::<String>::new(), "a refusal in a script was replicated");
}

#[test]
fn the_answer_is_the_same_on_both_protocols() {
    let (server, _clock) = Server::frozen();
    let (mut two, mut three) = (server.client(), server.client());
    three.ask("HELLO 3");
    for line in ["TB.TAKE @ 3 1 2", "TB.TAKE @ 3 1 2", "TB.TAKE @ 3 1 9", "TB.TAKE @ 3 1 0", "TB.TAKE @ 3 one"] {
        let old = two.ask(&line.replace('@', "for-two"));
        let new = three.ask(&line.replace('@', "for-three"));
        assert_eq!(new, old, "{line}");
        assert!(old.is_error() || matches!(&old, Reply::Array(items) if items.len() == 3), "{old:?}");
    }
    let script = eval(&mut three, "EVAL", TAKE_IN_LUA, "for-lua", &["3", "1", "1"]);
    assert_eq!(script.ints(), [1, 2, 0]);
    let script = format!("redis.setresp(3); {TAKE_IN_LUA}");
    assert_eq!(eval(&mut three, "EVAL", &script, "for-lua", &["3", "1", "1"]).ints(), [1, 1, 0]);
}
