//! Nanoseconds of the arithmetic alone, without a server: a take on a stored bucket, the reading of its numbers, and
//! the 24 bytes in and out. Every answer is checked once before it is measured.
//!
//! Where it misleads: each iteration repeats one call on the same values, so branches are predicted and all is cached.
//! On a server a call costs some hundreds of nanoseconds around these, and LTO makes other code of them there;
//! `instructions` counts that. Compare a row with itself before a change, on an idle machine, not with another row.
#![allow(clippy::expect_used, reason = "a measurement may panic")]

use std::fmt::Debug;
use std::hint::black_box;
use std::time::Duration;

use bucket::{Amount, Bucket, Decision, Micros, Quota, Rate, Record, Retry, Slack};
use criterion::Criterion;

const NOW: Micros = Micros::new(1_767_225_600_000_000);
const LATER: Micros = Micros::new(1_767_225_600_250_000);
const SLACK: Slack = Slack::from_millis(1_000);

/// Measures a call whose answer is known.
fn measure<T: PartialEq + Debug>(criterion: &mut Criterion, name: &str, expected: T, mut call: impl FnMut() -> T) {
    assert_eq!(call(), expected, "{name}");
    criterion.bench_function(name, |bencher| bencher.iter(&mut call));
}

fn quota(capacity: &str, rate: &str) -> Quota {
    let capacity = Amount::parse(capacity.as_bytes()).expect("a capacity");
    Quota { capacity, rate: Rate::parse(rate.as_bytes()).expect("a rate") }
}

fn left(quota: &Quota, bucket: Bucket, cost: Amount) -> Bucket {
    bucket.take(quota, cost, NOW).0.expect("the cost is there")
}

fn take(criterion: &mut Criterion) {
    let small = quota("100", "50");
    let half = left(&small, Bucket::full(&small, NOW), Amount::from_tokens(50).expect("an amount"));
    let drained = left(&small, Bucket::full(&small, NOW), small.capacity);
    // Eighteen digits a side and a bucket drained in 1970: products beyond 128 bits, in the refill and in the wait.
    let big = quota("1e15", "999999999999999989/999999999999999967");
    let old = Bucket { stamp: Micros::new(0), ..left(&big, Bucket::full(&big, NOW), Amount::MAX) };
    let fifth = Amount::parse(b"0.2").expect("an amount");
    let take = |quota: &Quota, bucket: Bucket, cost: Amount| {
        black_box(bucket).take(black_box(quota), black_box(cost), LATER).1
    };

    let granted = |remaining| Decision { allowed: true, remaining, retry: Retry::Now };
    let refused = |remaining, millis| Decision { allowed: false, remaining, retry: Retry::After(millis) };
    measure(criterion, "take/granted, refilled", granted(61), || take(&small, half, Amount::ONE));
    measure(criterion, "take/granted, full", granted(99), || take(&small, Bucket::full(&small, NOW), Amount::ONE));
    measure(criterion, "take/granted, fraction", granted(62), || take(&small, half, fifth));
    measure(criterion, "take/refused", refused(12, 1_250), || {
        take(&small, drained, Amount::from_tokens(75).expect("an amount"))
    });
    measure(criterion, "take/granted, big numbers", granted(1_767_225_599), || take(&big, old, Amount::ONE));
    measure(criterion, "take/refused, big numbers", refused(1_767_225_600, 999_998_232_774_399_728), || {
        take(&big, old, Amount::MAX)
    });
}

fn parse(criterion: &mut Criterion) {
    let amount = |text: &'static [u8]| move || Amount::parse(black_box(text)).map(Amount::tokens);
    measure(criterion, "parse/capacity 100", Ok(100), amount(b"100"));
    measure(criterion, "parse/capacity 2.5", Ok(2), amount(b"2.5"));
    let rate = |text: &'static [u8]| move || Rate::parse(black_box(text));
    measure(criterion, "parse/rate 50", Rate::parse(b"3000/60"), rate(b"50"));
    measure(criterion, "parse/rate 0.5", Rate::parse(b"1/2"), rate(b"0.5"));
    measure(criterion, "parse/ratio 100/60", Rate::parse(b"5/3"), rate(b"100/60"));
    let decimal = Rate::parse(b"11574074074074074e-21");
    measure(criterion, "parse/rate of 17 digits", decimal, rate(b"0.000011574074074074074"));
}

fn record(criterion: &mut Criterion) {
    let quota = quota("100", "50");
    let full = Bucket::full(&quota, NOW);
    let old = Record::with(None, left(&quota, full, Amount::ONE), &quota, SLACK);
    let bytes = old.encode();
    measure(criterion, "record/encode", bytes, || black_box(old).encode());
    measure(criterion, "record/decode", Some(old), || Record::decode(black_box(&bytes)));

    let grant = || {
        let old = Record::decode(black_box(&bytes)).expect("a record");
        let (bucket, decision) = old.bucket.take(black_box(&quota), Amount::ONE, LATER);
        let new = Record::with(Some(&old), bucket.expect("granted"), &quota, SLACK);
        (new.encode() != bytes, decision.remaining)
    };
    measure(criterion, "record/decode, take, encode", (true, 99), grant);
}

fn main() {
    let criterion = Criterion::default().warm_up_time(Duration::from_millis(300));
    let mut criterion = criterion.measurement_time(Duration::from_secs(1)).configure_from_args();
    take(&mut criterion);
    parse(&mut criterion);
    record(&mut criterion);
    criterion.final_summary();
}
