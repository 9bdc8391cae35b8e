//! The key's own deadline: long enough to lose nothing, not much longer, and moved only where it must be.

use proptest::prelude::*;
use redis_token_bucket_core::{Bucket, Deadline, Micros, Record, Slack};

use crate::config;
use crate::oracle::{Exact, power_of_ten, seconds, whole};
use crate::world::{
    Key, Limit, Moment, Verb, any_way, deadline, exact_balance, exact_bucket, limits, refilling_limits, run, scenes,
    starts, steps,
};

/// Seconds since the epoch, or `None` for no expiry.
fn at(deadline: Deadline) -> Option<Exact> {
    deadline.as_millis().map(|millis| whole(millis) * power_of_ten(-3))
}

/// When the bucket will be full, and the end of its longest use; `None` if it never refills.
fn uses(bucket: &Bucket, limit: &Limit) -> Option<(Exact, Exact)> {
    let stamp = seconds(bucket.stamp.get());
    let capacity = &limit.exact.capacity;
    let lack = (capacity - exact_balance(bucket)).max(whole(0));
    let longest = limit.exact.seconds_for(capacity.max(&lack))?;
    Some((&stamp + limit.exact.seconds_for(&lack)?, stamp + longest))
}

/// 1.8 for a call that wrote: at least until full, at most a slack and a second's rounding beyond the longest use.
fn assert_in_bounds(record: &Record, limit: &Limit, slack: &Exact) -> Result<(), TestCaseError> {
    let Some((full, longest)) = uses(&record.bucket, limit) else {
        prop_assert_eq!(record.deadline, Deadline::NEVER);
        return Ok(());
    };
    let latest = longest + slack + whole(1);
    match at(record.deadline) {
        Some(deadline) => {
            // A bucket that is full when it is written may be lost at once.
            let is_full = exact_balance(&record.bucket) >= limit.exact.capacity;
            prop_assert!(is_full || full <= deadline, "full at {full}, lost at {deadline}");
            prop_assert!(deadline <= latest, "{deadline} is later than {latest}");
        }
        // The format ends at 2^42 ms.
        None => prop_assert!(latest > whole(1_u64 << 42) * power_of_ten(-3), "no deadline, though {latest} is near"),
    }
    Ok(())
}

fn is_earlier(one: Deadline, other: Deadline) -> bool {
    one.as_millis().unwrap_or(u64::MAX) < other.as_millis().unwrap_or(u64::MAX)
}

/// 1.8 for a call that granted nothing.
fn assert_only_postponed(moment: &Moment<'_>, before: &Record, after: &Record) -> Result<(), TestCaseError> {
    if after.bucket.stamp != before.bucket.stamp {
        prop_assert!(before.bucket.stamp > moment.now && after.bucket.stamp == moment.now);
        prop_assert_eq!(after.bucket.balance, before.bucket.balance);
        return assert_in_bounds(after, moment.limit, &whole(1));
    }
    prop_assert_eq!(after.bucket, before.bucket);
    prop_assert!(!is_earlier(after.deadline, before.deadline), "shortened");
    let full = uses(&after.bucket, moment.limit).map(|(full, _)| full);
    let too_early = |deadline| match (at(deadline), &full) {
        (Some(deadline), Some(full)) => deadline < *full,
        (Some(_), None) => exact_balance(&after.bucket) < moment.limit.exact.capacity,
        (None, _) => false,
    };
    let refilled = exact_bucket(&after.bucket).refilled(&moment.limit.exact, moment.now.get());
    let full_by_now = refilled.balance >= moment.limit.exact.capacity;
    if after.deadline != before.deadline {
        prop_assert!(!full_by_now && too_early(before.deadline), "postponed for nothing");
        return assert_in_bounds(after, moment.limit, &whole(1));
    }
    prop_assert!(full_by_now || !too_early(after.deadline), "lost too early");
    Ok(())
}

fn assert_contract(moment: &Moment<'_>) -> Result<(), TestCaseError> {
    match (&moment.before, &moment.after) {
        (_, Some(after)) if moment.wrote() => assert_in_bounds(after, moment.limit, &whole(1)),
        (Some(before), Some(after)) if moment.reply.is_err() || matches!(moment.verb, Verb::Peek(_)) => {
            prop_assert_eq!(before, after, "an error or a peek moves nothing");
            Ok(())
        }
        (Some(before), Some(after)) => assert_only_postponed(moment, before, after),
        (before, after) => {
            prop_assert_eq!(before, after, "nothing is created");
            Ok(())
        }
    }
}

