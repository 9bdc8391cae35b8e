//! Whatever a client sends or has stored: bad numbers, odd keys, strangers' values, damaged buckets. Each is answered with
//! a clean error or as any other, and leaves value, expiry and server as they were.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use support::{Client, Reply, Server, WallClock, Witness};

/// A server whose replies and log are later searched for bytes that a client sent.
fn server() -> (Server, Client) {
    let (server, _clock) = Server::frozen();
    let client = server.client();
    (server, client)
}

/// Sends a call that must fail and change nothing about `key`.
fn fails(client: &mut Client, key: &[u8], args: &[&[u8]]) -> String {
    let before = Witness::of(client, key);
    let mut call = vec![b"TB.TAKE".as_slice(), key];
    call.extend(args);
    let reply = client.call(&call);
    let shown: Vec<String> = args.iter().map(|arg| arg.escape_ascii().to_string()).collect();
    assert!(reply.is_error(), "{shown:?} was answered with {reply:?}");
    let error = reply.error().to_owned();
    assert_eq!(Witness::of(client, key), before, "{shown:?} changed something");
    error
}

#[rustfmt::skip]
const NO_DECIMALS: &[&[u8]] = &[
    b"", b" ", b"   ", b" 5", b"5 ", b"\t5", b"5\n", b"5\r\n", b"nan", b"NaN", b"inf", b"-inf", b"infinity", b"0x10",
    b"0b1", b"1_000", b"1,000", b"1'000", b"+5", b"-5", b"-0", b"--5", b"5-", b"abc", b"5a", b"5f", b"5d", b"5%", b"$5",
    b".", b"e", b"e5", b"1e", b"1e-", b"1e+", b"1e1.5", b"1e1e1", b"1.2.3", b"1..2", b"..5", b"5 5", b"\0", b"5\0",
    b"\x005", b"\xff", b"5\xff", "\u{663}".as_bytes(), "\u{ff15}".as_bytes(), "5\u{a0}".as_bytes(),
    "\u{feff}5".as_bytes(), "\u{bd}".as_bytes(), "\u{221e}".as_bytes(), b"true", b"null", b"nil", b"[5]", b"{5}", b"%s",
    b"%s%n", b"%d", b"1e999", b"1e999999999999999999999", b"1e-400", b"1e-99999999999999999999", b"99999999999999999999",
    b"18446744073709551616", b"9223372036854775808", b"340282366920938463463374607431768211456",
];

#[rustfmt::skip]
const NO_AMOUNTS: &[&[u8]] = &[
    b"1/2", b"1000000000000001", b"1e16", b"1000000000000000.1", b"1000000000000000.000000001", b"1e-10", b"0.0000000004",
    b"0.0000000005", b"0.00000000000000000000000001",
];

#[rustfmt::skip]
const NO_RATES: &[&[u8]] = &[
    b"/", b"1/", b"/1", b"1/0", b"0/0", b"1/0.0", b"1/2/3", b"1//2", b"1/-2", b"-1/2", b"+1/2", b"1/+2", b"1 /2", b"1/ 2",
    b" 1/2", b"1/2 ", b"1/nan", b"nan/1", b"1/inf", b"inf/1", b"1:2", b"1\\2", b"1/s", b"1/m", b"100/60s", b"1e13",
    b"1000000000001", b"1e12/0.5", b"1e-19", b"1/1e19", b"1/10000000000000000000", b"0.0000000000000000001", b"1e-400/1",
    b"1/1e400", b"1234567890123456789/1", b"1/1234567890123456789", b"1.234567890123456789/1",
];

#[test]
fn every_bad_number_is_refused_by_the_name_of_its_argument() {
    let (_server, mut client) = server();
    client.take("k 10 1/60 4");
    for &bad in NO_DECIMALS.iter().chain(NO_AMOUNTS) {
        for key in [b"k".as_slice(), b"absent"] {
            let capacity = fails(&mut client, key, &[bad, b"1"]);
            assert!(capacity.starts_with("ERR invalid capacity: "), "{}: {capacity}", bad.escape_ascii());
            let cost = fails(&mut client, key, &[b"10", b"1", bad]);
            assert!(cost.starts_with("ERR invalid cost: "), "{}: {cost}", bad.escape_ascii());
        }
    }
    for &bad in NO_DECIMALS.iter().chain(NO_RATES) {
        for key in [b"k".as_slice(), b"absent"] {
            let rate = fails(&mut client, key, &[b"10", bad]);
            assert!(rate.starts_with("ERR invalid rate: "), "{}: {rate}", bad.escape_ascii());
        }
    }
    assert_eq!(client.take("k 10 1/60 0"), [1, 6, 0]);
}

