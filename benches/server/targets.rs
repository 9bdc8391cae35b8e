//! What the project has set itself, next to what was measured.

use super::contenders::{
    CELL_GRANTED, CELL_REFUSED, GCRA_GRANTED, GCRA_REFUSED, GRANTED, REFUSED, SCRIPT_GRANTED, SCRIPT_REFUSED, SET,
};
use super::table::markdown;
use super::{Results, Row};

struct Target {
    name: &'static str,
    measured: f64,
    bar: Bar,
}

#[derive(Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

pub(crate) fn print(results: &Results) {
    println!("\nTargets.\n");
    let rows = targets(results).into_iter().filter(|target| target.measured.is_finite()).map(|target| {
        let (bar, met) = match target.bar {
            Bar::AtMost(most) => (format!("<= {most}"), target.measured <= most),
            Bar::AtLeast(least) => (format!(">= {least}"), target.measured >= least),
        };
        let measured = if target.measured < 100.0 {
            format!("{:.2}", target.measured)
        } else {
            super::table::grouped(target.measured)
        };
        vec![target.name.to_owned(), measured, bar, if met { "met" } else { "missed" }.to_owned()]
    });
    markdown(&["target", "measured", "bar", ""], rows);
}

fn targets(results: &Results) -> Vec<Target> {
    use Bar::{AtLeast, AtMost};
    let row = |name: &str| results.row(name);
    let hot = |name: &str| row(name).hot.unwrap_or(f64::NAN);
    let of = |name: &str, base: &str, part: fn(&Row) -> Option<f64>| {
        part(row(name)).unwrap_or(f64::NAN) / part(row(base)).unwrap_or(f64::NAN)
    };
    let mut targets = Vec::new();
    let mut add = |name, measured, bar| targets.push(Target { name, measured, bar });
    add("granted, of SET", of(GRANTED, SET, |row| row.hot), AtMost(1.05));
    add("granted, of SET, with an append-only file", of(GRANTED, SET, |row| row.to_file), AtMost(1.05));
    add("granted, of SET, with a replica", of(GRANTED, SET, |row| row.to_replica), AtMost(1.05));
    add("refused, of SET", of(REFUSED, SET, |row| row.hot), AtMost(0.75));
    // GCRA is in the source of Redis 8.10 and in no release of it; `scripts/get-servers` builds one that has it.
    add("granted, of GCRA", of(GRANTED, GCRA_GRANTED, |row| row.hot), AtMost(1.0));
    add("refused, of GCRA", of(REFUSED, GCRA_REFUSED, |row| row.hot), AtMost(1.0));
    add("script, of granted", hot(SCRIPT_GRANTED) / hot(GRANTED), AtLeast(7.5));
    add("script, of refused", hot(SCRIPT_REFUSED) / hot(REFUSED), AtLeast(11.0));
    add("redis-cell, of granted", hot(CELL_GRANTED) / hot(GRANTED), AtLeast(2.2));
    add("redis-cell, of refused", hot(CELL_REFUSED) / hot(REFUSED), AtLeast(2.0));
    let file = |row: &Row| row.logged.map(|logged| logged.file);
    let stream = |row: &Row| row.logged.map(|logged| logged.stream);
    add("append-only file, bytes a grant, of SET", of(GRANTED, SET, file), AtMost(1.0));
    add("replication, bytes a grant, of SET", of(GRANTED, SET, stream), AtMost(1.0));
    add("append-only file, bytes a refusal", file(row(REFUSED)).unwrap_or(f64::NAN), AtMost(0.0));
    add("replication, bytes a refusal", stream(row(REFUSED)).unwrap_or(f64::NAN), AtMost(0.0));
    // The server's own tables and chance move the memory of either by a few tenths.
    let bytes = |row: &Row| row.growth.last().map(|point| point.bytes.round());
    add("bytes per bucket, of SET", of(GRANTED, SET, bytes), AtMost(1.0));
    let rise = |row: &Row| Some(row.growth.last()?.cpu - row.growth.first()?.cpu);
    add("microseconds that a grant rises, of GET", of(GRANTED, "GET", rise), AtMost(1.5));
    add("microseconds that a refusal rises, of GET", of(REFUSED, "GET", rise), AtMost(1.5));
    targets
}
