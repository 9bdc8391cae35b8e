//! The local pre-check, seen from the server: what is not asked, and what has to be.

use std::time::Duration;

use redis_token_bucket_limiter::{Denied, KnownEmpty, Limiter, OnFault, Quota, Source};

use crate::service;
use crate::support::{PATIENCE, Server};

fn limiter(server: &Server, quota: Quota, settings: KnownEmpty) -> Limiter {
    Limiter::builder(service::redis(server), quota, OnFault::Closed).deadline(PATIENCE).known_empty(settings).build()
}

#[tokio::test]
async fn a_refusal_is_not_asked_for_twice() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_hour(2), KnownEmpty::default().cap(PATIENCE));
    assert!(limiter.check("acme", "api").cost(2).await.is_allowed());
    let first = limiter.check("acme", "api").await;
    assert_eq!(first.source, Source::Redis);
    for _ in 0..1_000 {
        let decision = limiter.check("acme", "api").await;
        assert_eq!(decision.source, Source::KnownEmpty);
        let (Err(Denied::RetryAfter(wait)), Err(Denied::RetryAfter(at_first))) = (decision.verdict, first.verdict)
        else {
            panic!("{decision:?}");
        };
        assert!(wait <= at_first && wait + PATIENCE > at_first);
    }
    assert_eq!(service::calls(&server, "tb.take"), 2);
}

#[tokio::test]
async fn a_smaller_cost_and_another_bucket_are_asked_for() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_hour(5), KnownEmpty::default().cap(PATIENCE));
    assert!(limiter.check("acme", "api").cost(2).await.is_allowed());
    assert!(!limiter.check("acme", "api").cost(4).await.is_allowed());
    assert_eq!(limiter.check("acme", "api").cost(5).await.source, Source::KnownEmpty);
    assert!(limiter.check("acme", "api").cost(3).await.is_allowed());
    assert!(limiter.check("acme", "export").cost(4).await.is_allowed());
    assert!(limiter.check("other", "api").cost(4).await.is_allowed());
}

#[tokio::test]
async fn a_bucket_that_somebody_resets_is_found_after_the_cap() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_hour(1), KnownEmpty::default().cap(Duration::from_millis(50)));
    assert!(limiter.check("acme", "api").await.is_allowed());
    assert!(!limiter.check("acme", "api").await.is_allowed());
    server.client().int("DEL rl:{acme}:api");
    let start = std::time::Instant::now();
    while !limiter.check("acme", "api").await.is_allowed() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn several_classes_are_refused_by_the_one_that_is_known() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_hour(1), KnownEmpty::default().cap(PATIENCE));
    assert!(limiter.check("acme", "b").await.is_allowed());
    assert_eq!(limiter.check("acme", "a").and("acme", "b").await.source, Source::Redis);
    let decision = limiter.check("acme", "c").and("acme", "b").await;
    assert_eq!(decision.source, Source::KnownEmpty);
    assert_eq!(decision.refused_by.unwrap().class.as_ref(), "b");
}

#[tokio::test]
async fn a_settled_reservation_is_seen_at_once() {
    let server = Server::start();
    let limiter = limiter(&server, Quota::per_hour(10), KnownEmpty::default().cap(PATIENCE));
    let reserved = limiter.check("acme", "api").cost(10).reserve().await.unwrap();
    assert!(!limiter.check("acme", "api").await.is_allowed());
    reserved.settle(3).await;
    assert!(limiter.check("acme", "api").await.is_allowed());
}
