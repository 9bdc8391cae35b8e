//! Leases: tokens taken from a bucket in batches and spent in this process. What is held and for how long; the asking is the
//! limiter's.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{Key, Quota};
use tokio::time::Instant;

use crate::check::LONGEST_KEY;
use crate::exact;

/// A batch is meant to last about so long: four calls to Redis a second for a key, however busy.
const HORIZON: Duration = Duration::from_millis(250);
/// What a batch can begin with when demand shows.
const FIRST_BATCH: u64 = 4;
/// Of the capacity, and of what was left in the bucket, one batch takes no more than this part.
const LARGEST_PART: u64 = 4;
const SHARDS: usize = 16;
/// Keys with tokens here, a shard. Beyond, calls are made one by one.
const KEYS_A_SHARD: usize = 1_000;
/// A purse that has been empty for so many times its lease is forgotten.
const FORGOTTEN_AFTER: u32 = 4;

/// How a class of calls is leased: tokens are taken from the bucket in batches, as many as demand is for in a quarter of a
/// second, and spent in this process.
///
/// # What it costs
/// Tokens that are taken and not spent are missing from the bucket; those that are spent late pass on top of what the bucket
/// grants meanwhile. So over any interval the calls of all processes together are at most those of an exact limiter and
/// [`Leasing::up_to`] tokens for each process, held for at most [`Leasing::held_for`].
///
/// Near an empty bucket nothing is taken ahead: a lease refuses nothing that the bucket would grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leasing {
    up_to: u64,
    hold: Duration,
}

impl Leasing {
    /// At most so many tokens of a bucket are held unspent, and never more than a quarter of its capacity.
    #[must_use]
    pub const fn up_to(tokens: u64) -> Self {
        Self { up_to: tokens, hold: Duration::from_secs(1) }
    }

    /// How long tokens are held before what is left of them goes back: a second, unless said otherwise.
    #[must_use]
    pub const fn held_for(self, hold: Duration) -> Self {
        Self { hold, ..self }
    }
}

#[derive(Default)]
pub(crate) struct Leases {
    classes: HashMap<Box<str>, Leasing>,
    hasher: RandomState,
    shards: [Mutex<HashMap<Key, Arc<Purse>>>; SHARDS],
    pub(crate) is_swept: AtomicBool,
    closed: AtomicBool,
}

/// The tokens of one key.
pub(crate) struct Purse {
    leasing: Leasing,
    state: Mutex<Held>,
}

struct Held {
    tokens: u64,
    /// Taken out by calls that ask for more, and put back or spent when they have an answer.
    lent: u64,
    /// What was left in the bucket when it was asked last.
    left: u64,
    quota: Quota,
    leased_at: Instant,
    /// Demand, and since when it is counted; since never for a key that nobody has asked about.
    demand: u64,
    since: Option<Instant>,
    batch: u64,
    /// Whether somebody asks for a batch.
    asking: bool,
}

/// What a purse says to a call.
pub(crate) enum Spend {
    /// It has paid; this is left here and in the bucket, as far as is known.
    Paid(u64),
    /// The bucket has to be asked.
    Ask(Asking),
}

/// The tokens of a call that asks the bucket. Whatever it still holds when it is dropped goes back into the purse.
pub(crate) struct Asking {
    purse: Arc<Purse>,
    tokens: u64,
    lent: u64,
    /// What to take beyond what the call needs.
    pub(crate) extra: u64,
}

/// Tokens that go back to their bucket.
pub(crate) struct Return {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) tokens: u64,
}

impl Leases {
    pub(crate) fn add(&mut self, class: Box<str>, leasing: Leasing) {
        self.classes.insert(class, leasing);
    }

    /// The purse of a key, if its class is leased and there is room.
    pub(crate) fn purse(&self, class: &str, key: &Key, quota: Quota) -> Option<Arc<Purse>> {
        if self.classes.is_empty() || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let leasing = self.classes.get(class).filter(|_| key.as_bytes().len() <= LONGEST_KEY)?;
        let mut shard = self.shard(key)?;
        if let Some(purse) = shard.get(key) {
            return Some(Arc::clone(purse));
        }
        if shard.len() >= KEYS_A_SHARD {
            return None;
        }
        let purse = Arc::new(Purse::new(*leasing, quota));
        shard.insert(key.clone(), Arc::clone(&purse));
        Some(purse)
    }

    /// How often to sweep.
    pub(crate) fn rhythm(&self) -> Duration {
        let shortest = self.classes.values().map(|leasing| leasing.hold).min().unwrap_or(HORIZON);
        shortest.checked_div(2).unwrap_or(shortest).max(Duration::from_millis(10))
    }

