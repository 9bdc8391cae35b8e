//! Stops asking a server that does not answer: open after consecutive faults, and a single probe each time it has cooled off.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use client::Key;
use tokio::time::Instant;

use crate::cluster;

/// Consecutive faults that make a connection doubtful where there is no breaker.
const DOUBTFUL: u32 = 5;

/// When the breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Consecutive faults that open it; 0 for never.
    pub(crate) faults: u32,
    pub(crate) cool_off: Duration,
}

/// That the breaker has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// Redis is not asked until a probe is answered.
    Opened,
    /// Redis is asked again.
    Closed,
}

/// What an admitted call has to hand in with its outcome.
#[derive(Debug)]
pub(crate) struct Admitted<'a>(&'a Breaker);

/// One breaker a range of cluster slots, or a single one. A cluster that has lost one node answers for the others, and a
/// breaker over all of it would open every now and then for everybody.
pub(crate) struct Breakers {
    settings: Settings,
    epoch: Instant,
    each: Box<[Breaker]>,
}

#[derive(Debug, Default)]
struct Breaker {
    faults: AtomicU32,
    /// Microseconds since the epoch, 0 while closed. Whoever moves it forward is the probe.
    open_until: AtomicU64,
}

impl Breakers {
    pub(crate) fn new(settings: Settings, ranges: usize) -> Self {
        let each = (0..ranges.max(1)).map(|_| Breaker::default()).collect();
        Self { settings, epoch: Instant::now(), each }
    }

    /// Whether Redis is to be asked about this key.
    pub(crate) fn admit(&self, key: &Key) -> Option<Admitted<'_>> {
        let breaker = self.of(key)?;
        let open_until = breaker.open_until.load(Ordering::Acquire);
        if open_until == 0 {
            return Some(Admitted(breaker));
        }
        let now = self.micros();
        let next = now.saturating_add(u64::try_from(self.settings.cool_off.as_micros()).unwrap_or(u64::MAX));
        let cooled = now >= open_until;
        let won = cooled
            && breaker.open_until.compare_exchange(open_until, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        won.then_some(Admitted(breaker))
    }

    /// The server answered.
    pub(crate) fn answered(&self, call: Admitted<'_>) -> Option<Flip> {
        if call.0.faults.load(Ordering::Relaxed) != 0 {
            call.0.faults.store(0, Ordering::Relaxed);
        }
        let open = call.0.open_until.load(Ordering::Relaxed) != 0;
        (open && call.0.open_until.swap(0, Ordering::AcqRel) != 0).then_some(Flip::Closed)
    }

    /// It did not. Answers too whether it has not for so long that the connection is to be doubted.
    pub(crate) fn failed(&self, call: Admitted<'_>) -> (Option<Flip>, bool) {
        let faults = call.0.faults.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let is_doubtful = faults >= if self.settings.faults == 0 { DOUBTFUL } else { self.settings.faults };
        if self.settings.faults == 0 || !is_doubtful {
            return (None, is_doubtful);
        }
        let until = self.micros().saturating_add(u64::try_from(self.settings.cool_off.as_micros()).unwrap_or(u64::MAX));
        let opened = call.0.open_until.compare_exchange(0, until.max(1), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        (opened.then_some(Flip::Opened), true)
    }

    fn of(&self, key: &Key) -> Option<&Breaker> {
        match self.each.len() {
            1 => self.each.first(),
            ranges => self.each.get(cluster::range(key.as_bytes(), ranges)?),
        }
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { faults: 3, cool_off: Duration::from_secs(1) };

    fn key() -> Key {
        Key::new("acme", "api")
    }

    fn fail(breakers: &Breakers) -> Option<Flip> {
        breakers.failed(breakers.admit(&key()).expect("closed")).0
    }

    #[tokio::test(start_paused = true)]
    async fn opens_after_consecutive_faults_only() {
        let breakers = Breakers::new(SETTINGS, 1);
        assert_eq!(fail(&breakers), None);
        assert_eq!(fail(&breakers), None);
        assert_eq!(breakers.answered(breakers.admit(&key()).unwrap()), None);
        assert_eq!(fail(&breakers), None);
        assert_eq!(fail(&breakers), None);
        assert_eq!(fail(&breakers), Some(Flip::Opened));
        assert!(breakers.admit(&key()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn lets_one_probe_through_each_time_it_has_cooled_off() {
        let breakers = Breakers::new(SETTINGS, 1);
        while fail(&breakers).is_none() {}
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(breakers.admit(&key()).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        let probe = breakers.admit(&key()).expect("a probe");
        assert!(breakers.admit(&key()).is_none(), "a second probe");
        assert_eq!(breakers.failed(probe), (None, true));
        assert!(breakers.admit(&key()).is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        let probe = breakers.admit(&key()).expect("the next probe");
        assert_eq!(breakers.answered(probe), Some(Flip::Closed));
        assert_eq!(breakers.answered(breakers.admit(&key()).unwrap()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_makes_way_for_another() {
        let breakers = Breakers::new(SETTINGS, 1);
        while fail(&breakers).is_none() {}
        tokio::time::advance(Duration::from_secs(1)).await;
        let _dropped_without_an_outcome = breakers.admit(&key()).expect("a probe");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(breakers.admit(&key()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_of_slots_does_not_open_the_others() {
        let breakers = Breakers::new(SETTINGS, 64);
        while fail(&breakers).is_none() {}
        let admitted = (0..1_000).filter(|n| breakers.admit(&Key::new(format!("t{n}"), "api")).is_some()).count();
        assert!((950..1_000).contains(&admitted), "{admitted} of 1000 tenants");
    }
}
