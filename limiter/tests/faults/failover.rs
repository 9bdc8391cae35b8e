//! A master that is lost, in a cluster and under Sentinel: the others go on, and its tenants come back by themselves.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis_token_bucket_limiter::client::Fault as ServerFault;
use redis_token_bucket_limiter::client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_token_bucket_limiter::{Decision, Fault, Implementation, Limiter, OnFault, Redis, Settled, Source, Tokens};

use crate::cluster::Cluster;
use crate::proxy::Proxy;
use crate::sentinel::{NAME, Sentinels};
use crate::service::{DEADLINE, QUOTA, Stopped, charged, in_time, limiter, recovery};
use crate::support::{Client, PATIENCE, Reply, Server, eventually};

const TENANTS: usize = 60;

fn tenants() -> Vec<String> {
    (0..TENANTS).map(|n| format!("t{n}")).collect()
}

/// The slot that a server computes for a tenant's keys.
fn slot(server: &Server, tenant: &str) -> u16 {
    server.client().int(&format!("CLUSTER KEYSLOT rl:{{{tenant}}}:api")).try_into().unwrap()
}

/// One check of every tenant at once, each in time.
async fn round(limiter: &Limiter, tenants: &[String]) -> HashMap<String, Decision> {
    let mut checks = tokio::task::JoinSet::new();
    for tenant in tenants {
        let (limiter, tenant) = (limiter.clone(), tenant.clone());
        checks.spawn(async move {
            let decision = in_time(limiter.check(&tenant, "api")).await;
            (tenant, decision)
        });
    }
    checks.join_all().await.into_iter().collect()
}

fn by_redis(decisions: &HashMap<String, Decision>) -> usize {
    decisions.values().filter(|decision| decision.source == Source::Redis).count()
}

/// Checks all tenants, again and again, until Redis has decided for each in one round; answers how many checks of the others
/// Redis decided meanwhile, and how many there were.
async fn until_all_are_heard(
    limiter: &Limiter,
    tenants: &[String],
    others: &[String],
    checks: &mut u64,
) -> (usize, usize) {
    let start = Instant::now();
    let (mut heard, mut asked) = (0, 0);
    loop {
        let decisions = round(limiter, tenants).await;
        *checks += 1;
        asked += others.len();
        heard += others.iter().filter(|tenant| decisions[*tenant].source == Source::Redis).count();
        if by_redis(&decisions) == TENANTS {
            eprintln!("all heard after {:?}; the others {heard} of {asked} times", start.elapsed());
            return (heard, asked);
        }
        assert!(start.elapsed() < PATIENCE, "no recovery");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_cluster_loses(lose: impl FnOnce(Cluster) -> (Cluster, Option<Stopped>)) {
    let cluster = Cluster::of_three_pairs();
    for node in cluster.nodes() {
        // Otherwise the servers themselves refuse for the whole cluster.
        node.client().ok("CONFIG SET cluster-require-full-coverage no");
    }
    // The default breaker: in each range of slots it tries again after a second.
    let redis = Redis::cluster(cluster.urls()).unwrap();
    let limiter = Limiter::builder(redis, QUOTA, OnFault::Closed).deadline(DEADLINE).build();
    let (tenants, mut checks) = (tenants(), 0);
    until_all_are_heard(&limiter, &tenants, &[], &mut checks).await;
    let is_on_first = |tenant: &String| cluster.primary_of(slot(&cluster.nodes()[1], tenant)) == 0;
    let (lost, kept): (Vec<String>, Vec<String>) = tenants.iter().cloned().partition(is_on_first);
    assert!(lost.len() > 5 && kept.len() > 20);

    let (cluster, stopped) = lose(cluster);
    let (heard, asked) = until_all_are_heard(&limiter, &tenants, &kept, &mut checks).await;
    assert!(heard * 10 > asked * 9, "the loss of one is not everybody's: {heard} of {asked}");
    drop(stopped);
    for tenant in &tenants {
        let charged = cluster.nodes().iter().map(|node| stored(node, tenant)).max().unwrap();
        assert!(charged <= checks, "{charged} charged to {tenant} for {checks} checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_replaces_a_master_that_died() {
    a_cluster_loses(|mut cluster| {
        cluster.kill_primary(0);
        (cluster, None)
    })
    .await;
}

/// Nothing breaks off: that its calls go unanswered is all that tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_replaces_a_master_that_stands_still() {
    a_cluster_loses(|cluster| {
        let stopped = Stopped::new(&cluster.primaries()[0]);
        (cluster, Some(stopped))
    })
    .await;
}

/// While its master is known to be gone nothing is sent, so nothing is in doubt: it waits for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_waits_for_the_next_master() {
    let mut cluster = Cluster::of_three_pairs();
    let limiter = limiter(Redis::cluster(cluster.urls()).unwrap(), OnFault::Closed);
    let is_on_first = |tenant: &String| cluster.primary_of(slot(&cluster.nodes()[1], tenant)) == 0;
    let tenant = tenants().into_iter().find(is_on_first).unwrap();
    let reserve = || limiter.check(&tenant, "api").cost(500).deadline(PATIENCE).reserve();
    let (first, second) = (reserve().await.unwrap(), reserve().await.unwrap());
    cluster.let_the_replicas_catch_up();
    cluster.kill_primary(0);
    let lost = Fault::Redis(ServerFault::Disconnected);
    while in_time(limiter.check(&tenant, "other")).await.fault() != Some(lost) {}
    let settlements = (first.settle(100), second.settle(900));
    assert_eq!(settlements.0.await, Settled::Refunded(Tokens::new(400)));
    assert_eq!(settlements.1.await, Settled::Charged(Tokens::new(400)));
    assert_eq!(cluster.nodes().iter().map(|node| stored(node, &tenant)).max(), Some(1_000));
}

/// What a node has stored of a tenant, on whichever side of the replication it stands.
fn stored(node: &Server, tenant: &str) -> u64 {
    let mut client = node.client();
    client.ask("READONLY");
    match client.ask(&format!("TB.STATE rl:{{{tenant}}}:api")) {
        Reply::Nil | Reply::Error(_) => 0,
        state => 1_000_000 - state.field("tokens").text().parse::<u64>().unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_to_another_master() {
    let cluster = Cluster::of_three();
    let limiter = limiter(Redis::cluster(cluster.urls()).unwrap(), OnFault::Closed);
    let nodes = cluster.nodes();
    let id = |at: usize| nodes[at].client().ask("CLUSTER MYID").text().to_owned();
    let tenant =
        (0..).map(|n| format!("t{n}")).find(|tenant| cluster.primary_of(slot(&nodes[0], tenant)) == 0).unwrap();
    let slot = slot(&nodes[0], &tenant);
    recovery(&limiter, "warm").await;
    assert_eq!(charged(&nodes[0], &tenant), 0);

    // Half way: the old node refuses what it no longer has, and names the new one, which has to be asked specially.
    nodes[1].client().ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(0)));
    nodes[0].client().ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(1)));
    let decision = limiter.check(&tenant, "api").deadline(PATIENCE).await;
    assert_eq!((decision.source, decision.remaining), (Source::Redis, Some(999_999)), "{decision:?}");

    for node in [1, 0, 2] {
        nodes[node].client().ok(&format!("CLUSTER SETSLOT {slot} NODE {}", id(1)));
    }
    let decision = limiter.check(&tenant, "api").deadline(PATIENCE).await;
    assert_eq!((decision.source, decision.remaining), (Source::Redis, Some(999_998)), "{decision:?}");
    assert_eq!(charged(&nodes[1], &tenant), 2);
}

