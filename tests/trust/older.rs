//! A server older than those that the module supports, which `TB_OLD_SERVER` names: it does not load the module, says
//! why, and is none the worse for it.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use crate::process::{Folder, Process};
use crate::support::{die_with_parent, eventually, free_port, module_path};

const REASON: &str = "not loaded: this server is too old; Redis 7.0 or newer, or Valkey, is needed";

fn command(server: &OsString, port: u16, folder: &Folder) -> Command {
    let mut command = Command::new(server);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(folder.path());
    command
}

#[test]
fn a_server_that_is_too_old_refuses_the_module_and_its_log_says_why() {
    let Some(server) = std::env::var_os("TB_OLD_SERVER") else {
        println!("skipped: TB_OLD_SERVER names no server older than Redis 7.0 (make test-servers brings one)");
        return;
    };
    let folder = Folder::new("older");
    let mut starting = command(&server, free_port(), &folder);
    starting.arg("--loadmodule").arg(module_path()).stdin(Stdio::null()).stdout(Stdio::piped());
    die_with_parent(&mut starting);
    let mut starting = starting.spawn().expect("the older server");
    eventually("the server has given up", || starting.try_wait().expect("a child"));
    let ended = starting.wait_with_output().expect("its log");
    let log = String::from_utf8_lossy(&ended.stdout);
    assert!(!ended.status.success() && log.contains(REASON), "{}:\n{log}", ended.status);

    let port = free_port();
    let running = Process::start(command(&server, port, &folder), port, folder.path());
    let mut client = running.client();
    client.ok("SET k x");
    assert!(client.ask(&format!("MODULE LOAD {}", module_path().display())).is_error());
    assert!(running.output().contains(REASON), "{}", running.output());
    assert!(client.ask("MODULE LIST").items().is_empty());
    assert!(client.ask("TB.TAKE k 10 1").error().starts_with("ERR unknown command"));
    assert_eq!(client.bytes("GET k"), b"x");
}
