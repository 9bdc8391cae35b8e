//! Charged at most once, and nothing left behind: replies that are lost, calls that are given up.

use std::time::Duration;

use redis_token_bucket_limiter::client::Fault as ServerFault;
use redis_token_bucket_limiter::{Fault, Key, Leasing, Limiter, OnFault, Quota, Redis, Source};
use tokio::runtime::Handle;

use crate::cluster::of_one_behind;
use crate::proxy::Proxy;
use crate::service::{QUOTA, Stopped, charged, charged_to, in_time, limiter, recovery, redis};
use crate::support::{PATIENCE, Server, eventually};

/// A check whose reply is lost together with the connection, after the server has carried it out.
async fn lost_reply_is_charged_once(redis: Redis, proxy: &Proxy, server: &Server) {
    // Long enough for a second attempt, if anything made one.
    let patient = Limiter::builder(redis, QUOTA, OnFault::Closed).deadline(Duration::from_secs(1)).build();
    let before = recovery(&patient, "acme").await;
    assert_eq!(charged(server, "acme"), before);
    proxy.lose_the_next_reply();
    let decision = in_time(patient.check("acme", "api")).await;
    assert!(proxy.has_lost_one());
    assert_eq!(decision.fault(), Some(Fault::Redis(ServerFault::Disconnected)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(charged(server, "acme"), before + 1);
    assert_eq!(recovery(&patient, "acme").await, 1, "and the connection is there again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_of_one_server_is_charged_once() {
    let server = Server::start();
    let (proxy, listener) = Proxy::bind().await;
    proxy.serve(listener, server.port());
    let redis = Redis::standalone(format!("redis://127.0.0.1:{}", proxy.port())).unwrap();
    lost_reply_is_charged_once(redis, &proxy, &server).await;
}

/// redis-rs' own cluster connection sends the call again: two tokens are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_of_a_cluster_is_charged_once() {
    let (proxy, listener) = Proxy::bind().await;
    let server = of_one_behind(proxy.port());
    proxy.serve(listener, server.port());
    let redis = Redis::cluster([format!("redis://127.0.0.1:{}", proxy.port())]).unwrap();
    lost_reply_is_charged_once(redis, &proxy, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_are_dropped_leave_nothing_behind() {
    let server = Server::start();
    let limiter = Limiter::builder(redis(&server), QUOTA, OnFault::Closed)
        .deadline(PATIENCE)
        .lease("leased", Leasing::up_to(50))
        .build();
    recovery(&limiter, "acme").await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 0..3 {
        let stopped = (round > 0).then(|| Stopped::new(&server));
        let dropped: Vec<_> = (0..200)
            .map(|n| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let class = if n % 2 == 0 { "api" } else { "leased" };
                    let tenant = format!("t{}", n % 20);
                    let _ = tokio::time::timeout(Duration::from_micros(n * 50), limiter.check(&tenant, class)).await;
                })
            })
            .collect();
        for check in dropped {
            check.await.unwrap();
        }
        drop(stopped);
        // The connection is in step: this answer belongs to this question.
        let tenant = format!("after-{round}");
        let decision = limiter.check(&tenant, "api").cost(1_000 + round).await;
        assert_eq!(decision.remaining, Some(1_000_000 - 1_000 - round), "{decision:?}");
    }
    limiter.shutdown().await;
    for tenant in (0..20).map(|tenant| format!("t{tenant}")) {
        for class in ["api", "leased"] {
            let charged = charged_to(&server, &Key::new(&tenant, class));
            assert!(charged <= 30, "{charged} charged to {tenant} for thirty checks");
        }
    }
    // The sweeper of the leases is the one that stays.
    eventually("the tasks have ended", || (tasks() <= before + 1).then_some(()));
    drop(limiter);
    eventually("and with the limiter all of them", || (tasks() < before).then_some(()));
}

/// Dropped as a probe, as the holder of a batch, at any moment: the next check is decided by Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_dropped_does_not_keep_the_breaker_open() {
    let server = Server::start();
    let limiter = limiter(redis(&server), OnFault::Closed);
    recovery(&limiter, "acme").await;
    let stopped = Stopped::new(&server);
    while in_time(limiter.check("acme", "api")).await.fault() != Some(Fault::BreakerOpen) {}
    for _ in 0..20 {
        let _ = tokio::time::timeout(Duration::from_millis(10), limiter.check("acme", "api")).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stopped);
    recovery(&limiter, "acme").await;
}

/// A connection whose other end has gone without a word is replaced: the server stands still, another one takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_never_breaks_off_is_given_up() {
    let (first, second) = (Server::start(), Server::start());
    let (proxy, listener) = Proxy::bind().await;
    proxy.serve(listener, first.port());
    let limiter = limiter(Redis::standalone(format!("redis://127.0.0.1:{}", proxy.port())).unwrap(), OnFault::Closed);
    recovery(&limiter, "acme").await;
    let stopped = Stopped::new(&first);
    proxy.lead_to(second.port());
    recovery(&limiter, "acme").await;
    assert!(charged(&second, "acme") >= 1);
    drop(stopped);
    let decision = in_time(limiter.check("acme", "api")).await;
    assert_eq!(decision.source, Source::Redis);
    assert_eq!(decision.quota, Some(Quota::once(1_000_000)));
}
