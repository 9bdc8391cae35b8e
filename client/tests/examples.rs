//! The examples, as built, against real servers.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::Command;

use support::Server;

/// What an example prints.
fn run(example: &str, args: &[String]) -> String {
    let tests = std::env::current_exe().expect("a test binary has a path");
    let path =
        tests.parent().and_then(|deps| deps.parent()).expect("a target directory").join("examples").join(example);
    assert!(path.is_file(), "{} is missing; build it with `cargo build --examples`", path.display());
    let output = Command::new(path).args(args).output().expect("the example starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example} failed: {out}{err}");
    out.into_owned()
}

fn url(server: &Server) -> [String; 1] {
    [format!("redis://127.0.0.1:{}", server.port())]
}

#[test]
fn basic_takes_until_the_bucket_is_empty() {
    for (server, implementation) in [(Server::start(), "module"), (Server::setup().without_module().start(), "script")]
    {
        let out = run("basic", &url(&server));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..3], ["call 1: allowed, 2 left", "call 2: allowed, 1 left", "call 3: allowed, 0 left"]);
        let refused = ["call 4: refused, try again in 19.", "call 4: refused, try again in 20s"];
        assert!(refused.iter().any(|line| lines[3].starts_with(line)), "{out}");
        assert_eq!(lines[5], format!("answered by the {implementation}"));
    }
}

#[test]
fn pipeline_sends_what_there_is_room_for() {
    let out = run("pipeline", &url(&Server::start()));
    assert_eq!(out.matches(": sent").count(), 4, "{out}");
}

#[test]
fn wait_and_retry_lets_everybody_have_a_turn() {
    let out = run("wait_and_retry", &url(&Server::start()));
    assert_eq!(out, "5 of 5 uploads had their turn\nan upload that is never allowed: false\n");
}

#[test]
fn cluster_serves_a_hundred_tenants() {
    let cluster = cluster::Cluster::of_three();
    assert_eq!(run("cluster", &cluster.urls()), "100 of 100 tenants allowed, faults: []\n");
}
