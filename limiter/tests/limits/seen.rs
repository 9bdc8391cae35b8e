//! What is seen from outside: metrics whose labels cannot multiply, and events for faults and flips only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use redis_token_bucket_limiter::{Limiter, Metrics, Observer, OnFault, Quota};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

use crate::service::redis;
use crate::support::{PATIENCE, Server};

/// Every series by name and labels, and what was recorded.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

struct Series(Recorded, String);

impl Series {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recorded {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Series(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn total(&self, series: &str) -> u64 {
        self.0.lock().unwrap().get(series).map_or(0, |values| values.iter().sum::<f64>() as u64)
    }

    fn names(&self, of: &str) -> Vec<String> {
        self.0.lock().unwrap().keys().filter(|name| name.starts_with(of)).cloned().collect()
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

/// Runs a service whose metrics go to a recorder of its own.
fn recorded(service: impl Future<Output = ()>) -> Recorded {
    let (recorded, runtime) = (Recorded::default(), runtime());
    metrics::with_local_recorder(&recorded, || runtime.block_on(service));
    recorded
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn observed(server: &Server, quota: Quota, observer: impl Observer) -> Limiter {
    Limiter::builder(redis(server), quota, OnFault::Open).deadline(PATIENCE).observe(observer).build()
}

#[test]
fn decisions_and_faults_are_counted_and_timed() {
    let mut server = Server::start();
    let recorded = recorded(async {
        let limiter = observed(&server, Quota::per_hour(3), Metrics::new());
        for _ in 0..5 {
            let _ = limiter.check("acme", "api").await;
        }
        let _ = limiter.check("acme", "export").cost(4).await;
        limiter.check("acme", "llm").cost(2).reserve().await.unwrap().settle(1).await;
        server.kill();
        for _ in 0..8 {
            let _ = limiter.check("acme", "api").await;
        }
    });
    let total = |series: &str| recorded.total(series);
    assert_eq!(total("ratelimit_decisions_total{class=api,outcome=allowed,source=redis}"), 3);
    assert_eq!(total("ratelimit_decisions_total{class=api,outcome=refused,source=redis}"), 2);
    assert_eq!(total("ratelimit_decisions_total{class=export,outcome=never_fits,source=quotas}"), 1);
    assert_eq!(total("ratelimit_decisions_total{class=api,outcome=allowed,source=failed_open}"), 8);
    assert_eq!(total("ratelimit_faults_total{fault=disconnected,policy=open}"), 5);
    assert_eq!(total("ratelimit_faults_total{fault=breaker_open,policy=open}"), 3);
    assert_eq!(total("ratelimit_breaker_flips_total{to=open}"), 1);
    assert_eq!(total("ratelimit_settlements_total{outcome=refunded}"), 1);
    let seconds = recorded.0.lock().unwrap()["ratelimit_check_seconds{source=redis}"].clone();
    assert_eq!(seconds.len(), 6);
    assert!(seconds.iter().all(|seconds| *seconds > 0.0 && *seconds < PATIENCE.as_secs_f64()));
    assert!(recorded.names("ratelimit_tenant").is_empty(), "no tenant is named unasked");
}

#[test]
fn labels_do_not_multiply_with_tenants_or_classes() {
    let server = Server::start();
    let recorded = recorded(async {
        let metrics = Metrics::new().tenants(3);
        let limiter = observed(&server, Quota::per_second(1_000_000), metrics);
        for round in 0..150 {
            for busy in ["ann", "bob"] {
                let _ = limiter.check(busy, "api").await;
            }
            for stranger in 0..5 {
                let _ = limiter.check(&format!("stranger-{round}-{stranger}"), &format!("class-{round}")).await;
            }
        }
    });
    let tenants = recorded.names("ratelimit_tenant_decisions_total");
    assert_eq!(
        tenants,
        ["ann", "bob", "other"]
            .map(|tenant| format!("ratelimit_tenant_decisions_total{{tenant={tenant},outcome=allowed}}"))
    );
    assert_eq!(recorded.total(&tenants[0]), 51, "from the hundredth on");
    let all: u64 = tenants.iter().map(|tenant| recorded.total(tenant)).sum();
    assert_eq!(all, 150 * 7);
    assert!(recorded.names("ratelimit_decisions_total").len() <= 65);
}

#[test]
fn the_busiest_tenants_are_known_by_name() {
    let server = Server::start();
    let metrics = Arc::new(Metrics::new().tenants(2));
    runtime().block_on(async {
        let limiter = observed(&server, Quota::per_hour(10), Shared(Arc::clone(&metrics)));
        for (tenant, checks) in [("ann", 30), ("bob", 20), ("eve", 5)] {
            for _ in 0..checks {
                let _ = limiter.check(tenant, "api").await;
            }
        }
    });
    let top = metrics.top_tenants();
    let top: Vec<_> = top.iter().map(|count| (&*count.tenant, count.allowed, count.refused)).collect();
    assert_eq!(top, [("ann", 10, 20), ("bob", 10, 10)]);
}

/// An observer that somebody else looks at, too.
struct Shared(Arc<Metrics>);

impl Observer for Shared {
    fn decided(&self, decided: &redis_token_bucket_limiter::Decided<'_>) {
        self.0.decided(decided);
    }
}

/// Every event as its message and its fault.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if ["message", "fault", "policy", "silent"].contains(&field.name()) {
            self.0.push_str(&format!("{}={value:?} ", field.name()));
        }
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_token_bucket_limiter")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
}

#[test]
fn events_are_for_faults_and_flips_and_not_one_a_call() {
    let mut server = Server::start();
    let (events, runtime) = (Events::default(), runtime());
    let seen = || std::mem::take(&mut *events.0.lock().unwrap());
    tracing::subscriber::with_default(events.clone(), || {
        runtime.block_on(async {
            let limiter = Limiter::builder(redis(&server), Quota::per_hour(3), OnFault::Open)
                .deadline(PATIENCE)
                .breaker(5, Duration::from_millis(50))
                .build();
            for _ in 0..10 {
                let _ = limiter.check("acme", "api").await;
            }
            assert!(seen().is_empty(), "a decision is no event");
            server.kill();
            for _ in 0..100 {
                assert!(limiter.check("acme", "api").await.is_allowed());
            }
            let told = seen();
            assert!(
                told[0].contains("rate limit not checked") && told[0].contains("fault=\"disconnected\""),
                "{told:?}"
            );
            assert_eq!(told.iter().filter(|event| event.contains("breaker opened")).count(), 1, "{told:?}");
            assert!(told.len() <= 10, "{told:?}");
            server.restart();
            while limiter.check("acme", "api").await.fault().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(seen().iter().any(|event| event.contains("breaker closed")));
        });
    });
}
