//! The examples, run against a real server.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Command;

use support::Server;

/// Cargo builds the examples next to the tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing; `cargo test` builds it, `cargo test --test examples` alone does not",
        path.display()
    );
    path
}

#[test]
fn replicas_admit_many_times_the_quota_unless_they_share_the_bucket() {
    const SECONDS: f64 = 3.0;
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let output = Command::new(example("replicas")).args([&url, "3"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");

    // A burst of ten, and ten a second.
    let granted = 10.0 + 10.0 * SECONDS;
    let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split('|').map(str::trim).collect()).collect();
    let expected = [("1", 1.0), ("4", 4.0), ("10", 10.0), ("4, then 10", 5.5)];
    assert_eq!(rows.len(), expected.len());
    for (row, (replicas, times)) in rows.iter().zip(expected) {
        assert_eq!(row[1], replicas);
        let (alone, together): (f64, f64) = (row[3].parse().unwrap(), row[4].parse().unwrap());
        assert!(
            together <= granted + 10.0 && together >= granted * 0.7,
            "{replicas} replicas: {together} of {granted}"
        );
        assert!(alone >= granted * times * 0.7, "{replicas} replicas on their own: {alone}");
    }
}
