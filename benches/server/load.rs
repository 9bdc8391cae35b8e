//! A server under load: the processor time that a call takes, what the server itself counts for it, and what a client sees.
//!
//! All contenders take turns in short rounds, in another order each time, because what else the machine does weighs more
//! than the differences; every figure is the median over the rounds.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::contenders::Contender;
use super::stage::{Case, Keys, Stage};
use super::wire::{Calls, Connection};

const ROUND: Duration = Duration::from_millis(150);
/// Connections without a pipeline, as services have them.
const CLIENTS: usize = 8;
/// Connections with one, and how many calls each has under way.
const PIPES: usize = 2;
const PIPELINE: usize = 32;

/// What was measured of a case; medians.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    /// Microseconds of the server's processor time per call, in a pipeline.
    pub(crate) cpu: f64,
    /// The least and the most that it was in a round.
    pub(crate) cpu_range: (f64, f64),
    /// Microseconds per call as `INFO commandstats` has them: around the command alone.
    pub(crate) own: f64,
    /// Calls per second in a pipeline, and without.
    pub(crate) piped: f64,
    pub(crate) single: f64,
    /// Latencies without a pipeline, microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Measures cases by turns; nothing in no rounds.
pub(crate) fn measure(stage: &Stage, cases: &[Case], rounds: usize) -> Vec<Option<Load>> {
    if rounds == 0 {
        return vec![None; cases.len()];
    }
    let there: Vec<bool> = cases.iter().map(|case| stage.has(case.contender)).collect();
    let calls: Vec<Calls> = cases.iter().map(|case| encode(stage, case)).collect();
    let mut seen: Vec<Vec<Load>> = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for turn in 0..cases.len() {
            // Back and forth, from another place each round: nobody always follows the same neighbour.
            let turn = if round % 2 == 0 { turn } else { cases.len() - 1 - turn };
            let at = (turn + round * 7) % cases.len();
            if there[at] {
                seen[at].push(one_round(stage, &cases[at], &calls[at]));
            }
        }
    }
    stage.assert_nothing_expired();
    seen.iter().map(|loads| (!loads.is_empty()).then(|| medians(loads))).collect()
}

fn medians(loads: &[Load]) -> Load {
    let of = |part: fn(&Load) -> f64| median(loads.iter().map(part).collect());
    let cpus = || loads.iter().map(|load| load.cpu);
    Load {
        cpu: of(|load| load.cpu),
        cpu_range: (cpus().fold(f64::INFINITY, f64::min), cpus().fold(0.0, f64::max)),
        own: of(|load| load.own),
        piped: of(|load| load.piped),
        single: of(|load| load.single),
        p50: of(|load| load.p50),
        p99: of(|load| load.p99),
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn encode(stage: &Stage, case: &Case) -> Calls {
    let sample = match case.keys {
        Keys::Hot => PIPELINE,
        Keys::Many(count) => count,
        Keys::Fresh => unreachable!("fresh keys run out"),
    };
    Calls::encode(case.contender.call, case.contender, case.keys.numbers(sample).into_iter(), &stage.sha)
}

fn one_round(stage: &Stage, case: &Case, calls: &Calls) -> Load {
    stage.prepare(case);
    let piped = drive(stage, case.contender, calls, PIPES, PIPELINE);
    let mut load = Load { cpu: piped.cpu, own: piped.own, piped: piped.rate, ..Load::default() };
    stage.prepare(case);
    let single = drive(stage, case.contender, calls, CLIENTS, 1);
    let mut latencies = single.latencies;
    latencies.sort_by(f64::total_cmp);
    load.single = single.rate;
    load.p50 = latencies[latencies.len() / 2];
    load.p99 = latencies[latencies.len() * 99 / 100];
    load
}

struct Driven {
    cpu: f64,
    own: f64,
    rate: f64,
    latencies: Vec<f64>,
}

/// Calls from so many connections for the length of a round.
fn drive(stage: &Stage, contender: &Contender, calls: &Calls, connections: usize, pipeline: usize) -> Driven {
    let mut pool: Vec<Connection> = (0..connections).map(|_| stage.connection()).collect();
    let mut client = stage.server.client();
    let pid = client.info("process_id");
    client.ok("CONFIG RESETSTAT");
    let (before, start) = (processor_micros(&pid), Instant::now());
    let latencies: Vec<Vec<f64>> = thread::scope(|scope| {
        let tasks: Vec<_> = pool
            .iter_mut()
            .enumerate()
            .map(|(at, connection)| {
                // Each begins elsewhere among the keys.
                let first = calls.len() / connections * at / pipeline * pipeline;
                scope.spawn(move || repeat(connection, contender, calls, first, pipeline))
            })
            .collect();
        tasks.into_iter().map(|task| task.join().expect("every reply is right")).collect()
    });
    let (elapsed, spent) = (start.elapsed(), processor_micros(&pid) - before);
    let latencies = latencies.concat();
    let made = (latencies.len() * pipeline) as f64;
    Driven {
        cpu: spent / made,
        own: own_micros(&stage.server.client().info(&format!("cmdstat_{}", contender.command()))) / made,
        rate: made / elapsed.as_secs_f64(),
        latencies,
    }
}

/// Calls for the length of a round; microseconds of each batch.
fn repeat(
    connection: &mut Connection,
    contender: &Contender,
    calls: &Calls,
    first: usize,
    pipeline: usize,
) -> Vec<f64> {
    let (mut latencies, mut from) = (Vec::new(), first);
    let end = Instant::now() + ROUND;
    let mut now = Instant::now();
    while now < end {
        if from + pipeline > calls.len() {
            from = 0;
        }
        connection.batch(calls, from, pipeline, contender);
        from += pipeline;
        let then = Instant::now();
        latencies.push((then - now).as_secs_f64() * 1e6);
        now = then;
    }
    latencies
}

/// What all threads of a process have run so far.
pub(crate) fn processor_micros(pid: &str) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("Linux tells of the server's threads");
    let nanos = threads.map(|thread| {
        let path = thread.expect("a thread").path().join("schedstat");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0)
    });
    nanos.sum::<f64>() / 1e3
}

/// The total in `calls=...,usec=...,usec_per_call=...`.
fn own_micros(stats: &str) -> f64 {
    stats
        .split(',')
        .find_map(|part| part.strip_prefix("usec="))
        .map_or(f64::NAN, |usec| usec.parse().expect("a number"))
}
