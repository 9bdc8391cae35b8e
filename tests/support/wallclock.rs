//! The wall clock of a server under test, moved by the test: a shared file that a preloaded shim (wallclock.c) reads.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Where frozen clocks start unless the test cares: 2026-01-01 00:00:00 UTC, in microseconds since the epoch.
pub(crate) const START_US: i64 = 1_767_225_600_000_000;

const FROZEN_AT: u64 = 0;
const SHIFTED_BY: u64 = 8;

/// A clock that one or several servers read. Clones are the same clock.
#[derive(Clone)]
pub(crate) struct WallClock(Arc<Inner>);

struct Inner {
    file: File,
    path: PathBuf,
}

impl WallClock {
    /// A clock that stands at `us` microseconds since the epoch until it is moved.
    pub(crate) fn frozen_at(us: i64) -> WallClock {
        let clock = WallClock::running();
        clock.set(us);
        clock
    }

    /// A clock that stands at [`START_US`].
    pub(crate) fn frozen() -> WallClock {
        WallClock::frozen_at(START_US)
    }

    /// The true clock, until it is shifted or frozen.
    pub(crate) fn running() -> WallClock {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tb-clock-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap_or_else(|why| panic!("cannot make {}: {why}", path.display()));
        file.set_len(16).expect("a file of two numbers");
        WallClock(Arc::new(Inner { file, path }))
    }

    /// Freezes the clock at `us`; the next command that a server reads sees it.
    pub(crate) fn set(&self, us: i64) {
        self.write(FROZEN_AT, us);
    }

    /// Moves a frozen clock, forward or (`us` < 0) back.
    pub(crate) fn advance(&self, us: i64) {
        self.set(self.now() + us);
    }

    /// As [`WallClock::advance`], in milliseconds.
    pub(crate) fn advance_ms(&self, ms: i64) {
        self.advance(ms * 1000);
    }

    /// As [`WallClock::advance`], in seconds.
    pub(crate) fn advance_s(&self, s: i64) {
        self.advance(s * 1_000_000);
    }

    /// Lets the clock run, `us` off the true time.
    pub(crate) fn shift(&self, us: i64) {
        self.write(SHIFTED_BY, us);
        self.write(FROZEN_AT, 0);
    }

    /// Where a frozen clock stands.
    pub(crate) fn now(&self) -> i64 {
        let mut bytes = [0; 8];
        self.0.file.read_exact_at(&mut bytes, FROZEN_AT).expect("the clock's file");
        let us = i64::from_ne_bytes(bytes);
        assert_ne!(us, 0, "a running clock does not say where it stands");
        us
    }

    /// What a server's environment must hold to obey this clock.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", shim().to_owned()), ("TB_WALLCLOCK", self.0.path.clone())]
    }

    /// Eight aligned bytes of a file that the server maps: it sees the old value or the new one.
    fn write(&self, at: u64, value: i64) {
        self.0.file.write_all_at(&value.to_ne_bytes(), at).expect("the clock's file");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The compiled shim. Its name holds a hash of the source, and it appears by a rename: test binaries that run side by
/// side never load one that is half written or outdated.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = include_str!("wallclock.c");
        let mut hash = DefaultHasher::new();
        source.hash(&mut hash);
        let own = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        // The loader splits LD_PRELOAD at spaces and colons.
        let dir = if own.to_string_lossy().contains([' ', ':']) { std::env::temp_dir() } else { own };
        let shim = dir.join(format!("wallclock-{:016x}.so", hash.finish()));
        if !shim.is_file() {
            fs::create_dir_all(&dir).expect("cargo's directory for tests' files");
            let fresh = dir.join(format!("wallclock-{}.so", process::id()));
            compile(source, &fresh);
            fs::rename(&fresh, &shim).expect("the shim gets its name");
        }
        shim
    })
}

fn compile(source: &str, to: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(to);
    cc.args(["-x", "none", "-ldl"]).stdin(Stdio::piped());
    let mut child = cc.spawn().unwrap_or_else(|why| panic!("no C compiler `cc` for tests that move the clock: {why}"));
    child.stdin.take().expect("piped").write_all(source.as_bytes()).expect("cc reads the source");
    let status = child.wait().expect("cc ends");
    assert!(status.success(), "cc could not compile tests/support/wallclock.c: {status}");
}
