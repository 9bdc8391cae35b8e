//! What a typed call costs on a multiplexed connection: its latency next to that of a `GET` on the same connection, and
//! its throughput next to a plain `cmd`. `cargo bench -p redis-token-bucket-client --bench connection`
//!
//! Whatever is compared takes turns in short rounds, because what else a machine does weighs more than the difference;
//! a ratio is the median over the rounds of a round's ratio.
#![allow(clippy::restriction, reason = "a bench fails by panicking")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client};
use redis_token_bucket_client::{AsyncTokenBucketCommands, Implementation, Key, Quota, TokenBuckets, recommended};
use support::Server;

const ROUNDS: usize = 31;
const ROUND: Duration = Duration::from_millis(100);
const IN_FLIGHT: [usize; 3] = [1, 16, 256];
/// Never empty, never full.
const AMPLE: Quota = Quota::per_hour(1_000_000_000);
/// Empty, and not filling.
const SPENT: Quota = Quota::once(1);

#[derive(Clone, Copy, Debug)]
enum Call {
    Get,
    Allowed,
    Denied,
    Plain,
    Handle,
    Script,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Allowed => "tb_take, allowed",
            Self::Denied => "tb_take, denied",
            Self::Plain => "plain cmd, allowed",
            Self::Handle => "TokenBuckets, allowed",
            Self::Script => "the script, allowed",
        }
    }
}

/// One connection, in all its forms.
#[derive(Clone)]
struct Connections {
    bare: MultiplexedConnection,
    handle: TokenBuckets<MultiplexedConnection>,
    script: TokenBuckets<MultiplexedConnection>,
}

impl Connections {
    /// One call, its answer checked.
    async fn make(&mut self, call: Call, key: &Key) {
        match call {
            Call::Get => assert_eq!(self.bare.get::<_, Vec<u8>>(key).await.unwrap().len(), 24),
            Call::Allowed => assert!(self.bare.tb_take(key, AMPLE, 1).await.unwrap().allowed),
            Call::Denied => assert!(!self.bare.tb_take(key, SPENT, 2).await.unwrap().allowed),
            Call::Plain => {
                let mut cmd = redis::cmd("TB.TAKE");
                cmd.arg(key).arg("1000000000").arg("1000000000/3600").arg("1");
                let (allowed, _, _): (i64, i64, i64) = cmd.query_async(&mut self.bare).await.unwrap();
                assert_eq!(allowed, 1);
            }
            Call::Handle => assert!(self.handle.tb_take(key, AMPLE, 1).await.unwrap().allowed),
            Call::Script => assert!(self.script.tb_take(key, AMPLE, 1).await.unwrap().allowed),
        }
    }

    /// A round of calls, by turns of these kinds, with so many in flight at any time: the latencies of each kind.
    async fn round<const N: usize>(&self, calls: [Call; N], in_flight: usize) -> [Vec<f64>; N] {
        let end = Instant::now() + ROUND;
        let tasks: Vec<_> = (0..in_flight)
            .map(|task| {
                let (mut connections, key) = (self.clone(), key(task));
                tokio::spawn(async move {
                    let mut latencies = [const { Vec::new() }; N];
                    // Half of the tasks begin with the one, half with the other.
                    for turn in (task..).map(|turn| turn % N) {
                        let start = Instant::now();
                        if start > end {
                            break;
                        }
                        connections.make(calls[turn], &key).await;
                        latencies[turn].push(start.elapsed().as_secs_f64() * 1e6);
                    }
                    latencies
                })
            })
            .collect();
        let mut all = [const { Vec::new() }; N];
        for task in tasks {
            all.iter_mut().zip(task.await.unwrap()).for_each(|(all, latencies)| all.extend(latencies));
        }
        all
    }
}

fn key(task: usize) -> Key {
    Key::new(format!("t{task}"), "api")
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn latency_next_to_get(connections: &Connections) {
    println!("latency, GET and tb_take by turns on one connection");
    println!("{:>9}  {:22} {:>12} {:>12} {:>8}", "in flight", "", "GET", "tb_take", "ratio");
    for in_flight in IN_FLIGHT {
        for take in [Call::Allowed, Call::Denied] {
            let (mut gets, mut takes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let [get, take] = connections.round([Call::Get, take], in_flight).await;
                let (get, take) = (median(&get), median(&take));
                gets.push(get);
                takes.push(take);
                ratios.push(take / get);
            }
            let (get, taken, ratio) = (median(&gets), median(&takes), median(&ratios));
            println!("{in_flight:9}  {:22} {get:9.1} us {taken:9.1} us {ratio:8.3}", take.name());
        }
    }
}

async fn throughput_next_to_plain_commands(connections: &Connections) {
    const CALLS: [Call; 6] = [Call::Plain, Call::Allowed, Call::Denied, Call::Handle, Call::Script, Call::Get];
    println!("\nthroughput, each alone on the connection");
    println!("{:>9}  {:22} {:>12} {:>12} {:>18}", "in flight", "", "median", "calls/s", "of plain cmd");
    for in_flight in IN_FLIGHT {
        let mut latencies = [const { Vec::new() }; CALLS.len()];
        let mut rates = [const { Vec::new() }; CALLS.len()];
        for at in 0..ROUNDS * CALLS.len() {
            // Another order in every round.
            let turn = (at + at / CALLS.len()) % CALLS.len();
            let [latency] = connections.round([CALLS[turn]], in_flight).await;
            latencies[turn].push(median(&latency));
            rates[turn].push(latency.len() as f64 / ROUND.as_secs_f64());
        }
        for (turn, call) in CALLS.iter().enumerate() {
            let ratios: Vec<f64> = rates[turn].iter().zip(&rates[0]).map(|(this, plain)| this / plain).collect();
            let (latency, rate, ratio) = (median(&latencies[turn]), median(&rates[turn]), median(&ratios));
            println!("{in_flight:9}  {:22} {latency:9.1} us {rate:12.0} {ratio:18.3}", call.name());
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let info = recommended::connection_info(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    // A machine that is busy with other things is slow, not broken.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let client = Client::open(info).unwrap();
    let bare = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let mut connections = Connections {
        handle: TokenBuckets::new(bare.clone()),
        script: TokenBuckets::using(Implementation::Script, bare.clone()),
        bare,
    };
    for task in 0..IN_FLIGHT[2] {
        connections.make(Call::Allowed, &key(task)).await;
    }
    latency_next_to_get(&connections).await;
    throughput_next_to_plain_commands(&connections).await;
}
