//! One bucket under many callers at once: connections, threads and processes. Together they get what one caller would
//! get, and never nothing.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::process::{Child, Command};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use support::{Client, Server, eventually};

/// The port of the server that a worker process is to hammer.
const WORKER_PORT: &str = "TB_TEST_WORKER_PORT";
const CONNECTIONS: usize = 50;
const CALLS_EACH: usize = 20;

/// Opens connections of a common client library, lets all start at once, and adds up what was granted.
fn hammer(port: u16, connections: usize, calls: usize, args: impl Fn(usize) -> Vec<String> + Sync) -> i64 {
    let start = Barrier::new(connections);
    let worker = |number: usize| -> i64 {
        let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
        let mut connection = client.get_connection().expect("a connection");
        start.wait();
        let mut granted = 0;
        for call in 0..calls {
            let mut take = redis::cmd("TB.TAKE");
            take.arg(args(number * calls + call));
            let (allowed, _remaining, _retry_ms): (i64, i64, i64) = take.query(&mut connection).expect("an answer");
            granted += allowed;
        }
        granted
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..connections).map(|number| scope.spawn(move || worker(number))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).sum()
    })
}

fn one_bucket(line: &str) -> impl Fn(usize) -> Vec<String> + Sync {
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    move |_| args.clone()
}

#[test]
fn a_thousand_calls_over_fifty_connections_share_one_small_bucket() {
    let server = Server::start();
    let (capacity, rate) = (20, 5);
    let started = Instant::now();
    let granted = hammer(server.port(), CONNECTIONS, CALLS_EACH, one_bucket("k 20 5"));
    let refilled = started.elapsed().as_micros() * rate / 1_000_000;
    let most = capacity + i64::try_from(refilled).unwrap();
    assert!(0 < granted && granted <= most, "{granted} granted, at most {most} were there");
    assert!(granted >= capacity, "{granted} granted of a burst of {capacity}");
}

#[test]
fn while_the_clock_stands_exactly_the_capacity_is_granted() {
    let (server, _clock) = Server::frozen();
    assert_eq!(hammer(server.port(), CONNECTIONS, CALLS_EACH, one_bucket("k 37 1000")), 37);
    assert_eq!(server.client().take("k 37 1000"), [0, 0, 1]);
}

#[test]
fn callers_of_many_buckets_do_not_disturb_each_other() {
    let (server, _clock) = Server::frozen();
    let args = |call: usize| vec![format!("k{}", call % 10), "37".into(), "1".into()];
    assert_eq!(hammer(server.port(), CONNECTIONS, CALLS_EACH, args), 10 * 37);
    let mut client = server.client();
    for key in 0..10 {
        assert_eq!(client.take(&format!("k{key} 37 1 0")), [1, 0, 0]);
    }
}

#[test]
fn mixed_costs_never_add_up_to_more_than_the_capacity() {
    let (server, _clock) = Server::frozen();
    let mut client = server.client();
    let threads: Vec<_> = (1..=CONNECTIONS as i64)
        .map(|number| {
            let mut client = server.client();
            thread::spawn(move || {
                let cost = number % 7 + 1;
                (0..CALLS_EACH).map(|_| client.take(&format!("k 500 1 {cost}"))[0] * cost).sum::<i64>()
            })
        })
        .collect();
    let granted: i64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(granted, 500, "the single tokens at the end are always wanted by somebody");
    assert_eq!(client.take("k 500 1"), [0, 0, 1000]);
}

#[test]
fn several_processes_share_one_small_bucket() {
    const PROCESSES: usize = 4;
    let server = Server::start();
    let mut client = server.client();
    let own_binary = std::env::current_exe().unwrap();
    let spawn = |_| -> Child {
        let mut worker = Command::new(&own_binary);
        worker.args(["--exact", "a_worker_process_takes", "--ignored"]).env(WORKER_PORT, server.port().to_string());
        worker.stdout(std::process::Stdio::null()).spawn().expect("a worker process")
    };
    let mut workers: Vec<Child> = (0..PROCESSES).map(spawn).collect();
    let ready = |client: &mut Client| client.ask("GET ready") == support::Reply::Text(PROCESSES.to_string().into());
    eventually("the workers are ready", || ready(&mut client).then_some(()));
    let started = Instant::now();
    client.ok("SET go yes");
    for worker in &mut workers {
        assert!(worker.wait().expect("a worker").success(), "a worker process failed");
    }
    let refilled = i64::try_from(started.elapsed().as_micros() * 5 / 1_000_000).unwrap();
    let granted: i64 = client.ask("GET granted").text().parse().unwrap();
    let most = 20 + refilled;
    assert!((20..=most).contains(&granted), "{granted} granted, at most {most} were there");
}

#[test]
#[ignore = "not a test: what the processes of the test above do"]
fn a_worker_process_takes() {
    let Ok(port) = std::env::var(WORKER_PORT) else { return };
    let port = port.parse().unwrap();
    let mut client = Client::connect(port).unwrap();
    client.int("INCR ready");
    eventually("the workers may go", || (client.int("EXISTS go") == 1).then_some(()));
    let granted = hammer(port, 8, CALLS_EACH, one_bucket("k 20 5"));
    client.int(&format!("INCRBY granted {granted}"));
}
