//! The script on real servers without the module: that it answers like the module, down to the last trillionth of a
//! token, and keeps the same promises.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../../tests/support/mod.rs"]
mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, FromRedisValue, RedisResult, Value};
use redis_token_bucket_client::{
    Fault, Implementation, Key, Quota, Retry, Take, TokenBucketCommands, TokenBuckets, Want,
};
use support::{START_US, Server, WallClock};

/// Where the script keeps a bucket.
fn hash_of(key: &str) -> String {
    format!("{key}%script")
}

fn connect(server: &Server) -> Connection {
    redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap().get_connection().unwrap()
}

fn script_on(server: &Server) -> TokenBuckets<Connection> {
    TokenBuckets::using(Implementation::Script, connect(server))
}

fn without_module() -> (Server, WallClock) {
    let clock = WallClock::frozen();
    (Server::setup().without_module().clock(&clock).start(), clock)
}

fn call(connection: &mut impl redis::ConnectionLike, words: &[&str]) -> RedisResult<Value> {
    let mut cmd = redis::cmd(words[0]);
    for word in &words[1..] {
        cmd.arg(*word);
    }
    cmd.query(connection)
}

/// A reply as the shared scenarios write it. A script's integers are exact below 2^53, so from there on, and only
/// there, it sends digits: the one difference from the module, and one that the types of this crate do not show.
fn reply(value: &Value) -> serde_json::Value {
    match value {
        Value::Int(number) => {
            assert!(*number < 1 << 53, "an integer that may not be exact: {number}");
            (*number).into()
        }
        Value::BulkString(digits) => {
            let number: i64 = std::str::from_utf8(digits).unwrap().parse().unwrap();
            assert!(number >= 1 << 53, "digits where an integer is exact: {number}");
            number.into()
        }
        Value::Array(items) => items.iter().map(reply).collect(),
        other => panic!("not an answer: {other:?}"),
    }
}

/// The scenarios know no expiry. It shows at one step of them: the key is gone by then, though not too early, and a key
/// that is gone is a full bucket.
const EXPIRED: [(&str, usize, [i64; 3]); 1] = [("quota-c68f6d", 37, [1, 5995, 0])];

#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Expire,
    /// `PERSIST`ed after every step.
    Stay,
}

#[test]
fn answers_the_shared_scenarios_exactly() {
    play(Keys::Expire);
}

#[test]
fn answers_every_step_of_the_shared_scenarios_where_no_key_expires() {
    play(Keys::Stay);
}

