//! The fast path answers as the whole arithmetic does, or not at all; and it is there for ordinary calls.

use proptest::prelude::*;
use proptest::sample::select;
use redis_token_bucket_core::{Amount, Bucket, FastTake, FastTaken, Micros, Quota, Rate, Record, Retry, Slack};

use crate::config;
use crate::world::{NEW_YEAR, SLACK, balance, deadline};

const TOKEN: i128 = 1_000_000_000_000;

/// A take as both read it.
struct Both {
    fast: FastTake,
    quota: Quota,
    cost: Amount,
    slack: Slack,
}

/// What the fast path reads, the parsers read too.
fn both(capacity: &str, rate: &str, cost: Option<&str>, slack: Slack) -> Option<Both> {
    let fast = FastTake::parse(capacity.as_bytes(), rate.as_bytes(), cost.map(str::as_bytes))?;
    let capacity = Amount::parse(capacity.as_bytes()).unwrap();
    let quota = Quota { capacity, rate: Rate::parse(rate.as_bytes()).unwrap() };
    let cost = cost.map_or(Amount::ONE, |cost| Amount::parse(cost.as_bytes()).unwrap());
    assert_eq!(fast.cost(), cost);
    Some(Both { fast, quota, cost, slack })
}

impl Both {
    /// What is to be stored, and the three integers.
    fn in_full(&self, record: Option<&Record>, now: Micros) -> (Option<Record>, [i64; 3]) {
        let before = Bucket::or_full(record.map(|record| record.bucket), &self.quota, now);
        let (bucket, decision) = before.take(&self.quota, self.cost, now);
        let stored = match bucket {
            Some(bucket) => Some(Record::with(record, bucket, &self.quota, self.slack)),
            None => record.and_then(|record| record.corrected(&self.quota, self.slack, now)),
        };
        (stored, [decision.allowed.into(), decision.remaining.cast_signed(), decision.retry.as_millis()])
    }

    /// Whether the fast path answered, for a bucket that is stored or for none.
    fn agree(&self, record: Option<&Record>, now: Micros) -> bool {
        let bytes = record.map(Record::encode);
        let before = Bucket::or_full(record.map(|record| record.bucket), &self.quota, now);
        let peek = before.peek(&self.quota, self.cost, now);
        if let Some((remaining, wait)) = self.fast.peek(bytes.as_ref(), now) {
            assert_eq!(
                (remaining, wait as i64),
                (peek.remaining, peek.retry.as_millis()),
                "peek of {record:?} at {now:?}"
            );
        }
        let (stored, answer) = self.in_full(record, now);
        let granted = |remaining: u64, bytes| {
            assert_eq!(answer, [1, remaining as i64, 0], "{record:?} at {now:?}");
            let stored = stored.expect("a grant is stored");
            assert_eq!(stored.encode(), bytes, "{record:?} at {now:?}");
            stored
        };
        match self.fast.take(bytes.as_ref(), self.slack, now) {
            None => return false,
            Some(FastTaken::Granted(remaining, bytes)) => {
                let stored = granted(remaining, bytes);
                assert_eq!(Some(stored.deadline), record.map(|record| record.deadline), "{record:?} at {now:?}");
            }
            Some(FastTaken::Dated(remaining, bytes, deadline)) => {
                let stored = granted(remaining, bytes);
                assert_eq!(stored.deadline, deadline, "{record:?} at {now:?}");
                assert_ne!(Some(deadline), record.map(|record| record.deadline), "{record:?} at {now:?}");
            }
            Some(FastTaken::Refused(remaining, wait)) => {
                assert_eq!(answer, [0, remaining as i64, wait as i64], "{record:?} at {now:?}");
                assert_eq!(stored, None, "{record:?} at {now:?}");
            }
        }
        true
    }
}

fn amounts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1_u32..8).prop_flat_map(|digits| (0..10_u64.pow(digits)).prop_map(|tokens| tokens.to_string())),
        1 => select(vec!["0", "1", "007", "9223371", "9223372", "9223373", "9999999", "2.5", "1e3", "", "-1", "1_0", "12345678", "1:"])
            .prop_map(str::to_owned),
    ]
}

fn rates() -> impl Strategy<Value = String> {
    let number = || (1_u32..10).prop_flat_map(|digits| 0..10_u64.pow(digits));
    prop_oneof![
        2 => number().prop_map(|tokens| tokens.to_string()),
        2 => (number(), 0_u32..1_000_000).prop_map(|(tokens, fraction)| format!("{}.{fraction:06}", tokens % 100_000)),
        2 => (number(), number()).prop_map(|(tokens, seconds)| format!("{tokens}/{seconds}")),
        1 => select(vec![
            "0", "1000000000000", "1000000000001", ".5", "5.", ".", "/", "1/", "/1", "0/5", "5/0", "1.2.3", "1/2/3", "1./2", "1e3",
            "0.0000001", "18446744073709551615", "18446744073709551617", "999999999999999999", "1:", "1/:", "1/999999999999999", "0.000001", "",
        ])
        .prop_map(str::to_owned),
    ]
}

/// Settings of the slack, in milliseconds.
fn slacks() -> impl Strategy<Value = u64> {
    select(vec![0, 1, 1_000, Slack::MAX_MILLIS])
}

/// A share of the capacity, from deep in debt to above it, in thousandths, with odd steps.
fn units(capacity: u64) -> impl Strategy<Value = i128> {
    (-3_000_i128..1_500, -2_i128..3)
        .prop_map(move |(thousandths, odd)| i128::from(capacity) * TOKEN / 1_000 * thousandths / 1_000 * 1_000 + odd)
}