    /// Takes out what has been held for too long, and forgets purses that nobody uses.
    pub(crate) fn sweep(&self) -> Vec<Return> {
        let now = Instant::now();
        self.take_out(|purse, held| now.saturating_duration_since(held.leased_at) >= purse.leasing.hold)
    }

    /// Takes out everything, and leases no more.
    pub(crate) fn close(&self) -> Vec<Return> {
        self.closed.store(true, Ordering::Relaxed);
        self.take_out(|_, _| true)
    }

    fn take_out(&self, is_over: impl Fn(&Purse, &Held) -> bool) -> Vec<Return> {
        let (mut returns, now) = (Vec::new(), Instant::now());
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, purse| {
                let mut held = purse.held();
                if held.tokens > 0 && is_over(purse, &held) {
                    let tokens = std::mem::take(&mut held.tokens);
                    returns.push(Return { key: key.clone(), quota: held.quota, tokens });
                }
                let used_at = held.since.map_or(held.leased_at, |since| since.max(held.leased_at));
                let idle = now.saturating_duration_since(used_at) >= purse.leasing.hold.saturating_mul(FORGOTTEN_AFTER);
                // A call may have looked it up and not used it yet; from now on nobody can look it up.
                held.tokens > 0 || !idle || Arc::strong_count(purse) > 1
            });
        }
        returns
    }

    fn shard(&self, key: &Key) -> Option<MutexGuard<'_, HashMap<Key, Arc<Purse>>>> {
        let at = self.hasher.hash_one(key).checked_rem(SHARDS as u64).and_then(|at| usize::try_from(at).ok())?;
        let shard = self.shards.get(at)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Purse {
    fn new(leasing: Leasing, quota: Quota) -> Self {
        let held = Held {
            tokens: 0,
            lent: 0,
            left: 0,
            quota,
            leased_at: Instant::now(),
            demand: 0,
            since: None,
            batch: 0,
            asking: false,
        };
        Self { leasing, state: Mutex::new(held) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pays from what is here, or hands out what there is for a call to the bucket.
    pub(crate) fn spend(self: &Arc<Self>, cost: u64, quota: Quota) -> Spend {
        let mut held = self.held();
        held.demand = held.demand.saturating_add(cost);
        if let Some(rest) = held.tokens.checked_sub(cost) {
            held.tokens = rest;
            return Spend::Paid(held.left.saturating_add(rest));
        }
        held.quota = quota;
        let tokens = std::mem::take(&mut held.tokens);
        // Only one call at a time takes ahead; the others take what they need.
        let extra = if held.asking { 0 } else { held.next_batch(self.leasing, Instant::now()) };
        let extra = extra.min(self.leasing.up_to.saturating_sub(held.lent));
        held.asking |= extra > 0;
        held.lent = held.lent.saturating_add(tokens);
        Spend::Ask(Asking { purse: Arc::clone(self), tokens, lent: tokens, extra })
    }
}

impl Held {
    /// What demand is for in a quarter of a second, as far as the bucket can spare it.
    fn next_batch(&mut self, leasing: Leasing, now: Instant) -> u64 {
        let demand = std::mem::take(&mut self.demand);
        let Some(since) = self.since.replace(now) else { return 0 };
        let elapsed = now.saturating_duration_since(since).as_micros().max(1);
        let wanted = u128::from(demand).saturating_mul(HORIZON.as_micros()).checked_div(elapsed).unwrap_or_default();
        let grown = self.batch.saturating_mul(2).max(FIRST_BATCH);
        let spare = (exact::rounded(self.quota.capacity()) / LARGEST_PART).min(self.left / LARGEST_PART);
        self.batch = u64::try_from(wanted).unwrap_or(u64::MAX).min(grown).min(leasing.up_to).min(spare);
        self.batch
    }
}

impl Asking {
    /// What the call itself still needs.
    pub(crate) const fn lacks(&self, cost: u64) -> u64 {
        cost.saturating_sub(self.tokens)
    }

    /// The bucket's answer.
    pub(crate) fn heard(&mut self, lease: client::Lease) {
        self.tokens = self.tokens.saturating_add(lease.granted);
        let mut held = self.purse.held();
        held.left = lease.remaining;
        if lease.granted > 0 {
            held.leased_at = Instant::now();
        }
    }

    /// Pays for the call; answers what is left here and in the bucket, or `None` if there is not enough.
    pub(crate) fn pay(&mut self, cost: u64) -> Option<u64> {
        self.tokens = self.tokens.checked_sub(cost)?;
        let held = self.purse.held();
        Some(held.left.saturating_add(held.tokens).saturating_add(self.tokens))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut held = self.purse.held();
        held.tokens = held.tokens.saturating_add(self.tokens);
        held.lent = held.lent.saturating_sub(self.lent);
        if self.extra > 0 {
            held.asking = false;
        }
    }
}
