//! Crashes: kill -9 and power cuts under load, files cut short, snapshots and rewrites meanwhile, the module exchanged
//! under traffic. A kill loses what the process held; a power cut, played with a preload that notes every fsync, also
//! what the kernel held.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::callers::{CALLERS, Direct, Limit, Seen, limits, taken, under_load};
use crate::process::{Folder, Process, connect, exchange_module};
use crate::random::Random;
use crate::short_or_long;
use crate::support::{Client, Reply, Server, eventually, free_port, module_path, server_binary};
use crate::tally::Tally;

/// Holds what was granted against what is known after a crash. `since`: from when on grants may be forgotten.
fn check(port: u16, limits: &[Limit], seen: &Seen, since: Option<Instant>) -> i64 {
    let window = since.map(|moment| seen.tally.since(port, moment)).unwrap_or_default();
    let (mut forgotten, mut unanswered) = (0, 0);
    for (key, taken) in taken(&mut Direct::new(|| port), limits) {
        let (granted, limit) = (seen.tally.of(key), &limits[key]);
        let most = window.get(&key).copied().unwrap_or(0);
        assert!(granted - taken <= most, "{}: {granted} granted, {taken} remembered, {most} excused", limit.key);
        forgotten += (granted - taken).max(0);
        unanswered += (taken - granted).max(0);
    }
    assert!(unanswered <= seen.lost as i64, "{unanswered} tokens were taken by nobody");
    for (key, limit) in limits.iter().enumerate() {
        seen.tally.check_bound(key, limit.capacity, limit.rate, window.get(&key).copied().unwrap_or(0));
    }
    forgotten
}

fn lines_to(port: u16) -> Vec<Direct<impl FnMut() -> u16>> {
    (0..CALLERS).map(|_| Direct::new(move || port)).collect()
}

#[test]
fn no_grant_that_was_answered_is_lost_by_a_kill_at_any_moment_if_every_write_is_synced() {
    let mut server = Server::setup().append_only().start();
    let (port, limits) = (server.port(), limits(["a", "b"]));
    let kills = short_or_long(5, 100);
    let (seen, ()) = under_load(lines_to(port), &limits, || {
        let mut random = Random::new(1);
        for _ in 0..kills {
            thread::sleep(Duration::from_micros(random.below(250_000)));
            server.kill();
            server.restart();
        }
        thread::sleep(Duration::from_millis(100));
    });
    assert_eq!(check(port, &limits, &seen, None), 0);
    println!("{} grants over {kills} kills, {} calls without an answer; none forgotten", seen.tally.len(), seen.lost);
}

/// A server with a disk that is seen through, on files that stay over its restarts.
struct Disk {
    folder: Folder,
    port: u16,
    policy: &'static str,
    shim: PathBuf,
}