/// A primary with a replica that has all it has, Sentinels that watch them, and a limiter that has been heard.
async fn watched() -> (Server, Server, Sentinels, Limiter) {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let sentinels = Sentinels::watch(&primary);
    let master = SentinelClient::build(sentinels.urls(), String::from(NAME), None, SentinelServerType::Master).unwrap();
    let limiter = limiter(Redis::sentinel(master), OnFault::Open);
    recovery(&limiter, "acme").await;
    replica.catch_up(&primary);
    (primary, replica, sentinels, limiter)
}

async fn fails_over(replica: &Server, limiter: &Limiter) {
    let lost = Instant::now();
    let mut checks = 0;
    while charged(replica, "after") == 0 {
        let decision = in_time(limiter.check("after", "api")).await;
        assert!(decision.is_allowed());
        checks += 1;
        assert!(lost.elapsed() < PATIENCE, "no failover: {decision:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eprintln!("recovered after {:?}", lost.elapsed());
    assert!(charged(replica, "after") <= checks);
    assert_eq!(recovery(limiter, "acme").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_replaces_a_master_that_died() {
    let (mut primary, replica, _sentinels, limiter) = watched().await;
    primary.kill();
    fails_over(&replica, &limiter).await;
}

/// Its connection never breaks off: nothing but the silence tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_replaces_a_master_that_stands_still() {
    let (primary, replica, _sentinels, limiter) = watched().await;
    let _stopped = Stopped::new(&primary);
    fails_over(&replica, &limiter).await;
}

/// A failover by hand: the old master becomes a replica, at the address that the limiter is connected to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_is_asked_again_when_the_master_is_demoted() {
    let (_primary, replica, sentinels, limiter) = watched().await;
    let sentinel = &sentinels.urls()[0];
    let port = sentinel.rsplit(':').next().unwrap().parse().unwrap();
    let mut sentinel = Client::connect(port).unwrap();
    eventually("the failover has begun", || {
        let answer = sentinel.ask(&format!("SENTINEL FAILOVER {NAME}"));
        (!answer.is_error()).then_some(())
    });
    fails_over(&replica, &limiter).await;
}

/// What takes over has no module: the script goes on, with a bucket of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_module_takes_over() {
    let (mut first, second) = (Server::start(), Server::setup().without_module().start());
    let (proxy, listener) = Proxy::bind().await;
    proxy.serve(listener, first.port());
    let redis = Redis::standalone(format!("redis://127.0.0.1:{}", proxy.port())).unwrap();
    let limiter = limiter(redis.clone(), OnFault::Closed);
    recovery(&limiter, "acme").await;
    assert_eq!(redis.served_by(), Some(Implementation::Module));
    proxy.lead_to(second.port());
    first.kill();
    recovery(&limiter, "acme").await;
    assert_eq!(redis.served_by(), Some(Implementation::Script));
    let decision = in_time(limiter.check("other", "api").cost(2)).await;
    assert_eq!((decision.source, decision.remaining), (Source::Redis, Some(999_998)));
}
