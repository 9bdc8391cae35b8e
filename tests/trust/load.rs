//! A thousand connections and ten thousand tenants, a few of them busy and most of them rare, beside callers who are
//! slow, stuck or broken: every answer lies within what the model allows, and a take is about as quick as a `GET`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::seconds;
use crate::support::{Client, Reply, Server};

const CONNECTIONS: usize = 1000;
const TENANTS: usize = 10_000;
/// Calls a second over all connections, half of them takes. More would measure this machine's queue, not the server.
const CALLS_PER_SECOND: f64 = 4000.0;

/// Capacity and tokens a second, by tenant.
fn quota(tenant: usize) -> (i64, i64) {
    [(10, 1), (50, 5), (5, 2)][tenant % 3]
}

/// A call as its caller saw it, in microseconds since the start.
#[derive(Clone, Copy)]
struct Call {
    tenant: usize,
    sent: i64,
    answered: i64,
    granted: bool,
}

#[derive(Default)]
struct Log {
    takes: Vec<Call>,
    gets: Vec<i64>,
}

/// The tenants' shares, summed: the n-th is asked for 1/n as often as the first.
fn shares() -> Vec<f64> {
    let mut sum = 0.0;
    (1..=TENANTS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect()
}

#[test]
fn a_thousand_connections_get_what_the_model_gives_and_no_error() {
    raise_file_limit();
    let server = Server::setup().config("maxclients", "4000").start();
    fill(&mut server.client());
    let (shares, stop, ready) = (shares(), AtomicBool::new(false), Barrier::new(CONNECTIONS + 1));
    let (length, start) = (seconds(8), Instant::now());
    let caller = |number: usize| {
        let (mut client, mut random, mut log) = (server.client(), Random::new(number as u64), Log::default());
        ready.wait();
        while !stop.load(Ordering::Relaxed) {
            let pause = -(1.0 - random.fraction()).ln() * CONNECTIONS as f64 / CALLS_PER_SECOND;
            thread::sleep(Duration::from_secs_f64(pause.min(2.0)));
            let place = random.fraction() * shares[TENANTS - 1];
            let tenant = shares.partition_point(|sum| *sum < place).min(TENANTS - 1);
            let micros = || start.elapsed().as_micros() as i64;
            let sent = micros();
            if random.once_in(2) {
                assert_eq!(client.ask(&format!("GET get{tenant}")).bytes().len(), 24);
                log.gets.push(micros() - sent);
            } else {
                let (capacity, rate) = quota(tenant);
                let [allowed, remaining, retry_ms] = client.take(&format!("tenant{tenant} {capacity} {rate}"));
                log.takes.push(Call { tenant, sent, answered: micros(), granted: allowed == 1 });
                assert!((0..capacity).contains(&remaining), "{remaining} left of {capacity}");
                assert_eq!(allowed == 1, retry_ms == 0);
                assert!(retry_ms <= 1000 / rate, "one token takes {retry_ms} ms");
            }
        }
        log
    };
    let logs: Vec<Log> = thread::scope(|scope| {
        let caller = &caller;
        let spawn = |number| {
            let thread = thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, move || caller(number)).expect("a thread")
        };
        let callers: Vec<_> = (0..CONNECTIONS).map(spawn).collect();
        ready.wait();
        let nuisances = Nuisances::start(server.port());
        let end = Instant::now() + length;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(100));
            nuisances.come_and_go();
        }
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    check(&server, &logs, length);
}

/// The keys that are read for comparison: as long as a bucket, and with an expiry, as a bucket.
fn fill(client: &mut Client) {
    let set = |tenant: usize| {
        let value = "x".repeat(24);
        ["SET".into(), format!("get{tenant}"), value, "PX".into(), "100000000".into()].to_vec()
    };
    let sets: Vec<Vec<String>> = (0..TENANTS).map(set).collect();
    for batch in sets.chunks(1000) {
        assert!(client.pipeline(batch).iter().all(|reply| !reply.is_error()));
    }
}

