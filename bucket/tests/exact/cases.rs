//! The cases that other limiters were reported with, where about arithmetic: rows of a time, a call and the answer.
//! Those about the server and the client are tested there.

use redis_token_bucket_core::{Amount, Bucket, Micros, Quota, Rate};

use crate::world::{Key, Limit, NEW_YEAR, Tokens, Verb};

/// Milliseconds since the first call, the call, and its answer: allowed (or granted), remaining, retry.
type Row = (i64, &'static str, [i64; 3]);

/// `take 10 1/3 1` and its kin.
fn call(key: &mut Key, text: &str, now: Micros) -> [i64; 3] {
    let words: Vec<&str> = text.split(' ').collect();
    let limit = Limit::new(words[1], words[2]);
    let tokens = |at: usize| Tokens::new(words.get(at).unwrap_or(&"1"));
    let verb = match words[0] {
        "take" => Verb::Take(tokens(3)),
        "peek" => Verb::Peek(tokens(3)),
        "lease" => Verb::Lease { want: tokens(3), least: tokens(4) },
        "refund" => Verb::Refund(tokens(3)),
        "debit" => Verb::Debit(tokens(3)),
        other => panic!("no verb {other}"),
    };
    let reply = key.call(&limit.quota, &verb, now).unwrap();
    let first = match verb {
        Verb::Lease { .. } => reply.granted.tokens() as i64,
        _ => i64::from(reply.allowed),
    };
    [first, reply.remaining as i64, reply.retry_ms]
}

fn answers(rows: &[Row]) {
    let mut key = Key { expires: true, ..Key::default() };
    for (row, (millis, text, expected)) in rows.iter().enumerate() {
        let now = Micros::new(NEW_YEAR.checked_add_signed(millis * 1_000).unwrap());
        assert_eq!(call(&mut key, text, now), *expected, "row {row}: {text} at {millis} ms");
    }
}

#[test]
fn b1_a_thousand_a_minute_counts_down() {
    answers(&[
        (0, "take 1000 1000/60", [1, 999, 0]),
        (0, "take 1000 1000/60", [1, 998, 0]),
        (0, "take 1000 1000/60", [1, 997, 0]),
    ]);
}

#[test]
fn b2_six_thousand_a_second_never_reports_more_than_there_were() {
    answers(&[(0, "take 6000 6000", [1, 5_999, 0]), (0, "take 6000 6000", [1, 5_998, 0])]);
}

#[test]
fn b3_rates_above_one_a_millisecond_are_accepted() {
    answers(&[(0, "take 20 1500", [1, 19, 0]), (0, "take 20 1500 20", [0, 19, 1]), (1, "take 20 1500 20", [1, 0, 0])]);
}

#[test]
fn b9_a_rate_above_the_capacity_still_limits_the_burst() {
    answers(&[
        (0, "take 1 3", [1, 0, 0]),
        (0, "take 1 3", [0, 0, 334]),
        (333, "take 1 3", [0, 0, 1]),
        (334, "take 1 3", [1, 0, 0]),
        (10_000, "take 1 3", [1, 0, 0]),
        (10_000, "take 1 3", [0, 0, 334]),
    ]);
}

#[test]
fn b10_one_a_day() {
    answers(&[
        (0, "take 1 1/86400", [1, 0, 0]),
        (1_000, "take 1 1/86400", [0, 0, 86_399_000]),
        (86_399_999, "take 1 1/86400", [0, 0, 1]),
        (86_400_001, "take 1 1/86400", [1, 0, 0]),
    ]);
}

#[test]
fn b12_a_rate_of_zero_grants_the_capacity_once() {
    answers(&[
        (0, "take 5 0 4", [1, 1, 0]),
        (0, "take 5 0", [1, 0, 0]),
        (0, "take 5 0", [0, 0, -1]),
        (3_000_000_000_000, "take 5 0", [0, 0, -1]),
        (3_000_000_000_000, "take 5 0 0", [1, 0, 0]),
    ]);
}

#[test]
fn b13_a_capacity_of_zero_always_denies() {
    answers(&[
        (0, "take 0 100", [0, 0, -1]),
        (1_000, "take 0 0 0.000000001", [0, 0, -1]),
        (2_000, "lease 0 100 5", [0, 0, -1]),
        (3_000, "take 0 100 0", [1, 0, 0]),
    ]);
}

#[test]
fn b14_b15_a_cost_of_zero_asks_and_stores_nothing() {
    let mut key = Key::default();
    let now = Micros::new(NEW_YEAR);
    assert_eq!(call(&mut key, "take 5 1 0", now), [1, 5, 0]);
    assert_eq!(key.record(), None);
    assert_eq!(call(&mut key, "take 5 1 5", now), [1, 0, 0]);
    let drained = key.record();
    assert_eq!(call(&mut key, "take 5 1 0", now), [1, 0, 0]);
    assert_eq!(key.record(), drained);
}

#[test]
fn b16_b17_b18_a_negative_number_is_no_number() {
    for text in ["-3", "-100", "-0", "-1e-9"] {
        assert!(Amount::parse(text.as_bytes()).is_err(), "{text}");
        assert!(Rate::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn b19_b22_a_cost_above_the_capacity_is_denied_for_ever_and_changes_nothing() {
    answers(&[
        (0, "take 2 1/86400 200000000", [0, 2, -1]),
        (0, "take 2 1/86400 1e15", [0, 2, -1]),
        (0, "take 2 1/86400 2", [1, 0, 0]),
        (0, "take 2 1/86400 200000000", [0, 0, -1]),
        (172_800_000, "take 2 1/86400 2", [1, 0, 0]),
    ]);
    answers(&[(0, "take 5 1 50", [0, 5, -1]), (0, "take 5 1 5.000000001", [0, 5, -1]), (0, "take 5 1 5", [1, 0, 0])]);
}

#[test]
fn b24_b25_a_denied_cost_takes_nothing() {
    answers(&[(0, "take 10 1 5", [1, 5, 0]), (0, "take 10 1 100", [0, 5, -1]), (0, "take 10 1 5", [1, 0, 0])]);
    answers(&[
        (0, "take 10 1 8", [1, 2, 0]),
        (0, "take 10 1 5", [0, 2, 3_000]),
        (0, "take 10 1 1e6", [0, 2, -1]),
        (0, "take 10 1 2", [1, 0, 0]),
    ]);
}

#[test]
fn b26_the_token_that_has_half_grown_counts() {
    answers(&[
        (0, "take 1 1", [1, 0, 0]),
        (200, "take 1 1", [0, 0, 800]),
        (999, "take 1 1", [0, 0, 1]),
        (1_000, "take 1 1", [1, 0, 0]),
    ]);
}

#[test]
fn b28_denials_do_not_stop_the_refill() {
    let mut key = Key::default();
    let at = |tenths: u64| Micros::new(NEW_YEAR + tenths * 100_000);
    assert_eq!(call(&mut key, "take 100 100/900 100", at(0)), [1, 0, 0]);
    let granted: Vec<u64> =
        (1..=900).filter(|tenths| call(&mut key, "take 100 100/900", at(*tenths))[0] == 1).collect();
    assert_eq!(granted, [90, 180, 270, 360, 450, 540, 630, 720, 810, 900]);
}

/// Takes of one token at each of the times (in microseconds), compared with a bucket in whole parts of a token: `gain`
/// parts come back in a microsecond, `token` parts are a token. Returns the tokens granted, and for how many calls one
/// was late because of what rounding had taken.
fn granted(limit: &str, (gain, token): (u64, u64), times: impl Iterator<Item = u64>) -> (u64, u64) {
    let (capacity, rate) = limit.split_once(" at ").unwrap();
    let quota = Limit::new(capacity, rate).quota;
    let full = quota.capacity.tokens() * token;
    let cost = Verb::Take(Tokens::new("1"));
    let (mut key, mut parts, mut last) = (Key::default(), full, 0);
    let (mut granted, mut exact, mut late) = (0_u64, 0_u64, 0_u64);
    for micros in times {
        parts = (parts + (micros - last) * gain).min(full);
        last = micros;
        if parts >= token {
            parts -= token;
            exact += 1;
        }
        let reply = key.call(&quota, &cost, Micros::new(NEW_YEAR + micros)).unwrap();
        granted += u64::from(reply.allowed);
        assert!(granted <= exact && exact <= granted + 1, "{granted}, not {exact} after {micros} us of {limit}");
        late += exact - granted;
    }
    (granted, late)
}

/// Times whose gaps look random and are below `most` microseconds.
fn uneven(most: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut time = 0;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        time += (state >> 33) % most;
        time
    })
}

#[test]
fn b4_b6_b7_fast_rates_are_kept() {
    let seconds = |seconds: u64| move |time: &u64| *time <= seconds * 1_000_000;
    let steady = |gap: u64| (0_u64..).map(move |call| call * gap);
    let (_, late) = granted("1 at 2000", (1, 500), uneven(1_000).take_while(seconds(2)));
    assert_eq!(late, 0);
    let (_, late) = granted("10 at 700", (7, 10_000), uneven(500).take_while(seconds(10)));
    assert_eq!(late, 0);
    assert_eq!(granted("10 at 700", (7, 10_000), steady(100).take_while(seconds(10))), (7_010, 0));
    assert_eq!(granted("10 at 700000", (7, 10), steady(1).take(100_001)), (70_010, 0));
    let fourfold = (0..400_004_u64).map(|call| call / 4);
    assert_eq!(granted("10 at 3000000", (3, 1), fourfold), (300_010, 0));
}

#[test]
fn b31_a_million_takes_at_a_third_drift_by_nothing() {
    let steady = (0..=1_000_000_u64).map(|call| call * 36_000);
    assert_eq!(granted("10 at 1/3", (1, 3_000_000), steady), (10 + 36_000 / 3, 0));
}

#[test]
fn b31_nor_at_uneven_times() {
    let times: Vec<u64> = uneven(72_000).take(1_000_000).collect();
    let elapsed = times.last().unwrap() - times.first().unwrap();
    let (granted, late) = granted("10 at 1/3", (1, 3_000_000), times.into_iter());
    assert_eq!(granted, 10 + elapsed / 3_000_000);
    // A call in the very microsecond in which a token is complete finds a fraction of a step missing.
    assert!(late <= 5, "{late}");
}

#[test]
fn c1_raising_the_rate_does_not_deny() {
    answers(&[
        (0, "take 16 0.5 4", [1, 12, 0]),
        (0, "take 16 50", [1, 11, 0]),
        (0, "take 16 50 11", [1, 0, 0]),
        (0, "take 16 0.5", [0, 0, 2_000]),
        (20, "take 16 50", [1, 0, 0]),
    ]);
}

#[test]
fn c2_c5_a_capacity_below_what_was_used_denies_with_a_wait() {
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (0, "take 5 1", [0, 0, 1_000]),
        (0, "take 5 1 5", [0, 0, 5_000]),
        (5_000, "take 5 1 5", [1, 0, 0]),
    ]);
    answers(&[(0, "take 10 1 2", [1, 8, 0]), (0, "take 5 1", [1, 4, 0]), (0, "take 10 1 5", [0, 4, 1_000])]);
}

