//! The arithmetic against the contract: an exact oracle, properties of random calls, and the cases that other limiters
//! were reported with. One binary, so that the oracle is built once; what a property finds is kept beside its file.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod bounds;
mod cases;
mod codec;
mod deadline;
mod fast;
mod numbers;
mod oracle;
mod retry;
mod verbs;
mod world;

use proptest::test_runner::{Config, FileFailurePersistence};

/// How many cases a property tries: `PROPTEST_CASES`, or what convinces within a second or two.
fn config(cases: u32) -> Config {
    let default = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { cases };
    let kept = FileFailurePersistence::WithSource("regressions");
    Config { cases, failure_persistence: Some(Box::new(kept)), ..default }
}
