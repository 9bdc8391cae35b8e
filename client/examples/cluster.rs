//! Many tenants over a cluster.
//! `cargo run -p redis-token-bucket-client --example cluster --features cluster redis://HOST:PORT ...`

use std::error::Error;
use std::time::Duration;

use redis_token_bucket_client::{AsyncTokenBucketCommands, Fault, Key, Quota, recommended};

const API: Quota = Quota::per_second(50).burst(100);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    let client = recommended::cluster_client_builder(nodes, Duration::from_millis(500)).build()?;
    let connection = client.get_async_connection().await?;

    // One connection for everybody: clones share it, and calls to one node travel together.
    let tenants = (0..100).map(|tenant| {
        let mut connection = connection.clone();
        tokio::spawn(async move { connection.tb_take(Key::new(format!("tenant-{tenant}"), "api"), API, 1).await })
    });
    let (mut allowed, mut faults) = (Vec::new(), Vec::new());
    for call in tenants.collect::<Vec<_>>() {
        match call.await? {
            Ok(decision) => allowed.push(decision.allowed),
            Err(error) => faults.push(Fault::of(&error)),
        }
    }
    let allowed = allowed.into_iter().filter(|allowed| *allowed).count();
    println!("{allowed} of 100 tenants allowed, faults: {faults:?}");
    Ok(())
}
