//! Quotas, keys and amounts: what they read, what they send, and that nothing is lost on the way. No server.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use redis::ToRedisArgs;
use redis_token_bucket_client::{Key, NumberError, Quota, QuotaError, Rate, Tokens};

fn sent(value: impl ToRedisArgs) -> Vec<String> {
    value.to_redis_args().into_iter().map(|arg| String::from_utf8(arg).unwrap()).collect()
}

#[test]
fn quotas_say_what_they_are() {
    assert_eq!(sent(Quota::per_second(60)), ["60", "60"]);
    assert_eq!(sent(Quota::per_second(50).burst(100)), ["100", "50"]);
    assert_eq!(sent(Quota::per_minute(100)), ["100", "100/60"]);
    assert_eq!(sent(Quota::per_hour(5000)), ["5000", "5000/3600"]);
    assert_eq!(sent(Quota::per_day(1)), ["1", "1/86400"]);
    assert_eq!(sent(Quota::per(3, Duration::from_millis(250))), ["3", "3/0.25"]);
    assert_eq!(sent(Quota::per(1, Duration::new(1, 1))), ["1", "1/1.000000001"]);
    assert_eq!(sent(Quota::once(5)), ["5", "0"]);
    let (capacity, tokens) = ("2.5".parse().unwrap(), "0.1".parse().unwrap());
    assert_eq!(sent(Quota::new(capacity, Rate::new(tokens, Duration::from_secs(7)))), ["2.5", "0.1/7"]);
}

#[test]
fn quotas_are_constants() {
    const QUOTA: Quota = Quota::per_second(50).burst(100);
    const RATE: Rate = QUOTA.rate();
    assert_eq!((RATE.tokens(), RATE.every()), (Tokens::new(50), Duration::from_secs(1)));
    assert_eq!(QUOTA.capacity(), Tokens::from(100));
}

#[test]
fn quotas_are_read_from_text() {
    let read = |text: &str| text.parse::<Quota>().unwrap();
    assert_eq!(read("100/minute, burst 20"), Quota::per_minute(100).burst(20));
    assert_eq!(read("100/minute"), Quota::per_minute(100));
    assert_eq!(read(" 100 / 15m ,burst  20 "), Quota::per(100, Duration::from_secs(900)).burst(20));
    assert_eq!(read("5/250ms"), Quota::per(5, Duration::from_millis(250)));
    assert_eq!(read("1/2d"), Quota::per(1, Duration::from_secs(172_800)));
    assert_eq!(read("0/second, burst 5"), Quota::once(5));
    assert_eq!(sent(read("0.5/second, burst 2.5")), ["2.5", "0.5"]);
}

#[test]
fn what_is_no_quota_is_refused() {
    let refused = |text: &str| text.parse::<Quota>().unwrap_err();
    for text in ["", "100", "100 per minute", "100/minute, 20", "100/minute, burst20"] {
        assert_eq!(refused(text), QuotaError::Shape, "{text}");
    }
    for text in [
        "100/",
        "100/minutes",
        "100/minute burst 20",
        "100/fortnight",
        "100/60",
        "100/1.5s",
        "100/-1s",
        "100/99999999999999999999s",
    ] {
        assert_eq!(refused(text), QuotaError::Time, "{text}");
    }
    for text in ["/minute", "-1/minute", "nan/minute", "0x10/minute", "1_000/minute"] {
        assert_eq!(refused(text), QuotaError::Rate(NumberError::Malformed), "{text}");
    }
    assert_eq!(refused("100/0s"), QuotaError::Rate(NumberError::OutOfRange));
    assert_eq!(refused("1e15/1ms, burst 1"), QuotaError::Rate(NumberError::OutOfRange));
    assert_eq!(refused("1/minute, burst 1e16"), QuotaError::Burst(NumberError::OutOfRange));
    assert_eq!(refused("1/minute, burst x"), QuotaError::Burst(NumberError::Malformed));
}

#[test]
fn the_server_is_not_needed_to_find_a_quota_it_would_refuse() {
    assert!(bucket::Quota::try_from(Quota::per_minute(100)).is_ok());
    let endless = Quota::per(1, Duration::ZERO);
    assert_eq!(bucket::Quota::try_from(endless), Err(QuotaError::Rate(NumberError::OutOfRange)));
    let huge = Quota::per_second(1).burst(u64::MAX);
    assert_eq!(bucket::Quota::try_from(huge), Err(QuotaError::Burst(NumberError::OutOfRange)));
}

