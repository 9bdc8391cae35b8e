//! Moments on the monotonic clock, which tests can pause, without arithmetic that could overflow.

use std::time::Duration;

use tokio::time::Instant;

/// `delay` from `now`, or so far ahead that nobody will be there to see it.
pub(crate) fn after(now: Instant, delay: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
    now.checked_add(delay).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}

/// A duration between two thirds and four thirds of `middle`.
pub(crate) fn jittered(middle: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // A random number that needs no crate: every `RandomState` is keyed anew.
    let random = RandomState::new().hash_one(0).checked_rem(1_000_001).and_then(|random| u32::try_from(random).ok());
    let spread = middle.saturating_mul(2).checked_div(3).unwrap_or_default();
    let part = spread.checked_div(1_000_000).unwrap_or_default().saturating_mul(random.unwrap_or_default());
    spread.saturating_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_over_the_whole_window_and_not_beyond() {
        let all: Vec<Duration> = (0..2_000).map(|_| jittered(Duration::from_secs(45))).collect();
        assert!(all.iter().all(|time| (30..=60).contains(&time.as_secs())));
        assert!(all.iter().any(|time| time.as_secs() < 33) && all.iter().any(|time| time.as_secs() >= 57));
    }
}
