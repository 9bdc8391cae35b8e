//! The table of the README: every peer in one run, on the same work, by turns, each reply checked.
//!
//! `make bench` is the quick form, on one server. `make bench FULL=1 SERVERS="redis-7.0 redis-8.10-gcra valkey-8.1"` goes up to
//! five million buckets of every kind on each (which takes 6 GB); `COUNTS=1` measures only what hardly depends on the machine, instructions and bytes;
//! `CELL=/path/to/libredis_cell.so` adds redis-cell. It prints Markdown, and draws its plots into the folder PLOTS.
//!
//! Where it misleads: instructions say nothing of cache misses, which `growth` shows, nor of the kernel's part, which is most
//! of a call without a pipeline. Microseconds are those of one machine at one moment; only their ratios within a table mean
//! something, and below a factor of two not even these, for the clients and the server share its cores.
#![allow(clippy::restriction, reason = "a bench fails by panicking")]

mod callgrind;
mod contenders;
mod growth;
mod load;
mod log;
mod plot;
mod stage;
#[path = "../../tests/support/mod.rs"]
mod support;
mod table;
mod targets;
mod wire;

use std::path::{Path, PathBuf};
use std::{env, fs};

use callgrind::{Audience, Instructions};
use contenders::{
    CELL_GRANTED, CONTENDERS, Contender, GCRA_GRANTED, GRANTED, INCREX_GRANTED, REFUSED, SCRIPT_GRANTED, SET,
};
use growth::Point;
use load::Load;
use log::Logged;
use stage::{Case, Keys, Stage};
use support::{Server, Setup, server_binary};

/// How much is measured.
struct Extent {
    /// Of whatever takes time; in no rounds time is not measured.
    rounds: usize,
    /// Numbers of buckets.
    sizes: &'static [usize],
}

const QUICK: Extent = Extent { rounds: 5, sizes: &[1_000, 10_000, 100_000, 1_000_000] };
const FULL: Extent = Extent { rounds: 5, sizes: &[1_000, 10_000, 100_000, 1_000_000, 5_000_000] };
const COUNTS: Extent = Extent { rounds: 0, sizes: &[100_000] };

/// Starts of the server that instructions are counted in.
const STARTS: usize = 4;

/// Keys under callgrind, where misses do not count and time does, and under load.
const MANY_COUNTED: usize = 1_000;
const MANY: usize = 100_000;

/// Whose memory and time are watched as buckets grow.
const GROWING: &[&str] =
    &["GET", SET, "INCR", GRANTED, REFUSED, SCRIPT_GRANTED, CELL_GRANTED, GCRA_GRANTED, INCREX_GRANTED];

/// What was measured of one contender.
struct Row {
    contender: &'static Contender,
    /// Instructions per call: on one key, on many, on fresh ones; with an append-only file; with a replica.
    hot: Option<Instructions>,
    many: Option<Instructions>,
    fresh: Option<Instructions>,
    to_file: Option<Instructions>,
    to_replica: Option<Instructions>,
    load: Option<Load>,
    load_many: Option<Load>,
    /// With an append-only file and a replica.
    load_durable: Option<Load>,
    logged: Option<Logged>,
    growth: Vec<Point>,
}

/// What was measured on one server.
struct Results {
    server: String,
    rows: Vec<Row>,
}

impl Results {
    fn row(&self, name: &str) -> &Row {
        self.rows.iter().find(|row| row.contender.name == name).expect("a contender of that name")
    }
}

fn main() {
    let asked = |name| env::var(name).is_ok_and(|value| !value.is_empty());
    let extent = match (asked("FULL"), asked("COUNTS")) {
        (_, true) => COUNTS,
        (true, false) => FULL,
        (false, false) => QUICK,
    };
    table::preamble();
    let mut all = Vec::new();
    for binary in servers() {
        let results = measure(&setup(&binary), &extent);
        table::print(&results);
        targets::print(&results);
        all.push(results);
    }
    if let Some(folder) = env::var_os("PLOTS").filter(|folder| !folder.is_empty()) {
        plot::draw(&all[0], Path::new(&folder));
    }
}

