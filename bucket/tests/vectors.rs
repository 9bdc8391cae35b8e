//! The shared scenarios, on the arithmetic alone with the clock injected. The same files are run against real servers by
//! the module's tests.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::HashMap;

use redis_token_bucket_core::{Amount, Bucket, Decision, Micros, Quota, Rate, Record, Retry, Slack};
use serde_json::{Value, json};

const SLACK: Slack = Slack::from_millis(1_000);

/// Keys and their records, as bytes: every step goes through the codec. Nothing expires here; that a key which has done so
/// is a full bucket shows only on a server.
#[derive(Default)]
struct Keyspace {
    keys: HashMap<String, [u8; Record::LEN]>,
    now: Micros,
}

type Refused = Box<dyn std::error::Error>;

impl Keyspace {
    fn record(&self, key: &str) -> Option<Record> {
        self.keys.get(key).map(|bytes| Record::decode(bytes).expect("what was stored can be read"))
    }

    fn bucket(&self, key: &str, quota: &Quota) -> Bucket {
        self.record(key).map_or_else(|| Bucket::full(quota, self.now), |record| record.bucket)
    }

    fn store(&mut self, key: &str, quota: &Quota, changed: Option<Bucket>) {
        let old = self.record(key);
        let new = match changed {
            Some(bucket) => Some(Record::with(old.as_ref(), bucket, quota, SLACK)),
            None => old.and_then(|old| old.corrected(quota, SLACK, self.now)),
        };
        if let Some(new) = new {
            self.keys.insert(key.to_owned(), new.encode());
        }
    }

    fn call(&mut self, call: &[&str]) -> Result<Value, Refused> {
        let (name, args) = call.split_first().expect("a call has a name");
        let number = |at: usize| Amount::parse(args.get(at).ok_or("too few")?.as_bytes()).map_err(Refused::from);
        let quota = |at: usize| {
            let rate = Rate::parse(args.get(at + 1).ok_or("too few")?.as_bytes())?;
            Ok::<_, Refused>(Quota { capacity: number(at)?, rate })
        };
        let (fewest, most) = match *name {
            "TB.TAKE" | "TB.PEEK" => (3, 4),
            "TB.LEASE" => (4, 5),
            "TB.REFUND" | "TB.DEBIT" => (4, 4),
            "TB.MTAKE" => (4, usize::MAX),
            _ => panic!("unknown command {name}"),
        };
        if args.len() < fewest || args.len() > most {
            return Err("not a call".into());
        }
        if *name == "TB.MTAKE" {
            return self.mtake(args);
        }
        let (key, now) = (args[0], self.now);
        let quota = quota(1)?;
        let bucket = self.bucket(key, &quota);
        let existed = self.record(key).is_some();
        Ok(match *name {
            "TB.TAKE" => {
                let cost = if args.len() > 3 { number(3)? } else { Amount::ONE };
                let (stored, decision) = bucket.take(&quota, cost, now);
                self.store(key, &quota, stored);
                reply(decision)
            }
            "TB.PEEK" => reply(bucket.peek(&quota, if args.len() > 3 { number(3)? } else { Amount::ONE }, now)),
            "TB.LEASE" => {
                let want = number(3)?;
                let least = if args.len() > 4 { number(4)? } else { Amount::ONE };
                let whole = want.whole().is_some() && least.whole().is_some();
                if !whole || least < Amount::ONE || least > want {
                    return Err("not a call".into());
                }
                let (stored, lease) = bucket.lease(&quota, want, least, now);
                self.store(key, &quota, stored);
                json!([lease.granted, lease.remaining, lease.retry.as_millis()])
            }
            "TB.REFUND" => {
                let (stored, decision) = bucket.refund(&quota, number(3)?, now);
                self.store(key, &quota, existed.then_some(stored));
                reply(decision)
            }
            _ => {
                let cost = number(3)?;
                let (stored, decision) = bucket.debit(&quota, cost, now)?;
                self.store(key, &quota, (existed || cost != Amount::ZERO).then_some(stored));
                reply(decision)
            }
        })
    }

    fn mtake(&mut self, args: &[&str]) -> Result<Value, Refused> {
        if !args.len().is_multiple_of(4) {
            return Err("not a call".into());
        }
        let mut parts: Vec<(&str, Quota, Amount)> = Vec::new();
        for part in args.chunks_exact(4) {
            let quota = Quota { capacity: Amount::parse(part[1].as_bytes())?, rate: Rate::parse(part[2].as_bytes())? };
            let cost = Amount::parse(part[3].as_bytes())?;
            if parts.iter().any(|(key, ..)| *key == part[0]) {
                return Err("not a call".into());
            }
            parts.push((part[0], quota, cost));
        }
        let now = self.now;
        let taken: Vec<_> =
            parts.iter().map(|(key, quota, cost)| self.bucket(key, quota).take(quota, *cost, now)).collect();
        let all = taken.iter().all(|(_, decision)| decision.allowed);
        let decisions: Vec<Decision> = parts
            .iter()
            .zip(taken)
            .map(|((key, quota, cost), (stored, taken))| {
                let peeked = self.bucket(key, quota).peek(quota, *cost, now);
                self.store(key, quota, stored.filter(|_| all));
                if all { taken } else { peeked }
            })
            .collect();
        let verdict = Decision {
            allowed: all,
            remaining: decisions.iter().map(|decision| decision.remaining).min().unwrap_or(0),
            retry: decisions.iter().fold(Retry::Now, |latest, decision| latest.later(decision.retry)),
        };
        let mut verdict = reply(verdict);
        let each = Value::Array(decisions.into_iter().map(reply).collect());
        verdict.as_array_mut().expect("an array").push(each);
        Ok(verdict)
    }
}

fn reply(decision: Decision) -> Value {
    json!([i64::from(decision.allowed), decision.remaining, decision.retry.as_millis()])
}

fn run(scenarios: &str) -> usize {
    let mut steps = 0;
    for line in scenarios.lines() {
        let scenario: Value = serde_json::from_str(line).expect("a line is a scenario");
        let mut keyspace = Keyspace::default();
        for (at, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
            keyspace.now = Micros::new(step["t_us"].as_u64().expect("a time"));
            let call: Vec<&str> =
                step["call"].as_array().expect("a call").iter().map(|word| word.as_str().expect("text")).collect();
            let expected = &step["reply"];
            let context = format!("{}, step {at}: {call:?}", scenario["name"]);
            match keyspace.call(&call) {
                Ok(reply) => assert_eq!(&reply, expected, "{context}"),
                Err(_) => assert!(expected["error"].is_string(), "{context} failed, expected {expected}"),
            }
            steps += 1;
        }
    }
    steps
}

#[test]
fn answers_the_named_scenarios() {
    assert!(run(include_str!("vectors/cases.jsonl")) > 100);
}

#[test]
fn answers_the_random_scenarios() {
    assert!(run(include_str!("vectors/random.jsonl")) > 10_000);
}
