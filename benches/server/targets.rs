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
    let rows = targets(results).into_iter().filter(|target| !target.measured.is_nan()).map(|target| {
        let (bar, met) = match target.bar {
            Bar::AtMost(most) => (format!("<= {most}"), target.measured <= most),
            Bar::AtLeast(least) => (format!(">= {least}"), target.measured >= least),
        };
        vec![
            target.name.to_owned(),
            format!("{:.3}", target.measured),
            bar,
            if met { "met" } else { "missed" }.to_owned(),
        ]
    });
    markdown(&["target", "measured", "bar", ""], rows);
}

fn targets(results: &Results) -> Vec<Target> {
    use Bar::{AtLeast, AtMost};
    let row = |name: &str| results.row(name);
    let of = |name: &str, base: &str, part: fn(&Row) -> Option<f64>| {
        part(row(name)).unwrap_or(f64::NAN) / part(row(base)).unwrap_or(f64::NAN)
    };
    let mut targets = Vec::new();
    let mut add = |name, measured, bar| targets.push(Target { name, measured, bar });
    let hot = |row: &Row| row.hot.map(|hot| hot.least);
    add("granted, of SET", of(GRANTED, SET, hot), AtMost(1.05));
    let to_file = |row: &Row| row.to_file.map(|to_file| to_file.least);
    add("granted, of SET, with an append-only file", of(GRANTED, SET, to_file), AtMost(1.05));
    let to_replica = |row: &Row| row.to_replica.map(|to_replica| to_replica.least);
    add("granted, of SET, with a replica", of(GRANTED, SET, to_replica), AtMost(1.05));
    add("refused, of SET", of(REFUSED, SET, hot), AtMost(0.75));
    // GCRA is in the source of Redis 8.10 and in no release of it; `scripts/get-servers` builds one that has it.
    add("granted, of GCRA", of(GRANTED, GCRA_GRANTED, hot), AtMost(1.0));
    add("refused, of GCRA", of(REFUSED, GCRA_REFUSED, hot), AtMost(1.0));
    add("script, of granted", of(SCRIPT_GRANTED, GRANTED, hot), AtLeast(7.5));
    add("script, of refused", of(SCRIPT_REFUSED, REFUSED, hot), AtLeast(11.0));
    add("redis-cell, of granted", of(CELL_GRANTED, GRANTED, hot), AtLeast(2.2));
    add("redis-cell, of refused", of(CELL_REFUSED, REFUSED, hot), AtLeast(2.0));
    let file = |row: &Row| row.logged.map(|logged| logged.file);
    let stream = |row: &Row| row.logged.map(|logged| logged.stream);
    add("append-only file, bytes a grant, of SET", of(GRANTED, SET, file), AtMost(1.0));
    add("replication, bytes a grant, of SET", of(GRANTED, SET, stream), AtMost(1.0));
    add("append-only file, bytes a refusal", file(row(REFUSED)).unwrap_or(f64::NAN), AtMost(0.0));
    add("replication, bytes a refusal", stream(row(REFUSED)).unwrap_or(f64::NAN), AtMost(0.0));
    // Both are 24 bytes under 16: what differs is how the server's tables happen to be filled, a few tenths of a byte.
    let bytes = |row: &Row| row.growth.last().map(|point| point.bytes);
    add("bytes per bucket, of SET", of(GRANTED, SET, bytes), AtMost(1.005));
    // Where GET does not rise, there is nothing to compare with.
    let rise = |row: &Row| Some(row.growth.last()?.cpu? - row.growth.first()?.cpu?);
    let rise_of_get = |row: &Row| rise(row).filter(|rise| *rise > 0.0);
    let of_get = |name: &str| rise(row(name)).unwrap_or(f64::NAN) / rise_of_get(row("GET")).unwrap_or(f64::NAN);
    add("microseconds that a grant rises, of GET", of_get(GRANTED), AtMost(1.5));
    add("microseconds that a refusal rises, of GET", of_get(REFUSED), AtMost(1.5));
    targets
}
