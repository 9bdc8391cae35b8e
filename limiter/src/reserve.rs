//! Reserve and settle: for costs that are known afterwards only.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use client::{Key, Quota, Tokens};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::check::Part;
use crate::decide::Core;
use crate::decision::{Decision, Source};
use crate::fallback::Local;
use crate::fault::{Fault, OnFault, Share};
use crate::time::{after, jittered};

/// How long a settlement waits for a Redis that is away.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one attempt may take. It is nobody's latency.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long a server that has refused for a passing reason is left alone.
const PAUSE: Duration = Duration::from_millis(200);

/// An estimated cost that has been taken. [`Reservation::settle`] puts it right.
///
/// Dropped without that, as when the service dies in between, the estimate stands.
#[must_use = "the estimate stands unless it is settled"]
pub struct Reservation {
    core: Arc<Core>,
    tenant: Box<str>,
    class: Box<str>,
    key: Key,
    quota: Option<Quota>,
    estimate: Tokens,
    paid: Paid,
    decision: Decision,
}

/// Where the estimate was taken.
#[derive(Clone, Copy)]
enum Paid {
    Redis,
    Local(Share),
    /// Redis was not heard and the call passed: nobody knows of a charge, and none is made later.
    Nothing,
}

impl Reservation {
    pub(crate) fn new(core: Arc<Core>, part: &Part<'_>, key: Key, decision: Decision, policy: OnFault) -> Self {
        let paid = match (decision.source, policy) {
            (Source::Redis, _) => Paid::Redis,
            (Source::FailedLocal(_), OnFault::Local(share)) => Paid::Local(share),
            _ => Paid::Nothing,
        };
        let (tenant, class) = (part.tenant.into(), part.class.into());
        Self { core, tenant, class, key, quota: decision.quota, estimate: decision.cost, paid, decision }
    }

    /// The decision that it rests on.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What has been taken.
    #[must_use]
    pub const fn estimate(&self) -> Tokens {
        self.estimate
    }

    /// Puts the cost right: less than the estimate is refunded, more is charged, and may leave the bucket in debt.
    ///
    /// It happens in a task of its own, in the tokio runtime that it is called in, once, whether the answer is waited for or
    /// dropped; by the quota that holds by then. What went out and was not answered is not sent again. A Redis that is away or
    /// refuses is waited for, half a minute at most; then the estimate stands.
    pub fn settle(self, actual: impl Into<Tokens>) -> Settlement {
        let actual = actual.into();
        let core = Arc::clone(&self.core);
        let task = core.tasks.begin();
        Settlement(tokio::spawn(async move {
            let settled = self.carry_out(actual).await;
            self.core.observers.tell(|observer| observer.settled(&settled));
            drop(task);
            settled
        }))
    }

    /// Gives all of it back: nothing was used.
    pub fn cancel(self) -> Settlement {
        self.settle(Tokens::ZERO)
    }

    async fn carry_out(&self, actual: Tokens) -> Settled {
        let Some(quota) = self.quota else { return Settled::NotCharged };
        let Some(change) = Change::between(self.estimate, actual) else { return Settled::AsEstimated };
        match self.paid {
            Paid::Nothing => Settled::NotCharged,
            Paid::Local(share) => {
                let quota = self.quota_now().await.unwrap_or(quota);
                let take = Local { key: &self.key, quota, cost: self.estimate };
                match change {
                    Change::Refund(amount) => self.core.fallback.refund(&take, share, amount),
                    Change::Debit(amount) => self.core.fallback.debit(&take, share, amount),
                }
                change.done()
            }
            Paid::Redis => {
                let quota = self.quota_now().await.unwrap_or(quota);
                let settled = self.in_redis(quota, change).await;
                self.core.forget_refusal(&self.key);
                settled
            }
        }
    }

    /// The quota may have been raised since: under the old capacity a refund would cut off what the new one has room for.
    async fn quota_now(&self) -> Option<Quota> {
        let quota = self.core.quotas.quota(&self.tenant, &self.class);
        tokio::time::timeout(ATTEMPT, quota).await.ok()?.ok()
    }

    async fn in_redis(&self, quota: Quota, change: Change) -> Settled {
        let until = after(Instant::now(), PATIENCE);
        let mut fault = Fault::Redis(client::Fault::Disconnected);
        loop {
            if tokio::time::timeout_at(until, self.core.redis.ready(Some(&self.key))).await.is_err() {
                return Settled::Abandoned(fault);
            }
            match tokio::time::timeout(ATTEMPT, self.send(quota, change)).await {
                Ok(Ok(())) => return change.done(),
                Err(_) => return Settled::Unknown(Fault::Deadline),
                Ok(Err(failed)) if failed.may_have_charged() => return Settled::Unknown(failed.into()),
                Ok(Err(failed)) => fault = failed.into(),
            }
            if Instant::now() >= until || !fault.is_passing() {
                return Settled::Abandoned(fault);
            }
            tokio::time::sleep(jittered(PAUSE)).await;
        }
    }

    async fn send(&self, quota: Quota, change: Change) -> Result<(), client::Fault> {
        match change {
            Change::Refund(amount) => self.core.redis.refund(&self.key, quota, amount).await.map(|_| ()),
            Change::Debit(amount) => self.core.redis.debit(&self.key, quota, amount).await.map(|_| ()),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("key", &self.key).field("estimate", &self.estimate).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
enum Change {
    Refund(Tokens),
    Debit(Tokens),
}

impl Change {
    fn between(estimate: Tokens, actual: Tokens) -> Option<Self> {
        match actual.cmp(&estimate) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Less => estimate.checked_sub(actual).map(Self::Refund),
            // It may be beyond what a server takes: that will say so.
            std::cmp::Ordering::Greater => actual.checked_sub(estimate).map(Self::Debit),
        }
    }

    const fn done(self) -> Settled {
        match self {
            Self::Refund(amount) => Settled::Refunded(amount),
            Self::Debit(amount) => Settled::Charged(amount),
        }
    }
}

/// What has come of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The estimate was right.
    AsEstimated,
    /// So much was given back.
    Refunded(Tokens),
    /// So much was charged on top.
    Charged(Tokens),
    /// Redis was not heard when the estimate was to be taken, and the policy let the call pass: nothing is charged for it.
    NotCharged,
    /// It went out and was not answered. It has been carried out, or the estimate stands; it is not sent again.
    Unknown(Fault),
    /// It could not be carried out. The estimate stands.
    Abandoned(Fault),
}

impl Settled {
    /// One word for it, for labels and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsEstimated => "as_estimated",
            Self::Refunded(_) => "refunded",
            Self::Charged(_) => "charged",
            Self::NotCharged => "not_charged",
            Self::Unknown(_) => "unknown",
            Self::Abandoned(_) => "abandoned",
        }
    }
}

/// The settlement of a reservation, which takes its course whether this is awaited or dropped.
#[derive(Debug)]
pub struct Settlement(JoinHandle<Settled>);

impl Future for Settlement {
    type Output = Settled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Settled> {
        // The task ends without an answer only with its runtime.
        Pin::new(&mut self.0).poll(context).map(|end| end.unwrap_or(Settled::Unknown(Fault::Deadline)))
    }
}
