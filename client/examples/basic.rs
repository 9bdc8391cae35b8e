//! Takes from a bucket until it is empty.
//! `cargo run -p redis-token-bucket-client --example basic --features connection-manager [redis://HOST:PORT]`

use std::error::Error;
use std::time::Duration;

use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Fault, Key, Quota, Retry, TokenBuckets, recommended, redis::Client,
};

/// Three at once after a pause, and three a minute in the long run.
const EXPORTS: Quota = Quota::per_minute(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let client = Client::open(recommended::connection_info(server)?)?;
    let config = recommended::connection_manager_config(Duration::from_millis(500));
    let mut buckets = TokenBuckets::new(client.get_connection_manager_with_config(config).await?);

    let key = Key::new("acme", "exports");
    for call in 1..=5 {
        match buckets.tb_take(&key, EXPORTS, 1).await {
            Ok(decision) if decision.allowed => println!("call {call}: allowed, {} left", decision.remaining),
            Ok(decision) => match decision.retry {
                Retry::After(wait) => println!("call {call}: refused, try again in {wait:?}"),
                _ => println!("call {call}: refused for good"),
            },
            // Not a refusal. Whether to let the call pass is for you to decide, and better beforehand.
            Err(error) => println!("call {call}: no answer, {} ({error})", Fault::of(&error)),
        }
    }
    if let Some(implementation) = buckets.served_by() {
        println!("answered by the {implementation}");
    }
    Ok(())
}
