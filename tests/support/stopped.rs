//! A server that stands still: it takes connections and calls, and answers when it goes on.

use std::process::Command;

use super::Server;

/// A process that stands still until this is dropped.
pub(crate) struct Stopped(String);

impl Stopped {
    pub(crate) fn new(server: &Server) -> Stopped {
        let pid = server.client().info("process_id");
        signal("-STOP", &pid);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}
