//! How a check is decided: the quota, what is known here, the bucket, and the policy where that is not heard.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::{Key, Quota, Retry, Take, Tokens, Want};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::breaker::Breakers;
use crate::check::Part;
use crate::decision::{Decision, Denied, Source};
use crate::exact;
use crate::fallback::{Fallback, Local};
use crate::fault::{Fault, OnFault};
use crate::known_empty::Refusals;
use crate::lease::{Asking, Leases, Purse, Return, Spend};
use crate::observe::Observers;
use crate::quotas::{AnyQuotas, QuotaError};
use crate::redis::{Answer, Buckets};

/// How long a batch may take to come, and what is left of one to go back. It is nobody's latency.
const BATCH: Duration = Duration::from_secs(1);
/// How many go back at once.
const RETURNS: usize = 64;

pub(crate) struct Core {
    pub(crate) redis: Arc<dyn Buckets>,
    pub(crate) quotas: Box<dyn AnyQuotas>,
    pub(crate) policy: OnFault,
    pub(crate) deadline: Duration,
    pub(crate) breakers: Breakers,
    pub(crate) refusals: Option<Refusals>,
    pub(crate) leases: Leases,
    pub(crate) fallback: Fallback,
    pub(crate) observers: Observers,
    pub(crate) tasks: Tasks,
}

/// A class with its quota and its key.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) cost: Tokens,
}

impl Core {
    /// Decides a check of one class. Leases are for those that may use them.
    pub(crate) async fn one(self: &Arc<Self>, part: &Part<'_>, key: Key, terms: &Terms) -> Decision {
        let quota = match self.quota(part, terms).await {
            Ok(quota) => quota,
            Err(NoQuota::Denied(denied)) => {
                return Decision::by_quotas(denied, None, part.cost).of(0, part.class);
            }
            Err(NoQuota::Fault(fault)) => return self.unheard(fault, terms.policy, None, part.cost),
        };
        let asked = Asked { key, quota, cost: part.cost };
        if let Some(decision) = self.known(&asked) {
            return decision.of(0, part.class);
        }
        let purse = if terms.is_exact { None } else { self.leases.purse(part.class, &asked.key, quota) };
        let decision = match (purse, exact::whole(part.cost)) {
            (Some(purse), Some(cost @ 1..)) => self.leased(&purse, &asked, cost, terms).await,
            _ => self.taken(&asked, terms).await,
        };
        match decision {
            Ok(decision) => decision.of(0, part.class),
            Err(fault) => self.by_policy(fault, terms.policy, &[asked], &[part]),
        }
    }

