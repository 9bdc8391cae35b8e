//! Real servers for the tests: a process per test on a free port of the loopback, with our module loaded, its wall
//! clock in the test's hands where that is asked for, gone when the test ends. No test logic lives here.
#![allow(dead_code, unused_imports, reason = "every test file uses its own part of this module")]

mod client;
mod replica;
mod server;
mod stopped;
mod wallclock;
mod witness;

use std::time::{Duration, Instant};

pub(crate) use client::{Client, Reply};
pub(crate) use replica::ReplicationStream;
pub(crate) use server::{Server, Setup, die_with_parent, free_port, module_path, server_binary};
pub(crate) use stopped::Stopped;
pub(crate) use wallclock::{START_US, WallClock};
pub(crate) use witness::Witness;

/// `retry_ms` of what never passes.
pub(crate) const NEVER: i64 = -1;

/// A server whose clock stands still, and a connection to it.
pub(crate) fn on_a_frozen_clock() -> (Server, WallClock, Client) {
    let (server, clock) = Server::frozen();
    let client = server.client();
    (server, clock, client)
}

/// How long anything that a server does by itself may take before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer; panics with `what` when patience ends.
pub(crate) fn eventually<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = answer() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
