//! The promise of `retry_ms`: refused a millisecond before, granted exactly then; and that debt is paid first.

use num_traits::Signed;
use proptest::prelude::*;
use proptest::sample::Index;
use redis_token_bucket_core::{Amount, Bucket, Micros, Record};

use crate::config;
use crate::oracle::{Exact, power_of_ten, seconds, whole};
use crate::world::{
    Key, Limit, Reply, Size, Tokens, Verb, deadline, exact_balance, limits, nanos, nanos_text, rate_texts,
    refilling_limits, scenes, sizes,
};

/// A key with a bucket of the scene, at a deadline that the first call has to put right.
fn key(bucket: Bucket, now: u64, expires: bool) -> Key {
    let mut key = Key::holding(Record { bucket, deadline: deadline(now.saturating_add(1)) });
    key.expires = expires;
    key
}

/// Calls at the promised moment, and one millisecond before it, on keys that nobody else touched since.
fn assert_promise(key: &Key, limit: &Limit, verb: &Verb, now: u64, told: Reply) -> Result<(), TestCaseError> {
    let at = |millis: i64| {
        let micros = u64::try_from(i128::from(millis) * 1_000 + i128::from(now)).ok();
        micros.filter(|micros| *micros <= Micros::MAX.get()).map(Micros::new)
    };
    let call = |time| key.clone().call(&limit.quota, verb, time).unwrap();
    prop_assert!(told.retry_ms >= 1 || told.retry_ms == -1);
    if told.retry_ms == -1 {
        let told = call(Micros::MAX);
        prop_assert!(!told.allowed && told.retry_ms == -1, "never: {told:?}");
        return Ok(());
    }
    let early = call(at(told.retry_ms - 1).unwrap_or(Micros::MAX));
    prop_assert!(!early.allowed, "a millisecond before {told:?}");
    if let Some(time) = at(told.retry_ms) {
        prop_assert_eq!(early.retry_ms, 1);
        let then = call(time);
        prop_assert!(then.allowed && then.retry_ms == 0, "at {told:?}: {then:?}");
    }
    Ok(())
}

/// What a stamp ahead of the clock may add to a wait is one refill; and the bucket itself, unless in debt, another.
fn assert_not_locked_out(limit: &Limit, bucket: &Bucket, told: Reply) -> Result<(), TestCaseError> {
    if let (Some(refill), 1..) = (limit.exact.refill(), told.retry_ms) {
        let debt = (-exact_balance(bucket)).max(whole(0));
        let most = refill * whole(2) + debt / &limit.exact.rate + power_of_ten(-3);
        prop_assert!(whole(told.retry_ms) * power_of_ten(-3) <= most, "{told:?} is more than {most} s");
    }
    Ok(())
}

fn verbs(limit: &Limit, bucket: &Bucket, now: u64, size: &Size, lease: bool) -> Verb {
    let tokens = size.of(limit, bucket, now);
    if lease {
        let least = Tokens::new(&tokens.amount.tokens().max(1).to_string());
        Verb::Lease { want: Tokens::new("1e15"), least }
    } else {
        Verb::Take(tokens)
    }
}

