//! Waits for its turn, within bounds.
//! `cargo run -p redis-token-bucket-client --example wait_and_retry --features connection-manager [redis://HOST:PORT]`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use redis_token_bucket_client::redis::{Client, RedisResult};
use redis_token_bucket_client::{AsyncTokenBucketCommands, Key, Quota, recommended};
use tokio::time::{Instant, sleep};

/// One at a time, ten a second.
const UPLOADS: Quota = Quota::per_second(10).burst(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let client = Client::open(recommended::connection_info(server)?)?;
    let config = recommended::connection_manager_config(Duration::from_millis(500));
    let connection = client.get_connection_manager_with_config(config).await?;

    let key = Key::new("acme", "uploads");
    let uploads: Vec<_> = (0..5)
        .map(|_| {
            let (mut connection, key) = (connection.clone(), key.clone());
            tokio::spawn(async move { take_in_turn(&mut connection, &key, UPLOADS, Duration::from_secs(10)).await })
        })
        .collect();
    let mut passed = Vec::new();
    for upload in uploads {
        passed.push(upload.await??);
    }
    println!("{} of 5 uploads had their turn", passed.iter().filter(|passed| **passed).count());
    let never = take_in_turn(&mut connection.clone(), &key, Quota::once(0), Duration::from_secs(10)).await?;
    println!("an upload that is never allowed: {never}");
    Ok(())
}

/// Takes one token as soon as there is one, unless that takes longer than `patience`.
async fn take_in_turn(
    connection: &mut impl AsyncTokenBucketCommands,
    key: &Key,
    quota: Quota,
    patience: Duration,
) -> RedisResult<bool> {
    let start = Instant::now();
    loop {
        let decision = connection.tb_take(key, quota, 1).await?;
        if decision.allowed {
            return Ok(true);
        }
        // Waiting does not help if the answer is never.
        let Some(wait) = decision.retry.delay() else { return Ok(false) };
        let wait = wait.saturating_add(jitter(wait));
        if start.elapsed().saturating_add(wait) > patience {
            return Ok(false);
        }
        sleep(wait).await;
    }
}

/// Something on top, up to a fifth: those who were refused together are not to come back together. Never anything off,
/// for a millisecond too early the answer is no again.
fn jitter(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    wait.mul_f64(0.2 * random)
}
