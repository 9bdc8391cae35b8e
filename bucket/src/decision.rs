//! What a caller is told: answers, never errors. A refusal is an answer.

/// When the same call would pass, if nobody else takes from the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It passed, or would pass now.
    Now,
    /// After this many milliseconds on the server's clock (at least 1): at that moment it passes, a millisecond earlier
    /// it does not. A longer wait than [`Retry::LONGEST`] is given as that.
    After(u64),
    /// Never under this quota: the cost is above the capacity, or the rate is 0.
    Never,
}

impl Retry {
    /// The longest wait that is told, in milliseconds.
    pub const LONGEST: u64 = i64::MAX as u64;

    /// As replied to clients, in milliseconds: 0 for now, -1 for never.
    #[inline]
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        match self {
            Self::Now => 0,
            Self::After(ms) if ms > Self::LONGEST => i64::MAX,
            Self::After(ms) => ms.cast_signed(),
            Self::Never => -1,
        }
    }

    /// The later of two; [`Retry::Never`] is the latest.
    #[inline]
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::After(a), Self::After(b)) => Self::After(a.max(b)),
            (Self::After(a), Self::Now) | (Self::Now, Self::After(a)) => Self::After(a),
            (Self::Now, Self::Now) => Self::Now,
        }
    }
}

/// The answer to a take, a peek, a refund or a debit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether the cost was there. For a debit: whether the balance covers it, that is, is not below zero afterwards.
    pub allowed: bool,
    /// Whole tokens in the bucket after the call (before it, for a peek), rounded down; 0 in debt.
    pub remaining: u64,
    /// When the call would pass; [`Retry::Now`] where it passed.
    pub retry: Retry,
}

/// The answer to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Whole tokens granted; 0 is a refusal.
    pub granted: u64,
    /// Whole tokens left in the bucket, rounded down; 0 in debt.
    pub remaining: u64,
    /// When the least that was asked for would be there; [`Retry::Now`] where tokens were granted.
    pub retry: Retry,
}