fn check(server: &Server, logs: &[Log], length: Duration) {
    let mut by_tenant: Vec<Vec<Call>> = vec![Vec::new(); TENANTS];
    for call in logs.iter().flat_map(|log| &log.takes) {
        by_tenant[call.tenant].push(*call);
    }
    for (tenant, calls) in by_tenant.iter().enumerate() {
        let (capacity, rate) = quota(tenant);
        never_too_much(tenant, calls, capacity, rate);
        never_too_little(tenant, calls, capacity, rate);
    }
    let all = || by_tenant.iter().flatten();
    let granted = all().filter(|call| call.granted).count() as i64;
    let refused = all().count() as i64 - granted;
    let mut client = server.client();
    assert_eq!(client.info_int("tokenbucket_calls_granted"), granted);
    assert_eq!(client.info_int("tokenbucket_calls_refused"), refused);
    assert!(granted > 0 && refused > 0, "{granted} granted, {refused} refused: one side was not tried");
    let takes = sorted(all().map(|call| call.answered - call.sent).collect());
    let gets = sorted(logs.iter().flat_map(|log| log.gets.iter().copied()).collect());
    let at = |sorted: &[i64], share: f64| sorted[(sorted.len() as f64 * share) as usize];
    let asked = by_tenant.iter().filter(|calls| !calls.is_empty()).count();
    println!("{granted} granted, {refused} refused, {asked} tenants, {CONNECTIONS} connections, {length:?}");
    for (name, times) in [("TB.TAKE", &takes), ("GET", &gets)] {
        let [half, most, p99] = [0.5, 0.9, 0.99].map(|share| at(times, share));
        println!("{name}: {} calls, p50 {half} us, p90 {most} us, p99 {p99} us", times.len());
    }
    // Both wait for the same queue, so this holds however slow the machine is.
    let (take, get) = (at(&takes, 0.99), at(&gets, 0.99));
    assert!(take <= 3 * get + 2000, "the slowest hundredth of takes wait {take} us, those of GET {get} us");
}

fn sorted(mut times: Vec<i64>) -> Vec<i64> {
    times.sort_unstable();
    times
}

/// `granted <= capacity + rate * time` over windows that begin with any of some grants and end with any other. A window
/// is taken as long as it can have been.
fn never_too_much(tenant: usize, calls: &[Call], capacity: i64, rate: i64) {
    let mut grants: Vec<&Call> = calls.iter().filter(|call| call.granted).collect();
    grants.sort_by_key(|grant| grant.answered);
    let begins = grants.iter().map(|grant| grant.sent).min().into_iter();
    let sample = grants.iter().step_by(grants.len() / 30 + 1).map(|grant| grant.sent);
    for begin in begins.chain(sample) {
        let mut count = 0;
        for grant in grants.iter().filter(|grant| grant.sent >= begin) {
            count += 1;
            let micros = grant.answered - begin + 1;
            assert!(
                count * 1_000_000 <= capacity * 1_000_000 + rate * micros,
                "tenant {tenant}: {count} granted in {micros} us of {capacity} and {rate} a second"
            );
        }
    }
}

/// A refusal is right only if the bucket was full at some earlier grant and more than `capacity - 1 + rate * time` were
/// granted since: for some grant, counting all that may have come between and the shortest time that may have passed.
fn never_too_little(tenant: usize, calls: &[Call], capacity: i64, rate: i64) {
    const TOKEN: i64 = 1_000_000;
    let mut grants: Vec<&Call> = calls.iter().filter(|call| call.granted).collect();
    grants.sort_by_key(|grant| grant.answered);
    let answered: Vec<i64> = grants.iter().map(|grant| grant.answered).collect();
    let sent = sorted(grants.iter().map(|grant| grant.sent).collect());
    let before = |moment: i64| answered.partition_point(|answered| *answered < moment) as i64;
    // For grants up to each: the most of `rate * answered - grants certainly before it`.
    let mut best: Vec<i64> = Vec::new();
    for grant in &grants {
        let here = rate * grant.answered - before(grant.sent) * TOKEN;
        best.push(best.last().map_or(here, |best| here.max(*best)));
    }
    for refusal in calls.iter().filter(|call| !call.granted) {
        let until = sent.partition_point(|sent| *sent <= refusal.answered) as i64 * TOKEN;
        let past = answered.partition_point(|answered| *answered <= refusal.sent);
        let earlier = past.checked_sub(1).map(|last| until - rate * refusal.sent + best[last]);
        let meanwhile = grants[past..].iter().filter(|grant| grant.sent <= refusal.answered);
        let around = meanwhile.map(|grant| until - before(grant.sent) * TOKEN).max();
        let most = earlier.max(around).unwrap_or(0);
        assert!(most > (capacity - 1) * TOKEN, "tenant {tenant} of {capacity} and {rate} a second was refused a token");
    }
}

