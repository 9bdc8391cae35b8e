//! A server process of a test's own: how it is found, started, waited for, killed and started again.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, WallClock, eventually};

const START_ATTEMPTS: usize = 5;

/// What a server is started with.
#[derive(Clone)]
pub(crate) struct Setup {
    /// The server's binary, behind whatever it is run under.
    program: Vec<OsString>,
    config: Vec<String>,
    module: Option<Vec<String>>,
    clock: Option<WallClock>,
    environment: Vec<(String, String)>,
}

impl Setup {
    /// The server is this binary.
    pub(crate) fn binary(mut self, path: &Path) -> Setup {
        self.program = vec![path.into()];
        self
    }

    /// The server runs under another program, such as valgrind, named with its options.
    pub(crate) fn under(mut self, wrapper: &[String]) -> Setup {
        self.program.splice(0..0, wrapper.iter().map(OsString::from));
        self
    }

    /// A configuration directive with its value.
    pub(crate) fn config(mut self, directive: &str, value: &str) -> Setup {
        self.config.extend([format!("--{directive}"), value.to_owned()]);
        self
    }

    /// Every write is on disk before it is answered.
    pub(crate) fn append_only(self) -> Setup {
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// No module is loaded at the start.
    pub(crate) fn without_module(mut self) -> Setup {
        self.module = None;
        self
    }

    /// The module is loaded with these arguments.
    pub(crate) fn module_args(mut self, args: &[&str]) -> Setup {
        self.module = Some(args.iter().map(|arg| (*arg).to_owned()).collect());
        self
    }

    /// The server's wall clock is this one.
    pub(crate) fn clock(mut self, clock: &WallClock) -> Setup {
        self.clock = Some(clock.clone());
        self
    }

    /// The server finds this in its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Setup {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server; panics with its log if it does not come up.
    pub(crate) fn start(self) -> Server {
        self.try_start().unwrap_or_else(|why| panic!("{why}"))
    }

    /// # Errors
    /// The server's log, if it ends instead of coming up.
    pub(crate) fn try_start(self) -> Result<Server, String> {
        let mut failure = String::new();
        for _ in 0..START_ATTEMPTS {
            let mut server = Server { setup: self.clone(), port: free_port(), dir: scratch_dir(), child: None };
            match server.launch() {
                Ok(()) => return Ok(server),
                // Somebody took the port between our looking and the server's binding.
                Err(log) if log.contains("Address already in use") => failure = log,
                Err(log) => return Err(log),
            }
        }
        Err(failure)
    }
}

/// A running server. Dropping it kills the process; when the test is failing, its log is printed first.
pub(crate) struct Server {
    setup: Setup,
    port: u16,
    dir: PathBuf,
    child: Option<Child>,
}

impl Server {
    /// A server with the module and the true clock.
    pub(crate) fn start() -> Server {
        Server::setup().start()
    }

    /// A server with the module, and a frozen clock to move.
    pub(crate) fn frozen() -> (Server, WallClock) {
        let clock = WallClock::frozen();
        (Server::setup().clock(&clock).start(), clock)
    }

    pub(crate) fn setup() -> Setup {
        Setup {
            program: vec![server_binary()],
            config: Vec::new(),
            module: Some(Vec::new()),
            clock: None,
            environment: Vec::new(),
        }
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port).unwrap_or_else(|why| panic!("cannot connect to port {}: {why}", self.port))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where the server keeps its files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The version the server says it has: Valkey's own number on Valkey, Redis's on Redis.
    pub(crate) fn version(&self) -> (u32, u32) {
        let mut client = self.client();
        let own = match client.info("valkey_version") {
            none if none.is_empty() => client.info("redis_version"),
            version => version,
        };
        let mut numbers = own.split('.').map(|number| number.parse().expect("a version of numbers"));
        (numbers.next().expect("major"), numbers.next().expect("minor"))
    }

    pub(crate) fn is_valkey(&self) -> bool {
        !self.client().info("valkey_version").is_empty()
    }

