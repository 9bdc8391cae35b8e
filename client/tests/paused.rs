//! A server that is stopped in its tracks: with the configurations that this crate recommends a call ends in time, and
//! is carried out once when the server goes on, however many calls share the connection.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use redis::Client;
use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Fault, Implementation, Key, Quota, TokenBuckets, recommended,
};
use support::{Server, Stopped};

/// Nothing comes back, so that every token that was taken is seen.
const QUOTA: Quota = Quota::once(1000);
const DEADLINE: Duration = Duration::from_millis(150);
/// What two busy cores may add.
const GRACE: Duration = Duration::from_millis(850);

/// Several tenants' calls at once over one connection to a paused server: each is told after the deadline, and has cost
/// one token once the server has gone through all that it was sent.
async fn each_call_is_charged_once<C>(connection: C, servers: &[&Server], tenants: &[String])
where
    C: AsyncTokenBucketCommands + Clone + Send + 'static,
{
    let mut before = Vec::new();
    for tenant in tenants {
        // The first call of all may find the connection, or the script, not ready in time.
        while connection.clone().tb_take(Key::new(tenant, "api"), QUOTA, 1).await.is_err() {}
        before.push(remaining(&connection, tenant).await);
    }
    let paused: Vec<Stopped> = servers.iter().map(|server| Stopped::new(server)).collect();
    let calls: Vec<_> = tenants
        .iter()
        .map(|tenant| {
            let (mut connection, key) = (connection.clone(), Key::new(tenant, "api"));
            tokio::spawn(async move {
                let start = Instant::now();
                (connection.tb_take(key, QUOTA, 1).await, start.elapsed())
            })
        })
        .collect();
    for call in calls {
        let (answer, took) = call.await.unwrap();
        let error = answer.unwrap_err();
        assert_eq!(Fault::of(&error), Fault::Timeout, "{error}");
        assert!(took >= DEADLINE / 2 && took < DEADLINE + GRACE, "{took:?}");
    }
    // Time in which a connection that meant to try again would do so.
    tokio::time::sleep(DEADLINE).await;
    drop(paused);
    // An answer on the same connection comes after everything that was sent before it.
    for (tenant, before) in tenants.iter().zip(before) {
        assert_eq!(remaining(&connection, tenant).await, before - 1, "{tenant}");
    }
}

/// Asks until an answer comes in time.
async fn remaining<C: AsyncTokenBucketCommands + Clone>(connection: &C, tenant: &str) -> u64 {
    let key = Key::new(tenant, "api");
    loop {
        match connection.clone().tb_peek(&key, QUOTA, 1).await {
            Ok(decision) => return decision.remaining,
            Err(error) => assert_eq!(Fault::of(&error), Fault::Timeout, "{error}"),
        }
    }
}

fn tenants() -> Vec<String> {
    (0..20).map(|tenant| format!("t{tenant}")).collect()
}

#[tokio::test]
async fn one_call_charges_once_on_a_connection_manager() {
    let server = Server::start();
    let info = recommended::connection_info(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    let config = recommended::connection_manager_config(DEADLINE);
    let manager = Client::open(info).unwrap().get_connection_manager_with_config(config).await.unwrap();
    each_call_is_charged_once(manager, &[&server], &tenants()).await;
}

#[tokio::test]
async fn one_call_charges_once_through_the_script() {
    let server = Server::setup().without_module().start();
    let config = recommended::connection_manager_config(DEADLINE);
    let client = Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    let manager = client.get_connection_manager_with_config(config).await.unwrap();
    let buckets = TokenBuckets::new(manager);
    each_call_is_charged_once(buckets.clone(), &[&server], &tenants()).await;
    assert_eq!(buckets.served_by(), Some(Implementation::Script));
}

#[tokio::test]
async fn one_call_charges_once_on_a_cluster_connection() {
    let cluster = cluster::Cluster::of_three();
    let client = recommended::cluster_client_builder(cluster.urls(), DEADLINE).build().unwrap();
    let connection = client.get_async_connection().await.unwrap();
    let servers: Vec<&Server> = cluster.primaries().iter().collect();
    each_call_is_charged_once(connection, &servers, &tenants()).await;
}

/// Why the recommended configuration leaves a call no time for a second try.
#[tokio::test]
async fn a_cluster_connection_with_time_to_try_again_charges_twice() {
    let cluster = cluster::Cluster::of_three();
    let client = recommended::cluster_client_builder(cluster.urls(), DEADLINE)
        .overall_response_timeout(Some(10 * DEADLINE))
        .build()
        .unwrap();
    let connection = client.get_async_connection().await.unwrap();
    for tenant in tenants() {
        assert!(connection.clone().tb_take(Key::new(tenant, "api"), QUOTA, 1).await.unwrap().allowed);
    }
    let paused: Vec<Stopped> = cluster.primaries().iter().map(Stopped::new).collect();
    let calls: Vec<_> = tenants()
        .into_iter()
        .map(|tenant| {
            let mut connection = connection.clone();
            tokio::spawn(async move { connection.tb_take(Key::new(tenant, "api"), QUOTA, 1).await })
        })
        .collect();
    tokio::time::sleep(4 * DEADLINE).await;
    drop(paused);
    // Other traffic, which is what sets the second tries going.
    let mut left = Vec::new();
    for tenant in tenants().into_iter().chain(tenants()) {
        left.push(
            connection.clone().tb_peek(Key::new(tenant, "api"), QUOTA, 1).await.map(|decision| decision.remaining),
        );
    }
    for call in calls {
        let _ = call.await.unwrap();
    }
    assert!(left.iter().flatten().any(|left| *left < 998), "{left:?}");
}

/// The rest of the cluster goes on.
#[tokio::test]
async fn a_paused_node_of_a_cluster_holds_up_its_own_tenants_only() {
    let cluster = cluster::Cluster::of_three();
    let client = recommended::cluster_client_builder(cluster.urls(), DEADLINE).build().unwrap();
    let mut connection = client.get_async_connection().await.unwrap();
    let mut shifted = Vec::new();
    for tenant in tenants() {
        assert!(connection.tb_take(Key::new(tenant, "api"), QUOTA, 1).await.unwrap().allowed);
    }
    let paused = Stopped::new(&cluster.primaries()[0]);
    for tenant in tenants() {
        match connection.tb_take(Key::new(&tenant, "api"), QUOTA, 1).await {
            Ok(decision) => assert_eq!(decision.remaining, 998),
            Err(error) => {
                assert_eq!(Fault::of(&error), Fault::Timeout, "{error}");
                shifted.push(tenant);
            }
        }
    }
    drop(paused);
    let on_the_node = tenants().iter().filter(|tenant| slot_is_on_the_first(&cluster, tenant)).count();
    assert_eq!(shifted.len(), on_the_node, "{shifted:?}");
}

fn slot_is_on_the_first(cluster: &cluster::Cluster, tenant: &str) -> bool {
    let slot = cluster.nodes()[0].client().int(&format!("CLUSTER KEYSLOT {}", Key::new(tenant, "api")));
    cluster.primary_of(slot.try_into().unwrap()) == 0
}