#[test]
fn amounts_are_exact_and_read_by_the_servers_rules() {
    let read = |text: &str| text.parse::<Tokens>();
    assert_eq!(sent(Tokens::from(u64::MAX)), ["18446744073709551615"]);
    assert_eq!(sent(read("0.000000001").unwrap()), ["0.000000001"]);
    assert_eq!(sent(read("1e-05").unwrap()), ["0.00001"]);
    assert_eq!(sent(read("999999999999999.999999999").unwrap()), ["999999999999999.999999999"]);
    assert_eq!(sent(read("0.30").unwrap()), ["0.3"]);
    assert_eq!(read("0.1").unwrap().max(Tokens::ZERO), read("1e-1").unwrap());
    assert_eq!(read("1e-10"), Err(NumberError::TooSmall));
    for text in ["", " 1", "+1", "-1", "0x10", "nan", "inf", "1_000", "1/2"] {
        assert_eq!(read(text), Err(NumberError::Malformed), "{text}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn quotas_stand_in_configuration_files_as_text() {
    let quotas: HashMap<String, Quota> = serde_json::from_str(r#"{"api": "100/minute, burst 20"}"#).unwrap();
    assert_eq!(quotas["api"], Quota::per_minute(100).burst(20));
    assert_eq!(serde_json::to_string(&quotas).unwrap(), r#"{"api":"100/minute, burst 20"}"#);
    let error = serde_json::from_str::<Quota>(r#""100/week""#).unwrap_err();
    assert!(error.to_string().contains("invalid time"), "{error}");
    assert!(serde_json::from_str::<Quota>("5").is_err());
}

/// CRC-16/XMODEM bit by bit, and the rule for hash tags, as the cluster specification words them.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let inside = &key[open + 1..];
        let close = inside.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &inside[..close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc >> 15 == 1 { crc << 1 ^ 0x1021 } else { crc << 1 })
    });
    crc % 16_384
}

#[test]
fn slots_are_computed_as_servers_do() {
    assert_eq!(slot(b"123456789"), 0x31C3);
    assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
    assert_eq!(slot(b"foo{}{bar}"), slot(b"foo{}{bar}".as_slice()));
    assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
}

#[test]
fn keys_of_ordinary_tenants_read_well() {
    assert_eq!(Key::new("acme", "api").to_string(), "rl:{acme}:api");
    assert_eq!(Key::new("müller", "api").as_bytes(), "rl:{müller}:api".as_bytes());
    assert_eq!(Key::new("a:b", "c:d").to_string(), "rl:{a:b}:c:d");
    assert_eq!(Key::new("a\r\n\0", "").to_string(), r"rl:{a\r\n\x00}:");
    assert_eq!(Key::new(vec![b'x'; 10_000], "api").as_bytes().len(), 10_009);
}

/// Bytes among which braces, colons, percent signs and what an encoding makes of them are common.
fn awkward() -> impl Strategy<Value = Vec<u8>> {
    let common = prop_oneof![
        Just(b'{'),
        Just(b'}'),
        Just(b'%'),
        Just(b':'),
        Just(b'2'),
        Just(b'5'),
        Just(b'7'),
        Just(b'B'),
        Just(b'D'),
        Just(b'a'),
        any::<u8>()
    ];
    proptest::collection::vec(common, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn different_buckets_never_share_a_key(a in (awkward(), awkward()), b in (awkward(), awkward())) {
        prop_assert_eq!(a == b, Key::new(&a.0, &a.1) == Key::new(&b.0, &b.1));
    }

    #[test]
    fn the_slot_is_that_of_the_whole_tenant(tenant in awkward(), classes in (awkward(), awkward())) {
        let keys = [Key::new(&tenant, &classes.0), Key::new(&tenant, &classes.1)];
        prop_assert_eq!(slot(keys[0].as_bytes()), slot(keys[1].as_bytes()));
        // The tag that a server sees is all of the tenant, undone by reading the percent signs.
        let key = keys[0].as_bytes();
        let end = key.iter().position(|byte| *byte == b'}').unwrap();
        let tag = &key[4..end];
        prop_assert!(!tag.is_empty());
        prop_assert_eq!(tag.iter().find(|byte| **byte == b'{'), None);
        prop_assert_eq!(slot(key), slot(tag));
        prop_assert_eq!(decode(tag), tenant);
    }

    #[test]
    fn quotas_survive_being_written_and_read(
        tokens in 0..1_000_000_000_u64,
        burst in 0..1_000_000_000_000_000_u64,
        nanos in prop_oneof![1..100_000_000_u64, (1..100_000_u64).prop_map(|s| s * 1_000_000_000)],
    ) {
        let quota = Quota::per(tokens, Duration::from_nanos(nanos)).burst(burst);
        if bucket::Quota::try_from(quota).is_ok() {
            prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota));
        }
    }

    #[test]
    fn amounts_survive_being_written_and_read(
        whole in 0..1_000_000_000_000_000_u64,
        billionths in 0..1_000_000_000_u32,
    ) {
        let text = format!("{whole}.{billionths:09}");
        let tokens: Tokens = text.parse().unwrap();
        prop_assert_eq!(tokens.to_string().parse::<Tokens>(), Ok(tokens));
        prop_assert_eq!(bucket::Amount::try_from(tokens), bucket::Amount::parse(text.as_bytes()));
    }
}

fn decode(tag: &[u8]) -> Vec<u8> {
    if tag == b"%" {
        return Vec::new();
    }
    let mut bytes = Vec::new();
    let mut rest = tag;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = std::str::from_utf8(&tail[..2]).unwrap();
        bytes.push(u8::from_str_radix(digits, 16).unwrap());
        rest = &tail[2..];
    }
    bytes
}
