//! Events for `tracing`: faults and flips of the breaker, never a decision that went as it should.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::Flip;
use crate::fault::Fault;
use crate::observe::{Decided, Observer};
use crate::reserve::Settled;

/// An outage is one event a second of each kind, not one a call.
const PAUSE: Duration = Duration::from_secs(1);

/// The observer that every limiter has where the `tracing` feature is on.
#[derive(Default)]
pub(crate) struct Traces {
    told: Mutex<HashMap<&'static str, (Instant, u64)>>,
}

impl Traces {
    /// How many events of this kind there were since the last that was told, if it is time to tell another.
    fn due(&self, fault: Fault) -> Option<u64> {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, silent) = told.get(fault.name()).copied().unzip();
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE);
        let silent = silent.unwrap_or_default();
        let entry = if is_due { (now, 0) } else { (last.unwrap_or(now), silent.saturating_add(1)) };
        told.insert(fault.name(), entry);
        is_due.then_some(silent)
    }
}

impl Observer for Traces {
    fn decided(&self, decided: &Decided<'_>) {
        let Some(fault) = decided.decision.fault() else { return };
        if let Some(silent) = self.due(fault) {
            let (allowed, policy) = (decided.decision.is_allowed(), decided.policy.name());
            tracing::warn!(
                fault = fault.name(),
                policy,
                allowed,
                class = decided.class,
                silent,
                "rate limit not checked"
            );
        }
    }

    fn flipped(&self, flip: Flip) {
        match flip {
            Flip::Opened => tracing::warn!("rate limit breaker opened"),
            Flip::Closed => tracing::info!("rate limit breaker closed"),
        }
    }

    fn settled(&self, settled: &Settled) {
        if let Settled::Unknown(fault) | Settled::Abandoned(fault) = settled
            && let Some(silent) = self.due(*fault)
        {
            tracing::warn!(
                fault = fault.name(),
                outcome = settled.name(),
                silent,
                "rate limit reservation not settled"
            );
        }
    }
}
