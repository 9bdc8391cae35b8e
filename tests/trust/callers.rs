//! Callers who take from many buckets at once while something happens to the servers, and what they saw of it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{connect, info};
use crate::random::Random;
use crate::support::eventually;
use crate::tally::{Grant, Tally};

pub(crate) const CALLERS: usize = 4;
/// After so long a caller who is not told otherwise takes a call for lost.
pub(crate) const CALL_PATIENCE: Duration = Duration::from_secs(20);

/// A bucket under load.
pub(crate) struct Limit {
    pub(crate) key: String,
    /// What decides the key's place in a cluster.
    pub(crate) tag: String,
    pub(crate) capacity: i64,
    pub(crate) rate: i64,
}

impl Limit {
    pub(crate) fn call(&self, command: &str, cost: i64) -> String {
        format!("{command} {} {} {} {cost}", self.key, self.capacity, self.rate)
    }

    pub(crate) fn refills(&self) -> bool {
        self.rate > 0
    }
}

/// Buckets of both kinds under each of `tags`: some never refill, so that every grant can be told from the balance for
/// ever; some refill so fast that they are always wanted and soon forgotten.
pub(crate) fn limits<'a>(tags: impl IntoIterator<Item = &'a str>) -> Vec<Limit> {
    let quotas = [(1_000_000, 0), (100, 0), (50, 200), (5, 1000)];
    let of_tag = |tag: &'a str| {
        (0..8).map(move |number| {
            let (capacity, rate) = quotas[number % quotas.len()];
            let kind = if rate > 0 { "refills" } else { "never" };
            Limit { key: format!("{tag}:{number}:{kind}"), tag: tag.to_owned(), capacity, rate }
        })
    };
    tags.into_iter().flat_map(of_tag).collect()
}

/// What became of a call.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// The server on this port answered.
    Answer(u16, T),
    /// A server was asked and did not answer: the call may have been carried out.
    Lost,
    /// Nobody took the call.
    Unavailable,
}

/// A caller's way to the bucket.
pub(crate) trait Line {
    fn call<T: redis::FromRedisValue>(&mut self, tag: &str, call: &str) -> Outcome<T>;
}

/// A connection to whatever server `find` names, asked again whenever a call fails.
pub(crate) struct Direct<F> {
    find: F,
    link: Option<(u16, redis::Connection)>,
    excused: &'static [&'static str],
}

impl<F: FnMut() -> u16> Direct<F> {
    pub(crate) fn new(find: F) -> Direct<F> {
        Direct { find, link: None, excused: &["READONLY ", "LOADING ", "MASTERDOWN "] }
    }

    /// Errors that begin so are part of what happens; any other ends the test.
    pub(crate) fn excusing(self, excused: &'static [&'static str]) -> Direct<F> {
        Direct { excused, ..self }
    }
}

/// A line to the server whose port this is at the moment.
pub(crate) fn direct_to(target: &Arc<AtomicU16>) -> Direct<impl FnMut() -> u16 + use<>> {
    let target = Arc::clone(target);
    Direct::new(move || target.load(Ordering::SeqCst))
}

impl<F: FnMut() -> u16> Line for Direct<F> {
    fn call<T: redis::FromRedisValue>(&mut self, _tag: &str, call: &str) -> Outcome<T> {
        if self.link.is_none() {
            let port = (self.find)();
            self.link = connect(port, CALL_PATIENCE).map(|link| (port, link));
        }
        let Some((port, link)) = &mut self.link else {
            thread::sleep(Duration::from_millis(5));
            return Outcome::Unavailable;
        };
        let port = *port;
        match command(call).query(link) {
            Ok(answer) => Outcome::Answer(port, answer),
            Err(error) => {
                self.link = None;
                let Some(code) = error.code() else { return Outcome::Lost };
                let text = format!("{code} {}", error.detail().unwrap_or_default());
                let excused = self.excused.iter().any(|start| text.starts_with(start));
                assert!(excused, "{call} was answered {text}");
                Outcome::Unavailable
            }
        }
    }
}

/// A command from words with single spaces between them.
pub(crate) fn command(line: &str) -> redis::Cmd {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    command.arg(words.collect::<Vec<_>>());
    command
}

/// What all callers saw.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) tally: Tally,
    /// Calls without an answer.
    pub(crate) lost: usize,
}