impl Disk {
    fn new(policy: &'static str) -> Disk {
        let folder = Folder::new("disk");
        let (source, shim) = (folder.path().join("disk.c"), folder.path().join("disk.so"));
        fs::write(&source, include_str!("disk.c")).expect("a source file");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&shim).arg(&source);
        assert!(cc.status().expect("a C compiler").success(), "cc could not compile disk.c");
        Disk { folder, port: free_port(), policy, shim }
    }

    fn notes(&self) -> PathBuf {
        self.folder.path().join("notes")
    }

    fn start(&self) -> Process {
        let mut command = Command::new(server_binary());
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--dir"]);
        command.arg(self.folder.path()).args(["--appendonly", "yes", "--appendfsync", self.policy]);
        command.args(["--auto-aof-rewrite-percentage", "0", "--loadmodule"]).arg(module_path());
        command.env("LD_PRELOAD", &self.shim).env("TB_DISK", self.notes());
        Process::start(command, self.port, self.folder.path())
    }

    /// By inode: how many bytes are on the disk, and when the last was written, in microseconds since the epoch.
    fn synced(&self) -> HashMap<u64, (u64, i64)> {
        let notes = fs::read(self.notes()).unwrap_or_default();
        let number = |note: &[u8], at: usize| i64::from_ne_bytes(note[at..at + 8].try_into().expect("eight bytes"));
        notes
            .chunks_exact(24)
            .map(|note| (number(note, 0) as u64, (number(note, 8) as u64, number(note, 16))))
            .collect()
    }

    fn has_synced_log(&self) -> bool {
        let synced = self.synced();
        let bytes = |log: PathBuf| synced.get(&fs::metadata(log).expect("a log").ino()).map_or(0, |(bytes, _)| *bytes);
        logs(self.folder.path()).into_iter().any(|log| bytes(log) > 0)
    }

    /// Ends the server and takes from its logs what was never synced; when the last byte that was synced was written.
    /// (A server answers a call after it has written it, unless a sync keeps it from writing; so whatever was answered
    /// before that byte was written is before it in the log.)
    fn power_cut(&self, server: &mut Process) -> Instant {
        server.kill();
        let (synced, mut last) = (self.synced(), 0);
        for log in logs(self.folder.path()) {
            let file = fs::File::options().write(true).open(&log).expect("a log");
            let (bytes, written_us) = synced.get(&file.metadata().expect("a file").ino()).copied().unwrap_or_default();
            file.set_len(bytes).expect("a shorter log");
            last = last.max(written_us);
        }
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64;
        Instant::now() - Duration::from_micros((now_us - last) as u64)
    }
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("appendonlydir")).expect("append-only files");
    let paths = files.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "aof")).collect()
}

#[test]
fn no_grant_that_was_answered_is_lost_by_a_power_cut_if_every_write_is_synced() {
    let (disk, limits) = (Disk::new("always"), limits(["a"]));
    let mut server = disk.start();
    let cuts = short_or_long(3, 50);
    let (seen, ()) = under_load(lines_to(disk.port), &limits, || {
        let mut random = Random::new(2);
        for _ in 0..cuts {
            thread::sleep(Duration::from_micros(random.below(250_000)));
            disk.power_cut(&mut server);
            server = disk.start();
        }
        thread::sleep(Duration::from_millis(100));
    });
    assert_eq!(check(disk.port, &limits, &seen, None), 0);
    println!("{} grants over {cuts} power cuts; none forgotten", seen.tally.len());
}

#[test]
fn a_power_cut_forgets_no_grant_from_before_the_last_sync_if_a_sync_comes_every_second() {
    let (disk, limits) = (Disk::new("everysec"), limits(["a"]));
    for round in 0..short_or_long(1, 20) {
        let mut server = disk.start();
        server.client().ok("FLUSHALL");
        let (seen, (since, cut)) = under_load(lines_to(disk.port), &limits, || {
            // Not before something is on the disk at all.
            eventually("the log is synced", || disk.has_synced_log().then_some(()));
            thread::sleep(Duration::from_millis(1200 + 130 * round));
            (disk.power_cut(&mut server), Instant::now())
        });
        drop(server);
        let _server = disk.start();
        let forgotten = check(disk.port, &limits, &seen, Some(since));
        let known: i64 = taken(&mut Direct::new(|| disk.port), &limits).values().sum();
        assert!(known > 0, "nothing was ever synced");
        println!(
            "{} grants, the last byte on the disk {:?} before the cut; {forgotten} forgotten",
            seen.tally.len(),
            cut - since
        );
    }
}

/// Some servers (Redis 7.4, Valkey 8 and 9) were seen to answer `WAITAOF` at once after a plain `SET`, syncs a second
/// apart.
fn waits_for_the_disk(client: &mut Client) -> bool {
    if !client.knows("WAITAOF") {
        return false;
    }
    let started = Instant::now();
    for _ in 0..100 {
        client.ok("SET waited-for x");
        client.ask("WAITAOF 1 0 5000");
        if started.elapsed() > Duration::from_secs(3) {
            return true;
        }
    }
    false
}

