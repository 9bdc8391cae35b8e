//! The limiter, and how one is built.

use std::sync::Arc;
use std::time::Duration;

use crate::breaker::{Breakers, Settings};
use crate::check::{Check, Part};
use crate::decide::{Core, Tasks};
use crate::fallback::Fallback;
use crate::fault::OnFault;
use crate::known_empty::{KnownEmpty, Refusals};
use crate::lease::{Leases, Leasing};
use crate::observe::{Observer, Observers};
use crate::quotas::Quotas;
use crate::redis::Redis;

/// Decides whether a call may go on. Clones are the same limiter.
///
/// It needs a tokio runtime with its timer on.
#[derive(Clone)]
pub struct Limiter {
    pub(crate) core: Arc<Core>,
}

impl Limiter {
    /// A limiter with everything else as by default: a deadline of 50 ms, a breaker, no pre-check and no leases.
    pub fn new(redis: Redis, quotas: impl Quotas, on_fault: OnFault) -> Self {
        Self::builder(redis, quotas, on_fault).build()
    }

    /// A limiter to be configured.
    pub fn builder<Q: Quotas>(redis: Redis, quotas: Q, on_fault: OnFault) -> Builder<Q> {
        let settings = Settings { faults: Builder::<Q>::BREAKER_FAULTS, cool_off: Builder::<Q>::BREAKER_COOL_OFF };
        #[cfg_attr(not(feature = "tracing"), allow(unused_mut, reason = "only tracing adds one unasked"))]
        let mut observers = Observers::default();
        #[cfg(feature = "tracing")]
        observers.add_for_faults(crate::trace::Traces::default());
        Builder {
            redis,
            quotas,
            on_fault,
            deadline: Builder::<Q>::DEADLINE,
            breaker: settings,
            known_empty: None,
            leases: Leases::default(),
            local_keys: Builder::<Q>::LOCAL_KEYS,
            observers,
        }
    }

    /// Checks a class of calls of a tenant, and takes one token if that is allowed; see [`Check`] for what else can be said.
    ///
    /// The answer comes within the deadline, and is always one: where Redis is not heard, the fault policy decides, and
    /// [`Decision::source`](crate::Decision::source) says so.
    pub fn check<'a>(&'a self, tenant: &'a str, class: &'a str) -> Check<'a> {
        Check::new(self, Part::new(tenant, class))
    }

    /// Waits until Redis can be reached, as a service may do before it calls itself ready. Checks do not need it.
    pub async fn ready(&self) {
        self.core.redis.ready(None).await;
    }

    /// Gives back the tokens that are leased and not spent, and waits for what is under way, a second at most for each.
    /// From then on nothing is leased; checks go on.
    pub async fn shutdown(&self) {
        self.core.shut_down().await;
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.core.policy).finish_non_exhaustive()
    }
}

/// What a limiter can be told.
#[must_use = "it is not a limiter yet"]
pub struct Builder<Q> {
    redis: Redis,
    quotas: Q,
    on_fault: OnFault,
    deadline: Duration,
    breaker: Settings,
    known_empty: Option<KnownEmpty>,
    leases: Leases,
    local_keys: usize,
    observers: Observers,
}

impl<Q: Quotas> Builder<Q> {
    const DEADLINE: Duration = client::recommended::DEADLINE;
    const BREAKER_FAULTS: u32 = 5;
    const BREAKER_COOL_OFF: Duration = Duration::from_secs(1);
    const LOCAL_KEYS: usize = 10_000;

    /// How long a check may take, all of it: the quota, the connection if there is none yet, and the answer. 50 ms, unless
    /// said otherwise.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// After how many faults in a row Redis is left alone, 0 for never, and for how long; then a single check tries again.
    /// Five and a second, unless said otherwise. In a cluster each range of slots has a breaker of its own.
    pub fn breaker(self, faults: u32, cool_off: Duration) -> Self {
        Self { breaker: Settings { faults, cool_off }, ..self }
    }

    /// Remembers refusals, so that what is known to be refused is not asked again.
    pub fn known_empty(self, settings: KnownEmpty) -> Self {
        Self { known_empty: Some(settings), ..self }
    }

    /// Leases the tokens of a class of calls in batches.
    pub fn lease(mut self, class: impl Into<Box<str>>, leasing: Leasing) -> Self {
        self.leases.add(class.into(), leasing);
        self
    }

    /// How many buckets there are at most for [`OnFault::Local`], 0 being read as 1: ten thousand, unless said otherwise. One that
    /// is forgotten for want of room is found full.
    pub fn local_buckets(self, keys: usize) -> Self {
        Self { local_keys: keys, ..self }
    }

    /// Tells an observer what happens.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter {
        let core = Core {
            redis: self.redis.buckets,
            quotas: Box::new(self.quotas),
            policy: self.on_fault,
            deadline: self.deadline,
            breakers: Breakers::new(self.breaker, self.redis.ranges),
            refusals: self.known_empty.map(Refusals::new),
            leases: self.leases,
            fallback: Fallback::new(self.local_keys),
            observers: self.observers,
            tasks: Tasks::new(),
        };
        Limiter { core: Arc::new(core) }
    }
}
