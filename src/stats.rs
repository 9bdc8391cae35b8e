//! Counters for the INFO section. Commands run on one thread, so a counter is a load and a store, not a locked add.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bucket::{Amount, Decision, Retry};

pub(crate) static GRANTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static REFUSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static REFUSED_FOREVER: AtomicU64 = AtomicU64::new(0);
pub(crate) static WRONG_TYPE: AtomicU64 = AtomicU64::new(0);
pub(crate) static REJECTED_INPUTS: AtomicU64 = AtomicU64::new(0);
pub(crate) static TOKENS_GRANTED: Tokens = Tokens::new();
pub(crate) static TOKENS_REFUNDED: Tokens = Tokens::new();
pub(crate) static TOKENS_DEBITED: Tokens = Tokens::new();

/// Adds one.
#[inline(always)]
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Counts the answer to a take of `cost`.
#[inline(always)]
pub(crate) fn count_take(decision: Decision, cost: Amount) {
    count_grant(decision.allowed.then_some(cost), decision.retry);
}

/// Counts tokens granted, or a refusal with its wait.
#[inline(always)]
pub(crate) fn count_grant(granted: Option<Amount>, retry: Retry) {
    match granted {
        Some(cost) => {
            count(&GRANTED);
            TOKENS_GRANTED.add(cost);
        }
        None => {
            count(&REFUSED);
            if retry == Retry::Never {
                count(&REFUSED_FOREVER);
            }
        }
    }
}

/// A sum of amounts, in two halves of a 128-bit number.
pub(crate) struct Tokens {
    low: AtomicU64,
    high: AtomicU64,
}

impl Tokens {
    const fn new() -> Self {
        Self { low: AtomicU64::new(0), high: AtomicU64::new(0) }
    }

    #[inline(always)]
    pub(crate) fn add(&self, amount: Amount) {
        let sum = self.units().wrapping_add(amount.units());
        self.low.store(sum as u64, Relaxed);
        self.high.store((sum >> 64) as u64, Relaxed);
    }

    /// The sum in units of 1e-12 token.
    pub(crate) fn units(&self) -> u128 {
        u128::from(self.high.load(Relaxed)) << 64 | u128::from(self.low.load(Relaxed))
    }

    /// The sum as decimal text, exact to 1e-9 token, the finest that a caller can name.
    pub(crate) fn text(&self) -> String {
        let nanos = self.units() / 1_000;
        format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
    }
}