#[test]
fn every_bad_number_of_the_vectors_is_refused_and_changes_nothing() {
    let (_server, mut client) = server();
    client.take("k 10 1/60 4");
    let mut tried = 0;
    for line in include_str!("../bucket/tests/vectors/cases.jsonl").lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        for step in scenario["steps"].as_array().unwrap() {
            let call: Vec<&str> = step["call"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            if call[0] == "TB.TAKE" && step["reply"].is_object() && call.len() >= 4 {
                let args: Vec<&[u8]> = call[2..].iter().map(|arg| arg.as_bytes()).collect();
                fails(&mut client, b"k", &args);
                fails(&mut client, b"absent", &args);
                tried += 1;
            }
        }
    }
    assert!(tried > 30, "only {tried} calls that must fail were found");
}

#[test]
fn unusual_spellings_of_good_numbers_are_taken() {
    let (_server, mut client) = server();
    for (capacity, rate, cost, left) in [
        ("5.", "1.", "1.", 4),
        ("5", ".5", ".5", 4),
        ("007", "01", "01", 6),
        ("1e1", "1e0", "1e-05", 9),
        ("0.00001e6", "1000e-3", "0.01e2", 9),
        ("10.000000000", "1.000", "1.000000000000000000000", 9),
        ("10", "1e-18", "0.000000001", 9),
        ("10", "1000000000000", "0.00000000051", 9),
        ("10", "0.1e1/60", "1", 9),
        ("10", ".5/1.5", "1", 9),
        ("10", "123456789012345678/987654321098765432", "1", 9),
    ] {
        client.ok("FLUSHALL");
        assert_eq!(client.take(&format!("k {capacity} {rate} {cost}")), [1, left, 0], "{capacity} {rate} {cost}");
    }
}

#[test]
fn a_number_of_a_million_digits_is_answered_like_any_other() {
    let (_server, mut client) = server();
    let nines = vec![b'9'; 1 << 20];
    for args in [[&nines[..], b"1", b"1"], [b"1", &nines, b"1"], [b"1", b"1", &nines]] {
        fails(&mut client, b"k", &args);
    }
    let mut long_one = vec![b'0'; 1 << 20];
    long_one.push(b'1');
    let mut exact_two = b"2.".to_vec();
    exact_two.extend(vec![b'0'; 1 << 20]);
    let call = [b"TB.TAKE".as_slice(), b"k", &exact_two, &long_one, &long_one];
    assert_eq!(client.call(&call).ints(), [1, 1, 0]);
}

#[test]
fn any_wrong_number_of_arguments_is_refused_and_creates_nothing() {
    let (_server, mut client) = server();
    let words = ["TB.TAKE", "k", "10", "1", "1", "1", "1", "1", "1", "1"];
    for count in [1, 2, 3, 6, 7, 8, 9, 10] {
        let reply = client.call(&words[..count]);
        assert!(reply.error().starts_with("ERR wrong number of arguments for 'tb.take' command"), "{count}: {reply:?}");
        assert_eq!(client.int("DBSIZE"), 0);
    }
    for count in [4, 5] {
        assert_eq!(client.call(&words[..count]).ints()[0], 1);
    }
}

#[test]
fn any_bytes_are_a_key() {
    let (_server, mut client) = server();
    let megabyte = vec![b'k'; 1 << 20];
    let mut every_byte: Vec<u8> = (0..=255).collect();
    every_byte.extend(0..=255);
    #[rustfmt::skip]
    let keys: [&[u8]; 14] = [
        b"", b" ", b"\0", b"a\0b", b"\0\0\0", b"%s%n%s%n%d", b"\r\n", b"a\r\n:1\r\n", b"\xff\xfe\x00\x01", b"\xc3\x28",
        b"a b\tc", "k\u{fc}\u{1f980}".as_bytes(), &every_byte, &megabyte,
    ];
    for key in keys {
        let shown = key[..key.len().min(40)].escape_ascii();
        assert_eq!(client.take_of(key, "3 1 2"), [1, 1, 0], "{shown}");
        assert_eq!(client.take_of(key, "3 1 2"), [0, 1, 1000], "{shown}");
        assert_eq!(client.take_of(key, "3 1 9"), [0, 1, -1], "{shown}");
        let error = fails(&mut client, key, &[b"three", b"1"]);
        assert!(error.starts_with("ERR invalid capacity"), "{shown}: {error}");
        assert!(client.call(&[b"PTTL", key]).int() > 0, "{shown}");
    }
    assert_eq!(client.int("DBSIZE"), keys.len() as i64);
}

#[test]
fn errors_never_echo_what_the_client_sent() {
    let (_server, mut client) = server();
    client.call(&[b"SET".as_slice(), b"MARKED", b"MARKED MARKED"]);
    let marked: [&[u8]; 5] = [b"MARKED", b"MARKED\r\n+OK", b"MARKED%s%n", b"\xffMARKED\0", b"1MARKED"];
    for text in marked {
        for args in [[text, b"1", b"1"], [b"10", text, b"1"], [b"10", b"1", text], [b"10", b"1", b"1"]] {
            let error = fails(&mut client, b"MARKED", &args);
            assert!(!error.contains("MARKED") && !error.contains('%'), "{error}");
        }
    }
}