/// Takes from all limits at random, each caller over a line of its own, while `meanwhile` runs.
pub(crate) fn under_load<L: Line + Send, T>(
    lines: Vec<L>,
    limits: &[Limit],
    meanwhile: impl FnOnce() -> T,
) -> (Seen, T) {
    let stop = AtomicBool::new(false);
    let caller = |number: usize, mut line: L| {
        let (mut random, mut grants, mut lost) = (Random::new(number as u64), Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            let key = random.below(limits.len() as u64) as usize;
            let sent = Instant::now();
            match line.call::<Vec<i64>>(&limits[key].tag, &limits[key].call("TB.TAKE", 1)) {
                Outcome::Answer(port, answer) if answer[0] == 1 => {
                    grants.push(Grant { key, port, sent, answered: Instant::now() });
                }
                Outcome::Answer(_, answer) => assert!(answer[2] == -1 || answer[2] >= 1, "{answer:?}"),
                Outcome::Lost => lost += 1,
                Outcome::Unavailable => {}
            }
        }
        (grants, lost)
    };
    thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> =
            lines.into_iter().enumerate().map(|(number, line)| scope.spawn(move || caller(number, line))).collect();
        // A failed `meanwhile` must not leave the callers running for ever.
        let _stop = StopAtEnd(&stop);
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for caller in callers {
            let (grants, lost) = caller.join().expect("a caller");
            seen.tally.add(grants);
            seen.lost += lost;
        }
        (seen, result)
    })
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How many tokens of each bucket that never refills are gone.
pub(crate) fn taken(line: &mut impl Line, limits: &[Limit]) -> HashMap<usize, i64> {
    let never = limits.iter().enumerate().filter(|(_, limit)| !limit.refills());
    never
        .map(|(key, limit)| {
            // Not every node of a cluster learns at once who took over.
            let left = eventually("somebody answers for the bucket", || {
                match line.call::<Vec<i64>>(&limit.tag, &limit.call("TB.PEEK", 0)) {
                    Outcome::Answer(_, answer) => Some(answer[1]),
                    _ => None,
                }
            });
            (key, limit.capacity - left)
        })
        .collect()
}

/// Watches a primary and its replica until told to stop or one is gone, and keeps the last moment up to which every
/// grant that was answered is on the replica.
pub(crate) fn watch_lag(primary: u16, replica: u16, stop: &AtomicBool, safe: &Mutex<Instant>) {
    let offset = |port: u16, field: &str| -> Option<u64> {
        let info = info(port)?;
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?.trim().parse().ok()
    };
    let mut under_way = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        // What was answered before `before` lies below the primary's offset.
        let before = Instant::now();
        let sent = offset(primary, "master_repl_offset");
        let held = offset(replica, "slave_repl_offset");
        let (Some(sent), Some(held)) = (sent, held) else { return };
        under_way.push_back((sent, before));
        while let Some((_, arrived)) = under_way.front().filter(|(sent, _)| *sent <= held) {
            *safe.lock().expect("a moment") = *arrived;
            under_way.pop_front();
        }
    }
}

/// Runs `body` while the lag between the two is watched; the watch ends by itself when the primary does or the replica
/// takes over. Nothing may have been granted before.
pub(crate) fn with_lag_watched<T>(primary: u16, replica: u16, body: impl FnOnce() -> T) -> (T, Instant) {
    let (stop, safe) = (AtomicBool::new(false), Mutex::new(Instant::now()));
    let result = thread::scope(|scope| {
        scope.spawn(|| watch_lag(primary, replica, &stop, &safe));
        let _stop = StopAtEnd(&stop);
        body()
    });
    let safe = *safe.lock().expect("a moment");
    (result, safe)
}

/// Holds what was granted against what the new primary knows of: nothing but grants of the old one in the lag window,
/// those answered since `safe`, may be missing there. And over any time, the contract with that many on top.
pub(crate) fn assert_only_the_lag_is_granted_twice(
    line: &mut impl Line,
    limits: &[Limit],
    seen: &Seen,
    old: u16,
    safe: Instant,
) {
    let window = seen.tally.since(old, safe);
    let in_window = |key: usize| window.get(&key).copied().unwrap_or(0);
    let mut twice = 0;
    for (key, taken) in taken(line, limits) {
        let unknown = (seen.tally.of(key) - taken).max(0);
        assert!(unknown <= in_window(key), "{}: {unknown} unknown, {} in the lag", limits[key].key, in_window(key));
        twice += unknown;
    }
    for (key, limit) in limits.iter().enumerate() {
        seen.tally.check_bound(key, limit.capacity, limit.rate, in_window(key));
    }
    println!(
        "{} grants, {} calls without an answer; {} grants in the lag window; {twice} forgotten, of buckets that never refill",
        seen.tally.len(),
        seen.lost,
        window.values().sum::<i64>(),
    );
}
