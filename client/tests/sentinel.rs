//! Real Sentinels: the commands on a connection that a Sentinel named, before and after a failover.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/family.rs"]
mod family;
#[path = "support/sentinel.rs"]
mod sentinel;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis_token_bucket_client::{AsyncTokenBucketCommands, Fault, Key, Quota};
use sentinel::{NAME, Sentinels};
use support::{PATIENCE, Server};

fn ask(sentinels: &Sentinels) -> SentinelClient {
    SentinelClient::build(sentinels.urls(), String::from(NAME), None, SentinelServerType::Master).unwrap()
}

/// A connection to whom the Sentinels hold for the primary, if anybody answers there.
async fn primary(client: &mut SentinelClient) -> Option<MultiplexedConnection> {
    tokio::time::timeout(Duration::from_secs(1), client.get_async_connection()).await.ok()?.ok()
}

#[tokio::test]
async fn a_failover_is_seen_as_a_fault_and_the_new_primary_goes_on_counting() {
    let mut old = Server::start();
    let new = Server::start();
    new.follow(&old);
    let sentinels = Sentinels::watch(&old);
    let mut client = ask(&sentinels);
    let mut connection = primary(&mut client).await.unwrap();
    family::unblocked(&mut connection, "acme").await;
    let (key, quota) = (Key::new("other", "api"), Quota::once(10));
    for left in (5..10).rev() {
        assert_eq!(connection.tb_take(&key, quota, 1).await.unwrap().remaining, left);
    }
    new.catch_up(&old);

    old.kill();
    let killed = Instant::now();
    let fault = Fault::of(&connection.tb_take(&key, quota, 1).await.unwrap_err());
    assert_eq!(fault, Fault::Disconnected);
    let decision = loop {
        assert!(killed.elapsed() < PATIENCE, "no failover");
        // The connection does not look for another server: that is for whoever asked the Sentinel.
        if let Some(mut connection) = primary(&mut client).await {
            match connection.tb_take(&key, quota, 1).await {
                Ok(decision) => break decision,
                Err(error) => assert!(matches!(Fault::of(&error), Fault::ReadOnly | Fault::Disconnected), "{error}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    eprintln!("recovered after {:?}", killed.elapsed());
    assert_eq!(decision.remaining, 4);
    let mut connection = primary(&mut client).await.unwrap();
    family::unblocked(&mut connection, "after").await;
}
