//! The local pre-check: what Redis refused a moment ago is refused again without asking, for as long as it is known to hold.

use std::time::Duration;

use client::{Key, Quota, Retry, Tokens};
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::check::LONGEST_KEY;
use crate::decision::Denied;
use crate::{exact, time};

/// The opt-in memory of refusals.
///
/// A refusal is remembered with its quota and its cost until Redis said the tokens would be there, but for no longer than
/// [`KnownEmpty::cap`]. So a smaller cost, a changed quota, and a bucket that somebody refilled by hand get through: the first
/// two at once, the last after the cap. Time is the process's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEmpty {
    keys: usize,
    cap: Duration,
}

impl Default for KnownEmpty {
    /// Ten thousand keys, and a cap of a second.
    fn default() -> Self {
        Self { keys: 10_000, cap: Duration::from_secs(1) }
    }
}

impl KnownEmpty {
    /// How many keys are remembered at most.
    #[must_use]
    pub const fn keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    /// The longest that a refusal is remembered, whatever Redis said.
    #[must_use]
    pub const fn cap(self, cap: Duration) -> Self {
        Self { cap, ..self }
    }
}

pub(crate) struct Refusals {
    cap: Duration,
    refusals: Cache<Key, Refusal>,
}

#[derive(Clone, Copy)]
struct Refusal {
    quota: Quota,
    cost: Tokens,
    /// Until when it is believed.
    until: Instant,
    /// When the cost would be there, as Redis said; `None` for never.
    free_at: Option<Instant>,
}

impl Refusals {
    pub(crate) fn new(settings: KnownEmpty) -> Self {
        Self { cap: settings.cap, refusals: Cache::new(settings.keys) }
    }

    /// The refusal that Redis would give, if that is known.
    pub(crate) fn recall(&self, key: &Key, quota: Quota, cost: Tokens) -> Option<Denied> {
        let known = self.refusals.get(key)?;
        if known.quota != quota || cost < known.cost {
            return None;
        }
        let now = Instant::now();
        if now >= known.until {
            return None;
        }
        let Some(free_at) = known.free_at else { return Some(Denied::of(Retry::Never, quota, cost)) };
        let more =
            if cost == known.cost { Duration::ZERO } else { exact::time_for(cost.checked_sub(known.cost)?, quota)? };
        Some(Denied::RetryAfter(free_at.saturating_duration_since(now).saturating_add(more)))
    }

    /// The bucket has been given tokens.
    pub(crate) fn forget(&self, key: &Key) {
        self.refusals.remove(key);
    }

    pub(crate) fn remember(&self, key: &Key, quota: Quota, cost: Tokens, retry: Retry) {
        if key.as_bytes().len() > LONGEST_KEY {
            return;
        }
        let now = Instant::now();
        let (delay, free_at) = match retry {
            Retry::Now => return,
            Retry::After(delay) => (delay, Some(time::after(now, delay))),
            Retry::Never => (self.cap, None),
        };
        let until = time::after(now, delay.min(self.cap));
        self.refusals.insert(key.clone(), Refusal { quota, cost, until, free_at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota::per_second(10);

    fn key() -> Key {
        Key::new("acme", "api")
    }

    fn refused(cost: u64, retry: Retry) -> Refusals {
        let refusals = Refusals::new(KnownEmpty::default());
        refusals.remember(&key(), QUOTA, Tokens::new(cost), retry);
        refusals
    }

    fn recall(refusals: &Refusals, cost: u64) -> Option<Denied> {
        refusals.recall(&key(), QUOTA, Tokens::new(cost))
    }

    #[tokio::test(start_paused = true)]
    async fn refuses_until_the_moment_that_redis_named_and_not_after() {
        let refusals = refused(5, Retry::After(Duration::from_millis(300)));
        assert_eq!(recall(&refusals, 5), Some(Denied::RetryAfter(Duration::from_millis(300))));
        tokio::time::advance(Duration::from_millis(299)).await;
        assert_eq!(recall(&refusals, 5), Some(Denied::RetryAfter(Duration::from_millis(1))));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(recall(&refusals, 5), None);
    }

    #[tokio::test(start_paused = true)]
    async fn never_blocks_a_smaller_cost() {
        let refusals = refused(5, Retry::After(Duration::from_millis(300)));
        assert_eq!(recall(&refusals, 4), None);
        // Two tokens more are a fifth of a second more.
        assert_eq!(recall(&refusals, 7), Some(Denied::RetryAfter(Duration::from_millis(500))));
    }

    #[tokio::test(start_paused = true)]
    async fn never_blocks_a_changed_quota_or_another_key() {
        let refusals = refused(5, Retry::After(Duration::from_millis(300)));
        assert_eq!(refusals.recall(&key(), QUOTA.burst(11), Tokens::new(5)), None);
        assert_eq!(refusals.recall(&Key::new("acme", "export"), QUOTA, Tokens::new(5)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn asks_again_after_the_cap_however_long_the_wait_is() {
        let refusals = refused(5, Retry::After(Duration::from_secs(3_600)));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(recall(&refusals, 5), Some(Denied::RetryAfter(Duration::from_millis(3_599_001))));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(recall(&refusals, 5), None);
        let never = refused(5, Retry::Never);
        assert_eq!(recall(&never, 5), Some(Denied::Spent));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(recall(&never, 5), None);
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_no_more_keys_than_it_may_and_no_huge_one() {
        let refusals = Refusals::new(KnownEmpty::default().keys(64));
        let wait = Retry::After(Duration::from_secs(1));
        for tenant in 0..10_000 {
            refusals.remember(&Key::new(format!("t{tenant}"), "api"), QUOTA, Tokens::ONE, wait);
        }
        assert!(refusals.refusals.len() <= 64);
        let huge = Key::new("x".repeat(10_000), "api");
        refusals.remember(&huge, QUOTA, Tokens::ONE, wait);
        assert_eq!(refusals.recall(&huge, QUOTA, Tokens::ONE), None);
    }
}
