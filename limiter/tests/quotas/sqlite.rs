//! Overrides in a SQLite file: the same as in PostgreSQL, without a server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use redis_token_bucket_limiter::{
    Overrides, Quota, QuotaError, Quotas, SqliteOverrides, Tenants, Tiers, UnknownTenant, sqlx,
};

use crate::service::{patient, redis};
use crate::support::{PATIENCE, Server};

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("tb-limits-{}-{name}.db", std::process::id()));
        let _ = std::fs::remove_file(&path);
        File(path)
    }

    async fn open(&self) -> SqliteOverrides {
        let url = format!("sqlite://{}?mode=rwc", self.0.display());
        SqliteOverrides::new(sqlx::SqlitePool::connect(&url).await.unwrap())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_override_takes_effect_and_is_there_after_a_restart() {
    let (server, file) = (Server::start(), File::new("override"));
    let database = file.open().await;
    database.migrate().await.unwrap();
    database.set_tier("acme", "free").await.unwrap();
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", Quota::per_second(10))]);
    let quotas = Tenants::with_overrides(tiers, database).unwrap().window(Duration::from_millis(150));
    let limiter = patient(redis(&server), quotas);
    assert_eq!(limiter.check("acme", "api").await.quota, Some(Quota::per_second(10)));

    // Another process, on the same file.
    let other = file.open().await;
    other.set_quota("acme", "api", Quota::per_second(77)).await.unwrap();
    let start = Instant::now();
    while limiter.check("acme", "api").await.quota != Some(Quota::per_second(77)) {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reopened = file.open().await;
    reopened.migrate().await.unwrap();
    let tenant = reopened.tenant("acme").await.unwrap().unwrap();
    assert_eq!(tenant.tier.as_deref(), Some("free"));
    assert_eq!(tenant.quotas["api"], Quota::per_second(77));
    reopened.remove_quota("acme", "api").await.unwrap();
    reopened.remove_tenant("acme").await.unwrap();
    assert_eq!(reopened.tenant("acme").await.unwrap(), None);
    assert_eq!(reopened.tenant("a\0b").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_may_migrate_at_once() {
    let file = File::new("migrate");
    let databases = [file.open().await, file.open().await, file.open().await];
    let migrations = databases.map(|database| tokio::spawn(async move { database.migrate().await }));
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
}

/// Another process holds the whole file, as a backup may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_good_quota_outlives_a_file_that_is_locked() {
    let file = File::new("locked");
    let (database, other) = (file.open().await, file.open().await);
    database.migrate().await.unwrap();
    database.set_quota("acme", "api", Quota::per_second(77)).await.unwrap();
    let quotas = Tenants::with_overrides(Tiers::new(UnknownTenant::Refuse), database).unwrap();
    let quotas = quotas.window(Duration::from_millis(150));
    let api = async |tenant: &str| quotas.quota(tenant, "api").await;
    assert_eq!(api("acme").await.unwrap(), Quota::per_second(77));

    let pool = sqlx::SqlitePool::connect(&format!("sqlite://{}", file.0.display())).await.unwrap();
    let lock = pool.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(api("acme").await.unwrap(), Quota::per_second(77));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(api("stranger").await, Err(QuotaError::Unavailable(_))), "what was never known cannot be served");
    drop(lock);

    other.set_quota("acme", "api", Quota::per_second(78)).await.unwrap();
    while api("acme").await.unwrap() != Quota::per_second(78) {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A source that failed is left alone for a second.
    while !matches!(api("stranger").await, Err(QuotaError::UnknownTenant)) {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