/// The servers named in SERVERS, by path or as `scripts/get-servers` calls them; else the one that the tests would take.
fn servers() -> Vec<PathBuf> {
    let named = env::var("SERVERS").unwrap_or_default();
    let path = |name: &str| {
        if name.contains('/') { name.into() } else { Path::new("target/servers").join(name).join("redis-server") }
    };
    let named: Vec<PathBuf> = named.split_whitespace().map(path).collect();
    if named.is_empty() { vec![server_binary().into()] } else { named }
}

/// A server with our module, the one that does nothing, and redis-cell if there is one.
fn setup(binary: &Path) -> Setup {
    let beside = env::current_exe().expect("a bench has a path");
    let noop = beside.parent().and_then(Path::parent).expect("target/release").join("examples/libnoop.so");
    assert!(noop.is_file(), "{} is missing: cargo build --release --example noop", noop.display());
    let setup = Server::setup().binary(binary).config("loadmodule", &noop.to_string_lossy());
    match env::var("CELL") {
        // The server is started in a folder of its own.
        Ok(cell) if !cell.is_empty() => {
            let cell = fs::canonicalize(&cell).unwrap_or_else(|why| panic!("CELL={cell}: {why}"));
            setup.config("loadmodule", &cell.to_string_lossy())
        }
        _ => setup,
    }
}

fn measure(setup: &Setup, extent: &Extent) -> Results {
    let server = table::name_of(&setup.clone().start());
    eprintln!("{server}: instructions");
    let on = |keys: Keys| move |contender| Case { contender, keys };
    let hot: Vec<Case> = CONTENDERS.iter().map(on(Keys::Hot)).collect();
    let many: Vec<Case> = CONTENDERS.iter().map(on(Keys::Many(MANY))).collect();
    let counted: Vec<Case> = CONTENDERS.iter().map(on(Keys::Many(MANY_COUNTED))).collect();
    let fresh: Vec<Case> = CONTENDERS.iter().filter(|contender| contender.fresh).map(on(Keys::Fresh)).collect();
    let all = [hot.as_slice(), &counted, &fresh].concat();
    let counts = callgrind::measure(setup, Audience::Nobody, &all, STARTS);
    eprintln!("{server}: instructions with an append-only file and with a replica");
    let to_file = callgrind::measure(setup, Audience::File, &hot, STARTS);
    let to_replica = callgrind::measure(setup, Audience::Replica, &hot, STARTS);

    eprintln!("{server}: under load");
    let loads = load::measure(&Stage::new(setup.clone().start()), &[hot.as_slice(), &many].concat(), extent.rounds);
    let durable = under_durable_load(setup, &hot, extent.rounds);
    let logged = log::measure(setup.clone(), CONTENDERS);

    eprintln!("{server}: as buckets grow in number");
    let growing: Vec<&'static Contender> =
        GROWING.iter().filter_map(|name| CONTENDERS.iter().find(|contender| contender.name == *name)).collect();
    let mut points = growth::measure(setup.clone(), &growing, extent.sizes, extent.rounds);

    let all_cases = all.iter().zip(&counts);
    let count_of = |contender: &Contender, keys: Keys| {
        let mut found =
            all_cases.clone().filter(|(case, _)| case.contender.name == contender.name && case.keys == keys);
        found.find_map(|(_, count)| *count)
    };
    let row = |(at, contender): (usize, &'static Contender)| Row {
        contender,
        hot: count_of(contender, Keys::Hot),
        many: count_of(contender, Keys::Many(MANY_COUNTED)),
        fresh: count_of(contender, Keys::Fresh),
        to_file: to_file[at],
        to_replica: to_replica[at],
        load: loads[at],
        load_many: loads[CONTENDERS.len() + at],
        load_durable: durable[at],
        logged: logged[at],
        growth: GROWING
            .iter()
            .position(|name| *name == contender.name)
            .map_or_else(Vec::new, |at| std::mem::take(&mut points[at])),
    };
    let rows = CONTENDERS.iter().enumerate().map(row).collect();
    Results { server, rows }
}

fn under_durable_load(setup: &Setup, cases: &[Case], rounds: usize) -> Vec<Option<Load>> {
    let primary = setup.clone().config("appendonly", "yes").config("appendfsync", "everysec").start();
    let replica = setup.clone().start();
    replica.follow(&primary);
    load::measure(&Stage::new(primary), cases, rounds)
}