#[test]
fn c4_a_raised_capacity_adds_nothing_at_once() {
    answers(&[
        (0, "take 10 1 7", [1, 3, 0]),
        (0, "peek 100 1", [1, 3, 0]),
        (0, "take 100 1 4", [0, 3, 1_000]),
        (97_000, "peek 100 1 100", [1, 100, 0]),
    ]);
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (0, "take 1000 1", [0, 0, 1_000]),
        (0, "take 10 1", [0, 0, 1_000]),
        (0, "take 1000 1", [0, 0, 1_000]),
        (0, "refund 1000 1 0", [1, 0, 0]),
        (0, "take 10 1", [0, 0, 1_000]),
    ]);
}

#[test]
fn c6_two_quotas_on_one_key_are_bounded_by_the_larger() {
    let mut key = Key::default();
    let granted = uneven(40_000)
        .take_while(|micros| *micros <= 60_000_000)
        .enumerate()
        .map(|(call, micros)| (if call % 2 == 0 { "take 10 2" } else { "take 5 1" }, Micros::new(NEW_YEAR + micros)))
        .filter(|(text, now)| self::call(&mut key, text, *now)[0] == 1)
        .count();
    assert!((60..=10 + 2 * 60).contains(&granted), "{granted}");
}

#[test]
fn d1_a_clock_set_back_neither_refills_nor_locks_out() {
    // A whole refill is ten seconds: a minute back cannot be true, two seconds can.
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (-60_000, "take 10 1", [0, 0, 1_000]),
        (-59_000, "take 10 1", [1, 0, 0]),
        (-59_000, "take 10 1", [0, 0, 1_000]),
    ]);
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (-2_000, "take 10 1", [0, 0, 3_000]),
        (0, "take 10 1", [0, 0, 1_000]),
        (1_000, "take 10 1", [1, 0, 0]),
    ]);
    // Exactly a refill back is still believed; a peek answers as if the stamp had been given up, but gives up nothing.
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (-10_000, "take 10 1", [0, 0, 11_000]),
        (-10_001, "peek 10 1", [0, 0, 1_000]),
        (-10_000, "peek 10 1", [0, 0, 11_000]),
    ]);
}