#[test]
fn keys_of_every_other_type_are_left_as_they_are() {
    let (_server, mut client) = server();
    let strangers = [
        "SET plain hello",
        "SET empty ",
        "SET number 12345",
        "SET float 3.14",
        "SETBIT bitmap 191 1",
        "PFADD hyperloglog a b c",
        "RPUSH list a b c",
        "HSET hash field value",
        "SADD numbers 1 2 3",
        "SADD words a b c",
        "ZADD scores 1 a 2 b",
        "GEOADD places 13.36 38.11 Palermo",
        "XADD stream * field value",
    ];
    // As many elements as a bucket has bytes, for a length alone tells nothing.
    let count = |word: fn(i32) -> String| (0..24).map(word).collect::<Vec<_>>().join(" ");
    let as_long_as_a_bucket = [
        format!("SETRANGE string-of-24 0 {}", "x".repeat(24)),
        format!("RPUSH list-of-24 {}", count(|n| n.to_string())),
        format!("SADD set-of-24 {}", count(|n| format!("word-{n}"))),
        format!("HSET hash-of-24 {}", count(|n| format!("field-{n} {n}"))),
        format!("ZADD scores-of-24 {}", count(|n| format!("{n} member-{n}"))),
        format!("XADD stream-of-24 * {}", count(|n| format!("field-{n} {n}"))),
    ];
    for _ in 1..24 {
        client.ask("XADD stream-of-24 * field value");
    }
    for line in strangers.into_iter().chain(as_long_as_a_bucket.iter().map(String::as_str)) {
        let reply = client.ask(line);
        assert!(!reply.is_error(), "{line}: {reply:?}");
        let key = line.split(' ').nth(1).unwrap();
        for expiry in [format!("PERSIST {key}"), format!("EXPIRE {key} 1000")] {
            client.int(&expiry);
            for args in ["10 1", "10 1 0", "10 1 11", "0 0 1"] {
                let args: Vec<&[u8]> = args.split(' ').map(str::as_bytes).collect();
                let error = fails(&mut client, key.as_bytes(), &args);
                assert!(error.starts_with("WRONGTYPE "), "{line}: {error}");
            }
        }
    }
}

#[test]
fn numbers_are_checked_before_the_key_is_looked_at() {
    let (_server, mut client) = server();
    client.ask("RPUSH list a");
    assert!(fails(&mut client, b"list", &[b"ten", b"1"]).starts_with("ERR invalid capacity"));
}

/// A bucket and what is stored of it.
fn bucket(client: &mut Client) -> Vec<u8> {
    client.take("k 10 1/60 4");
    client.take("k 10 1/60 0.3");
    let bytes = client.bytes("GET k");
    assert_eq!(bytes.len(), 24);
    bytes
}

/// Stores each of these under `key` with an expiry, takes, and looks again; all in one pipeline.
fn all_are_strangers(client: &mut Client, values: &[Vec<u8>]) {
    for batch in values.chunks(500) {
        let mut commands = Vec::new();
        for value in batch {
            commands.push(["SET", "stranger"].map(|word| word.as_bytes().to_vec()).to_vec());
            commands.last_mut().unwrap().extend([value.clone(), b"PXAT".to_vec(), b"1800000000000".to_vec()]);
            for line in ["TB.TAKE stranger 10 1/60", "GET stranger", "PEXPIRETIME stranger"] {
                commands.push(line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
            }
        }
        for (value, replies) in batch.iter().zip(client.pipeline(&commands).chunks(4)) {
            let shown = value.escape_ascii();
            assert!(replies[1].is_error(), "{shown} was taken for a bucket: {:?}", replies[1]);
            assert!(replies[1].error().starts_with("WRONGTYPE "), "{shown}: {:?}", replies[1]);
            assert_eq!(replies[2], Reply::Text(value.clone()), "{shown} was changed");
            assert_eq!(replies[3], Reply::Int(1_800_000_000_000), "the expiry of {shown} was changed");
        }
    }
}

#[test]
fn strings_of_twenty_four_bytes_that_are_not_ours_are_strangers() {
    let (_server, mut client) = server();
    let mut values: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte; 24]).collect();
    values.push(b"exactly 24 bytes of text".to_vec());
    values.push(b"123456789012345678901234".to_vec());
    values.push((0..24).collect());
    all_are_strangers(&mut client, &values);
}

