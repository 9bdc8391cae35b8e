//! The tenants with the most decisions, of however many there are: a bounded count (space-saving, by Metwally and others).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

const SHARDS: usize = 16;

/// What was decided for a tenant since it has been counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantCount {
    /// The tenant.
    pub tenant: Box<str>,
    /// Calls that could go on.
    pub allowed: u64,
    /// Calls that could not.
    pub refused: u64,
}

#[derive(Default)]
struct Entry {
    /// At least as often as the tenant was seen; it decides who makes room.
    weight: u64,
    allowed: u64,
    refused: u64,
}

/// A tenant is counted in one shard, and a shard has room for as many as are asked for, so nobody of the top is missed because
/// of the others in its shard.
pub(crate) struct Top {
    room: usize,
    hasher: RandomState,
    shards: [Mutex<HashMap<Box<str>, Entry>>; SHARDS],
}

impl Top {
    pub(crate) fn new(room: usize) -> Self {
        Self { room: room.max(1), hasher: RandomState::new(), shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Counts a decision; answers how many have been counted for the tenant since it has a place.
    pub(crate) fn count(&self, tenant: &str, is_allowed: bool) -> u64 {
        let at = self.hasher.hash_one(tenant).checked_rem(SHARDS as u64).and_then(|at| usize::try_from(at).ok());
        let Some(shard) = at.and_then(|at| self.shards.get(at)) else { return 0 };
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if !shard.contains_key(tenant) {
            let weight = self.make_room(&mut shard);
            shard.insert(tenant.into(), Entry { weight, ..Entry::default() });
        }
        let Some(entry) = shard.get_mut(tenant) else { return 0 };
        entry.weight = entry.weight.saturating_add(1);
        let counter = if is_allowed { &mut entry.allowed } else { &mut entry.refused };
        *counter = counter.saturating_add(1);
        entry.allowed.saturating_add(entry.refused)
    }

    /// The weight that a newcomer starts with: that of the one who left, so that nobody is displaced by a stream of strangers.
    fn make_room(&self, shard: &mut HashMap<Box<str>, Entry>) -> u64 {
        if shard.len() < self.room {
            return 0;
        }
        let least =
            shard.iter().min_by_key(|(_, entry)| entry.weight).map(|(tenant, entry)| (tenant.clone(), entry.weight));
        let Some((tenant, weight)) = least else { return 0 };
        shard.remove(&tenant);
        weight
    }

    /// Those with the most decisions, the most first.
    pub(crate) fn list(&self) -> Vec<TenantCount> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.iter().map(|(tenant, entry)| TenantCount {
                tenant: tenant.clone(),
                allowed: entry.allowed,
                refused: entry.refused,
            }));
        }
        all.sort_by_key(|count| std::cmp::Reverse(count.allowed.saturating_add(count.refused)));
        all.truncate(self.room);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_busiest_among_a_stream_of_strangers() {
        let top = Top::new(5);
        for round in 0..2_000 {
            for busy in 0..5 {
                top.count(&format!("busy-{busy}"), round % 10 != 0);
            }
            for stranger in 0..10 {
                top.count(&format!("stranger-{round}-{stranger}"), true);
            }
        }
        let list = top.list();
        assert_eq!(list.len(), 5);
        for count in list {
            assert!(count.tenant.starts_with("busy"), "{count:?}");
            assert!(count.allowed >= 1_700 && count.refused >= 190, "{count:?}");
            assert!(count.allowed <= 1_800 && count.refused <= 200, "{count:?}");
        }
        let kept: usize = top.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert!(kept <= 5 * SHARDS);
    }
}