/// Connections that no server wishes for. They only peek, so that what the others took can be counted.
struct Nuisances {
    port: u16,
    _stuck: Vec<TcpStream>,
}

impl Nuisances {
    fn start(port: u16) -> Nuisances {
        let connect = || TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let peek = b"*5\r\n$7\r\nTB.PEEK\r\n$4\r\nslow\r\n$2\r\n10\r\n$1\r\n1\r\n$1\r\n1\r\n";
        let mut stuck = Vec::new();
        for half in 1..peek.len() {
            // Half a command, and never the rest.
            let mut stream = connect();
            stream.write_all(&peek[..half]).expect("room for half a command");
            stuck.push(stream);
        }
        for _ in 0..20 {
            // Many commands, and nobody who reads the answers.
            let mut stream = connect();
            stream.write_all(&peek.repeat(2000)).expect("room for commands");
            stuck.push(stream);
        }
        for _ in 0..5 {
            // Somebody who reads an answer byte by byte; ends when the server does.
            let mut stream = connect();
            stream.write_all(&peek.repeat(500)).expect("room for commands");
            thread::spawn(move || {
                let mut byte = [0];
                while matches!(stream.read(&mut byte), Ok(1)) {
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        Nuisances { port, _stuck: stuck }
    }

    /// Some who speak no protocol, and some who leave before the answer.
    fn come_and_go(&self) {
        for words in [&b"*-7\r\n$x\r\n\0\xff"[..], b"TB.PEEK slow 10 1\r\n", b"*3\r\n$7\r\nTB.PE", b""] {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                let _ = stream.write_all(words);
            }
        }
    }
}

#[test]
fn the_checks_of_a_load_see_a_token_too_many_and_a_token_too_few() {
    let call = |at: i64, granted| Call { tenant: 0, sent: at, answered: at + 10, granted };
    // Five at once, refused until a second has passed, then one.
    let mut calls: Vec<Call> = (0..5).map(|at| call(at, true)).collect();
    calls.extend([call(500_000, false), call(999_000, false), call(1_000_010, true)]);
    never_too_much(0, &calls, 5, 1);
    never_too_little(0, &calls, 5, 1);
    let caught = |calls: Vec<Call>, check: fn(usize, &[Call], i64, i64)| {
        std::panic::catch_unwind(move || check(0, &calls, 5, 1)).is_err()
    };
    let too_many = [&calls[..], &[call(1_500_000, true)]].concat();
    assert!(caught(too_many, never_too_much), "a token too many went unseen");
    let too_few = [&calls[..], &[call(2_100_000, false)]].concat();
    assert!(caught(too_few, never_too_little), "a token too few went unseen");
}

/// A thousand connections need as many files; many systems give a process 1,024 unless it asks for more.
#[allow(unsafe_code, reason = "the standard library has no word for resource limits")]
fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a pointer to a valid struct that outlives them.
    let set = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert!(set == 0 && limit.rlim_cur > 2 * CONNECTIONS as u64, "only {} files for {CONNECTIONS}", limit.rlim_cur);
}

#[test]
fn a_caller_who_reads_nothing_is_not_kept_for_ever() {
    let server = Server::setup().config("client-output-buffer-limit", "normal 1mb 0 0").start();
    let mut client = server.client();
    let mut greedy = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    let batch = b"TB.TAKE k 10 1\r\n".repeat(10_000);
    let mut closed = false;
    for _ in 0..200 {
        closed = closed || greedy.write_all(&batch).is_err();
        if closed {
            break;
        }
    }
    assert!(closed, "two million answers were kept for somebody who reads none");
    assert!(matches!(client.ask("PING"), Reply::Text(_)));
    assert!(client.info_int("used_memory") < 100 << 20);
}
