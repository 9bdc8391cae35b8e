//! What went wrong where there is no answer, and what is decided then.

use std::fmt;

/// Why a check has no answer from Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// No answer by the deadline. The tokens may have been taken, or may still be.
    Deadline,
    /// Nothing was asked: the checks before this one all had faults.
    BreakerOpen,
    /// The tenant's quota could not be read, and no older value of it is known.
    Quotas,
    /// What the server, or the connection to it, said.
    Redis(client::Fault),
}

impl Fault {
    /// One word for it, for labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline | Self::Redis(client::Fault::Timeout) => "deadline",
            Self::BreakerOpen => "breaker_open",
            Self::Quotas => "quotas",
            Self::Redis(client::Fault::Disconnected) => "disconnected",
            Self::Redis(client::Fault::ModuleMissing) => "module_missing",
            Self::Redis(client::Fault::InvalidArgument) => "invalid_argument",
            Self::Redis(client::Fault::WrongType) => "wrong_type",
            Self::Redis(client::Fault::OutOfMemory) => "out_of_memory",
            Self::Redis(client::Fault::ReadOnly) => "read_only",
            Self::Redis(client::Fault::NoPermission) => "no_permission",
            Self::Redis(client::Fault::Loading) => "loading",
            Self::Redis(client::Fault::Busy) => "busy",
            Self::Redis(client::Fault::CrossSlot) => "cross_slot",
            Self::Redis(client::Fault::ClusterDown) => "cluster_down",
            Self::Redis(client::Fault::Unreadable) => "unreadable",
            Self::Redis(_) => "other",
        }
    }

    /// Whether tokens may have been taken although no answer came.
    #[must_use]
    pub const fn may_have_charged(self) -> bool {
        match self {
            Self::Deadline => true,
            Self::BreakerOpen | Self::Quotas => false,
            Self::Redis(fault) => fault.may_have_charged(),
        }
    }

    /// Whether it is about the server and not about one key: others would meet it too.
    pub(crate) const fn is_of_the_server(self) -> bool {
        use client::Fault::{Busy, ClusterDown, Disconnected, Loading, ReadOnly, Timeout};
        matches!(self, Self::Deadline | Self::Redis(Timeout | Disconnected | Loading | Busy | ReadOnly | ClusterDown))
    }

    /// Whether the same call may be carried out in a moment, and has not been yet.
    pub(crate) const fn is_passing(self) -> bool {
        use client::Fault::{Busy, ClusterDown, Loading, OutOfMemory, ReadOnly};
        matches!(self, Self::Redis(Loading | Busy | ReadOnly | ClusterDown | OutOfMemory))
    }
}

impl From<client::Fault> for Fault {
    fn from(fault: client::Fault) -> Self {
        if fault == client::Fault::Timeout { Self::Deadline } else { Self::Redis(fault) }
    }
}

/// A short phrase.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("no answer by the deadline"),
            Self::BreakerOpen => f.write_str("the breaker is open"),
            Self::Quotas => f.write_str("the quota could not be read"),
            Self::Redis(fault) => fault.fmt(f),
        }
    }
}

/// What is decided where Redis gives no answer. There is no default: a limiter that nobody asked this fails in the way that
/// hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFault {
    /// Let the call pass.
    Open,
    /// Turn the call away, as unavailable rather than as over its limit.
    Closed,
    /// Decide by a bucket in this process that holds a share of the quota. Where the quota itself is not known, or the names make
    /// a key above a kilobyte, turn away.
    Local(Share),
}

impl OnFault {
    /// One word for it, for labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local(_) => "local",
        }
    }
}

/// Which part of a quota one process grants by itself while Redis gives no answer.
///
/// The rate is that part exactly. The burst is that part too, but never less than the cost of the call in question (if the
/// quota itself allows it): a tenth of five tokens would otherwise let nobody pass.
///
/// ```
/// use redis_token_bucket_limiter::{OnFault, Share};
///
/// // Ten replicas: together they grant during an outage what the bucket would have granted.
/// const POLICY: OnFault = OnFault::Local(Share::one_of(10));
/// const TIGHTER: OnFault = OnFault::Local(Share::percent(5));
/// # let _ = (POLICY, TIGHTER);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    part: u32,
    of: u32,
}

impl Share {
    /// What one of so many replicas grants, 0 being read as 1.
    #[must_use]
    pub const fn one_of(replicas: u32) -> Self {
        Self { part: 1, of: if replicas == 0 { 1 } else { replicas } }
    }

    /// So many hundredths of the quota, at most all of it.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self { part: if percent > 100 { 100 } else { percent }, of: 100 }
    }

    pub(crate) const fn parts(self) -> (u32, u32) {
        (self.part, self.of)
    }
}
