//! Counters and a histogram for the `metrics` facade, with labels that cannot multiply.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};

use crate::breaker::Flip;
use crate::decision::{Denied, Source};
use crate::observe::{Decided, Observer};
use crate::reserve::Settled;
use crate::top::{TenantCount, Top};

const DECISIONS: &str = "ratelimit_decisions_total";
const FAULTS: &str = "ratelimit_faults_total";
const SECONDS: &str = "ratelimit_check_seconds";
const TENANTS: &str = "ratelimit_tenant_decisions_total";
const FLIPS: &str = "ratelimit_breaker_flips_total";
const SETTLEMENTS: &str = "ratelimit_settlements_total";

/// More classes than a service has. Where classes are made from what callers send, the rest are `other`.
const MOST_CLASSES: usize = 64;
/// A tenant with fewer decisions is not worth a label.
const WORTH_A_LABEL: u64 = 100;
/// Longer names of tenants, in bytes, are counted as `other`.
const LONGEST_LABEL: usize = 256;

const OUTCOMES: usize = 7;
const SOURCES: usize = 7;

/// An observer for the `metrics` facade. Install the recorder first: what is registered before goes nowhere.
///
/// | metric | labels |
/// |---|---|
/// | `ratelimit_decisions_total` | `class`, `outcome` (`allowed`, `refused`, `never_fits`, `spent`, `unavailable`, `unknown_tenant`, `unknown_class`), `source` (`redis`, `lease`, `known_empty`, `quotas`, `failed_open`, `failed_closed`, `failed_local`) |
/// | `ratelimit_faults_total` | `fault`, `policy` (`open`, `closed`, `local`) |
/// | `ratelimit_check_seconds` | `source`; a histogram: p50 and p99 of a check |
/// | `ratelimit_breaker_flips_total` | `to` (`open`, `closed`) |
/// | `ratelimit_settlements_total` | `outcome` |
/// | `ratelimit_tenant_decisions_total` | `tenant`, `outcome` (`allowed`, `refused`); with [`Metrics::tenants`] only |
pub struct Metrics {
    classes: RwLock<HashMap<Box<str>, Arc<ClassMeters>>>,
    seconds: [OnceLock<Histogram>; SOURCES],
    tenants: Option<TenantMeters>,
}

#[derive(Default)]
struct ClassMeters {
    counters: [[OnceLock<Counter>; SOURCES]; OUTCOMES],
}

struct TenantMeters {
    top: Top,
    labels: usize,
    labelled: Mutex<HashSet<Box<str>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Without labels for tenants.
    #[must_use]
    pub fn new() -> Self {
        describe_counter!(DECISIONS, "Checks, by class, outcome and what decided");
        describe_counter!(FAULTS, "Checks that Redis did not decide, by fault and policy");
        describe_counter!(FLIPS, "Times that the breaker opened or closed");
        describe_counter!(SETTLEMENTS, "Reservations settled, by outcome");
        describe_histogram!(SECONDS, Unit::Seconds, "How long a check took, by what decided");
        Self { classes: RwLock::default(), seconds: std::array::from_fn(|_| OnceLock::new()), tenants: None }
    }

    /// Counts the decisions of so many tenants by name, and all others together as `other`.
    ///
    /// A label once given stays for the life of the process, for no exporter can take one back; so the names go to the first
    /// that turn out to be busy, and [`Metrics::top_tenants`] says who is busiest now.
    #[must_use]
    pub fn tenants(self, most: usize) -> Self {
        describe_counter!(TENANTS, "Checks of the busiest tenants, by outcome");
        let tenants = TenantMeters { top: Top::new(most), labels: most, labelled: Mutex::default() };
        Self { tenants: Some(tenants), ..self }
    }

    /// The tenants with the most decisions, the most first: as many as [`Metrics::tenants`] was told.
    pub fn top_tenants(&self) -> Vec<TenantCount> {
        self.tenants.as_ref().map(|tenants| tenants.top.list()).unwrap_or_default()
    }

