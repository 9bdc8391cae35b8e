//! What the limiter survives, shown on real servers: failovers, crashes, full memory, hostile callers, load. One
//! binary, one file per matter. `docs/guarantees.md` names these tests; `TB_TRUST=long` makes the short ones long.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod callers;
mod cluster;
mod crash;
mod fuzz;
mod lag;
mod load;
mod memory;
mod model;
mod network;
mod older;
mod pages;
mod partition;
mod process;
mod random;
mod security;
mod sentinel;
mod tally;
mod topology;

use std::time::Duration;

/// Whether the long form was asked for.
fn is_long() -> bool {
    std::env::var("TB_TRUST").is_ok_and(|form| form == "long")
}

/// A number, as it is in a run of seconds and in a run of minutes.
fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// How long to keep something up: `$SECONDS` as make hands it on, else `usual`.
fn seconds(usual: u64) -> Duration {
    let wanted = std::env::var("TB_SECONDS").ok().filter(|text| !text.is_empty());
    Duration::from_secs(wanted.map_or(usual, |text| text.parse().expect("TB_SECONDS is a number of seconds")))
}
