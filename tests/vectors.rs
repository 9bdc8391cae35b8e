//! The shared vectors on a real server whose wall clock the test sets before every call. A scenario waits only for
//! commands that the module does not have yet.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Client, Reply, Server, WallClock};

const FAMILY: [&str; 7] = ["TB.TAKE", "TB.PEEK", "TB.MTAKE", "TB.LEASE", "TB.REFUND", "TB.DEBIT", "TB.STATE"];

#[test]
fn answers_the_cases_as_exact_arithmetic_does() {
    play(include_str!("../bucket/tests/vectors/cases.jsonl"), Keys::Expire);
}

#[test]
fn answers_the_random_walks_as_exact_arithmetic_does() {
    play(include_str!("../bucket/tests/vectors/random.jsonl"), Keys::Expire);
}

#[test]
fn answers_every_step_of_the_cases_where_no_key_expires() {
    play(include_str!("../bucket/tests/vectors/cases.jsonl"), Keys::Stay);
}

#[test]
fn answers_every_step_of_the_random_walks_where_no_key_expires() {
    play(include_str!("../bucket/tests/vectors/random.jsonl"), Keys::Stay);
}

/// The vectors know no expiry. It shows where a key has expired, which makes the bucket full, and the next quota has a
/// higher capacity: arithmetic would only have begun to refill towards that.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    /// As in real life; a walk may end early, at a key that has expired.
    Expire,
    /// `PERSIST`ed after every step; every answer must be the arithmetic's.
    Stay,
}

/// How a scenario went.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Played,
    EndedByExpiry,
}

fn play(scenarios: &str, keys: Keys) {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    let known: Vec<&str> = FAMILY.into_iter().filter(|command| client.knows(command)).collect();
    assert!(known.contains(&"TB.TAKE"), "the module's first command is missing");
    let (mut played, mut ended, mut waiting) = (0, 0, 0);
    for line in scenarios.lines() {
        let scenario: Value = serde_json::from_str(line).expect("a scenario in JSON");
        let commands = array(&scenario["steps"]).iter().map(|step| text(&step["call"][0]));
        if !commands.into_iter().all(|command| known.contains(&command)) {
            waiting += 1;
            continue;
        }
        match play_one(&mut client, &clock, &scenario, keys) {
            Outcome::Played => played += 1,
            Outcome::EndedByExpiry => ended += 1,
        }
    }
    println!("{played} scenarios played, {ended} until a key expired; {waiting} wait for commands still to come");
    assert!(waiting == 0 || known.len() < FAMILY.len(), "{waiting} scenarios were left out for no reason");
    assert!(played > 20 * ended, "{ended} of {} scenarios ended early", played + ended);
}

fn play_one(client: &mut Client, clock: &WallClock, scenario: &Value, keys: Keys) -> Outcome {
    client.ok("FLUSHALL");
    let mut written = BTreeSet::new();
    for (number, step) in array(&scenario["steps"]).iter().enumerate() {
        clock.set(step["t_us"].as_i64().expect("a time"));
        let there = all_keys(client);
        let call: Vec<&str> = array(&step["call"]).iter().map(text).collect();
        let reply = client.call(&call);
        if !answers(&reply, &step["reply"]) {
            let expired = call.iter().any(|arg| written.contains(*arg) && !there.contains(*arg));
            assert!(
                expired && keys == Keys::Expire,
                "{}, step {number}: {call:?} must answer {}, not {reply:?}",
                scenario["name"],
                step["reply"]
            );
            client.ok("FLUSHALL");
            assert_eq!(client.call(&call), reply, "an expired bucket is not as an absent one");
            return Outcome::EndedByExpiry;
        }
        written.extend(all_keys(client));
        if keys == Keys::Stay {
            for key in &written {
                client.ask(&format!("PERSIST {key}"));
            }
        }
    }
    Outcome::Played
}

fn all_keys(client: &mut Client) -> BTreeSet<String> {
    client.ask("KEYS *").texts().into_iter().map(str::to_owned).collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn answers(reply: &Reply, wanted: &Value) -> bool {
    match (reply, wanted) {
        (Reply::Int(got), Value::Number(wanted)) => wanted.as_i64() == Some(*got),
        (Reply::Array(got), Value::Array(wanted)) => {
            got.len() == wanted.len() && got.iter().zip(wanted).all(|(got, wanted)| answers(got, wanted))
        }
        (Reply::Error(_), Value::Object(wanted)) => {
            let prefix = wanted["error"].as_str().expect("the start of an error");
            reply.error().starts_with(prefix)
        }
        _ => false,
    }
}
