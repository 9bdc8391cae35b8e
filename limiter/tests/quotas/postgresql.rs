//! Overrides in a real PostgreSQL: they take effect within the window, and outlive the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_token_bucket_limiter::{
    Fault, Limiter, OnFault, Overrides, PostgresOverrides, Quota, Source, Tenant, Tenants, Tiers, UnknownTenant, sqlx,
};

use crate::postgres::Postgres;
use crate::service::{DEADLINE, patient, redis};
use crate::support::{PATIENCE, Server};

const API: Quota = Quota::per_second(10);

fn tiers() -> Tiers {
    Tiers::new(UnknownTenant::Refuse).tier("free", [("api", API)]).tier("pro", [("api", Quota::per_second(100))])
}

async fn migrated(postgres: &Postgres) -> PostgresOverrides {
    let database = PostgresOverrides::new(postgres.pool(Duration::from_millis(500)).await);
    database.migrate().await.unwrap();
    database
}

/// The quota that a check goes by.
async fn quota(limiter: &Limiter, tenant: &str) -> Option<Quota> {
    limiter.check(tenant, "api").await.quota
}

/// Checks until a quota holds; answers how long that took.
async fn until(limiter: &Limiter, tenant: &str, expected: Quota) -> Duration {
    let start = Instant::now();
    while quota(limiter, tenant).await != Some(expected) {
        assert!(start.elapsed() < PATIENCE, "the quota never became {expected}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_override_takes_effect_within_the_window() {
    let (server, postgres) = (Server::start(), Postgres::start().await);
    let database = migrated(&postgres).await;
    // In a window of 600 ms each tenant is asked about every 400 to 800 ms.
    let window = Duration::from_millis(600);
    let quotas = Tenants::with_overrides(tiers(), database.clone()).unwrap().window(window);
    let limiter = patient(redis(&server), quotas);

    database.set_tier("acme", "free").await.unwrap();
    assert_eq!(quota(&limiter, "acme").await, Some(API));
    let held = Instant::now();
    database.set_quota("acme", "api", Quota::per_second(77)).await.unwrap();
    assert_eq!(quota(&limiter, "acme").await, Some(API), "what is known is not asked for again");
    assert!(held.elapsed() < Duration::from_millis(400), "too slow to tell");

    let took = until(&limiter, "acme", Quota::per_second(77)).await;
    assert!(took < Duration::from_millis(800) + PATIENCE / 10, "{took:?}");
    database.set_quota("acme", "api", Quota::per_minute(7)).await.unwrap();
    until(&limiter, "acme", Quota::per_minute(7)).await;
    database.remove_quota("acme", "api").await.unwrap();
    until(&limiter, "acme", API).await;
    database.set_tier("acme", "pro").await.unwrap();
    until(&limiter, "acme", Quota::per_second(100)).await;
    database.remove_tenant("acme").await.unwrap();
    let start = Instant::now();
    while quota(&limiter, "acme").await.is_some() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_good_quota_outlives_the_database() {
    let (server, mut postgres) = (Server::start(), Postgres::start().await);
    let database = migrated(&postgres).await;
    database.set_quota("acme", "api", Quota::per_second(77)).await.unwrap();
    database.set_tier("acme", "free").await.unwrap();
    let quotas = Tenants::with_overrides(tiers(), database.clone()).unwrap().window(Duration::from_millis(150));
    let limiter = Limiter::builder(redis(&server), quotas, OnFault::Open).deadline(PATIENCE).build();
    assert_eq!(quota(&limiter, "acme").await, Some(Quota::per_second(77)));

    postgres.kill();
    let down = Instant::now();
    while down.elapsed() < Duration::from_secs(2) {
        let decision = limiter.check("acme", "api").deadline(DEADLINE * 5).await;
        assert_eq!(decision.quota, Some(Quota::per_second(77)));
        assert_eq!(decision.source, Source::Redis);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stranger = limiter.check("stranger", "api").deadline(DEADLINE).await;
    assert_eq!(stranger.source, Source::FailedOpen(Fault::Quotas), "what was never known cannot be served");

    postgres.restart().await;
    database.set_quota("acme", "api", Quota::per_second(78)).await.unwrap();
    until(&limiter, "acme", Quota::per_second(78)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_query_a_tenant_however_many_ask() {
    let (server, postgres) = (Server::start(), Postgres::start().await);
    let database = migrated(&postgres).await;
    database.set_tier("acme", "free").await.unwrap();
    let limiter = patient(redis(&server), Tenants::with_overrides(tiers(), database).unwrap());
    let checks: Vec<_> = (0..256)
        .map(|n| {
            let limiter = limiter.clone();
            // About half of them nothing is known, and that is kept as well.
            tokio::spawn(async move { limiter.check(["acme", "stranger"][n % 2], "api").await.source })
        })
        .collect();
    for check in checks {
        assert_ne!(check.await.unwrap(), Source::FailedClosed(Fault::Quotas));
    }
    assert_eq!(postgres.statements("SELECT NULL AS class"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_may_all_migrate_at_once() {
    let postgres = Arc::new(Postgres::start().await);
    let migrations: Vec<_> = (0..8)
        .map(|_| {
            let postgres = Arc::clone(&postgres);
            tokio::spawn(async move { PostgresOverrides::new(postgres.pool(PATIENCE).await).migrate().await })
        })
        .collect();
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
    let database = migrated(&postgres).await;
    database.set_tier("acme", "pro").await.unwrap();
    let expected = Tenant { tier: Some("pro".to_owned()), ..Tenant::default() };
    assert_eq!(database.tenant("acme").await.unwrap(), Some(expected));
    assert_eq!(database.tenant("a\0b").await.unwrap(), None);
    assert_eq!(database.tenant("'; DROP TABLE rate_limit_tenants; --").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_cannot_be_read_is_told_and_not_guessed() {
    let postgres = Postgres::start().await;
    let database = migrated(&postgres).await;
    assert!(database.set_quota("acme", "api", Quota::per_second(u64::MAX)).await.is_err());
    let by_hand = "INSERT INTO rate_limit_overrides (tenant, class, quota) VALUES ('acme', 'api', 'plenty')";
    sqlx::query(by_hand).execute(&postgres.pool(PATIENCE).await).await.unwrap();
    let error = database.tenant("acme").await.unwrap_err().to_string();
    assert!(error.contains("\"api\"") && error.contains("a quota reads like"), "{error}");
}
