//! Why the bucket is shared: replicas behind a round robin, each with a limiter of its own in its process, or all with the one
//! bucket in Redis. The quota is 600 a minute with a burst of 10; each way is offered twenty times as much.
//!
//! `cargo run --release -p redis-token-bucket-limiter --example replicas [redis://127.0.0.1:6379 [SECONDS]]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "an example is read, and its numbers are small"
)]

use std::error::Error;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bucket::{Amount, Bucket, Micros};
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Redis, Source};

const QUOTA: Quota = Quota::per_minute(600).burst(10);
/// Two hundred calls a second.
const PAUSE: Duration = Duration::from_millis(5);

/// One replica of the service.
enum Replica {
    /// It limits what it sees.
    Alone { bucket: Mutex<Bucket>, start: Instant },
    /// It asks Redis.
    Together(Limiter),
}

impl Replica {
    fn alone() -> Result<Self, Box<dyn Error>> {
        let full = Bucket::full(&QUOTA.try_into()?, Micros::new(0));
        Ok(Self::Alone { bucket: Mutex::new(full), start: Instant::now() })
    }

    fn together(server: &str) -> Result<Self, Box<dyn Error>> {
        let redis = Redis::standalone(server)?;
        let limiter = Limiter::builder(redis, QUOTA, OnFault::Closed).deadline(Duration::from_secs(1)).build();
        Ok(Self::Together(limiter))
    }

    /// Whether a call of this tenant may go on.
    async fn admits(&self, tenant: &str) -> Result<bool, Box<dyn Error>> {
        match self {
            Self::Alone { bucket, start } => {
                let now = Micros::new(u64::try_from(start.elapsed().as_micros())?);
                let mut bucket = bucket.lock().map_err(|_| "a replica panicked")?;
                let (after, decision) = bucket.take(&QUOTA.try_into()?, Amount::ONE, now);
                *bucket = after.unwrap_or(*bucket);
                Ok(decision.allowed)
            }
            Self::Together(limiter) => {
                let decision = limiter.check(tenant, "api").await;
                if decision.source == Source::Redis {
                    Ok(decision.is_allowed())
                } else {
                    Err("Redis was not heard".into())
                }
            }
        }
    }
}

/// How many replicas there are at the start, and from half time on.
#[derive(Clone, Copy)]
struct Fleet {
    first: usize,
    later: usize,
}

/// Calls to a fleet, one after the other to the next replica, for so long; how many were admitted.
async fn run(fleet: Fleet, replicas: Vec<Replica>, tenant: String, time: Duration) -> Result<u64, Box<dyn Error>> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(PAUSE);
    let (mut admitted, mut turn) = (0, 0);
    while start.elapsed() < time {
        ticks.tick().await;
        let running = if start.elapsed() < time / 2 { fleet.first } else { fleet.later };
        turn = (turn + 1) % running;
        admitted += u64::from(replicas[turn].admits(&tenant).await?);
    }
    Ok(admitted)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let seconds: u64 = args.next().map_or(Ok(60), |seconds| seconds.parse())?;
    let time = Duration::from_secs(seconds);

    let fleets = [(1, 1), (4, 4), (10, 10), (4, 10)].map(|(first, later)| Fleet { first, later });
    println!(
        "| replicas | offered in {seconds} s | admitted, each by its own limiter | admitted, by the shared bucket |"
    );
    println!("|---|---|---|---|");
    // All at once, for they share nothing but the machine.
    let server = &server;
    let runs = fleets.map(|fleet| async move {
        // A bucket that nobody has taken from.
        let tenant = format!("replicas-{}-{}-{}", fleet.first, fleet.later, std::process::id());
        let alone = (0..fleet.later).map(|_| Replica::alone()).collect::<Result<_, _>>()?;
        let together = (0..fleet.later).map(|_| Replica::together(server)).collect::<Result<_, _>>()?;
        tokio::try_join!(run(fleet, alone, tenant.clone(), time), run(fleet, together, tenant, time))
    });
    let [one, four, ten, scaled] = runs;
    let admitted = tokio::try_join!(one, four, ten, scaled)?;
    for (fleet, (alone, together)) in fleets.iter().zip([admitted.0, admitted.1, admitted.2, admitted.3]) {
        let name = if fleet.first == fleet.later {
            fleet.first.to_string()
        } else {
            format!("{}, then {}", fleet.first, fleet.later)
        };
        println!("| {name} | {} | {alone} | {together} |", time.as_millis() / PAUSE.as_millis());
    }
    Ok(())
}
