//! Instructions per call: the server runs under callgrind, which counts the same whatever else the machine is doing.
//!
//! Counted: everything from reading a client's bytes to the reply in its buffer (inside `readQueryFromClient`, a symbol that
//! every server exports): parsing, look-up, the command, feeding replicas and the append-only file. Not counted: start-up,
//! cron, other threads, the kernel, cache misses. A server's hash seed is new at each start and moves each look-up by some
//! tens of instructions, so each figure is the smallest of several starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::contenders::Contender;
use super::stage::{Case, Stage};
use super::support::{ReplicationStream, Setup};
use super::wire::Calls;

/// Calls per measurement, and how many are sent before the replies are read. A script costs as much as ten other calls, so
/// a tenth of them are as steady.
const CALLS: usize = 2_000;
const SCRIPT_CALLS: usize = 200;
const PIPELINE: usize = 50;

/// Who hears of writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    Nobody,
    File,
    Replica,
}

/// Instructions per call over several starts of the server.
#[derive(Clone, Copy)]
pub(crate) struct Instructions {
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Instructions per call, by case; nothing for what the server does not have.
pub(crate) fn measure(setup: &Setup, audience: Audience, cases: &[Case], starts: usize) -> Vec<Option<Instructions>> {
    let valgrind = Command::new("valgrind").arg("--version").output();
    assert!(valgrind.is_ok(), "there is no valgrind here (apt install valgrind)");
    let mut seen: Vec<Option<Instructions>> = vec![None; cases.len()];
    for _ in 0..starts {
        for (seen, cost) in seen.iter_mut().zip(one_start(setup, audience, cases)) {
            *seen = cost.map(|cost| match seen {
                Some(seen) => Instructions { least: seen.least.min(cost), most: seen.most.max(cost) },
                None => Instructions { least: cost, most: cost },
            });
        }
    }
    seen
}

fn one_start(setup: &Setup, audience: Audience, cases: &[Case]) -> Vec<Option<f64>> {
    let profiles = Profiles::new();
    let setup = match audience {
        Audience::File => setup.clone().config("appendonly", "yes"),
        Audience::Nobody | Audience::Replica => setup.clone(),
    };
    let mut stage = Stage::new(setup.under(&profiles.program()).start());
    let replica = (audience == Audience::Replica).then(|| ReplicationStream::of(&stage.server));
    let measured: Vec<bool> = cases.iter().map(|case| stage.has(case.contender)).collect();
    for (case, _) in cases.iter().zip(&measured).filter(|(_, there)| **there) {
        count(&mut stage, case);
    }
    let pid = stage.server.client().info("process_id");
    drop(replica);
    stage.server.shutdown();
    let mut totals = profiles.totals(&pid).into_iter();
    let cost = |(there, case): (&bool, &Case)| {
        // What was counted up to the first of the two ECHOs is preparation.
        there.then(|| totals.nth(1)).flatten().map(|total| total as f64 / calls_of(case.contender) as f64)
    };
    measured.iter().zip(cases).map(cost).collect()
}

fn calls_of(contender: &Contender) -> usize {
    if contender.command() == "evalsha" { SCRIPT_CALLS } else { CALLS }
}

fn count(stage: &mut Stage, case: &Case) {
    let mut connection = stage.connection();
    stage.prepare(case);
    // Caches, the first deadline and the like are not what a call costs.
    let calls = calls_of(case.contender);
    let all: Vec<usize> = case.keys.numbers(PIPELINE + calls);
    let encode =
        |numbers: &[usize]| Calls::encode(case.contender.call, case.contender, numbers.iter().copied(), &stage.sha);
    let (warm_up, measured) = (encode(&all[..PIPELINE]), encode(&all[PIPELINE..]));
    connection.run(&warm_up, PIPELINE, case.contender);
    // Entering ECHO makes callgrind write what was counted since the last one, and start anew.
    let mut client = stage.server.client();
    client.ask("ECHO before");
    connection.run(&measured, PIPELINE, case.contender);
    client.ask("ECHO after");
}

/// A folder of callgrind's files: the one named by PROFILES, or one that is gone when dropped.
struct Profiles {
    folder: PathBuf,
    keep: bool,
}

impl Profiles {
    fn new() -> Self {
        let named = env::var_os("PROFILES").filter(|folder| !folder.is_empty());
        let keep = named.is_some();
        let folder = named.map_or_else(
            || env::temp_dir().join(format!("tokenbucket-callgrind-{}", std::process::id())),
            |named| env::current_dir().expect("a folder to be in").join(named),
        );
        fs::create_dir_all(&folder).expect("a folder for the profiles");
        Self { folder, keep }
    }

    fn program(&self) -> [String; 6] {
        [
            "valgrind".to_owned(),
            "--tool=callgrind".to_owned(),
            "--toggle-collect=readQueryFromClient".to_owned(),
            "--dump-before=echoCommand".to_owned(),
            "--trace-children=yes".to_owned(),
            format!("--callgrind-out-file={}/profile.%p", self.folder.display()),
        ]
    }

    /// The total of each profile of a process, in order.
    fn totals(&self, pid: &str) -> Vec<u64> {
        let stem = format!("profile.{pid}");
        let mut profiles = Vec::new();
        for entry in fs::read_dir(&self.folder).expect("the folder of profiles") {
            let path = entry.expect("a file").path();
            // profile.PID.1, profile.PID.2, ...; what was counted after the last ECHO has no number.
            let number = path.extension().and_then(|number| number.to_str()?.parse::<u32>().ok());
            if let (Some(number), true) = (number, path.file_stem().is_some_and(|found| found == stem.as_str())) {
                profiles.push((number, total(&path)));
            }
        }
        profiles.sort_unstable();
        profiles.into_iter().map(|(_, total)| total).collect()
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn total(profile: &Path) -> u64 {
    let text = fs::read_to_string(profile).expect("a profile");
    let line = text.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")));
    line.expect("a profile has a total").trim().parse().expect("a total is a number")
}
