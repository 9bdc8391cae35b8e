//! Programs that a test starts: the examples, which cargo builds next to the tests, and others.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{Server, die_with_parent};

pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing; `cargo test` builds it, `cargo test --test examples` alone does not",
        path.display()
    );
    path
}

/// A program that ends with the test.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(command: &mut Command) -> Program {
        die_with_parent(command);
        Program(command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// The first line that it prints. What it prints later has somewhere to go still.
    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An example that serves, and its address.
pub(crate) fn serving(name: &str, server: &Server) -> (Program, String) {
    let mut command = Command::new(example(name));
    command.arg("127.0.0.1:0").env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port()));
    let mut program = Program::start(command.stdout(Stdio::piped()));
    let line = program.first_line();
    let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
    let address = address.unwrap_or_else(|| panic!("{name} says {line:?}")).to_owned();
    (program, address)
}