#[test]
fn d2_a_clock_set_forward_refills_one_bucket() {
    answers(&[
        (0, "take 10 1 10", [1, 0, 0]),
        (3_600_000, "take 10 1 10", [1, 0, 0]),
        (3_600_000, "take 10 1", [0, 0, 1_000]),
    ]);
}

#[test]
fn amounts_of_nine_decimals_are_exact() {
    answers(&[
        (0, "take 0.3 1 0.1", [1, 0, 0]),
        (0, "take 0.3 1 0.1", [1, 0, 0]),
        (0, "take 0.3 1 0.1", [1, 0, 0]),
        (0, "take 0.3 1 0.1", [0, 0, 100]),
    ]);
}

#[test]
fn leases_refunds_and_debits() {
    answers(&[
        (0, "lease 10 1 4", [4, 6, 0]),
        (0, "lease 10 1 100", [6, 0, 0]),
        (0, "lease 10 1 5 3", [0, 0, 3_000]),
        (0, "refund 10 1 2.5", [1, 2, 0]),
        (0, "lease 10 1 5 3", [0, 2, 500]),
        (0, "lease 10 1 5 2", [2, 0, 0]),
        (0, "refund 10 1 100", [1, 10, 0]),
        (0, "debit 10 1 13", [0, 0, 3_000]),
        (0, "take 10 1 0", [0, 0, 3_000]),
        (0, "lease 10 1 5", [0, 0, 4_000]),
        (3_000, "take 10 1 0", [1, 0, 0]),
        (3_000, "debit 10 1 0", [1, 0, 0]),
        (4_000, "take 10 1", [1, 0, 0]),
        (4_000, "debit 10 0 1", [0, 0, -1]),
    ]);
}

#[test]
fn a_bucket_at_the_end_of_time_does_not_overflow() {
    let quota = Quota { capacity: Amount::MAX, rate: Rate::parse(b"1e12").unwrap() };
    let (drained, _) = Bucket::full(&quota, Micros::new(0)).debit(&quota, Amount::MAX, Micros::new(0)).unwrap();
    let (deepest, _) = drained.debit(&quota, Amount::MAX, Micros::new(0)).unwrap();
    assert_eq!(deepest.refilled(&quota, Micros::new(u64::MAX)), Bucket::full(&quota, Micros::MAX));
}