/// The smallest time, in microseconds after the stamp, at which so many tokens are there.
fn due(limit: &Limit, bucket: &Bucket, tokens: &Exact) -> Option<u64> {
    let micros = limit.micros_for(&(tokens - exact_balance(bucket)))?;
    micros.checked_add(bucket.stamp.get()).filter(|micros| *micros <= Micros::MAX.get())
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn refused_one_millisecond_before_the_retry_and_granted_at_it(
        (limit, now, bucket) in scenes(prop_oneof![limits(), refilling_limits()]), size in sizes(),
        lease in any::<bool>()
    ) {
        let mut key = key(bucket, now, true);
        let verb = verbs(&limit, &bucket, now, &size, lease);
        let told = key.call(&limit.quota, &verb, Micros::new(now)).unwrap();
        if !told.allowed {
            assert_not_locked_out(&limit, &bucket, told)?;
            assert_promise(&key, &limit, &verb, now, told)?;
        }
    }

    #[test]
    fn a_debt_is_paid_exactly_when_the_debit_said(
        (limit, now, bucket) in scenes(prop_oneof![limits(), refilling_limits()]), size in sizes()
    ) {
        let mut key = key(bucket, now, true);
        let debit = Verb::Debit(size.of(&limit, &bucket, now));
        if let Ok(told @ Reply { allowed: false, .. }) = key.call(&limit.quota, &debit, Micros::new(now)) {
            let nothing = Verb::Take(Tokens::new("0"));
            assert_promise(&key, &limit, &nothing, now, told)?;
        }
    }

    #[test]
    fn asking_in_between_does_not_move_the_moment(
        (limit, now, bucket) in scenes(refilling_limits()), size in sizes(), lease in any::<bool>(),
        between in proptest::collection::vec(any::<Index>(), 1..6)
    ) {
        let mut key = key(bucket, now, false);
        let verb = verbs(&limit, &bucket, now, &size, lease);
        let told = key.call(&limit.quota, &verb, Micros::new(now)).unwrap();
        let most = u64::try_from(told.retry_ms).unwrap_or(0).min((Micros::MAX.get() - now) / 1_000);
        if told.retry_ms == i64::MAX || most <= 1 {
            return Ok(());
        }
        let mut waits: Vec<u64> = between.iter().map(|at| at.index(most as usize) as u64).collect();
        waits.sort_unstable();
        for millis in waits {
            let time = Micros::new(now + millis * 1_000);
            let again = key.call(&limit.quota, &verb, time).unwrap();
            prop_assert_eq!((again.allowed, again.retry_ms), (false, told.retry_ms - millis as i64));
        }
    }

    #[test]
    fn a_wait_holds_after_the_clock_was_set_back(
        limit in refilling_limits(), back in 0..40_u64, by in -1..=1_i64, size in sizes(), lease in any::<bool>()
    ) {
        let refill = limit.micros_for(&limit.exact.capacity).unwrap();
        let drained = Micros::MAX.get() / 2;
        let (bucket, _) = Bucket::full(&limit.quota, Micros::new(drained))
            .take(&limit.quota, limit.quota.capacity, Micros::new(drained));
        let now = drained.saturating_sub((refill.min(1 << 48) * back / 16).saturating_add_signed(by));
        let mut key = key(bucket.unwrap(), now, false);
        let verb = verbs(&limit, &bucket.unwrap(), now, &size, lease);
        let told = key.call(&limit.quota, &verb, Micros::new(now)).unwrap();
        if !told.allowed {
            assert_not_locked_out(&limit, &bucket.unwrap(), told)?;
            assert_promise(&key, &limit, &verb, now, told)?;
        }
    }

    #[test]
    fn refill_pays_the_debt_before_anything_is_granted(
        capacity in nanos(), rate in rate_texts(), debt in nanos(), parts in 0..=8_u32, start in 0..Micros::MAX.get()
    ) {
        let limit = Limit::new(&nanos_text(capacity), &rate);
        let time = Micros::new(start);
        let (drained, _) = Bucket::full(&limit.quota, time).debit(&limit.quota, limit.quota.capacity, time).unwrap();
        let (bucket, decision) = drained.debit(&limit.quota, Tokens::nanos(debt).amount, time).unwrap();
        prop_assert_eq!(exact_balance(&bucket), whole(debt) * power_of_ten(-9) * whole(-1));
        prop_assert_eq!(decision.allowed, debt == 0);
        for nanos in [0, 1, capacity * u128::from(parts) / 8, capacity] {
            let cost = Tokens::nanos(nanos.min(capacity));
            let Some(due) = due(&limit, &bucket, &cost.exact) else {
                let (_, last) = bucket.take(&limit.quota, cost.amount, Micros::MAX);
                prop_assert!(!last.allowed || exact_balance(&bucket) >= cost.exact, "{cost:?} of {limit:?}");
                continue;
            };
            prop_assert!(bucket.take(&limit.quota, cost.amount, Micros::new(due)).1.allowed, "{cost:?} at {due}");
            if due > start {
                let before = Micros::new(due - 1);
                prop_assert!(!bucket.take(&limit.quota, cost.amount, before).1.allowed, "{cost:?} before {due}");
                let balance = bucket.refilled(&limit.quota, before).balance;
                let exact = exact_balance(&bucket) + seconds(due - 1 - start) * &limit.exact.rate;
                prop_assert_eq!(balance.is_debt(), exact.is_negative());
            }
        }
    }
}

#[test]
fn a_wait_beyond_what_can_be_told_is_the_longest() {
    let limit = Limit::new("1e15", "1e-18");
    let time = Micros::new(0);
    let (bucket, _) = Bucket::full(&limit.quota, time).take(&limit.quota, Amount::MAX, time);
    assert_eq!(bucket.unwrap().peek(&limit.quota, Amount::MAX, time).retry.as_millis(), i64::MAX);
    let nearly = Limit::new("0.009223372", "1e-18");
    let (bucket, _) = Bucket::full(&nearly.quota, time).take(&nearly.quota, nearly.quota.capacity, time);
    let told = bucket.unwrap().peek(&nearly.quota, nearly.quota.capacity, time).retry.as_millis();
    assert_eq!(told, 9_223_372_000_000_000_000);
}