fn deadlines(limit: &Limit, bucket: &Bucket) -> impl Strategy<Value = Deadline> + use<> {
    let micros = |seconds: Exact| u64::try_from((seconds * power_of_ten(6)).to_integer()).unwrap_or(u64::MAX);
    let (full, longest) = uses(bucket, limit).map_or((0, 0), |(full, longest)| (micros(full), micros(longest)));
    let near = |micros: u64| (0..4_000_000_u64).prop_map(move |by| micros.saturating_add(by).saturating_sub(2_000_000));
    prop_oneof![
        2 => near(full).prop_map(deadline),
        2 => near(longest).prop_map(deadline),
        1 => near(bucket.stamp.get()).prop_map(deadline),
        1 => (0..=Micros::MAX.get()).prop_map(deadline),
        1 => Just(Deadline::NEVER),
    ]
}

/// A stored record of any kind, and the limit of the call that finds it.
fn stored(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = (Limit, u64, Record)> {
    scenes(limits).prop_flat_map(|(limit, now, bucket)| {
        let records = deadlines(&limit, &bucket).prop_map(move |deadline| Record { bucket, deadline });
        (Just(limit), Just(now), records)
    })
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn deadlines_stay_in_bounds_over_any_calls(
        one in limits(), other in refilling_limits(), start in starts(), steps in steps(any_way()),
        expires in any::<bool>()
    ) {
        let key = Key { expires, ..Key::default() };
        run(key, start, &[one, other], &steps, assert_contract)?;
    }

    #[test]
    fn a_refusal_under_an_unchanged_quota_writes_nothing(
        limit in prop_oneof![limits(), refilling_limits()], start in starts(), steps in steps(any_way())
    ) {
        run(Key::default(), start, &[limit], &steps, |moment| {
            let wrote = moment.wrote() || moment.gave_up_the_stamp();
            prop_assert!(wrote || moment.after == moment.before, "{:?} became {:?}", moment.before, moment.after);
            Ok(())
        })?;
    }

    #[test]
    fn deadlines_are_put_right_on_any_stored_record(
        (limit, now, record) in stored(prop_oneof![limits(), refilling_limits()]), steps in steps(any_way())
    ) {
        run(Key::holding(record), now, &[limit], &steps, assert_contract)?;
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn a_write_bounds_the_deadline_whatever_the_slack(
        (limit, _, old) in stored(prop_oneof![limits(), refilling_limits()]),
        millis in prop_oneof![0..=1_000_u64, 0..=Slack::MAX_MILLIS], existed in any::<bool>()
    ) {
        let old = existed.then_some(old);
        let bucket = old.map_or_else(|| Bucket::full(&limit.quota, Micros::new(0)), |old| old.bucket);
        let record = Record::with(old.as_ref(), bucket, &limit.quota, Slack::from_millis(millis));
        prop_assert_eq!(record.bucket, bucket);
        assert_in_bounds(&record, &limit, &(whole(millis) * power_of_ten(-3)))?;
    }

    #[test]
    fn a_deadline_that_may_stand_stands((limit, _, old) in stored(refilling_limits())) {
        let record = Record::with(Some(&old), old.bucket, &limit.quota, Slack::from_millis(1_000));
        let (full, longest) = uses(&old.bucket, &limit).unwrap();
        if let Some(deadline) = at(old.deadline) && full <= deadline && deadline <= longest + whole(1) {
            prop_assert_eq!(record.deadline, old.deadline);
        }
    }
}

#[test]
fn a_bucket_that_never_refills_never_expires() {
    for limit in [Limit::new("5", "0"), Limit::new("1e15", "1e-18"), Limit::new("0", "0"), Limit::new("1", "1e-11")] {
        let full = Bucket::full(&limit.quota, Micros::new(1));
        let record = Record::with(None, full, &limit.quota, Slack::from_millis(1_000));
        assert_eq!(record.deadline.as_millis(), None, "{limit:?}");
    }
}

#[test]
fn a_slack_is_at_most_a_day() {
    assert_eq!(Slack::from_millis(u64::MAX), Slack::from_millis(86_400_000));
}