proptest! {
    #![proptest_config(config(20_000))]

    #[test]
    fn answers_as_the_whole_or_not_at_all(
        (capacity, units) in amounts().prop_flat_map(|text| {
            let tokens = text.parse().unwrap_or(100_u64).min(20_000_000);
            (Just(text), units(tokens))
        }),
        rate in rates(),
        cost in prop_oneof![amounts().prop_map(Some), (0_u64..20).prop_map(|cost| Some(cost.to_string())), Just(None)],
        elapsed in prop_oneof![-5_000_000_i64..5_000_000, 0_i64..100_000_000_000, Just(0)],
        life in prop_oneof![-2_000_000_i64..4_000_000, 0_i64..100_000_000_000],
        slack in slacks().prop_map(Slack::from_millis),
    ) {
        if let Some(both) = both(&capacity, &rate, cost.as_deref(), slack) {
            let now = Micros::new(NEW_YEAR.saturating_add_signed(elapsed));
            let bucket = Bucket { balance: balance(units), stamp: Micros::new(NEW_YEAR) };
            both.agree(Some(&Record { bucket, deadline: deadline(NEW_YEAR.saturating_add_signed(life)) }), now);
            both.agree(Some(&Record { deadline: Record::with(None, bucket, &both.quota, slack).deadline, bucket }), now);
            both.agree(None, now);
            let full = Bucket::full(&both.quota, now).peek(&both.quota, both.cost, now);
            match both.fast.peek(None, now) {
                Some(peeked) => prop_assert_eq!(peeked, (full.remaining, 0)),
                None => prop_assert_ne!(full.retry, Retry::Now),
            }
        }
    }

    /// The deadline comes when the bucket is full, to the unit, or as late as one may, to the microsecond.
    #[test]
    fn agrees_where_a_deadline_just_stands(
        (capacity, tokens, seconds) in (1_u64..1_000, 1_u64..100, 1_u64..1_000),
        slack_millis in slacks(),
        share in 0_u64..=1_000,
        late in -2_i64..3,
        elapsed in prop_oneof![Just(0), 0_u64..3_000_000],
        odd in -2_i128..3,
        cost in 1_u64..4,
    ) {
        let slack = Slack::from_millis(slack_millis);
        let (rate, all) = (format!("{tokens}/{seconds}"), capacity.to_string());
        let until = deadline(NEW_YEAR);
        let end = until.as_millis().unwrap() * 1_000;
        let refill = (capacity * seconds * 1_000_000).div_ceil(tokens);
        // As the bucket is when it was written last.
        let stored = |life: u64, units: i128, elapsed: u64| {
            let stamp = Micros::new(end - life - elapsed);
            (Record { bucket: Bucket { balance: balance(units), stamp }, deadline: until }, Micros::new(end - life))
        };
        let gain = |micros: u64| i128::from(micros) * i128::from(tokens) * 1_000_000 / i128::from(seconds);
        let (full, life) = (i128::from(capacity) * TOKEN, refill * share / 1_000);

        let refused = both(&all, &rate, Some(&all), slack).unwrap();
        let (record, now) = stored(life, full - gain(life + elapsed) + odd, elapsed);
        refused.agree(Some(&record), now);

        let granted = both(&all, &rate, Some(&cost.to_string()), slack).unwrap();
        let (record, now) = stored(life, full - gain(life) + i128::from(cost) * TOKEN - gain(elapsed) + odd, elapsed);
        granted.agree(Some(&record), now);

        let latest = refill + slack_millis * 1_000 + 512_000;
        let (record, now) = stored(latest.saturating_add_signed(late), full - odd, elapsed);
        granted.agree(Some(&record), now);
    }

    #[test]
    fn no_other_string_is_a_bucket(bytes in any::<[u8; Record::LEN]>()) {
        let both = both("100", "10", None, SLACK).unwrap();
        let now = Micros::new(NEW_YEAR);
        let bucket = Bucket::full(&both.quota, now);
        let [magic, ..] = Record::with(None, bucket, &both.quota, SLACK).encode();
        // One of these check bytes fits, which is what a client does who forges a bucket.
        let forged = (0..=u8::MAX).map(|check| {
            let mut bytes = bytes;
            bytes[..2].copy_from_slice(&[magic, check]);
            bytes
        });
        for bytes in forged.chain([bytes]) {
            if let Some(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
                both.agree(Some(&record), now);
            } else {
                prop_assert_eq!(both.fast.take(Some(&bytes), SLACK, now), None);
                prop_assert_eq!(both.fast.peek(Some(&bytes), now), None);
            }
        }
    }
}

#[test]
fn ordinary_calls_take_it() {
    for (capacity, rate) in [
        ("100", "10"),
        ("10", "1/60"),
        ("1000000", "1000"),
        ("5", "0.001"),
        ("20", "100/60"),
        ("9000000", "250000"),
        ("1", "1"),
    ] {
        let both = both(capacity, rate, None, SLACK).unwrap();
        let mut record = None;
        // In the second part deadlines move.
        for millis in (0..200).chain((200..20_000).step_by(100)) {
            let now = Micros::new(NEW_YEAR + millis * 1_000);
            assert!(both.agree(record.as_ref(), now), "{capacity} at {rate}, after {millis} ms");
            record = both.in_full(record.as_ref(), now).0.or(record);
        }
    }
}
