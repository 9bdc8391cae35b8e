//! What holds over any sequence of calls: never too much, never too little, whatever the clock and the costs do.

use num_traits::{Signed, Zero};
use proptest::prelude::*;
use redis_token_bucket_core::{Amount, Micros, Quota};

use crate::config;
use crate::oracle::{self, Exact, Kept, power_of_ten, seconds, whole};
use crate::world::{
    Key, Limit, Moment, Reply, Verb, any_way, exact_balance, forward, limits, refilling_limits, run, scenes, sizes,
    starts, steps,
};

/// Tokens that left the bucket for good; those given back count against it.
fn granted(moment: &Moment<'_>) -> Exact {
    let Ok(reply) = moment.reply else {
        return Exact::zero();
    };
    match &moment.verb {
        Verb::Take(cost) if reply.allowed => cost.exact.clone(),
        Verb::Lease { .. } => whole(reply.granted.tokens()),
        Verb::Refund(amount) if moment.after.is_some() => -amount.exact.clone(),
        _ => Exact::zero(),
    }
}

/// An interval that began with some call.
struct Interval {
    granted: Exact,
    /// What the clock ran through, from and to; it may have been set back and run through the same again.
    passed: Vec<(u64, u64)>,
    /// Microseconds before the bucket began anew or its stamp was given up, from where the clock's time counts anew.
    earlier: u64,
}

impl Interval {
    /// Microseconds of server time, none of them counted twice.
    fn micros(&self) -> u64 {
        let mut passed = self.passed.clone();
        passed.sort_unstable();
        let (mut micros, mut end) = (self.earlier, 0);
        for (from, to) in passed {
            micros += to.saturating_sub(end.max(from));
            end = end.max(to);
        }
        micros
    }
}

/// Every interval of a sequence of calls under one quota.
#[derive(Default)]
struct Intervals {
    begun: Vec<Interval>,
    last: Option<u64>,
}

impl Intervals {
    /// Checks `granted <= capacity + rate * time` over every interval that ends at this call.
    fn check(&mut self, moment: &Moment<'_>) -> Result<(), TestCaseError> {
        let (limit, now, granted) = (moment.limit, moment.now.get(), granted(moment));
        let anew = moment.before.is_none() || moment.gave_up_the_stamp();
        let last = self.last.replace(now).unwrap_or(now);
        for interval in &mut self.begun {
            if last < now {
                interval.passed.push((last, now));
            }
            if anew {
                interval.earlier = interval.micros();
                interval.passed.clear();
            }
        }
        self.begun.push(Interval { granted: Exact::zero(), passed: Vec::new(), earlier: 0 });
        for interval in &mut self.begun {
            interval.granted += &granted;
            let most = &limit.exact.capacity + &limit.exact.rate * seconds(interval.micros());
            prop_assert!(interval.granted <= most, "{} granted, not {most}", interval.granted);
        }
        Ok(())
    }
}

/// The same bucket without any rounding, from which the same tokens are taken.
struct Twin(Option<oracle::Bucket>);

impl Twin {
    /// What is there before the call.
    fn there(&self, limit: &Limit, now: Micros) -> Exact {
        self.bucket(limit, now).refilled(&limit.exact, now.get()).balance
    }

    fn bucket(&self, limit: &Limit, now: Micros) -> oracle::Bucket {
        self.0.clone().unwrap_or_else(|| oracle::Bucket::full(&limit.exact, now.get()))
    }

    /// Makes the call succeed or fail as it did, whatever the twin itself would have said.
    fn follow(&mut self, moment: &Moment<'_>) {
        let (limit, now, kept) = (&moment.limit.exact, moment.now.get(), Kept::Exactly);
        let bucket = self.bucket(moment.limit, moment.now);
        let taken = match &moment.verb {
            Verb::Debit(cost) => cost.exact.clone(),
            _ => granted(moment),
        };
        if moment.wrote() {
            self.0 = Some(match &moment.verb {
                Verb::Refund(amount) => bucket.refund(limit, &amount.exact, now, kept).0,
                _ => {
                    let there = bucket.refilled(limit, now);
                    oracle::Bucket { balance: there.balance - taken, stamp: there.stamp }
                }
            });
        } else if moment.before.is_some() && moment.after != moment.before {
            self.0 = Some(bucket.anchored(limit, now));
        }
    }
}

