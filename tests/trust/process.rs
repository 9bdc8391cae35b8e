//! Processes that `support` has no word for: sentinels, a server under valgrind or with a preload of its own. Each runs
//! in a folder of its own and is gone when the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, PATIENCE, die_with_parent, eventually, module_path};

/// A running process that speaks the servers' protocol.
pub(crate) struct Process {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Process {
    /// Runs a command that has been told to listen on `port` and to work in `dir`, and waits until it answers.
    pub(crate) fn start(mut command: Command, port: u16, dir: &Path) -> Process {
        let out = |name: &str| fs::File::create(dir.join(name)).expect("a file for the output");
        command.stdin(Stdio::null()).stdout(out("stdout")).stderr(out("stderr"));
        die_with_parent(&mut command);
        let child = command.spawn().unwrap_or_else(|why| panic!("cannot run {:?}: {why}", command.get_program()));
        let own = format!("process_id:{}\r\n", child.id());
        let mut process = Process { child, port, dir: dir.to_owned() };
        // Longer than `eventually` has patience: under valgrind a server takes its time.
        let deadline = Instant::now() + 4 * PATIENCE;
        while !info(port).is_some_and(|info| info.contains(&own) && !info.contains("\nloading:1")) {
            if let Some(status) = process.child.try_wait().expect("a child") {
                panic!("it ended with {status}:\n{}", process.output());
            }
            assert!(Instant::now() < deadline, "it does not answer:\n{}", process.output());
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port).unwrap_or_else(|why| panic!("cannot connect to port {}: {why}", self.port))
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Has it end by itself, which may take a while under valgrind.
    pub(crate) fn shutdown(&mut self) {
        self.client().send(&["SHUTDOWN", "NOSAVE"]);
        eventually("the process has shut down", || self.child.try_wait().expect("a child"));
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        let read = |name: &str| fs::read(self.dir.join(name)).unwrap_or_default();
        format!("{}{}", String::from_utf8_lossy(&read("stdout")), String::from_utf8_lossy(&read("stderr")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- output of the process on port {}\n{}---", self.port, self.output());
        }
    }
}

/// A folder that is removed when the test has passed.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(what: &str) -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tb-{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap_or_else(|why| panic!("cannot make {}: {why}", path.display()));
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A connection whose calls give errors instead of ending the test: for servers that are about to go.
pub(crate) fn connect(port: u16, patience: Duration) -> Option<redis::Connection> {
    let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
    let connection = client.get_connection_with_timeout(patience).ok()?;
    connection.set_read_timeout(Some(patience)).ok()?;
    connection.set_write_timeout(Some(patience)).ok()?;
    Some(connection)
}

/// Unloads the module and loads it again; false where the module refuses to go, because the server could not bear it.
pub(crate) fn exchange_module(client: &mut Client) -> bool {
    let unloaded = client.ask("MODULE UNLOAD tokenbucket");
    if unloaded.is_error() {
        assert!(unloaded.error().starts_with("ERR Error unloading module: operation not possible"), "{unloaded:?}");
        return false;
    }
    client.ok(&format!("MODULE LOAD {}", module_path().display()));
    true
}

/// `INFO`, if it is to be had.
pub(crate) fn info(port: u16) -> Option<String> {
    redis::cmd("INFO").query(&mut connect(port, Duration::from_secs(5))?).ok()
}

/// Has a process stand still, or go on.
pub(crate) fn signal(pid: i64, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("the command kill").success(), "no process {pid} to signal");
}
