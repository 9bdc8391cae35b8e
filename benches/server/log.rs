//! Bytes that a call adds to the append-only file and to the stream of replication.

use super::contenders::Contender;
use super::stage::{Case, Keys, Stage};
use super::support::{ReplicationStream, Setup};
use super::wire::Calls;

const CALLS: usize = 1_000;

/// Bytes per call on a key that exists.
#[derive(Clone, Copy)]
pub(crate) struct Logged {
    pub(crate) file: f64,
    pub(crate) stream: f64,
}

pub(crate) fn measure(setup: Setup, contenders: &'static [Contender]) -> Vec<Option<Logged>> {
    // The server's own PINGs would count, and a write of the file that waits for a disk would not.
    let setup = setup.config("appendonly", "yes").config("appendfsync", "no");
    let stage = Stage::new(setup.config("repl-ping-replica-period", "3600").start());
    let _replica = ReplicationStream::of(&stage.server);
    let measure = |contender| stage.has(contender).then(|| one(&stage, contender));
    contenders.iter().map(measure).collect()
}

fn one(stage: &Stage, contender: &'static Contender) -> Logged {
    stage.prepare(&Case { contender, keys: Keys::Hot });
    let calls = |count| Calls::encode(contender.call, contender, (0..count).map(|_| 0), &stage.sha);
    let mut connection = stage.connection();
    // The first call may move the deadline.
    connection.run(&calls(10), 1, contender);
    let before = sizes(stage);
    connection.run(&calls(CALLS), 50, contender);
    let after = sizes(stage);
    let each = |before: f64, after: f64| (after - before) / CALLS as f64;
    Logged { file: each(before.0, after.0), stream: each(before.1, after.1) }
}

fn sizes(stage: &Stage) -> (f64, f64) {
    // What a command leaves in the buffer is written before the next one is read.
    let number = |name: &str| stage.server.client().info_int(name) as f64;
    (number("aof_current_size"), number("master_repl_offset"))
}