    fn class(&self, class: &str) -> (Arc<ClassMeters>, Box<str>) {
        if let Some((name, meters)) = self.classes.read().unwrap_or_else(PoisonError::into_inner).get_key_value(class) {
            return (Arc::clone(meters), name.clone());
        }
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        let name = if classes.len() < MOST_CLASSES { class } else { "other" };
        (Arc::clone(classes.entry(name.into()).or_default()), name.into())
    }

    fn count(&self, decided: &Decided<'_>) {
        let (outcome, source) = (outcome(decided.decision.verdict), source(decided.decision.source));
        let (meters, class) = self.class(decided.class);
        let Some(counter) = meters.counters.get(outcome.0).and_then(|row| row.get(source.0)) else { return };
        let register =
            || counter!(DECISIONS, "class" => class.into_string(), "outcome" => outcome.1, "source" => source.1);
        counter.get_or_init(register).increment(1);
    }

    fn time(&self, from: Source, took: Duration) {
        let (at, name) = source(from);
        if let Some(seconds) = self.seconds.get(at) {
            seconds.get_or_init(|| histogram!(SECONDS, "source" => name)).record(took.as_secs_f64());
        }
    }
}

impl Observer for Metrics {
    fn decided(&self, decided: &Decided<'_>) {
        self.count(decided);
        self.time(decided.decision.source, decided.took);
        if let Some(fault) = decided.decision.fault() {
            counter!(FAULTS, "fault" => fault.name(), "policy" => decided.policy.name()).increment(1);
        }
        if let Some(tenants) = &self.tenants {
            tenants.count(decided.tenant, decided.decision.is_allowed());
        }
    }

    fn flipped(&self, flip: Flip) {
        let to = match flip {
            Flip::Opened => "open",
            Flip::Closed => "closed",
        };
        counter!(FLIPS, "to" => to).increment(1);
    }

    fn settled(&self, settled: &Settled) {
        counter!(SETTLEMENTS, "outcome" => settled.name()).increment(1);
    }
}

impl TenantMeters {
    fn count(&self, tenant: &str, is_allowed: bool) {
        // What is too long for a label is not worth the room either.
        let seen = if tenant.len() > LONGEST_LABEL { 0 } else { self.top.count(tenant, is_allowed) };
        let outcome = if is_allowed { "allowed" } else { "refused" };
        let tenant = if self.has_label(tenant, seen) { tenant } else { "other" };
        counter!(TENANTS, "tenant" => tenant.to_owned(), "outcome" => outcome).increment(1);
    }

    fn has_label(&self, tenant: &str, seen: u64) -> bool {
        let mut labelled = self.labelled.lock().unwrap_or_else(PoisonError::into_inner);
        if labelled.contains(tenant) {
            return true;
        }
        let gets_one = seen >= WORTH_A_LABEL && labelled.len() < self.labels;
        gets_one && labelled.insert(tenant.into())
    }
}

const fn outcome(verdict: Result<(), Denied>) -> (usize, &'static str) {
    match verdict {
        Ok(()) => (0, "allowed"),
        Err(denied) => {
            let at = match denied {
                Denied::RetryAfter(_) => 1,
                Denied::NeverFits { .. } => 2,
                Denied::Spent => 3,
                Denied::Unavailable(_) => 4,
                Denied::UnknownTenant => 5,
                Denied::UnknownClass => 6,
            };
            (at, denied.name())
        }
    }
}

const fn source(source: Source) -> (usize, &'static str) {
    let at = match source {
        Source::Redis => 0,
        Source::Lease => 1,
        Source::KnownEmpty => 2,
        Source::Quotas => 3,
        Source::FailedOpen(_) => 4,
        Source::FailedClosed(_) => 5,
        Source::FailedLocal(_) => 6,
    };
    (at, source.name())
}