#[test]
fn a_bucket_cut_short_or_drawn_out_is_a_stranger() {
    let (_server, mut client) = server();
    let bytes = bucket(&mut client);
    let mut values: Vec<Vec<u8>> = (0..24).map(|len| bytes[..len].to_vec()).collect();
    values.extend((1..24).map(|start| bytes[start..].to_vec()));
    values.extend([0, b'0', 0xff].map(|extra| [&bytes[..], &[extra]].concat()));
    values.push([&bytes[..], &bytes[..]].concat());
    all_are_strangers(&mut client, &values);
}

#[test]
fn a_bucket_with_a_flipped_bit_is_a_stranger() {
    let (_server, mut client) = server();
    let bytes = bucket(&mut client);
    let flipped = |bit: usize| {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        damaged
    };
    all_are_strangers(&mut client, &(0..24 * 8).map(flipped).collect::<Vec<_>>());
}

#[test]
fn a_bucket_with_any_other_value_in_one_byte_is_a_stranger() {
    let (_server, mut client) = server();
    let bytes = bucket(&mut client);
    let mut values = Vec::new();
    for at in 0..24 {
        for change in 1..=255 {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            values.push(damaged);
        }
    }
    all_are_strangers(&mut client, &values);
}

#[test]
fn a_bucket_stored_back_as_it_was_goes_on() {
    let (_server, mut client) = server();
    let bytes = bucket(&mut client);
    assert_eq!(client.call(&[b"SET".as_slice(), b"copy", &bytes]).text(), "OK");
    assert_eq!(client.take("copy 10 1/60 2"), [1, 3, 0]);
    assert_eq!(client.take("k 10 1/60 2"), [1, 3, 0]);
}

#[test]
fn a_bucket_damaged_in_place_is_a_stranger_until_it_is_removed() {
    let (_server, mut client) = server();
    bucket(&mut client);
    client.ask("SETRANGE k 12 damaged");
    assert!(fails(&mut client, b"k", &[b"10", b"1"]).starts_with("WRONGTYPE "));
    client.ask("APPEND k more");
    assert!(fails(&mut client, b"k", &[b"10", b"1"]).starts_with("WRONGTYPE "));
    client.int("DEL k");
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
}

#[test]
fn no_bytes_hurt_the_server() {
    let (server, client) = server();
    let client = RefCell::new(client);
    client.borrow_mut().ask("RPUSH list a");
    let word = prop_oneof![
        3 => prop::sample::select(vec!["0", "1", "10", "0.5", "1/60", "1e15", "1e-9", "1e12", "1e-18"])
            .prop_map(|text| text.as_bytes().to_vec()),
        2 => "[0-9./eE+-]{0,12}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let key = prop_oneof![
        3 => prop::sample::select(vec!["k", "l", "list"]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let value = prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 20..28));
    let input = (key, value, prop::collection::vec(word, 0..6));
    let config = ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() };
    let outcome = TestRunner::new(config).run(&input, |(key, value, words)| {
        let mut client = client.borrow_mut();
        if let Some(value) = value {
            client.call(&[b"SET".as_slice(), &key, &value]);
        }
        let mut call = vec![b"TB.TAKE".to_vec(), key];
        call.extend(words);
        let reply = client.call(&call);
        if reply.is_error() {
            reply.error();
        } else {
            let [allowed, remaining, retry_ms] = reply.ints().try_into().expect("three integers");
            prop_assert!(allowed == 0 || allowed == 1);
            prop_assert!(remaining >= 0);
            prop_assert!((allowed == 1) == (retry_ms == 0) && retry_ms >= -1);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(server.client().ask("PING").text(), "PONG");
}

#[test]
fn a_panic_in_a_handler_is_answered_and_leaves_the_key_as_it_was() {
    for backtrace in ["0", "1", "full"] {
        panics_and_lives(backtrace);
    }
}

/// Rust's own report of a panic walks the stack where this variable asks for it, and reads files on the way. Inside a
/// server that has another allocator than the C library that must not happen.
fn panics_and_lives(backtrace: &str) {
    let server = Server::setup().clock(&WallClock::frozen()).env("RUST_BACKTRACE", backtrace).start();
    let mut client = server.client();
    if !client.knows("TB.PANIC") {
        println!("skipped: this module is a release build, without the command that panics");
        return;
    }
    client.take("k 10 1/60 4");
    let pid = client.info("process_id");
    for key in ["k", "absent"] {
        for _ in 0..3 {
            let before = Witness::of(&mut client, key.as_bytes());
            assert_eq!(client.ask(&format!("TB.PANIC {key}")).error(), "ERR internal error");
            assert_eq!(Witness::of(&mut client, key.as_bytes()), before);
        }
    }
    assert_eq!(client.info("process_id"), pid);
    assert_eq!(client.take("k 10 1/60 1"), [1, 5, 0]);
    assert!(server.log().contains("panic"), "the log does not tell of the panic:\n{}", server.log());
}
