//! What a service's tests have in common: a limiter on a server, a server that stands still, how much was charged.
#![allow(dead_code, unused_imports, reason = "every test file uses its own part of this module")]

use std::time::{Duration, Instant};

use redis_token_bucket_limiter::{Check, Decision, Fault, Key, Limiter, OnFault, Quota, Redis, Source};

pub(crate) use crate::support::Stopped;
use crate::support::{PATIENCE, Reply, Server, WallClock};

/// Nothing comes back, so every token that was taken is seen.
pub(crate) const QUOTA: Quota = Quota::once(1_000_000);
/// Of the limiters here: more than the default, for the tests share two cores with a compiler.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);
/// What a check may take in the end. Without a deadline the checks of these tests take many seconds, or for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

pub(crate) fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

pub(crate) fn redis(server: &Server) -> Redis {
    Redis::standalone(url(server)).unwrap()
}

/// A limiter whose breaker tries again soon.
pub(crate) fn limiter(redis: Redis, policy: OnFault) -> Limiter {
    Limiter::builder(redis, QUOTA, policy).deadline(DEADLINE).breaker(5, Duration::from_millis(100)).build()
}

/// A limiter that no busy machine makes fail.
pub(crate) fn patient(redis: Redis, quotas: impl redis_token_bucket_limiter::Quotas) -> Limiter {
    Limiter::builder(redis, quotas, OnFault::Closed).deadline(PATIENCE).build()
}

/// The decision of a check that has to end in time, whatever happens.
pub(crate) async fn in_time(check: Check<'_>) -> Decision {
    let start = Instant::now();
    let decision = check.await;
    assert!(start.elapsed() < LIMIT, "{:?} for {decision:?}", start.elapsed());
    decision
}

/// Checks until Redis decides; answers how many it took.
pub(crate) async fn recovery(limiter: &Limiter, tenant: &str) -> u64 {
    let start = Instant::now();
    for checks in 1.. {
        let decision = in_time(limiter.check(tenant, "api")).await;
        if decision.source == Source::Redis {
            return checks;
        }
        assert!(start.elapsed() < PATIENCE, "no recovery: {decision:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!("checks without end")
}

/// Checks until there is this fault; what other faults come before it is the caller's to allow.
pub(crate) async fn until_fault(limiter: &Limiter, tenant: &str, fault: Fault, before: &[Fault]) -> u64 {
    let start = Instant::now();
    for checks in 1.. {
        let decision = in_time(limiter.check(tenant, "api")).await;
        match decision.fault() {
            Some(found) if found == fault => return checks,
            Some(found) => assert!(before.contains(&found), "{found:?}"),
            None => assert_eq!(decision.source, Source::Redis),
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {fault:?}; last {decision:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("checks without end")
}

/// How many tokens of [`QUOTA`] are gone, as the server knows.
pub(crate) fn charged(server: &Server, tenant: &str) -> u64 {
    charged_to(server, &Key::new(tenant, "api"))
}

pub(crate) fn charged_to(server: &Server, key: &Key) -> u64 {
    let state = server.client().call(&[b"TB.STATE".as_slice(), key.as_bytes()]);
    match state {
        Reply::Nil => 0,
        state => 1_000_000 - state.field("tokens").text().parse::<u64>().expect("whole tokens"),
    }
}

/// How many calls of this command the server has seen.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.client().bytes("INFO commandstats");
    let stats = String::from_utf8_lossy(&stats).to_lowercase();
    let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or_default()
}

/// Lets time pass on a server's clock.
pub(crate) fn pass(clock: &WallClock, time: Duration) {
    clock.advance(time.as_micros().try_into().expect("not that long"));
}
