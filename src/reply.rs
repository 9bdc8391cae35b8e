//! Decisions to replies: integers, the same in RESP2 and RESP3.

use bucket::{Decision, Lease, Record};

/// What a command answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// `[allowed, remaining, retry_ms]`, or a lease's `[granted, remaining, retry_ms]`.
    Integers([i64; 3]),
    /// The verdict over several buckets, and each one's own answer.
    Verdict([i64; 3], Vec<[i64; 3]>),
    /// What is stored: the record, and milliseconds to live, -1 for ever.
    State(Record, i64),
    /// Nothing is stored.
    Nil,
}

/// A decision as three integers.
#[inline(always)]
pub(crate) fn integers(decision: Decision) -> [i64; 3] {
    [i64::from(decision.allowed), decision.remaining.cast_signed(), decision.retry.as_millis()]
}

impl From<Decision> for Reply {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        Self::Integers(integers(decision))
    }
}

impl From<Lease> for Reply {
    fn from(lease: Lease) -> Self {
        Self::Integers([lease.granted.cast_signed(), lease.remaining.cast_signed(), lease.retry.as_millis()])
    }
}
