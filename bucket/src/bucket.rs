//! The bucket: one pure refill, and the verbs as shells over it. No clock is read here; `now` is an argument.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

use core::cmp::Ordering;

use crate::amount::{Amount, Balance};
use crate::decision::{Decision, Lease, Retry};
use crate::quota::Quota;
use crate::time::Micros;

/// A debit that would take a bucket more than 1e15 tokens into debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DebtLimit;

impl core::fmt::Display for DebtLimit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the debt would be above 1e15 tokens")
    }
}

impl core::error::Error for DebtLimit {}

/// A balance of tokens, and the moment it was last brought up to date.
///
/// The verbs return the bucket to store, if any, and the answer. A refusal stores nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The tokens at the stamp.
    pub balance: Balance,
    /// When the balance was true.
    pub stamp: Micros,
}

impl Bucket {
    /// A bucket that nobody has taken from.
    #[inline(always)]
    #[must_use]
    pub const fn full(quota: &Quota, now: Micros) -> Self {
        Self { balance: Balance::of(quota.capacity), stamp: now }
    }

    /// The bucket that is stored; where none is, a full one.
    #[inline(always)]
    #[must_use]
    pub fn or_full(stored: Option<Self>, quota: &Quota, now: Micros) -> Self {
        stored.unwrap_or_else(|| Self::full(quota, now))
    }

    /// The same bucket under a stamp that can be true: one that lies ahead of `now` by more than a whole refill
    /// becomes `now`. A stamp that lies ahead by less stays, so the same seconds are not credited twice.
    #[inline(always)]
    #[must_use]
    pub fn anchored(self, quota: &Quota, now: Micros) -> Self {
        let ahead = self.stamp.since(now);
        if ahead == 0 || quota.rate.cmp_time(quota.capacity.units(), ahead) != Ordering::Less {
            return self;
        }
        Self { stamp: now, ..self }
    }

    /// Brought up to `now`: `min(capacity, balance + elapsed * rate)`, rounded down to 1e-12 token.
    #[inline(always)]
    #[must_use]
    pub fn refilled(self, quota: &Quota, now: Micros) -> Self {
        let anchored = self.anchored(quota, now);
        let gain = quota.rate.gain(now.since(anchored.stamp));
        Self { balance: anchored.balance.raised(gain, quota.capacity), stamp: anchored.stamp.max(now) }
    }

    /// Takes `cost` if it is there. A cost of 0 passes unless the bucket is in debt, and stores nothing.
    #[inline(always)]
    #[must_use]
    pub fn take(self, quota: &Quota, cost: Amount, now: Micros) -> (Option<Self>, Decision) {
        let refilled = self.refilled(quota, now);
        let left = if refilled.balance.lacks(cost) == 0 { refilled.balance.lowered(cost) } else { None };
        match left {
            Some(balance) => {
                let stored = (cost != Amount::ZERO).then_some(Self { balance, ..refilled });
                (stored, Decision { allowed: true, remaining: balance.tokens(), retry: Retry::Now })
            }
            None => {
                let retry = self.retry(quota, cost, now);
                (None, Decision { allowed: false, remaining: refilled.balance.tokens(), retry })
            }
        }
    }

    /// What [`Bucket::take`] would answer, with the tokens before taking.
    #[inline]
    #[must_use]
    pub fn peek(self, quota: &Quota, cost: Amount, now: Micros) -> Decision {
        let refilled = self.refilled(quota, now);
        let allowed = refilled.balance.lacks(cost) == 0;
        let retry = if allowed { Retry::Now } else { self.retry(quota, cost, now) };
        Decision { allowed, remaining: refilled.balance.tokens(), retry }
    }

    /// Takes as many whole tokens as there are, at most `want`, and none if there are fewer than `least`.
    #[inline]
    #[must_use]
    pub fn lease(self, quota: &Quota, want: Amount, least: Amount, now: Micros) -> (Option<Self>, Lease) {
        let refilled = self.refilled(quota, now);
        let there = Amount::from_tokens(refilled.balance.tokens()).unwrap_or(Amount::MAX);
        let granted = there.min(want);
        let left = if granted >= least { refilled.balance.lowered(granted) } else { None };
        match left {
            Some(balance) => {
                let lease = Lease { granted: granted.tokens(), remaining: balance.tokens(), retry: Retry::Now };
                ((granted != Amount::ZERO).then_some(Self { balance, ..refilled }), lease)
            }
            None => {
                let retry = self.retry(quota, least, now);
                (None, Lease { granted: 0, remaining: refilled.balance.tokens(), retry })
            }
        }
    }

    /// Gives tokens back, never above the capacity.
    #[inline]
    #[must_use]
    pub fn refund(self, quota: &Quota, amount: Amount, now: Micros) -> (Self, Decision) {
        let refilled = self.refilled(quota, now);
        let balance = refilled.balance.raised(amount.units(), quota.capacity);
        let decision = Decision { allowed: true, remaining: balance.tokens(), retry: Retry::Now };
        (Self { balance, ..refilled }, decision)
    }

    /// Charges a cost known only afterwards, below zero if need be.
    ///
    /// # Errors
    /// [`DebtLimit`] where the debt would be above 1e15 tokens.
    #[inline]
    pub fn debit(self, quota: &Quota, cost: Amount, now: Micros) -> Result<(Self, Decision), DebtLimit> {
        let refilled = self.refilled(quota, now);
        let charged = Self { balance: refilled.balance.lowered(cost).ok_or(DebtLimit)?, ..refilled };
        let allowed = !charged.balance.is_debt();
        let retry = if allowed { Retry::Now } else { charged.retry_within(quota, Amount::ZERO, now) };
        let decision = Decision { allowed, remaining: charged.balance.tokens(), retry };
        Ok((charged, decision))
    }

    /// When `cost`, which is not there now, will be.
    #[cold]
    fn retry(self, quota: &Quota, cost: Amount, now: Micros) -> Retry {
        self.anchored(quota, now).retry_within(quota, cost, now)
    }

    /// [`Bucket::retry`] for a bucket that is anchored: the wait counts from its stamp, which may lie ahead of `now`.
    #[inline(always)]
    fn retry_within(self, quota: &Quota, cost: Amount, now: Micros) -> Retry {
        if cost > quota.capacity || quota.rate.is_zero() {
            return Retry::Never;
        }
        let from_stamp = quota.rate.time_for(self.balance.lacks(cost));
        // Beyond 2^63 ms the answer is the same; below it the sum fits.
        let micros = from_stamp.min(u128::from(u64::MAX) * 1_000) + u128::from(self.stamp.since(now));
        let micros = micros - u128::from(now.since(self.stamp)).min(micros);
        let millis =
            if micros >> 64 == 0 { u128::from((micros as u64).div_ceil(1_000)) } else { micros.div_ceil(1_000) };
        Retry::After(millis.clamp(1, u128::from(Retry::LONGEST)) as u64)
    }
}
