//! Bytes per bucket, and processor time per call, as buckets grow in number.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use super::contenders::Contender;
use super::load::{median, processor_micros};
use super::stage::Stage;
use super::support::Setup;
use super::wire::{Calls, Connection};

const PIPELINE: usize = 32;
/// Calls per measurement, on keys all over the table.
const SAMPLE: usize = 50_000;
/// Keys are filled so many at a time: encoded calls take memory.
const CHUNK: usize = 100_000;

/// What was measured at one number of buckets.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) buckets: usize,
    pub(crate) bytes: f64,
    /// Microseconds of the server's processor time, if time is measured.
    pub(crate) cpu: Option<f64>,
}

/// Fills each contender's own database to one size after the other, and measures it there; a row of points a contender.
pub(crate) fn measure(
    setup: Setup,
    contenders: &[&'static Contender],
    sizes: &[usize],
    rounds: usize,
) -> Vec<Vec<Point>> {
    let databases = contenders.len().to_string();
    let stage = Stage::new(setup.config("databases", &databases).start());
    let there: Vec<bool> = contenders.iter().map(|contender| stage.has(contender)).collect();
    let mut rows = vec![Vec::new(); contenders.len()];
    let mut used = vec![0.0; contenders.len()];
    let mut filled = 0;
    // What a database and a client take once is nobody's.
    for (database, contender) in contenders.iter().enumerate().filter(|(at, _)| there[*at]) {
        fill(&stage, contender, 0..1_000, database);
    }
    stage.server.client().ok("FLUSHALL");
    for size in sizes {
        let mut before = settled(&stage, 0);
        for (database, contender) in contenders.iter().enumerate().filter(|(at, _)| there[*at]) {
            fill(&stage, contender, filled..*size, database);
            let after = settled(&stage, database);
            used[database] += after - before;
            before = after;
        }
        filled = *size;
        let cpu = calls(&stage, contenders, &there, *size, rounds);
        for (database, cpu) in cpu.into_iter().enumerate().filter(|(at, _)| there[*at]) {
            rows[database].push(Point { buckets: *size, bytes: used[database] / *size as f64, cpu });
        }
    }
    stage.assert_nothing_expired();
    rows
}

fn fill(stage: &Stage, contender: &Contender, keys: Range<usize>, database: usize) {
    for from in keys.clone().step_by(CHUNK) {
        stage.fill(contender, from..(from + CHUNK).min(keys.end), database);
    }
}

/// The memory in use, once the server has finished growing a database's tables and the old ones are gone. It works on that a
/// millisecond a tick, here five hundred times a second.
fn settled(stage: &Stage, database: usize) -> f64 {
    let mut client = stage.server.client();
    client.ok("CONFIG SET hz 500");
    let deadline = Instant::now() + Duration::from_secs(120);
    let wait = |pause| {
        assert!(Instant::now() < deadline, "the server's memory does not settle");
        thread::sleep(Duration::from_millis(pause));
    };
    while client.call(&["DEBUG", "HTSTATS", &database.to_string()]).text().contains("rehashing target") {
        wait(100);
    }
    let (mut last, mut still) = (0.0, 0);
    while still < 50 {
        wait(20);
        let used = client.info_int("used_memory") as f64;
        still = if (used - last).abs() < 4_096.0 { still + 1 } else { 0 };
        last = used;
    }
    client.ok("CONFIG SET hz 10");
    last
}

/// Microseconds per call of each contender, by turns; medians.
fn calls(
    stage: &Stage,
    contenders: &[&'static Contender],
    there: &[bool],
    size: usize,
    rounds: usize,
) -> Vec<Option<f64>> {
    let pid = stage.server.client().info("process_id");
    let mut seen = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let database = if round % 2 == 0 { turn } else { contenders.len() - 1 - turn };
            if !there[database] {
                continue;
            }
            let contender = contenders[database];
            let keys = (0..SAMPLE).map(|call| (call * 7_919 + round * 104_729) * 131 % size);
            let calls = Calls::encode(contender.call, contender, keys, &stage.sha);
            let mut connection = Connection::new(stage.server.port(), database);
            let before = processor_micros(&pid);
            connection.run(&calls, PIPELINE, contender);
            seen[database].push((processor_micros(&pid) - before) / SAMPLE as f64);
        }
    }
    seen.into_iter().map(|seen| (!seen.is_empty()).then(|| median(seen))).collect()
}
