//! Leases over several replicas: how many calls to the server they spare, how much they can over-admit, and that they refuse
//! nothing that the bucket would grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis_token_bucket_limiter::{Leasing, Limiter, OnFault, Quota, Source};

use crate::service::{Stopped, calls, pass, redis};
use crate::support::{PATIENCE, Server, eventually};

fn replica(server: &Server, quota: Quota, leasing: Leasing) -> Limiter {
    Limiter::builder(redis(server), quota, OnFault::Closed).deadline(PATIENCE).lease("api", leasing).build()
}

/// Whole tokens in the bucket.
fn left(server: &Server, capacity: u64) -> u64 {
    let reply = server.client().ask(&format!("TB.PEEK rl:{{acme}}:api {capacity} 0 0"));
    reply.ints()[1].try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_calls_are_paid_from_leases_and_the_rest_comes_back() {
    let server = Server::start();
    let limiter = replica(&server, Quota::once(100_000), Leasing::up_to(1_000).held_for(Duration::from_millis(200)));
    let mut by_lease = 0;
    for _ in 0..5_000 {
        let decision = limiter.check("acme", "api").await;
        assert!(decision.is_allowed());
        by_lease += u64::from(decision.source == Source::Lease);
    }
    let asked = calls(&server, "tb.lease");
    assert!(by_lease > 4_500 && asked < 500, "{by_lease} by leases, {asked} calls to the server");
    assert!(left(&server, 100_000) < 95_000, "something is held");
    eventually("what was not spent has come back", || (left(&server, 100_000) == 95_000).then_some(()));
}

/// A runtime ends, and with it the task that gives back; the next runtime has one of its own.
#[test]
fn what_was_leased_in_a_runtime_that_has_ended_comes_back_too() {
    let server = Server::start();
    let limiter = replica(&server, Quota::once(100_000), Leasing::up_to(1_000).held_for(Duration::from_millis(200)));
    for spent in [2_000, 4_000] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut admitted = 0;
            while admitted < 2_000 {
                // The first check finds that the connection has gone with its runtime.
                admitted += u64::from(limiter.check("acme", "api").await.is_allowed());
            }
            assert!(left(&server, 100_000) < 100_000 - spent, "something is held");
            if spent == 2_000 {
                return;
            }
            let start = std::time::Instant::now();
            while left(&server, 100_000) != 100_000 - spent {
                assert!(start.elapsed() < PATIENCE, "{} left", left(&server, 100_000));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
}

#[tokio::test]
async fn a_key_that_is_asked_for_now_and_then_is_not_leased() {
    let (server, _clock) = Server::frozen();
    let limiter = replica(&server, Quota::once(100_000), Leasing::up_to(1_000));
    for spent in 1..=3 {
        assert_eq!(limiter.check("acme", "api").await.source, Source::Redis);
        assert_eq!(left(&server, 100_000), 100_000 - spent, "exactly the cost was taken");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_shutdown_gives_everything_back() {
    let server = Server::start();
    let limiter = replica(&server, Quota::once(100_000), Leasing::up_to(1_000).held_for(PATIENCE));
    for _ in 0..2_000 {
        assert!(limiter.check("acme", "api").await.is_allowed());
    }
    assert!(left(&server, 100_000) < 98_000, "something is held");
    limiter.shutdown().await;
    assert_eq!(left(&server, 100_000), 98_000);
    assert_eq!(limiter.check("acme", "api").await.source, Source::Redis);
    assert_eq!(left(&server, 100_000), 97_999, "and nothing is leased any more");
}

/// Many callers on several replicas, until each has been refused.
async fn drain(replicas: &[Limiter], cost: u64) -> u64 {
    let granted = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let (limiter, granted) = (replicas[n % replicas.len()].clone(), Arc::clone(&granted));
            tokio::spawn(async move {
                while limiter.check("acme", "api").cost(cost).await.is_allowed() {
                    granted.fetch_add(cost, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    granted.load(Ordering::Relaxed)
}

/// Time stands still, so nothing is over-admitted; and nothing is lost, for near its end the bucket is asked for what is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_spend_the_bucket_to_the_last_token_and_no_further() {
    const CAPACITY: u64 = 20_011;
    let (server, _clock) = Server::frozen();
    let leasing = Leasing::up_to(500).held_for(PATIENCE);
    for cost in [1, 3] {
        let replicas: Vec<Limiter> = (0..4).map(|_| replica(&server, Quota::per_second(CAPACITY), leasing)).collect();
        let mut granted = drain(&replicas, cost).await;
        // A replica may end with tokens that another one was refused; they are back before anybody counts.
        for replica in &replicas {
            replica.shutdown().await;
        }
        granted += drain(&replicas, cost).await;
        assert_eq!(granted, CAPACITY - CAPACITY % cost);
        assert!(calls(&server, "tb.lease") < CAPACITY / 2);
        server.client().ok("FLUSHALL");
    }
}

/// Tokens are leased, the bucket refills behind them, and then everybody spends: the worst that leases can do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_admission_is_at_most_the_unspent_leases() {
    const CAPACITY: u64 = 40_000;
    const UP_TO: u64 = 500;
    let (server, clock) = Server::frozen();
    let leasing = Leasing::up_to(UP_TO).held_for(PATIENCE);
    let quota = Quota::per_second(CAPACITY);
    for count in [1, 4, 10] {
        let replicas: Vec<Limiter> = (0..count).map(|_| replica(&server, quota, leasing)).collect();
        let spent = spend(&replicas, 20_000).await;
        let held = CAPACITY - left(&server, CAPACITY) - spent;
        pass(&clock, Duration::from_secs(1));
        assert_eq!(left_refilled(&server, quota), CAPACITY);
        let granted = drain(&replicas, 1).await;
        eprintln!("{count} replicas held {held} tokens of at most {}; at once {granted} of {CAPACITY}", count * UP_TO);
        assert!(held > 0 && held <= count * UP_TO, "{held} tokens held");
        assert!(granted > CAPACITY && granted <= CAPACITY + held, "{granted} granted with {held} held");
        server.client().ok("FLUSHALL");
    }
}

/// So many calls, shared by the replicas.
async fn spend(replicas: &[Limiter], calls: u64) -> u64 {
    let each = calls / replicas.len() as u64;
    let tasks: Vec<_> = replicas
        .iter()
        .cloned()
        .map(|limiter| {
            tokio::spawn(async move {
                for _ in 0..each {
                    assert!(limiter.check("acme", "api").await.is_allowed());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    each * replicas.len() as u64
}

fn left_refilled(server: &Server, quota: Quota) -> u64 {
    let capacity = quota.capacity();
    server.client().ask(&format!("TB.PEEK rl:{{acme}}:api {capacity} {capacity} 0")).ints()[1].try_into().unwrap()
}

#[tokio::test]
async fn never_refuses_what_the_bucket_and_the_purse_have_together() {
    let (server, _clock) = Server::frozen();
    let limiter = replica(&server, Quota::once(40), Leasing::up_to(10).held_for(PATIENCE));
    let mut left = 40;
    for cost in [1, 1, 1, 1, 5, 4, 5, 7, 6, 9] {
        let decision = limiter.check("acme", "api").cost(cost).await;
        assert!(decision.is_allowed(), "{cost} of {left}: {decision:?}");
        left -= cost;
        assert_eq!(decision.remaining, Some(left));
    }
    assert!(!limiter.check("acme", "api").await.is_allowed());
}

/// The caller of a batch gives up, and the batch comes: nobody's tokens are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_comes_late_is_for_the_next_calls() {
    let server = Server::start();
    let limiter = replica(&server, Quota::once(100_000), Leasing::up_to(1_000).held_for(PATIENCE));
    let mut admitted = 0;
    for _ in 0..500 {
        assert!(limiter.check("acme", "api").await.is_allowed());
        admitted += 1;
    }
    let stopped = Stopped::new(&server);
    // What is here is spent without the server; the call after that asks for a batch, and gives up.
    while limiter.check("acme", "api").deadline(Duration::from_millis(20)).await.is_allowed() {
        admitted += 1;
    }
    drop(stopped);
    limiter.shutdown().await;
    eventually("all that was not spent is back", || (left(&server, 100_000) == 100_000 - admitted).then_some(()));
}
