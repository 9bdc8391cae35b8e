//! Every verb against the oracle, and what each promises of its own.

use num_traits::Zero;
use proptest::prelude::*;
use redis_token_bucket_core::{Amount, DebtLimit, Micros, Record, Retry};

use crate::config;
use crate::oracle::{self, Answer, Kept, power_of_ten, whole};
use crate::world::{
    Key, Limit, Moment, Tokens, Verb, any_way, deadline, exact_balance, exact_bucket, limits, run, scenes, sizes,
    starts, steps,
};

/// The key as the oracle has it.
struct Model(Option<oracle::Bucket>);

impl Model {
    fn answer(&mut self, limit: &Limit, verb: &Verb, now: u64) -> Option<Answer> {
        let quota = &limit.exact;
        let bucket = self.0.clone().unwrap_or_else(|| oracle::Bucket::full(quota, now));
        let kept = Kept::InSteps;
        let (after, answer) = match verb {
            Verb::Take(cost) => bucket.take(quota, &cost.exact, now, kept),
            Verb::Peek(cost) => return Some(bucket.peek(quota, &cost.exact, now)),
            Verb::Lease { want, least } => bucket.lease(quota, &want.exact, &least.exact, now, kept),
            Verb::Refund(amount) => bucket.refund(quota, &amount.exact, now, kept),
            Verb::Debit(cost) => bucket.debit(quota, &cost.exact, now, kept)?,
        };
        let creates = match verb {
            Verb::Take(_) | Verb::Lease { .. } => !answer.granted.is_zero(),
            Verb::Debit(cost) => !cost.exact.is_zero(),
            Verb::Peek(_) | Verb::Refund(_) => false,
        };
        if self.0.is_some() || creates {
            self.0 = Some(after);
        }
        Some(answer)
    }
}

/// The answer in the oracle's terms.
fn answered(moment: &Moment<'_>) -> Option<Answer> {
    let reply = moment.reply.ok()?;
    let granted = match &moment.verb {
        Verb::Take(cost) if reply.allowed => cost.exact.clone(),
        _ => whole(reply.granted.tokens()),
    };
    Some(Answer { allowed: reply.allowed, granted, remaining: reply.remaining, retry_ms: reply.retry_ms })
}

fn assert_equals_the_oracle(model: &mut Model, moment: &Moment<'_>) -> Result<(), TestCaseError> {
    let expected = model.answer(moment.limit, &moment.verb, moment.now.get());
    let context = || format!("{:?} of {:?} at {:?} on {:?}", moment.verb, moment.limit, moment.now, moment.before);
    prop_assert_eq!(answered(moment), expected, "{}", context());
    prop_assert_eq!(moment.after.map(|record| exact_bucket(&record.bucket)), model.0.clone(), "{}", context());
    Ok(())
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn every_verb_equals_the_oracle_under_one_quota(limit in limits(), start in starts(), steps in steps(any_way())) {
        let mut model = Model(None);
        run(Key::default(), start, &[limit], &steps, |moment| assert_equals_the_oracle(&mut model, moment))?;
    }

    #[test]
    fn every_verb_equals_the_oracle_under_changing_quotas(
        limits in [limits(), limits(), limits()], start in starts(), steps in steps(any_way())
    ) {
        let mut model = Model(None);
        run(Key::default(), start, &limits, &steps, |moment| assert_equals_the_oracle(&mut model, moment))?;
    }

    #[test]
    fn every_verb_equals_the_oracle_on_any_stored_bucket(
        (limit, now, bucket) in scenes(limits()), steps in steps(any_way())
    ) {
        let mut model = Model(Some(exact_bucket(&bucket)));
        let key = Key::holding(Record { bucket, deadline: deadline(now) });
        run(key, now, &[limit], &steps[..1], |moment| assert_equals_the_oracle(&mut model, moment))?;
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn a_peek_answers_what_a_take_then_answers((limit, now, bucket) in scenes(limits()), size in sizes()) {
        let (time, cost) = (Micros::new(now), size.of(&limit, &bucket, now).amount);
        let peeked = bucket.peek(&limit.quota, cost, time);
        let (_, taken) = bucket.take(&limit.quota, cost, time);
        prop_assert_eq!((peeked.allowed, peeked.retry), (taken.allowed, taken.retry));
        let taken_out = if taken.allowed { cost } else { Amount::ZERO };
        let most = taken.remaining + taken_out.tokens() + u64::from(taken_out.whole().is_none());
        prop_assert!(taken.remaining + taken_out.tokens() <= peeked.remaining && peeked.remaining <= most);
    }

    #[test]
    fn a_refund_never_lifts_above_the_capacity((limit, now, bucket) in scenes(limits()), size in sizes()) {
        let (time, amount) = (Micros::new(now), size.of(&limit, &bucket, now).amount);
        let (after, decision) = bucket.refund(&limit.quota, amount, time);
        prop_assert!(exact_balance(&after) <= limit.exact.capacity);
        prop_assert!(after.balance >= bucket.refilled(&limit.quota, time).balance, "it takes nothing away");
        prop_assert!(decision.allowed && decision.retry == Retry::Now);
    }

    #[test]
    fn a_lease_in_debt_grants_nothing((limit, now, bucket) in scenes(limits()), size in sizes(), want in 1..=10_u64) {
        let (time, want) = (Micros::new(now), Amount::from_tokens(want).unwrap());
        let debit = size.of(&limit, &bucket, now).amount;
        let indebted = bucket.debit(&limit.quota, debit, time).map_or(bucket, |(charged, _)| charged);
        if indebted.refilled(&limit.quota, time).balance.is_debt() {
            let (stored, lease) = indebted.lease(&limit.quota, want, Amount::ONE, time);
            prop_assert_eq!((stored, lease.granted, lease.remaining), (None, 0, 0));
            prop_assert!(lease.retry != Retry::Now);
        }
    }

    #[test]
    fn a_debit_beyond_the_deepest_debt_is_an_error_and_changes_nothing(
        (limit, now, bucket) in scenes(limits()), size in sizes(), near in -2..=2_i64, deep in any::<bool>()
    ) {
        let there = exact_bucket(&bucket).refilled(&limit.exact, now).balance;
        // Half of the costs end within two nanos of the deepest debt, where so large a cost can be named.
        let deepest = ((&there + power_of_ten(15)) * power_of_ten(9)).floor() + whole(near);
        let deepest = u128::try_from(deepest.to_integer()).unwrap_or(0);
        let cost = if deep { Tokens::nanos(deepest) } else { size.of(&limit, &bucket, now) };
        // The balance is stored in steps, and a debt is rounded away from zero.
        let after = ((there - &cost.exact) / oracle::step()).floor() * oracle::step();
        let record = Record { bucket, deadline: deadline(now) };
        let mut key = Key::holding(record);
        let reply = key.call(&limit.quota, &Verb::Debit(cost), Micros::new(now));
        if after < -power_of_ten(15) {
            prop_assert_eq!(reply, Err(DebtLimit));
            prop_assert_eq!(key.record(), Some(record));
        } else {
            prop_assert!(reply.is_ok());
            prop_assert_eq!(key.record().map(|record| exact_balance(&record.bucket)), Some(after));
        }
    }
}
