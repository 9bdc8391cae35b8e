//! What a check costs that asks nobody: a refusal that is remembered, and a token that was leased. Both include the look at the
//! quota, with tiers and a cache of overrides in front of a database. The server is there for the first of each only. Then the
//! same through the layer, response and all.
//!
//! Bars: a check under a microsecond; the layer adds less than two to a refusal that is remembered.
#![allow(clippy::restriction, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/service.rs"]
mod service;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{Request, Response};
use criterion::{Criterion, criterion_group, criterion_main};
use redis_token_bucket_limiter::middleware::{Charge, RateLimitLayer};
use redis_token_bucket_limiter::{KnownEmpty, Leasing, Limiter, OnFault, Quota, Source, Tenants, Tiers, UnknownTenant};
use support::Server;
use tokio::runtime::Runtime;
use tower::{Layer, Service};

fn quotas(quota: Quota) -> Tenants {
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", quota)]).tenant("acme", "free");
    Tenants::new(tiers).unwrap().window(Duration::from_secs(3_600))
}

/// Calls one after the other, each of which must say that it was answered as it should.
fn measure(criterion: &mut Criterion, name: &str, runtime: &Runtime, mut call: impl AsyncFnMut() -> bool) {
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            runtime.block_on(async {
                let start = std::time::Instant::now();
                let mut others = 0;
                for _ in 0..times {
                    others += u64::from(!call().await);
                }
                let took = start.elapsed();
                assert!(others * 10 <= times, "{others} of {times} were answered otherwise");
                took
            })
        });
    });
}

/// Whether a check was decided by `source`.
async fn checked(limiter: &Limiter, source: Source) -> bool {
    limiter.check(black_box("acme"), black_box("api")).await.source == source
}

/// A service that costs next to nothing.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// The response to a request of an authenticated tenant.
async fn response<S, B>(service: &mut S) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(());
    request.extensions_mut().insert("acme");
    std::future::poll_fn(|context| service.poll_ready(context)).await.unwrap();
    service.call(black_box(request)).await.unwrap()
}

/// Whether a response has a status, and the fields.
fn tells<B>(response: &Response<B>, status: u16) -> bool {
    response.status() == status && response.headers().contains_key("ratelimit")
}

/// What the authentication left in the request's extensions.
fn classify(request: &Parts) -> Option<Charge> {
    request.extensions.get::<&str>().map(|tenant| Charge::to(tenant, "api"))
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
    measure(criterion, "pre-check hit", &runtime, async || checked(&refusing, Source::KnownEmpty).await);
    measure(criterion, "a service without limits", &runtime, async || response(&mut Hello).await.status() == 200);
    let mut limited = RateLimitLayer::new(refusing, classify).layer(Hello);
    measure(criterion, "the layer, pre-check hit", &runtime, async || tells(&response(&mut limited).await, 429));

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
    measure(criterion, "lease spend", &runtime, async || checked(&leasing, Source::Lease).await);
    let mut limited = RateLimitLayer::new(leasing.clone(), classify).layer(Hello);
    measure(criterion, "the layer, lease spend", &runtime, async || tells(&response(&mut limited).await, 200));
    runtime.block_on(leasing.shutdown());
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = local
}
criterion_main!(benches);