    /// What the server has written to its log and to its error output so far.
    pub(crate) fn log(&self) -> String {
        let read = |name: &str| fs::read(self.dir.join(name)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let log = read("server.log").unwrap_or_default();
        match read("stderr").unwrap_or_default() {
            none if none.is_empty() => log,
            stderr => format!("{log}--- standard error\n{stderr}"),
        }
    }

    /// `kill -9`: the server has no chance to tidy up.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Has the server end by itself, writing no snapshot.
    pub(crate) fn shutdown(&mut self) {
        self.client().send(&["SHUTDOWN", "NOSAVE"]);
        let mut child = self.child.take().expect("a running server");
        eventually("the server has shut down", || child.try_wait().expect("a child"));
    }

    /// Starts the killed or shut down server again, on the same port and the same files.
    pub(crate) fn restart(&mut self) {
        self.restart_with(self.setup.clone());
    }

    /// Starts it again with another setup.
    pub(crate) fn restart_with(&mut self, setup: Setup) {
        assert!(self.child.is_none(), "end the server before starting it again");
        self.setup = setup;
        let mut outcome = self.launch();
        for _ in 1..START_ATTEMPTS {
            match outcome {
                Err(log) if log.contains("Address already in use") => outcome = self.launch(),
                _ => break,
            }
        }
        outcome.unwrap_or_else(|log| panic!("{log}"));
    }

    fn launch(&mut self) -> Result<(), String> {
        let _ = fs::remove_file(self.dir.join("server.log"));
        let mut child = self.command().spawn().expect("the server's binary starts");
        let pid = child.id();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                return Err(format!("the server ended with {status}; its log:\n{}", self.log()));
            }
            if answers_as(self.port, pid) {
                self.child = Some(child);
                return Ok(());
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the server did not come up in {PATIENCE:?}; its log:\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self) -> Command {
        let (program, wrapped) = self.setup.program.split_first().expect("a program");
        let mut command = Command::new(program);
        command.args(wrapped).args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--dir"]).arg(&self.dir);
        command.arg("--logfile").arg(self.dir.join("server.log"));
        command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        // A clock that jumps must not look like a link that fell silent.
        command.args(["--repl-timeout", "2000000000"]);
        command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        command.args(&self.setup.config);
        if let Some(args) = &self.setup.module {
            // Last, because everything behind it is the module's.
            command.arg("--loadmodule").arg(module_path()).args(args);
        }
        command.envs(self.setup.environment.iter().cloned());
        if let Some(clock) = &self.setup.clock {
            command.envs(clock.environment());
        }
        let stderr = fs::File::create(self.dir.join("stderr")).expect("a file for the error output");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        die_with_parent(&mut command);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the server on port {}, files kept in {}", self.port, self.dir.display());
            eprintln!("{}---", self.log());
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// The module under test: `$TB_MODULE`, else the one built along with this test binary. (Not the one a directory up:
/// that is left from the last `cargo build`.)
pub(crate) fn module_path() -> PathBuf {
    if let Some(path) = std::env::var_os("TB_MODULE") {
        return fs::canonicalize(&path).unwrap_or_else(|why| panic!("TB_MODULE={}: {why}", path.display()));
    }
    let beside = std::env::current_exe().expect("a test binary has a path").with_file_name("libredis_token_bucket.so");
    assert!(beside.is_file(), "{} is missing; build it with `cargo build --tests`", beside.display());
    beside
}

/// The server under test: `$TB_SERVER`, else what is on PATH.
pub(crate) fn server_binary() -> OsString {
    if let Some(path) = std::env::var_os("TB_SERVER") {
        return path;
    }
    let on_path = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
    };
    let found = ["redis-server", "valkey-server"].into_iter().find(|name| on_path(name));
    let hint = "no redis-server or valkey-server on PATH: install one (apt install redis-server) or set TB_SERVER";
    found.unwrap_or_else(|| panic!("{hint}")).into()
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("bound").port()
}

fn scratch_dir() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("tb-server-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap_or_else(|why| panic!("cannot make {}: {why}", dir.display()));
    dir
}

/// Whether the process `pid` is done loading and answers on `port`: another test's server may have won the port, and a
/// server that refuses its module has bound the port before it ends.
fn answers_as(port: u16, pid: u32) -> bool {
    let own = format!("process_id:{pid}\r\n");
    hello(port).is_ok_and(|answer| answer.contains(&own))
}

fn hello(port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"INFO server\r\nPING\r\n")?;
    let (mut answer, mut chunk) = (String::new(), [0; 4096]);
    while !answer.ends_with("+PONG\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => answer.push_str(&String::from_utf8_lossy(&chunk[..len])),
        }
        if answer.contains("-LOADING") {
            return Err(io::ErrorKind::WouldBlock.into());
        }
    }
    Ok(answer)
}

/// A test that is killed leaves no server behind. The kernel counts the thread that spawned as the parent, so a server
/// must not outlive the test that started it.
#[allow(unsafe_code, reason = "the only way to have a child die with its parent")]
pub(crate) fn die_with_parent(command: &mut Command) {
    let prepare = || -> io::Result<()> {
        // SAFETY: prctl with these arguments touches no memory and is safe between fork and exec.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `prepare` makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
}
