//! A check with Redis beside a bare `GET` on the same connection, and beside the bare command: p50 and p99, call by call in
//! turns, so that whatever the machine does in between happens to all. The server is on the loopback, where every microsecond
//! of ours shows; a network adds the same to each. `cargo bench -p redis-token-bucket-limiter --bench check`
#![allow(clippy::restriction, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/service.rs"]
mod service;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use redis_token_bucket_limiter::client::redis::aio::{ConnectionLike, MultiplexedConnection};
use redis_token_bucket_limiter::client::redis::{AsyncConnectionConfig, Client, cmd};
use redis_token_bucket_limiter::client::{AsyncTokenBucketCommands, Key, recommended};
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Redis, Source, Tenants, Tiers, UnknownTenant};
use support::Server;

const ROUNDS: usize = 30_000;
const QUOTA: Quota = Quota::per_second(1_000_000_000);

#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn quantile(&mut self, hundredths: usize) -> f64 {
        self.0.sort_unstable();
        self.0[(self.0.len() - 1) * hundredths / 100].as_secs_f64() * 1e6
    }
}

async fn timed<T>(times: &mut Times, call: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let answer = call.await;
    times.0.push(start.elapsed());
    answer
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let info = recommended::connection_info(service::url(server)).unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Client::open(info).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

fn limiter(redis: Redis) -> Limiter {
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", QUOTA)]).tenant("acme", "free");
    let quotas = Tenants::new(tiers).unwrap();
    Limiter::builder(redis, quotas, OnFault::Closed).deadline(Duration::from_secs(5)).build()
}

/// One caller's rounds: GET, the bare command, and a check, in turns.
async fn rounds(
    mut connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    limiter: Limiter,
    count: usize,
) -> [Times; 3] {
    let [mut get, mut take, mut check] = <[Times; 3]>::default();
    let key = Key::new("acme", "bare");
    for _ in 0..count {
        let value: String =
            timed(&mut get, async { cmd("GET").arg("rl:{acme}:plain").query_async(&mut connection).await })
                .await
                .unwrap();
        assert_eq!(value.len(), 24);
        assert!(timed(&mut take, connection.tb_take(&key, QUOTA, 1)).await.unwrap().allowed);
        let decision = timed(&mut check, async { limiter.check("acme", "api").await }).await;
        assert_eq!(decision.source, Source::Redis);
    }
    [get, take, check]
}

async fn measure(server: &Server, in_flight: usize) {
    let connection = connect(server).await;
    let over = limiter(Redis::over(connection.clone()));
    let own = limiter(Redis::standalone(service::url(server)).unwrap());
    own.ready().await;
    for (name, limiter) in [("same connection", over), ("its own connection", own)] {
        rounds(connection.clone(), limiter.clone(), 2_000).await;
        let callers: Vec<_> = (0..in_flight)
            .map(|_| tokio::spawn(rounds(connection.clone(), limiter.clone(), ROUNDS / in_flight)))
            .collect();
        let [mut get, mut take, mut check] = <[Times; 3]>::default();
        for caller in callers {
            let [one, two, three] = caller.await.unwrap();
            get.0.extend(one.0);
            take.0.extend(two.0);
            check.0.extend(three.0);
        }
        let median = get.quantile(50);
        println!("{in_flight} in flight, the limiter on {name}:");
        for (what, times) in [("GET", &mut get), ("TB.TAKE", &mut take), ("check", &mut check)] {
            let (p50, p99) = (times.quantile(50), times.quantile(99));
            println!(
                "  {what:<8} p50 {p50:>7.1} µs   p99 {p99:>7.1} µs   median {:+5.1} µs, x {:.2}",
                p50 - median,
                p50 / median
            );
        }
    }
}

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let server = Server::start();
    server.client().ok("SET rl:{acme}:plain 012345678901234567890123");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for in_flight in [1, 16, 64] {
        runtime.block_on(measure(&server, in_flight));
    }
}
