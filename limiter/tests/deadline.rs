//! The deadline, to the millisecond: time is paused here, and passes only while everybody waits.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

use std::time::Duration;

use redis_token_bucket_limiter::client::redis::aio::ConnectionLike;
use redis_token_bucket_limiter::client::redis::{Cmd, Pipeline, RedisFuture, Value};
use redis_token_bucket_limiter::{
    Check, Decision, Fault, KnownEmpty, Leasing, Limiter, OnFault, Quota, QuotaError, Quotas, Redis, Source,
};
use tokio::time::Instant;

/// A server that takes what it is sent, and says nothing.
#[derive(Clone)]
struct Silent;

impl ConnectionLike for Silent {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(std::future::pending())
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(std::future::pending())
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Quotas that take this long to read.
struct Slow(Duration);

impl Quotas for Slow {
    async fn quota(&self, _: &str, _: &str) -> Result<Quota, QuotaError> {
        tokio::time::sleep(self.0).await;
        Ok(Quota::per_second(100))
    }
}

fn limiter(quotas: impl Quotas) -> Limiter {
    Limiter::builder(Redis::over(Silent), quotas, OnFault::Open)
        .breaker(0, Duration::ZERO)
        .known_empty(KnownEmpty::default())
        .lease("leased", Leasing::up_to(10))
        .build()
}

/// A decision, and when it came.
async fn timed(check: impl IntoFuture<Output = Decision>) -> (Source, Duration) {
    let start = Instant::now();
    let decision = check.await;
    (decision.source, start.elapsed())
}

fn is(time: Duration, millis: u64) {
    // The timer's step.
    assert!(time.as_millis().abs_diff(millis.into()) <= 1, "{time:?}, not {millis} ms");
}

#[tokio::test(start_paused = true)]
async fn fifty_milliseconds_unless_said_otherwise() {
    let limiter = limiter(Quota::per_second(100));
    let check = || limiter.check("acme", "api");
    let expected = Source::FailedOpen(Fault::Deadline);
    let all: [(Check<'_>, u64); 3] =
        [(check(), 50), (limiter.check("acme", "leased"), 50), (check().deadline(Duration::from_millis(7)), 7)];
    for (check, millis) in all {
        let (source, took) = timed(check).await;
        assert_eq!(source, expected);
        is(took, millis);
    }
    let (source, took) = timed(check().and("acme", "user").and("other", "total")).await;
    assert_eq!(source, expected);
    is(took, 50);
    let start = Instant::now();
    assert!(check().reserve().await.is_ok(), "by the policy");
    is(start.elapsed(), 50);
}

#[tokio::test(start_paused = true)]
async fn is_over_the_quota_and_the_answer_together() {
    let (source, took) = timed(limiter(Slow(Duration::from_millis(30))).check("acme", "api")).await;
    assert_eq!(source, Source::FailedOpen(Fault::Deadline));
    is(took, 50);
    let (source, took) = timed(limiter(Slow(Duration::from_millis(80))).check("acme", "api")).await;
    assert_eq!(source, Source::FailedOpen(Fault::Quotas));
    is(took, 50);
    let slow = limiter(Slow(Duration::from_millis(20)));
    let (source, took) = timed(slow.check("a", "x").and("b", "y").and("c", "z")).await;
    assert_eq!(source, Source::FailedOpen(Fault::Quotas), "three quotas, one after the other");
    is(took, 50);
}

#[tokio::test(start_paused = true)]
async fn the_breaker_spares_the_others_the_wait() {
    let limiter = Limiter::builder(Redis::over(Silent), Quota::per_second(100), OnFault::Closed).build();
    let mut waits = Vec::new();
    for _ in 0..130 {
        let (_, took) = timed(limiter.check("acme", "api")).await;
        waits.push(took);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Five to open it, and then one for each second that it stayed open.
    assert_eq!(waits.iter().filter(|wait| !wait.is_zero()).count(), 5 + 1);
}
