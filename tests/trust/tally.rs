//! What callers were granted, and what a failover may have given twice. A grant counts when its answer has arrived.

use std::collections::HashMap;
use std::time::Instant;

/// A grant of one token, as its caller saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// A number of a key.
    pub(crate) key: usize,
    /// The server that answered.
    pub(crate) port: u16,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
}

/// All grants of a run.
#[derive(Default)]
pub(crate) struct Tally(Vec<Grant>);

impl Tally {
    pub(crate) fn add(&mut self, grants: Vec<Grant>) {
        self.0.extend(grants);
    }

    pub(crate) fn len(&self) -> i64 {
        self.0.len() as i64
    }

    pub(crate) fn of(&self, key: usize) -> i64 {
        self.0.iter().filter(|grant| grant.key == key).count() as i64
    }

    /// Grants of one server whose answers came after `moment`: what it may not have told its replica.
    pub(crate) fn since(&self, port: u16, moment: Instant) -> HashMap<usize, i64> {
        let mut found = HashMap::new();
        for grant in self.0.iter().filter(|grant| grant.port == port && grant.answered >= moment) {
            *found.entry(grant.key).or_default() += 1;
        }
        found
    }

    /// The contract over every interval that begins with the first grant of a key: `granted <= capacity + rate * time`,
    /// with the time as the callers measured it, which is never shorter than the servers'. `extra` is what a failover
    /// explains.
    pub(crate) fn check_bound(&self, key: usize, capacity: i64, rate: i64, extra: i64) {
        let mut grants: Vec<&Grant> = self.0.iter().filter(|grant| grant.key == key).collect();
        grants.sort_by_key(|grant| grant.answered);
        let Some(start) = grants.iter().map(|grant| grant.sent).min() else { return };
        for (number, grant) in grants.iter().enumerate() {
            let micros = i128::try_from((grant.answered - start).as_micros()).expect("a short time") + 1;
            let most = i128::from(capacity + extra) * 1_000_000 + i128::from(rate) * micros;
            let granted = number as i128 + 1;
            assert!(
                granted * 1_000_000 <= most,
                "key {key}: {granted} granted in {micros} us, {extra} of them explained"
            );
        }
    }
}
