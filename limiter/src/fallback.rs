//! Buckets in this process, each with a share of a quota, for the time in which Redis is not heard.

use std::sync::{Arc, Mutex, PoisonError};

use bucket::{Amount, Bucket, Micros};
use client::{Key, Quota, Tokens};
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::check::LONGEST_KEY;
use crate::exact;
use crate::fault::Share;

/// Local buckets by key, bounded: the ones used least are forgotten, and then found full.
pub(crate) struct Fallback {
    epoch: Instant,
    buckets: Cache<Key, Arc<Mutex<Option<Bucket>>>>,
}

/// One of the takes that are made together.
pub(crate) struct Local<'a> {
    pub(crate) key: &'a Key,
    pub(crate) quota: Quota,
    pub(crate) cost: Tokens,
}

impl Fallback {
    pub(crate) fn new(keys: usize) -> Self {
        Self { epoch: Instant::now(), buckets: Cache::new(keys.max(1)) }
    }

    /// Takes from every local bucket, or from none; the answers are in order, all of them grants or one a refusal. `None` for
    /// a quota or a cost that no server would take, and for a key that is too long to be kept.
    pub(crate) fn take(&self, takes: &[Local<'_>], share: Share) -> Option<Vec<bucket::Decision>> {
        if takes.iter().any(|take| take.key.as_bytes().len() > LONGEST_KEY) {
            return None;
        }
        let now = self.now();
        let mut taken = Vec::with_capacity(takes.len());
        for take in takes {
            let (quota, cost) = self.quota(take.quota, share, take.cost)?;
            let bucket = self.bucket(take.key);
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let (after, decision) = bucket.unwrap_or_else(|| Bucket::full(&quota, now)).take(&quota, cost, now);
            *bucket = after.or(*bucket);
            let allowed = decision.allowed;
            taken.push(decision);
            if !allowed {
                break;
            }
        }
        if taken.last().is_some_and(|last| !last.allowed) {
            for take in takes.iter().take(taken.len().saturating_sub(1)) {
                self.refund(take, share, take.cost);
            }
        }
        Some(taken)
    }

    /// Gives back what a local bucket granted.
    pub(crate) fn refund(&self, take: &Local<'_>, share: Share, amount: Tokens) {
        self.change(take, share, |bucket, quota, now| {
            let amount = Amount::try_from(amount).unwrap_or(Amount::ZERO);
            bucket.refund(quota, amount, now).0
        });
    }

    /// Charges what was used beyond what a local bucket granted.
    pub(crate) fn debit(&self, take: &Local<'_>, share: Share, amount: Tokens) {
        self.change(take, share, |bucket, quota, now| {
            let amount = Amount::try_from(amount).unwrap_or(Amount::MAX);
            bucket.debit(quota, amount, now).map_or(bucket, |(bucket, _)| bucket)
        });
    }

    fn change(&self, take: &Local<'_>, share: Share, change: impl FnOnce(Bucket, &bucket::Quota, Micros) -> Bucket) {
        let Some((quota, _)) = self.quota(take.quota, share, take.cost) else { return };
        let (now, bucket) = (self.now(), self.bucket(take.key));
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        *bucket = Some(change(bucket.unwrap_or_else(|| Bucket::full(&quota, now)), &quota, now));
    }

    /// The share of a quota, with room for the call itself as far as the whole quota has room for it.
    fn quota(&self, quota: Quota, share: Share, cost: Tokens) -> Option<(bucket::Quota, Amount)> {
        let part = exact::part_of(quota, share)?;
        let cost = Amount::try_from(cost).ok()?;
        if part.capacity == Amount::ZERO {
            return Some((part, cost));
        }
        let room = cost.min(Amount::try_from(quota.capacity()).ok()?);
        Some((bucket::Quota { capacity: part.capacity.max(room), ..part }, cost))
    }

    fn bucket(&self, key: &Key) -> Arc<Mutex<Option<Bucket>>> {
        let Ok(bucket) = self.buckets.get_or_insert_with(key, || Ok::<_, std::convert::Infallible>(Arc::default()));
        bucket
    }

    fn now(&self) -> Micros {
        Micros::new(u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn take(fallback: &Fallback, quota: Quota, cost: u64) -> bool {
        let key = Key::new("acme", "api");
        let take = [Local { key: &key, quota, cost: Tokens::new(cost) }];
        fallback.take(&take, Share::one_of(10)).unwrap()[0].allowed
    }

    #[tokio::test(start_paused = true)]
    async fn grants_its_share_and_no_more() {
        let (fallback, quota) = (Fallback::new(100), Quota::per_second(50).burst(100));
        let burst = (0..100).filter(|_| take(&fallback, quota, 1)).count();
        assert_eq!(burst, 10);
        for _ in 0..20 {
            tokio::time::advance(Duration::from_millis(200)).await;
            assert!(take(&fallback, quota, 1));
            assert!(!take(&fallback, quota, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_below_one_call_still_grants_one_at_a_time() {
        let (fallback, quota) = (Fallback::new(100), Quota::per_second(5));
        assert!(take(&fallback, quota, 1));
        assert!(!take(&fallback, quota, 1));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert!(!take(&fallback, quota, 1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(take(&fallback, quota, 1));
        assert!(!take(&fallback, quota, 6), "more than the whole quota holds");
    }

    #[tokio::test(start_paused = true)]
    async fn takes_from_all_or_from_none() {
        let fallback = Fallback::new(100);
        let (user, all) = (Key::new("acme", "user"), Key::new("acme", "all"));
        let takes = [
            Local { key: &all, quota: Quota::per_second(50), cost: Tokens::ONE },
            Local { key: &user, quota: Quota::per_second(20), cost: Tokens::ONE },
        ];
        let answers: Vec<usize> = (0..4).map(|_| fallback.take(&takes, Share::one_of(10)).unwrap().len()).collect();
        assert_eq!(answers, [2, 2, 2, 2]);
        let left = fallback.take(&takes[..1], Share::one_of(10)).unwrap();
        assert_eq!(left[0].remaining, 2, "two of five were taken, for two calls passed");
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_no_more_keys_than_it_may() {
        let fallback = Fallback::new(64);
        for tenant in 0..10_000 {
            let key = Key::new(format!("t{tenant}"), "api");
            let take = [Local { key: &key, quota: Quota::per_second(50), cost: Tokens::ONE }];
            assert!(fallback.take(&take, Share::one_of(10)).is_some());
        }
        assert!(fallback.buckets.len() <= 64);
        let huge = Key::new("x".repeat(10_000), "api");
        let take = [Local { key: &huge, quota: Quota::per_second(50), cost: Tokens::ONE }];
        assert!(fallback.take(&take, Share::one_of(10)).is_none());
    }

    /// No room at all would be a full bucket for every call.
    #[tokio::test(start_paused = true)]
    async fn has_room_for_one_key_at_least() {
        for keys in [0, 1] {
            let fallback = Fallback::new(keys);
            assert_eq!((0..100).filter(|_| take(&fallback, Quota::per_second(50), 1)).count(), 5, "room for {keys}");
        }
    }
}
