//! A PostgreSQL server of a test's own: on a socket in a directory of its own, as a user that it agrees to run as, gone when
//! dropped.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis_token_bucket_limiter::sqlx::PgPool;
use redis_token_bucket_limiter::sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::support::PATIENCE;

/// It listens on a socket only, so the number is a part of the socket's name and nothing else.
const PORT: u16 = 5432;
/// Whom it runs as where the tests run as root, which it refuses.
const NOBODY: u32 = 65_534;

pub(crate) struct Postgres {
    dir: PathBuf,
    child: Option<Child>,
}

impl Postgres {
    pub(crate) async fn start() -> Postgres {
        let dir = scratch_dir();
        let init = as_nobody(
            Command::new(binary("initdb"))
                .current_dir(&dir)
                .args(["--auth=trust", "--no-sync", "-U", "limits", "-D"])
                .arg(dir.join("data")),
        )
        .output()
        .expect("initdb starts: PostgreSQL is installed");
        assert!(init.status.success(), "initdb: {}", String::from_utf8_lossy(&init.stderr));
        let mut postgres = Postgres { dir, child: None };
        postgres.restart().await;
        postgres
    }

    /// Starts it where it is not running.
    pub(crate) async fn restart(&mut self) {
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let mut command = Command::new(binary("postgres"));
        command.arg("-D").arg(self.dir.join("data")).arg("-k").arg(&self.dir).current_dir(&self.dir);
        command
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "shared_buffers=16MB",
                "-c",
                "log_statement=all",
                "-p",
            ])
            .arg(PORT.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(as_nobody(&mut command).spawn().expect("postgres starts"));
        let start = std::time::Instant::now();
        while let Err(why) = self.pool(Duration::from_secs(1)).await.acquire().await {
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "PostgreSQL does not come up: {why}\n{}", log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn pool(&self, patience: Duration) -> PgPool {
        let options = PgConnectOptions::new().socket(&self.dir).port(PORT).username("limits").database("postgres");
        PgPoolOptions::new().max_connections(4).acquire_timeout(patience).connect_lazy_with(options)
    }

    /// How many statements with this in them it has been asked to carry out.
    pub(crate) fn statements(&self, containing: &str) -> usize {
        let log = fs::read_to_string(self.dir.join("log")).unwrap();
        log.lines().filter(|line| line.contains(" execute ") && line.contains(containing)).count()
    }

    /// `kill -9`, and its children with it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Asked to end at once, it takes its children along; killed, it would leave them holding the shared memory.
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Debian keeps its binaries off PATH, a folder a version.
fn binary(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.is_file()).max();
    found.unwrap_or_else(|| name.into())
}

fn scratch_dir() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("tb-postgres-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    if is_root() {
        chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(Path::new("/proc/self")).is_ok_and(|own| own.uid() == 0)
}

/// Runs as nobody in particular, and dies with the test.
#[allow(unsafe_code, reason = "the only way to have a child die with its parent")]
fn as_nobody(command: &mut Command) -> &mut Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let prepare = || -> io::Result<()> {
        // SAFETY: prctl with these arguments touches no memory and is safe between fork and exec.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGQUIT) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `prepare` makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
    command
}
