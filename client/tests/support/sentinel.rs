//! Real Sentinels of a test's own, that watch a primary.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{Client, Reply, Server, die_with_parent, eventually, server_binary};

/// How the Sentinels call the primary.
pub(crate) const NAME: &str = "limiter";
const COUNT: usize = 3;

/// Three Sentinels; gone when dropped.
pub(crate) struct Sentinels(Vec<Sentinel>);

struct Sentinel {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Sentinels {
    /// Sentinels that watch `primary`, and know each other and its replica.
    pub(crate) fn watch(primary: &Server) -> Sentinels {
        let sentinels = Sentinels((0..COUNT).map(|at| Sentinel::start(primary, at)).collect());
        for sentinel in &sentinels.0 {
            let mut client = sentinel.client();
            eventually("the Sentinels have found each other and a replica", || {
                let primary = client.ask(&format!("SENTINEL MASTER {NAME}"));
                let others = primary.field("num-other-sentinels").text() == "2";
                (others && primary.field("num-slaves").text() == "1").then_some(())
            });
        }
        sentinels
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port)).collect()
    }
}

impl Sentinel {
    fn start(primary: &Server, at: usize) -> Sentinel {
        let port = TcpListener::bind(("127.0.0.1", 0)).expect("a free port").local_addr().expect("bound").port();
        let dir = primary.dir().join(format!("sentinel-{at}"));
        fs::create_dir_all(&dir).expect("a directory");
        let config = dir.join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", dir.display()),
            format!("logfile {}", dir.join("log").display()),
            format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port()),
            format!("sentinel down-after-milliseconds {NAME} 500"),
            format!("sentinel failover-timeout {NAME} 2000"),
        ];
        fs::write(&config, lines.join("\n")).expect("a configuration");
        let mut command = Command::new(server_binary());
        command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        die_with_parent(&mut command);
        let child = command.spawn().expect("a Sentinel starts");
        let sentinel = Sentinel { child, port, dir };
        eventually("the Sentinel answers", || {
            let mut client = Client::connect(port).ok()?;
            matches!(client.ask("PING"), Reply::Text(_)).then_some(())
        });
        sentinel
    }

    fn client(&self) -> Client {
        Client::connect(self.port).expect("a Sentinel that answers")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("--- log of the Sentinel on port {}\n{log}---", self.port);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