fn play(keys: Keys) {
    let (server, clock) = without_module();
    let mut buckets = script_on(&server);
    let scenarios = [
        include_str!("../../bucket/tests/vectors/cases.jsonl"),
        include_str!("../../bucket/tests/vectors/random.jsonl"),
    ];
    let mut steps = 0;
    for line in scenarios.iter().flat_map(|file| file.lines()) {
        let scenario: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = scenario["name"].as_str().unwrap();
        redis::cmd("FLUSHALL").exec(&mut buckets).unwrap();
        for (at, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            clock.set(step["t_us"].as_i64().unwrap());
            let words: Vec<&str> = step["call"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            let expired = EXPIRED.iter().find(|(scenario, step, _)| (*scenario, *step) == (name, at));
            let expected = match expired {
                Some((.., full)) if keys == Keys::Expire => full.to_vec().into(),
                _ => step["reply"].clone(),
            };
            match call(&mut buckets, &words) {
                Ok(value) => assert_eq!(reply(&value), expected, "{name}, step {at}: {words:?}"),
                Err(error) => {
                    assert!(expected["error"].is_string(), "{name}, step {at}: {words:?}: {error}");
                    assert_eq!(Fault::of(&error), Fault::InvalidArgument, "{name}, step {at}: {words:?}: {error}");
                }
            }
            if keys == Keys::Stay {
                let mut persist = redis::pipe();
                for key in ["k", "k0", "k1", "k2"] {
                    persist.cmd("PERSIST").arg(hash_of(key));
                }
                persist.exec(&mut buckets).unwrap();
            }
            steps += 1;
        }
    }
    assert!(steps > 10_000);
}

/// Both answers to one call, on two keys that hold the same: integers as integers, and errors as their text.
fn both(server: &mut Connection, script: &mut TokenBuckets<Connection>, words: &[&str]) -> [String; 2] {
    let flat = |answer: RedisResult<Value>| match answer {
        Ok(value) => format!("{:?}", integers(value)),
        Err(error) => format!("{} {}", error.code().unwrap_or("?"), error.detail().unwrap_or("?")),
    };
    [flat(call(server, words)), flat(call(script, words))]
}

fn integers(value: Value) -> Vec<i64> {
    match value {
        Value::Array(items) => items.into_iter().flat_map(integers).collect(),
        value => vec![i64::from_redis_value(value).unwrap()],
    }
}

fn balance(connection: &mut impl redis::ConnectionLike, key: &str) -> Option<String> {
    connection.tb_state(key).unwrap().map(|state| state.tokens)
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(texts).prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = String> {
    let usual =
        (0..40_u32, prop_oneof![Just(1), Just(10), Just(1000)], prop_oneof![Just(""), Just(".5"), Just(".000000001")]);
    prop_oneof![
        10 => usual.prop_map(|(n, times, fraction)| format!("{}{fraction}", n * times)),
        2 => one_of(&["1e15", "1e11", "9007.199254741", "1e-9", "0"]),
        1 => (any::<u32>(), 1..20_usize).prop_map(|(n, zeros)| format!("0.{}{n}", "0".repeat(zeros))),
    ]
}

fn rate() -> impl Strategy<Value = String> {
    let period = one_of(&["60", "3600", "86400", "0.25", "7", "31536000", "1e9"]);
    prop_oneof![
        3 => number(),
        4 => (number(), period).prop_map(|(tokens, seconds)| format!("{tokens}/{seconds}")),
        1 => one_of(&["1e12", "1e-18", "123456789.012345678/987654321.098765432", "1e-3/1e14"]),
    ]
}

#[derive(Clone, Debug)]
struct Step {
    verb: usize,
    quota: (String, String),
    number: String,
    least: Option<String>,
    pause_us: i64,
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![
        3 => Just(0_i64),
        4 => 1..2_000_000_i64,
        2 => 1..86_400_000_000_i64,
        1 => 1..30_000_000_000_000_i64,
        1 => -5_000_000..0_i64,
    ];
    (0..7_usize, (number(), rate()), number(), proptest::option::of(number()), pause)
        .prop_map(|(verb, quota, number, least, pause_us)| Step { verb, quota, number, least, pause_us })
}

/// Any calls with any quotas at any times: the same answers, the same error texts, and the same exact balance
/// afterwards.
#[test]
fn answers_as_the_module_does() {
    let (server, clock) = Server::frozen();
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&proptest::collection::vec(step(), 1..12), |steps| {
            let (mut module, mut script) = (connect(&server), script_on(&server));
            redis::cmd("FLUSHALL").exec(&mut module).unwrap();
            clock.set(START_US);
            for Step { verb, quota: (capacity, rate), number, least, pause_us } in steps {
                clock.advance(pause_us);
                // The two may forget a bucket at different times, both after it is full. Another quota would show which
                // one has.
                let known = |key| balance(&mut module, key).is_some() == balance(&mut script, key).is_some();
                if !["k", "other"].into_iter().all(known) {
                    break;
                }
                let name = ["TB.TAKE", "TB.TAKE", "TB.PEEK", "TB.LEASE", "TB.REFUND", "TB.DEBIT", "TB.MTAKE"][verb];
                let mut words = vec![name, "k", &capacity, &rate, &number];
                match (name, &least) {
                    ("TB.LEASE", Some(least)) => words.push(least),
                    ("TB.MTAKE", Some(cost)) => words.extend(["other", &number, &rate, cost]),
                    _ => {}
                }
                let [module_said, script_said] = both(&mut module, &mut script, &words);
                prop_assert_eq!(&module_said, &script_said, "{:?}", words);
                for key in ["k", "other"] {
                    prop_assert_eq!(balance(&mut module, key), balance(&mut script, key), "after {:?}", words);
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn refuses_what_the_module_refuses_with_the_same_words() {
    let (server, _clock) = Server::frozen();
    let (mut module, mut script) = (connect(&server), script_on(&server));
    let odd = ["", " ", " 5", "5 ", "5\0", "\x005", "5\n", "5 5", "\u{663}"];
    let texts = "+5 -5 --1 5e e5 . .. 1.2.3 5. .5 0x10 1_000 1,5 nan NaN inf -inf infinity 1e3 1E3 1e+3 1e-3 \
        1e 1e+ 1e1.5 007 0e9 \
        1e15 1e16 1000000000000000.000000000000000000000000000001 1000000000000000.00 999999999999999.9999999999 \
        1e-9 5e-10 5.000000001e-10 4.9e-10 1.5e-9 2.5e-9 1e-400 1e400 1e99999999999999999999 1e-99999999999999999999 \
        0e99999999999999999999 123456789012345678901234567890 1/2 1/0 0/0 0/5 /5 5/ 1/2/3 -1/2 1/-2 inf/1 1/inf \
        1e12 1000000000000.1 1000000000001/1 1e13/10 1e-18 9.9e-19 1/1e18 1/1.000000001e18 0.000011574074074074074 \
        1234567890123456789/7 1234567890123456780/7 7/1234567890123456789 1e600000000000000/1e600000000000000 1/3 \
        1e12/1.0000 100/60";
    let long = "1".repeat(5000);
    for text in texts.split_whitespace().chain(odd).chain([long.as_str()]) {
        let calls: [&[&str]; 9] = [
            &["TB.TAKE", "k", text, "1", "1"],
            &["TB.TAKE", "k", "10", text, "1"],
            &["TB.TAKE", "k", "10", "1", text],
            &["TB.PEEK", "k", text, text, text],
            &["TB.LEASE", "k", "10", "1", text],
            &["TB.LEASE", "k", "10", "1", "5", text],
            &["TB.REFUND", "k", "10", "1", text],
            &["TB.DEBIT", "k", "10", "1", text],
            &["TB.MTAKE", "k", "10", "1", "1", "other", "10", text, "1"],
        ];
        for words in calls {
            let [module_said, script_said] = both(&mut module, &mut script, words);
            assert_eq!(module_said, script_said, "{words:?}");
        }
    }
    let shapes: [&[&str]; 9] = [
        &["TB.TAKE"],
        &["TB.TAKE", "k", "1"],
        &["TB.TAKE", "k", "1", "1", "1", "1"],
        &["TB.MTAKE", "k", "1", "1"],
        &["TB.MTAKE", "k", "1", "1", "1", "other"],
        &["TB.MTAKE", "k", "1", "1", "1", "k", "1", "1", "1"],
        &["TB.STATE", "k", "k"],
        &["TB.REFUND", "k", "1", "1"],
        &["TB.LEASE", "k", "9", "1", "1", "2"],
    ];
    for words in shapes {
        let [module_said, script_said] = both(&mut module, &mut script, words);
        assert_eq!(module_said, script_said, "{words:?}");
    }
}

#[test]
fn refusals_peeks_and_nothing_write_nothing() {
    let (server, clock) = without_module();
    let (mut buckets, mut client) = (script_on(&server), server.client());
    let quota = Quota::per_minute(2);
    assert!(buckets.tb_take("k", quota, 2).unwrap().allowed);
    client.ok("CONFIG RESETSTAT");
    let (dirty, before) =
        (client.info_int("rdb_changes_since_last_save"), client.ask(&format!("HGETALL {}", hash_of("k"))));
    for _ in 0..20 {
        clock.advance_ms(100);
        assert!(!buckets.tb_take("k", quota, 2).unwrap().allowed);
        assert!(buckets.tb_take("k", quota, 0).unwrap().allowed);
        assert!(!buckets.tb_peek("k", quota, 2).unwrap().allowed);
        assert_eq!(buckets.tb_lease("k", quota, Want::up_to(2).at_least(2)).unwrap().granted, 0);
        assert!(!buckets.tb_mtake(&[Take::new("k", quota, 2), Take::new("other", quota, 1)]).unwrap().verdict.allowed);
        assert!(!buckets.tb_take("absent", quota, 3).unwrap().allowed);
        assert_eq!(buckets.tb_refund("absent", quota, 1).unwrap().remaining, 2);
        assert!(buckets.tb_debit("absent", quota, 0).unwrap().covered);
    }
    assert_eq!(client.info_int("rdb_changes_since_last_save"), dirty);
    assert_eq!(client.ask(&format!("HGETALL {}", hash_of("k"))), before);
    assert_eq!(client.int("DBSIZE"), 1);
}

#[test]
fn a_key_lives_until_its_bucket_is_full_and_two_seconds_at_most_beyond() {
    let (server, clock) = without_module();
    let (mut buckets, mut client) = (script_on(&server), server.client());
    for (quota, cost, full_in_ms) in [
        (Quota::per_second(10), 1, 100),
        (Quota::per_minute(100), 100, 60_000),
        (Quota::per_second(1_000_000).burst(1), 1, 0),
        (Quota::per_day(1), 1, 86_400_000),
        (Quota::per_hour(7).burst(3), 2, 1_028_572),
    ] {
        assert!(buckets.tb_take("k", quota, cost).unwrap().allowed);
        let left = client.int(&format!("PTTL {}", hash_of("k")));
        assert!((full_in_ms..=full_in_ms + 2_000).contains(&left), "{quota}: full in {full_in_ms} ms, gone in {left}");
        clock.advance_ms(left + 1);
        assert_eq!(buckets.tb_state("k").unwrap(), None);
    }
    // A bucket that never refills, or not before the end of time, is kept.
    for (key, quota) in [("once", Quota::once(5)), ("slow", "1e-6/365d, burst 10".parse().unwrap())] {
        assert!(buckets.tb_take(key, quota, 5).unwrap().allowed);
        assert_eq!(buckets.tb_state(key).unwrap().unwrap().time_to_live, None);
    }
}

#[test]
fn a_slower_quota_keeps_a_refused_bucket_alive_and_a_faster_one_does_not_cut_it_short() {
    let (server, clock) = without_module();
    let (mut buckets, mut client) = (script_on(&server), server.client());
    let (fast, slow) = (Quota::per_second(10), Quota::per_hour(10));
    assert!(buckets.tb_take("k", fast, 10).unwrap().allowed);
    let expiry = |client: &mut support::Client| client.int(&format!("PEXPIRETIME {}", hash_of("k")));
    let at_first = expiry(&mut client);
    assert!(!buckets.tb_take("k", fast, 5).unwrap().allowed);
    assert!(!buckets.tb_peek("k", slow, 5).unwrap().allowed);
    assert_eq!(expiry(&mut client), at_first);
    assert!(!buckets.tb_take("k", slow, 5).unwrap().allowed);
    let postponed = expiry(&mut client);
    assert!(postponed >= START_US / 1000 + 3_600_000, "{postponed}");
    clock.advance_s(1000);
    assert_eq!(buckets.tb_take("k", slow, 10).unwrap().remaining, 2);
    // Full by now: nothing would be lost with the key.
    assert!(buckets.tb_take("k", fast, 0).unwrap().allowed);
    assert_eq!(expiry(&mut client), postponed);
    assert!(!buckets.tb_take("k", Quota::once(10), 10).unwrap().allowed);
    assert_eq!(expiry(&mut client), -1);
}

#[test]
fn leaves_alone_whatever_is_not_a_bucket() {
    let (server, _clock) = without_module();
    let (mut buckets, mut client) = (script_on(&server), server.client());
    let quota = Quota::per_second(5);
    let strange = [
        "SET K hello",
        "SET K .",
        "LPUSH K 1",
        "SADD K 1",
        "ZADD K 1 a",
        "XADD K * a 1",
        "HSET K other 1",
        "HSET K tokens 1",
        "HSET K last_refill 1",
        "HSET K tokens 1 last_refill 1 owner me",
        "HSET K tokens 1 other 1",
        "HSET K tokens x last_refill 1",
        "HSET K tokens 1e3 last_refill 1",
        "HSET K tokens 0x1 last_refill 1",
        "HSET K tokens 1.0000000000001 last_refill 1",
        "HSET K tokens 1000000000000000.1 last_refill 1",
        "HSET K tokens 1 last_refill 1.5",
        "HSET K tokens 1 last_refill -1",
        "HSET K tokens 1 last_refill 99999999999999999",
        "HSET K tokens . last_refill 1",
    ];
    for command in strange {
        client.ok("FLUSHALL");
        let key = hash_of("k");
        assert!(!client.ask(&command.replace('K', &key)).is_error(), "{command}");
        let before = client.bytes(&format!("DUMP {key}"));
        let fault = |answer: redis::RedisError| Fault::of(&answer);
        assert_eq!(buckets.tb_take("k", quota, 1).unwrap_err().code(), Some("WRONGTYPE"), "{command}");
        assert_eq!(fault(buckets.tb_peek("k", quota, 1).unwrap_err()), Fault::WrongType);
        assert_eq!(fault(buckets.tb_lease("k", quota, 1).unwrap_err()), Fault::WrongType);
        assert_eq!(fault(buckets.tb_refund("k", quota, 1).unwrap_err()), Fault::WrongType);
        assert_eq!(fault(buckets.tb_debit("k", quota, 1).unwrap_err()), Fault::WrongType);
        assert_eq!(fault(buckets.tb_state("k").unwrap_err()), Fault::WrongType);
        let takes = [Take::new("other", quota, 1), Take::new("k", quota, 1)];
        assert_eq!(fault(buckets.tb_mtake(&takes).unwrap_err()), Fault::WrongType);
        assert_eq!(client.bytes(&format!("DUMP {key}")), before, "{command}");
        assert_eq!(client.int("DBSIZE"), 1, "{command}");
    }
}

#[test]
fn keeps_a_bucket_as_two_fields_that_people_can_read() {
    let (server, _clock) = without_module();
    let mut buckets = script_on(&server);
    let quota = Quota::per_second(10);
    let cost: redis_token_bucket_client::Tokens = "2.75".parse().unwrap();
    assert_eq!(buckets.tb_take("k", quota, cost).unwrap().remaining, 7);
    let stored = server.client().ask(&format!("HGETALL {}", hash_of("k")));
    assert_eq!(stored.texts(), ["tokens", "7.25", "last_refill", &START_US.to_string()]);
    let debit = buckets.tb_debit("k", quota, 10).unwrap();
    assert_eq!((debit.covered, debit.remaining), (false, 0));
    assert_eq!(debit.retry, Retry::After(std::time::Duration::from_millis(275)));
    assert_eq!(buckets.tb_state("k").unwrap().unwrap().tokens, "-2.75");
}

#[test]
fn keys_are_any_bytes() {
    let (server, _clock) = without_module();
    let mut buckets = script_on(&server);
    let long = vec![b'k'; 1 << 20];
    for key in [b"".as_slice(), b" ", b"\0", b"a\r\nb", b"\xff\xfe", b"{", b"%", &long] {
        assert_eq!(buckets.tb_take(key, Quota::per_second(5), 2).unwrap().remaining, 3);
        assert_eq!(buckets.tb_take(key, Quota::per_second(5), 2).unwrap().remaining, 1);
    }
}

#[test]
fn peeks_on_replicas_and_takes_nothing_there() {
    let (primary, clock) = without_module();
    let replica = Server::setup().without_module().clock(&clock).start();
    let quota = Quota::per_minute(10);
    assert!(script_on(&primary).tb_take("k", quota, 4).unwrap().allowed);
    replica.follow(&primary);
    let mut buckets = script_on(&replica);
    assert_eq!(buckets.tb_peek("k", quota, 1).unwrap().remaining, 6);
    assert_eq!(buckets.tb_state("k").unwrap(), script_on(&primary).tb_state("k").unwrap());
    assert_eq!(Fault::of(&buckets.tb_take("k", quota, 1).unwrap_err()), Fault::ReadOnly);
    assert_eq!(buckets.tb_peek("k", quota, 1).unwrap().remaining, 6);
}

#[test]
fn at_maxmemory_refusals_are_still_answered_and_grants_are_a_fault() {
    let (server, _clock) = without_module();
    let (mut buckets, mut client) = (script_on(&server), server.client());
    let quota = Quota::per_minute(2);
    assert!(buckets.tb_take("k", quota, 1).unwrap().allowed);
    client.ok("CONFIG SET maxmemory 1");
    for key in ["k", "new"] {
        assert_eq!(Fault::of(&buckets.tb_take(key, quota, 1).unwrap_err()), Fault::OutOfMemory);
    }
    assert!(!buckets.tb_take("k", quota, 2).unwrap().allowed);
    assert_eq!(buckets.tb_peek("k", quota, 1).unwrap().remaining, 1);
    client.ok("CONFIG SET maxmemory 0");
    assert!(buckets.tb_take("k", quota, 1).unwrap().allowed);
}

/// A tenant's own buckets, taken together.
#[test]
fn takes_from_all_or_from_none() {
    let (server, _clock) = without_module();
    let mut buckets = script_on(&server);
    let (user, org) = (Key::new("acme", "user:7"), Key::new("acme", "org"));
    let (small, large) = (Quota::per_minute(2), Quota::per_hour(100));
    let take = |cost| [Take::new(&user, small, cost), Take::new(&org, large, cost)];
    let decision = buckets.tb_mtake(&take(2)).unwrap();
    assert!(decision.verdict.allowed && decision.each.iter().all(|each| each.allowed));
    assert_eq!((decision.verdict.remaining, decision.each[1].remaining), (0, 98));
    let decision = buckets.tb_mtake(&take(1)).unwrap();
    assert!(!decision.verdict.allowed);
    assert_eq!(decision.verdict.retry, decision.each[0].retry);
    assert!(decision.each[1].allowed);
    assert_eq!(buckets.tb_peek(&org, large, 1).unwrap().remaining, 98);
}
