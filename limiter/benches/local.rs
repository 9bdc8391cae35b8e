//! What a check costs that asks nobody: a refusal that is remembered, and a token that was leased. Both include the look at the
//! quota, with tiers and a cache of overrides in front of a database. The server is there for the first of each only.
//!
//! Bar: under a microsecond.
#![allow(clippy::restriction, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/service.rs"]
mod service;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use redis_token_bucket_limiter::{KnownEmpty, Leasing, Limiter, OnFault, Quota, Source, Tenants, Tiers, UnknownTenant};
use support::Server;
use tokio::runtime::Runtime;

fn quotas(quota: Quota) -> Tenants {
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", quota)]).tenant("acme", "free");
    Tenants::new(tiers).unwrap().window(Duration::from_secs(3_600))
}

/// Checks one after the other, each of which must have been decided by `source`.
fn measure(criterion: &mut Criterion, name: &str, runtime: &Runtime, limiter: &Limiter, source: Source) {
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            runtime.block_on(async {
                let start = std::time::Instant::now();
                let mut others = 0;
                for _ in 0..times {
                    let decision = limiter.check(black_box("acme"), black_box("api")).await;
                    others += u64::from(decision.source != source);
                }
                let took = start.elapsed();
                assert!(others * 10 <= times, "{others} of {times} were decided otherwise");
                took
            })
        });
    });
}

fn local(criterion: &mut Criterion) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();

    let refusing = runtime.block_on(async {
        let redis = service::redis(&server);
        let limiter = Limiter::builder(redis, quotas(Quota::once(1)), OnFault::Closed)
            .known_empty(KnownEmpty::default().cap(Duration::from_secs(3_600)))
            .build();
        while limiter.check("acme", "api").await.source != Source::KnownEmpty {}
        limiter
    });
    measure(criterion, "pre-check hit", &runtime, &refusing, Source::KnownEmpty);

    server.client().ok("FLUSHALL");
    let leasing = runtime.block_on(async {
        let (redis, quota) = (service::redis(&server), Quota::once(1_000_000_000_000_000));
        let leasing = Leasing::up_to(10_000_000).held_for(Duration::from_secs(3_600));
        let limiter = Limiter::builder(redis, quotas(quota), OnFault::Closed).lease("api", leasing).build();
        for _ in 0..100_000 {
            assert!(limiter.check("acme", "api").await.is_allowed());
        }
        limiter
    });
    measure(criterion, "lease spend", &runtime, &leasing, Source::Lease);
    runtime.block_on(leasing.shutdown());
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = local
}
criterion_main!(benches);
