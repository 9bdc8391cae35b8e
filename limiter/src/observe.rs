//! Who is told what the limiter does.

use std::time::Duration;

use crate::breaker::Flip;
use crate::decision::Decision;
use crate::fault::OnFault;
use crate::reserve::Settled;

/// Is told what happens. All of it happens in the check itself, so it has to be quick.
pub trait Observer: Send + Sync + 'static {
    /// A check has been decided.
    fn decided(&self, decided: &Decided<'_>) {
        let _ = decided;
    }

    /// The breaker, or that of a range of cluster slots, has opened or closed.
    fn flipped(&self, flip: Flip) {
        let _ = flip;
    }

    /// A reservation has been settled, or has failed to.
    fn settled(&self, settled: &Settled) {
        let _ = settled;
    }
}

/// A decision, and whom and what it was about. Of several classes, the one that refused, or else the first.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Decided<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The class of calls.
    pub class: &'a str,
    /// What was decided.
    pub decision: &'a Decision,
    /// The policy in force; it decided if [`Decision::fault`] names a fault.
    pub policy: OnFault,
    /// How long the check took.
    pub took: Duration,
}

impl<'a> Decided<'a> {
    pub(crate) const fn new(
        tenant: &'a str,
        class: &'a str,
        decision: &'a Decision,
        policy: OnFault,
        took: Duration,
    ) -> Self {
        Self { tenant, class, decision, policy, took }
    }
}

/// The observers of one limiter.
#[derive(Default)]
pub(crate) struct Observers {
    each: Vec<Box<dyn Observer>>,
    /// Those that have nothing to say about a check without a fault, which then need not be timed.
    of_faults: Vec<Box<dyn Observer>>,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        self.each.push(Box::new(observer));
    }

    #[cfg(feature = "tracing")]
    pub(crate) fn add_for_faults(&mut self, observer: impl Observer) {
        self.of_faults.push(Box::new(observer));
    }

    /// Tells everybody.
    pub(crate) fn tell(&self, what: impl Fn(&dyn Observer)) {
        self.each.iter().chain(&self.of_faults).for_each(|observer| what(&**observer));
    }

    /// Whether anybody wants to know.
    pub(crate) fn care_about(&self, decision: &Decision) -> bool {
        !self.each.is_empty() || !self.of_faults.is_empty() && decision.fault().is_some()
    }
}
