//! What a check answers. There is always an answer: faults are decided by the policy, and visible in it.

use std::fmt;
use std::time::Duration;

use client::{Quota, Retry, Tokens};

use crate::fault::Fault;

/// The answer to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a denied decision must stop the request"]
#[non_exhaustive]
pub struct Decision {
    /// Whether the call may go on, and why not.
    pub verdict: Result<(), Denied>,
    /// What decided, and for what reason if it was not the bucket in Redis.
    pub source: Source,
    /// Whole tokens left in the bucket; `None` where nobody knows.
    pub remaining: Option<u64>,
    /// The quota it was decided under, if it could be read. Of several classes, that of the one which refused, or else of the
    /// one with the fewest tokens left.
    pub quota: Option<Quota>,
    /// The cost, of the same class as the quota.
    pub cost: Tokens,
    /// Which class of the check that is: 0 for the one that it began with, 1 for the first that was added, and so on.
    pub index: usize,
    /// The class that refused.
    pub refused_by: Option<RefusedBy>,
}

impl Decision {
    /// Whether the call may go on.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_ok()
    }

    /// The verdict, for `?`.
    ///
    /// # Errors
    /// Why the call was turned away.
    pub const fn ok(&self) -> Result<(), Denied> {
        self.verdict
    }

    /// The fault behind the decision: Redis was not heard, and the policy decided.
    #[must_use]
    pub const fn fault(&self) -> Option<Fault> {
        match self.source {
            Source::FailedOpen(fault) | Source::FailedClosed(fault) | Source::FailedLocal(fault) => Some(fault),
            _ => None,
        }
    }

    pub(crate) const fn new(
        verdict: Result<(), Denied>,
        source: Source,
        remaining: Option<u64>,
        quota: Option<Quota>,
        cost: Tokens,
    ) -> Self {
        Self { verdict, source, remaining, quota, cost, index: 0, refused_by: None }
    }

    /// Decided by the quotas alone, without asking for tokens.
    pub(crate) const fn by_quotas(denied: Denied, quota: Option<Quota>, cost: Tokens) -> Self {
        Self::new(Err(denied), Source::Quotas, None, quota, cost)
    }

    /// Of this class of the check, which is the one that refused if any did.
    pub(crate) fn of(self, index: usize, class: &str) -> Self {
        let refused_by = self.verdict.is_err().then(|| RefusedBy { index, class: class.into() });
        Self { index, refused_by, ..self }
    }
}

/// Which of the classes refused: where it stood in the check, and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RefusedBy {
    /// 0 for the class that the check began with, 1 for the first that was added, and so on.
    pub index: usize,
    /// The class as named in the check.
    pub class: Box<str>,
}

/// Why a call may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Denied {
    /// Over the limit. After this time the same call passes, if nobody else takes.
    RetryAfter(Duration),
    /// The cost is above what a full bucket holds: waiting does not help, asking for less does.
    NeverFits {
        /// The most that one call can have.
        capacity: Tokens,
    },
    /// A quota that never refills is spent.
    Spent,
    /// Redis was not heard, and the policy is to turn calls away. Not the caller's fault, and not a limit of theirs.
    Unavailable(Fault),
    /// Nothing says what this tenant may do.
    UnknownTenant,
    /// The tenant's tier has no quota for this class.
    UnknownClass,
}

impl Denied {
    /// How long to wait, where waiting helps.
    #[must_use]
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::RetryAfter(delay) => Some(delay),
            _ => None,
        }
    }

    /// One word for it, for labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RetryAfter(_) => "refused",
            Self::NeverFits { .. } => "never_fits",
            Self::Spent => "spent",
            Self::Unavailable(_) => "unavailable",
            Self::UnknownTenant => "unknown_tenant",
            Self::UnknownClass => "unknown_class",
        }
    }

    /// Reads a server's refusal.
    pub(crate) fn of(retry: Retry, quota: Quota, cost: Tokens) -> Self {
        match retry {
            Retry::After(delay) => Self::RetryAfter(delay),
            _ if cost > quota.capacity() => Self::NeverFits { capacity: quota.capacity() },
            _ => Self::Spent,
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RetryAfter(delay) => write!(f, "over the limit for another {} ms", delay.as_millis().max(1)),
            Self::NeverFits { capacity } => write!(f, "one call can have {capacity} tokens at most"),
            Self::Spent => f.write_str("the quota is spent"),
            Self::Unavailable(fault) => write!(f, "limits cannot be checked at present: {fault}"),
            Self::UnknownTenant => f.write_str("unknown tenant"),
            Self::UnknownClass => f.write_str("no quota for this class of calls"),
        }
    }
}

impl std::error::Error for Denied {}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The bucket in Redis.
    Redis,
    /// Tokens that this process had leased.
    Lease,
    /// This process remembers that Redis refused the same a moment ago.
    KnownEmpty,
    /// The quotas alone: the cost never fits, or there is no quota.
    Quotas,
    /// Redis was not heard, and the policy let the call pass.
    FailedOpen(Fault),
    /// Redis was not heard, and the policy turned the call away.
    FailedClosed(Fault),
    /// Redis was not heard, and this process's share of the quota decided.
    FailedLocal(Fault),
}

impl Source {
    /// One word for it, for labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Lease => "lease",
            Self::KnownEmpty => "known_empty",
            Self::Quotas => "quotas",
            Self::FailedOpen(_) => "failed_open",
            Self::FailedClosed(_) => "failed_closed",
            Self::FailedLocal(_) => "failed_local",
        }
    }
}