/// What a refused call needed.
fn needed(verb: &Verb) -> Option<&Exact> {
    match verb {
        Verb::Take(cost) | Verb::Peek(cost) => Some(&cost.exact),
        Verb::Lease { least, .. } => Some(&least.exact),
        Verb::Refund(_) | Verb::Debit(_) => None,
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn never_holds_more_than_the_capacity(
        limits in [limits(), limits()], start in starts(), steps in steps(any_way())
    ) {
        run(Key::default(), start, &limits, &steps, |moment| {
            if let Ok(reply) = moment.reply {
                prop_assert!(whole(reply.remaining) <= moment.limit.exact.capacity);
            }
            if moment.wrote() {
                let balance = exact_balance(&moment.after.unwrap().bucket);
                prop_assert!(balance <= moment.limit.exact.capacity, "{balance} under {:?}", moment.limit);
            }
            Ok(())
        })?;
    }

    #[test]
    fn never_grants_more_than_capacity_and_refill_over_any_interval(
        limit in limits(), start in starts(), steps in steps(any_way()), expires in any::<bool>()
    ) {
        let mut intervals = Intervals::default();
        let key = Key { expires, ..Key::default() };
        run(key, start, &[limit], &steps, |moment| intervals.check(moment))?;
    }

    #[test]
    fn never_grants_more_however_other_quotas_left_the_bucket(
        limits in [limits(), limits()], start in starts(), steps in steps(any_way())
    ) {
        // An interval of a constant quota begins wherever the quota changes.
        let (mut intervals, mut last) = (Intervals::default(), None);
        run(Key::default(), start, &limits, &steps, |moment| {
            if last.replace(moment.limit as *const Limit) != Some(moment.limit as *const Limit) {
                intervals = Intervals::default();
            }
            intervals.check(moment)
        })?;
    }

    #[test]
    fn grants_what_exact_arithmetic_would_less_a_nano_a_call(
        limits in [limits(), limits()], start in starts(), steps in steps(any_way())
    ) {
        let (mut twin, mut lost) = (Twin(None), Exact::zero());
        run(Key::default(), start, &limits, &steps, |moment| {
            lost += power_of_ten(-9);
            let there = twin.there(moment.limit, moment.now);
            if let (Ok(Reply { allowed: false, .. }), Some(needed)) = (moment.reply, needed(&moment.verb)) {
                prop_assert!(there < needed + &lost, "{:?} refused, {there} there", moment.verb);
            }
            prop_assert!(granted(moment) <= there.max(Exact::zero()), "{:?} granted", moment.verb);
            twin.follow(moment);
            if let (Some(twin), Some(record)) = (&twin.0, moment.after) {
                let behind = &twin.balance - exact_balance(&record.bucket);
                prop_assert!(!behind.is_negative() && behind <= lost, "{behind} behind");
                prop_assert_eq!(twin.stamp, record.bucket.stamp.get());
            }
            Ok(())
        })?;
    }

    #[test]
    fn losing_the_key_at_its_deadline_loses_nothing(
        limit in prop_oneof![limits(), refilling_limits()], start in starts(), steps in steps(forward())
    ) {
        let mut kept = Key::default();
        let lost = Key { expires: true, ..Key::default() };
        run(lost, start, &[limit], &steps, |moment| {
            let expected = kept.call(&moment.limit.quota, &moment.verb, moment.now);
            prop_assert_eq!(moment.reply, expected, "{:?} at {:?}", moment.verb, moment.now);
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn raising_a_rate_never_denies_what_was_allowed(
        (limit, now, bucket) in scenes(limits()), other in limits(), size in sizes(), least in sizes()
    ) {
        let (one, two) = (limit.quota.rate, other.quota.rate);
        let slower = limit.exact.rate <= other.exact.rate;
        let (slow, fast) = if slower { (one, two) } else { (two, one) };
        let slow = Quota { rate: slow, ..limit.quota };
        let fast = Quota { rate: fast, ..limit.quota };
        let time = Micros::new(now);
        let cost = size.of(&limit, &bucket, now).amount;
        let least = Amount::from_tokens(least.of(&limit, &bucket, now).amount.tokens()).unwrap().max(Amount::ONE);
        let (_, slowly) = bucket.take(&slow, cost, time);
        let (_, faster) = bucket.take(&fast, cost, time);
        prop_assert!(faster.allowed >= slowly.allowed);
        prop_assert_eq!(slowly.retry.later(faster.retry), slowly.retry, "and no wait gets longer");
        prop_assert!(bucket.peek(&fast, cost, time).remaining >= bucket.peek(&slow, cost, time).remaining);
        let (_, slowly) = bucket.lease(&slow, Amount::MAX, least, time);
        let (_, faster) = bucket.lease(&fast, Amount::MAX, least, time);
        prop_assert!(faster.granted >= slowly.granted);
        match (bucket.debit(&slow, cost, time), bucket.debit(&fast, cost, time)) {
            (Ok((_, slowly)), Ok((_, faster))) => prop_assert!(faster.allowed >= slowly.allowed),
            (slowly, _) => prop_assert!(slowly.is_err()),
        }
    }
}