#[test]
fn a_grant_that_waited_for_the_disk_survives_a_power_cut() {
    let disk = Disk::new("everysec");
    let mut server = disk.start();
    if !waits_for_the_disk(&mut server.client()) {
        println!("skipped: this server has no WAITAOF, or answers it before the disk has anything");
        return;
    }
    let stop = AtomicBool::new(false);
    let caller = |number: usize| {
        let mut link = connect(disk.port, Duration::from_secs(10)).expect("a connection");
        let (mut kept, mut waited) = (0_i64, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            if redis::cmd("TB.TAKE").arg((format!("k{number}"), 1_000_000, 0)).query::<Vec<i64>>(&mut link).is_err() {
                break;
            }
            let asked = Instant::now();
            match redis::cmd("WAITAOF").arg((1, 0, 5000)).query::<(i64, i64)>(&mut link) {
                Ok((1.., _)) => (kept, waited) = (kept + 1, waited + asked.elapsed()),
                _ => break,
            }
        }
        (kept, waited)
    };
    let kept: Vec<(i64, Duration)> = thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> = (0..CALLERS).map(|number| scope.spawn(move || caller(number))).collect();
        thread::sleep(Duration::from_millis(2500));
        disk.power_cut(&mut server);
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    let server = disk.start();
    for (number, (kept, _)) in kept.iter().enumerate() {
        let taken = 1_000_000 - server.client().ask(&format!("TB.PEEK k{number} 1000000 0 0")).ints()[1];
        assert!(*kept > 0 && taken >= *kept, "k{number}: {kept} grants waited for, {taken} remembered");
    }
    let (grants, waited) = kept.iter().fold((0, Duration::ZERO), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{grants} grants waited {:?} each for a sync every second; none lost", waited / grants as u32);
}

#[test]
fn a_crash_with_snapshots_only_forgets_what_came_after_the_last_one_and_no_more() {
    let mut server = Server::start();
    let (port, limits) = (server.port(), limits(["a", "b"]));
    let (seen, since) = under_load(lines_to(port), &limits, || {
        thread::sleep(Duration::from_millis(150));
        let mut client = server.client();
        let since = Instant::now();
        assert!(!client.ask("BGSAVE").is_error());
        eventually("the snapshot is written", || (client.info("rdb_bgsave_in_progress") == "0").then_some(()));
        assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
        thread::sleep(Duration::from_millis(150));
        server.kill();
        since
    });
    server.restart();
    let forgotten = check(port, &limits, &seen, Some(since));
    assert!(forgotten > 0, "nothing was granted after the snapshot, so nothing is shown");
    println!("{} grants, {forgotten} forgotten, all from after the snapshot began", seen.tally.len());
}

#[test]
fn a_log_cut_short_anywhere_holds_every_grant_before_the_cut_and_no_part_of_one() {
    let mut server = Server::setup().append_only().start();
    let mut client = server.client();
    let log = logs(server.dir()).pop().expect("a log");
    let len = || fs::metadata(&log).expect("the log").len();
    // How long the log is after each call; a take from two buckets is one unit.
    let mut lengths = Vec::new();
    for number in 0..12 {
        lengths.push(len());
        let call = if number % 3 == 2 { "TB.MTAKE a 100 0 1 b 100 0 1" } else { "TB.TAKE a 100 0" };
        assert!(!client.ask(call).is_error());
    }
    let whole = fs::read(&log).expect("the log");
    let mut random = Random::new(3);
    let all: Vec<u64> = (lengths[6]..=whole.len() as u64).collect();
    let few: Vec<u64> = (0..12).map(|_| all[random.below(all.len() as u64) as usize]).collect();
    for cut in short_or_long(few, all) {
        server.kill();
        fs::write(&log, &whole[..usize::try_from(cut).unwrap()]).expect("a shorter log");
        server.restart();
        let mut client = server.client();
        let calls = lengths.iter().skip(1).chain([&(whole.len() as u64)]).take_while(|end| **end <= cut).count() as i64;
        for (key, taken) in [("a", calls), ("b", calls / 3)] {
            let left = client.ask(&format!("TB.PEEK {key} 100 0")).ints()[1];
            assert_eq!(100 - left, taken, "{key} after a cut at {cut} of {}, {calls} calls before it", whole.len());
        }
    }
}

#[test]
fn snapshots_and_rewrites_under_load_lose_nothing_and_fail_no_call() {
    let mut server = Server::setup().config("appendonly", "yes").start();
    let (port, limits) = (server.port(), limits(["a", "b"]));
    let wanted = short_or_long(3, 30);
    let started = Instant::now();
    let (seen, elapsed) = under_load(lines_to(port), &limits, || {
        let mut client = server.client();
        for _ in 0..wanted {
            for (command, busy) in [("BGSAVE", "rdb_bgsave_in_progress"), ("BGREWRITEAOF", "aof_rewrite_in_progress")] {
                assert!(!client.ask(command).is_error(), "{command}");
                eventually("it is done", || {
                    (client.info(busy) == "0" && client.info("aof_rewrite_scheduled") == "0").then_some(())
                });
                thread::sleep(Duration::from_millis(100));
            }
        }
        assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
        assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
        started.elapsed()
    });
    assert_eq!(seen.lost, 0);
    assert_eq!(check(port, &limits, &seen, None), 0);
    let mut client = server.client();
    let takes = client.info_int("tokenbucket_calls_granted") + client.info_int("tokenbucket_calls_refused");
    let a_second = takes as f64 / elapsed.as_secs_f64();
    println!("{a_second:.0} takes a second over {wanted} snapshots and as many rewrites");
    // While a sync takes its time, a server answers before it writes.
    eventually("the log is written", || (client.info("aof_buffer_length") == "0").then_some(()));
    server.kill();
    server.restart();
    assert_eq!(check(port, &limits, &seen, None), 0, "after a restart");
}

#[test]
fn a_log_that_cannot_be_written_stops_takes_with_an_error_and_no_grant_is_lost_once_it_can() {
    let mut server = Server::setup().config("appendonly", "yes").config("appendfsync", "everysec").start();
    let mut client = server.client();
    let mut granted = 0;
    let mut take = |client: &mut Client| {
        let answer = client.ask("TB.TAKE k 1000000 0");
        granted += i64::from(!answer.is_error());
        answer
    };
    assert!(!take(&mut client).is_error());
    // The next file of the log, which a rewrite begins, is on a full disk.
    let full = server.dir().join("appendonlydir/appendonly.aof.2.incr.aof");
    symlink("/dev/full", full).expect("a link");
    rewrite_log(&mut client);
    let error = eventually("takes are stopped", || Some(take(&mut client)).filter(Reply::is_error));
    assert!(error.error().starts_with("MISCONF "), "{error:?}");
    let told = client.ask("TB.PEEK k 1000000 0").ints()[1];
    // The file after that has room.
    rewrite_log(&mut client);
    eventually("takes go on", || (!take(&mut client).is_error()).then_some(()));
    eventually("the log is written", || (client.info("aof_buffer_length") == "0").then_some(()));
    server.kill();
    server.restart();
    assert_eq!(server.client().ask("TB.PEEK k 1000000 0").ints()[1], 1_000_000 - granted);
    assert_eq!(told, 1_000_000 - granted + 1, "one take was granted since");
}

/// Has the server begin a new log.
pub(crate) fn rewrite_log(client: &mut Client) {
    assert!(!client.ask("BGREWRITEAOF").is_error());
    eventually("the log is rewritten", || {
        (client.info("aof_rewrite_in_progress") == "0" && client.info("aof_rewrite_scheduled") == "0").then_some(())
    });
    assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
}

#[test]
fn a_snapshot_that_fails_stops_takes_with_an_error_unless_the_server_is_told_to_go_on() {
    let server = Server::setup().config("save", "3600 1000000").config("dbfilename", "snapshot").start();
    let mut client = server.client();
    assert_eq!(client.take("k 10 0"), [1, 9, 0]);
    fs::create_dir(server.dir().join("snapshot")).expect("a folder in the snapshot's place");
    assert!(!client.ask("BGSAVE").is_error());
    let error = eventually("takes are stopped", || Some(client.ask("TB.TAKE k 10 0 0.001")).filter(Reply::is_error));
    assert!(error.error().starts_with("MISCONF "), "{error:?}");
    assert!(!client.ask("TB.PEEK k 10 0").is_error());
    client.ok("CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(client.take("k 10 0")[0], 1);
}

#[test]
fn exchanging_the_module_under_traffic_gives_nothing_but_unknown_command_in_between() {
    let server = Server::start();
    let (port, limits) = (server.port(), limits(["a", "b"]));
    let lines: Vec<_> = lines_to(port).into_iter().map(|line| line.excusing(&["ERR unknown command"])).collect();
    let times = short_or_long(30, 1000);
    let (seen, goes) = under_load(lines, &limits, || {
        let mut client = server.client();
        (0..times).all(|_| {
            thread::sleep(Duration::from_millis(3));
            exchange_module(&mut client)
        })
    });
    assert_eq!(seen.lost, 0, "a call was not answered");
    assert_eq!(check(port, &limits, &seen, None), 0);
    if !goes {
        println!("skipped: the module does not let itself be unloaded on this server");
        return;
    }
    assert!(seen.tally.len() > 0);
    println!("{} grants while the module was exchanged {times} times", seen.tally.len());
}

#[test]
fn a_killed_server_that_comes_back_slowly_answers_loading_and_nothing_wrong() {
    let mut server = Server::setup().append_only().start();
    let mut client = server.client();
    fill(&mut client, 20_000);
    client.take("drained 10 0 10");
    server.kill();
    let (answers, stop): (Mutex<Vec<String>>, _) = (Mutex::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (stop, port, answers) = (&stop, server.port(), &answers);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let Some(mut link) = connect(port, Duration::from_secs(5)) else { continue };
                let answer = redis::cmd("TB.TAKE").arg(("drained", 10, 0)).query::<Vec<i64>>(&mut link);
                let text =
                    answer.map_or_else(|error| error.code().unwrap_or("gone").to_owned(), |ints| format!("{ints:?}"));
                answers.lock().expect("answers").push(text);
            }
        });
        server.restart();
        eventually("it has answered", || {
            answers.lock().expect("answers").iter().any(|it| it == "[0, 0, -1]").then_some(())
        });
        stop.store(true, Ordering::Relaxed);
    });
    for answer in answers.into_inner().expect("answers") {
        assert!(["LOADING", "gone", "[0, 0, -1]"].contains(&answer.as_str()), "{answer}");
    }
}

fn fill(client: &mut Client, keys: usize) {
    let takes: Vec<Vec<String>> =
        (0..keys).map(|key| ["TB.TAKE".into(), format!("k{key}"), "10".into(), "1/60".into()].into()).collect();
    for batch in takes.chunks(1000) {
        client.pipeline(batch);
    }
}

#[test]
fn the_bookkeeping_of_these_tests_sees_a_token_granted_twice() {
    let now = Instant::now();
    let grant = crate::tally::Grant { key: 0, port: 1, sent: now, answered: now };
    let mut tally = Tally::default();
    tally.add(vec![grant; 11]);
    tally.check_bound(0, 11, 1, 0);
    let caught = std::panic::catch_unwind(|| tally.check_bound(0, 10, 1, 0));
    assert!(caught.is_err(), "eleven grants from a bucket of ten went unseen");
}