    /// Decides a check of several classes: all of them or none.
    pub(crate) async fn all(self: &Arc<Self>, parts: Vec<(Part<'_>, Key)>, terms: &Terms) -> Decision {
        let mut asked = Vec::with_capacity(parts.len());
        for (at, (part, key)) in parts.iter().enumerate() {
            let quota = match self.quota(part, terms).await {
                Ok(quota) => quota,
                Err(NoQuota::Denied(denied)) => {
                    return Decision::by_quotas(denied, None, part.cost).of(at, part.class);
                }
                Err(NoQuota::Fault(fault)) => return self.unheard(fault, terms.policy, None, part.cost),
            };
            asked.push(Asked { key: key.clone(), quota, cost: part.cost });
        }
        for (at, (asked, (part, _))) in asked.iter().zip(&parts).enumerate() {
            if let Some(decision) = self.known(asked) {
                return decision.of(at, part.class);
            }
        }
        let parts: Vec<&Part<'_>> = parts.iter().map(|(part, _)| part).collect();
        match self.taken_together(&asked, &parts, terms).await {
            Ok(decision) => decision,
            Err(fault) => self.by_policy(fault, terms.policy, &asked, &parts),
        }
    }

    async fn quota(&self, part: &Part<'_>, terms: &Terms) -> Result<Quota, NoQuota> {
        let answer = match self.quotas.at_hand(part.tenant, part.class) {
            Some(answer) => Some(answer),
            None => timeout_at(terms.deadline, self.quotas.quota(part.tenant, part.class))
                .await
                .ok()
                // What goes out is charged: there has to be some time left for it.
                .filter(|_| Instant::now() < terms.deadline),
        };
        match answer {
            Some(Ok(quota)) => Ok(quota),
            Some(Err(QuotaError::UnknownTenant)) => Err(NoQuota::Denied(Denied::UnknownTenant)),
            Some(Err(QuotaError::UnknownClass)) => Err(NoQuota::Denied(Denied::UnknownClass)),
            Some(Err(QuotaError::Unavailable(_))) | None => Err(NoQuota::Fault(Fault::Quotas)),
        }
    }

    /// What can be said without asking.
    fn known(&self, asked: &Asked) -> Option<Decision> {
        let capacity = asked.quota.capacity();
        if asked.cost > capacity {
            return Some(Decision::by_quotas(Denied::NeverFits { capacity }, Some(asked.quota), asked.cost));
        }
        let denied = self.refusals.as_ref()?.recall(&asked.key, asked.quota, asked.cost)?;
        Some(Decision::new(Err(denied), Source::KnownEmpty, None, Some(asked.quota), asked.cost))
    }

    async fn taken(&self, asked: &Asked, terms: &Terms) -> Result<Decision, Fault> {
        let answer = self.ask(&asked.key, terms, self.redis.take(&asked.key, asked.quota, asked.cost)).await?;
        self.learn(asked, answer.retry);
        Ok(asked.answered(answer.remaining, answer.retry, Source::Redis))
    }

    async fn taken_together(&self, asked: &[Asked], parts: &[&Part<'_>], terms: &Terms) -> Result<Decision, Fault> {
        let takes: Vec<Take<Key>> = asked.iter().map(|one| Take::new(one.key.clone(), one.quota, one.cost)).collect();
        let Some(first) = asked.first() else { return Err(Fault::Redis(client::Fault::InvalidArgument)) };
        let answer = self.ask(&first.key, terms, self.redis.mtake(&takes)).await?;
        let each = asked.iter().zip(&answer.each).enumerate();
        let binding = each.clone().filter(|(_, (_, each))| !each.allowed).max_by_key(|(_, (_, each))| wait(each.retry));
        for (_, (asked, each)) in each.clone() {
            self.learn(asked, each.retry);
        }
        // The server says that all passed; or else which did not.
        let scarce = each.min_by_key(|(_, (_, each))| each.remaining);
        let Some((at, (asked, each))) = (if answer.verdict.allowed { scarce } else { binding }) else {
            return Err(Fault::Redis(client::Fault::Unreadable));
        };
        let class = parts.get(at).map(|part| part.class).unwrap_or_default();
        Ok(asked.answered(each.remaining, each.retry, Source::Redis).of(at, class))
    }

    async fn leased(
        self: &Arc<Self>,
        purse: &Arc<Purse>,
        asked: &Asked,
        cost: u64,
        terms: &Terms,
    ) -> Result<Decision, Fault> {
        let mut asking = match purse.spend(cost, asked.quota) {
            Spend::Paid(remaining) => return Ok(asked.answered(remaining, Retry::Now, Source::Lease)),
            Spend::Ask(asking) => asking,
        };
        let least = asking.lacks(cost);
        let want = Want::up_to(least.saturating_add(asking.extra)).at_least(least);
        let lease = if asking.extra == 0 {
            let lease = self.ask(&asked.key, terms, self.redis.lease(&asked.key, asked.quota, want)).await?;
            asking.heard(lease);
            lease
        } else {
            let batch = self.batch(asking, asked, want);
            let lease;
            (asking, lease) = self.ask(&asked.key, terms, Box::pin(batch)).await?;
            lease
        };
        match asking.pay(cost) {
            Some(remaining) => Ok(asked.answered(remaining, Retry::Now, Source::Redis)),
            None => {
                self.learn(asked, lease.retry);
                Ok(asked.answered(lease.remaining, lease.retry, Source::Redis))
            }
        }
    }

    /// Takes a batch in a task of its own: tokens that come after the call has given up are for the next one.
    fn batch(
        self: &Arc<Self>,
        mut asking: Asking,
        asked: &Asked,
        want: Want,
    ) -> impl Future<Output = Result<(Asking, client::Lease), client::Fault>> + Send + use<> {
        let (tell, told) = oneshot::channel();
        let (core, key, quota) = (Arc::clone(self), asked.key.clone(), asked.quota);
        async move {
            self::sweep_from_now_on(&core);
            let task = core.tasks.begin();
            tokio::spawn(async move {
                let lease = timeout(BATCH, core.redis.lease(&key, quota, want)).await;
                let lease = lease.unwrap_or(Err(client::Fault::Timeout));
                // Dropped with the answer to nobody, it puts the tokens into the purse.
                let _ = tell.send(lease.map(|lease| {
                    asking.heard(lease);
                    (asking, lease)
                }));
                drop(task);
            });
            told.await.unwrap_or(Err(client::Fault::Timeout))
        }
    }

    /// Asks Redis, if the breaker lets us, for as long as the deadline lets us.
    async fn ask<T>(&self, key: &Key, terms: &Terms, answer: Answer<'_, T>) -> Result<T, Fault> {
        let Some(admitted) = self.breakers.admit(key) else { return Err(Fault::BreakerOpen) };
        let heard = match timeout_at(terms.deadline, answer).await {
            Ok(answer) => answer.map_err(Fault::from),
            Err(_) => Err(Fault::Deadline),
        };
        let failed = heard.as_ref().err().is_some_and(|fault| fault.is_of_the_server());
        let flip = if failed {
            let (flip, is_doubtful) = self.breakers.failed(admitted);
            if is_doubtful && heard.as_ref().is_err_and(|fault| *fault == Fault::Deadline) {
                self.redis.doubt();
            }
            flip
        } else {
            self.breakers.answered(admitted)
        };
        if let Some(flip) = flip {
            self.observers.tell(|observer| observer.flipped(flip));
        }
        heard
    }

    fn learn(&self, asked: &Asked, retry: Retry) {
        if let Some(refusals) = &self.refusals {
            refusals.remember(&asked.key, asked.quota, asked.cost, retry);
        }
    }

    pub(crate) fn forget_refusal(&self, key: &Key) {
        if let Some(refusals) = &self.refusals {
            refusals.forget(key);
        }
    }

    fn by_policy(&self, fault: Fault, policy: OnFault, asked: &[Asked], parts: &[&Part<'_>]) -> Decision {
        let (quota, cost) = asked.first().map_or((None, Tokens::ONE), |first| (Some(first.quota), first.cost));
        let OnFault::Local(share) = policy else { return self.unheard(fault, policy, quota, cost) };
        let takes: Vec<Local<'_>> = asked.iter().map(Asked::locally).collect();
        let answers = self.fallback.take(&takes, share).unwrap_or_default();
        let binding = answers.iter().enumerate().min_by_key(|(_, answer)| (answer.allowed, answer.remaining));
        let Some((at, answer, asked)) = binding.and_then(|(at, answer)| Some((at, answer, asked.get(at)?))) else {
            return self.unheard(fault, OnFault::Closed, quota, cost);
        };
        let class = parts.get(at).map(|part| part.class).unwrap_or_default();
        asked.answered(answer.remaining, retry(answer.retry), Source::FailedLocal(fault)).of(at, class)
    }

    /// Without a quota there is no share of it: a local policy turns away.
    fn unheard(&self, fault: Fault, policy: OnFault, quota: Option<Quota>, cost: Tokens) -> Decision {
        let (verdict, source) = match policy {
            OnFault::Open => (Ok(()), Source::FailedOpen(fault)),
            OnFault::Closed | OnFault::Local(_) => (Err(Denied::Unavailable(fault)), Source::FailedClosed(fault)),
        };
        Decision::new(verdict, source, None, quota, cost)
    }

    /// Gives back what is leased and not spent, stops leasing, and waits for what is under way.
    pub(crate) async fn shut_down(&self) {
        self.give_back(self.leases.close()).await;
        let _ = timeout(BATCH, self.tasks.idle()).await;
        // What came for calls that had given up.
        self.give_back(self.leases.close()).await;
    }

    async fn give_back(&self, returns: Vec<Return>) {
        let mut under_way = JoinSet::new();
        for Return { key, quota, tokens } in returns {
            if under_way.len() >= RETURNS {
                under_way.join_next().await;
            }
            self.forget_refusal(&key);
            let redis = Arc::clone(&self.redis);
            // Not answered or refused, it is not sent again: the bucket is owed a few tokens, and refills.
            under_way.spawn(async move { timeout(BATCH, redis.refund(&key, quota, tokens.into())).await.is_ok() });
        }
        while under_way.join_next().await.is_some() {}
    }
}

/// The terms of one check.
pub(crate) struct Terms {
    pub(crate) deadline: Instant,
    pub(crate) policy: OnFault,
    /// Whether leases must not be used.
    pub(crate) is_exact: bool,
}

enum NoQuota {
    Denied(Denied),
    Fault(Fault),
}

impl Asked {
    /// By a bucket, which allows exactly what need not be tried again.
    fn answered(&self, remaining: u64, retry: Retry, source: Source) -> Decision {
        let verdict = if retry == Retry::Now { Ok(()) } else { Err(Denied::of(retry, self.quota, self.cost)) };
        Decision::new(verdict, source, Some(remaining), Some(self.quota), self.cost)
    }

    fn locally(&self) -> Local<'_> {
        Local { key: &self.key, quota: self.quota, cost: self.cost }
    }
}

/// A wait as the core tells it.
fn retry(retry: bucket::Retry) -> Retry {
    match retry {
        bucket::Retry::Now => Retry::Now,
        bucket::Retry::After(ms) => Retry::After(Duration::from_millis(ms)),
        bucket::Retry::Never => Retry::Never,
    }
}

/// The longest of several waits is the one that counts, and never is longer than any.
fn wait(retry: Retry) -> Duration {
    retry.delay().unwrap_or(Duration::MAX)
}

/// Starts the sweeping of leases, once. It ends with the limiter, or with its runtime, and then another one can begin.
fn sweep_from_now_on(core: &Arc<Core>) {
    if !core.leases.is_swept.swap(true, Ordering::Relaxed) {
        tokio::spawn(sweep(Sweeper(Arc::downgrade(core)), core.leases.rhythm()));
    }
}

struct Sweeper(Weak<Core>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.leases.is_swept.store(false, Ordering::Relaxed);
        }
    }
}

async fn sweep(sweeper: Sweeper, rhythm: Duration) {
    loop {
        tokio::time::sleep(rhythm).await;
        let Some(core) = sweeper.0.upgrade() else { return };
        core.give_back(core.leases.sweep()).await;
    }
}

/// Counts the tasks that a shutdown waits for.
pub(crate) struct Tasks(watch::Sender<usize>);

pub(crate) struct Task(watch::Sender<usize>);

impl Tasks {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    pub(crate) fn begin(&self) -> Task {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        Task(self.0.clone())
    }

    async fn idle(&self) {
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
