//! Overrides in PostgreSQL and in SQLite, by the same tables and the same statements.

use std::sync::Arc;

use client::Quota;
use sqlx::Executor;

use super::tenants::{Overrides, SourceError, Tenant};

/// In order; each is applied once. A version of its own and not sqlx's table, which is the service's to use.
const MIGRATIONS: [(i64, &str); 1] = [(1, include_str!("../../migrations/1_overrides.sql"))];

/// All that is known about a tenant, in one round trip: its tier, as the quota of no class, and its quotas.
const READ: &str = "SELECT NULL AS class, tier AS value FROM rate_limit_tenants WHERE tenant = $1 \
                    UNION ALL SELECT class, quota FROM rate_limit_overrides WHERE tenant = $1";

fn tenant(rows: Vec<(Option<String>, String)>) -> Result<Option<Tenant>, SourceError> {
    if rows.is_empty() {
        return Ok(None);
    }
    let mut tenant = Tenant::default();
    for (class, value) in rows {
        match class {
            None => tenant.tier = Some(value),
            Some(class) => {
                let quota = value.parse().map_err(|error| failure(format!("the quota for {class:?}: {error}")))?;
                tenant.quotas.insert(class, quota);
            }
        }
    }
    Ok(Some(tenant))
}

fn failure(text: String) -> SourceError {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

/// What is written is what will be read: a quota that the server would refuse does not get in.
fn written(quota: Quota) -> Result<String, sqlx::Error> {
    let text = quota.to_string();
    text.parse::<Quota>().map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    Ok(text)
}

macro_rules! overrides {
    ($(#[$doc:meta])* $name:ident, $Pool:ty, begin: $begin:literal, lock: $lock:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            pool: $Pool,
        }

        impl $name {
            /// On a pool of the service's own. Give it an acquire timeout: it bounds how long a check can wait for a tenant
            /// that is not known yet.
            #[must_use]
            pub const fn new(pool: $Pool) -> Self {
                Self { pool }
            }

            /// Creates the tables, or brings them up to date. Any number of replicas may do so at once.
            ///
            /// The statements are in the crate's `migrations` folder, for those who would rather run them by other means.
            ///
            /// # Errors
            /// Whatever the database says; then nothing has changed.
            pub async fn migrate(&self) -> Result<(), sqlx::Error> {
                let mut transaction = self.pool.begin_with($begin).await?;
                transaction.execute($lock).await?;
                let version = "SELECT COALESCE(MAX(version), 0) FROM rate_limit_schema";
                let (current,): (i64,) = sqlx::query_as(version).fetch_one(&mut *transaction).await?;
                for (version, statements) in MIGRATIONS {
                    if version > current {
                        transaction.execute(statements).await?;
                        let done = sqlx::query("INSERT INTO rate_limit_schema (version) VALUES ($1)").bind(version);
                        done.execute(&mut *transaction).await?;
                    }
                }
                transaction.commit().await
            }

            /// Puts a tenant in a tier.
            ///
            /// # Errors
            /// Whatever the database says.
            pub async fn set_tier(&self, tenant: &str, tier: &str) -> Result<(), sqlx::Error> {
                let put = "INSERT INTO rate_limit_tenants (tenant, tier) VALUES ($1, $2) \
                           ON CONFLICT (tenant) DO UPDATE SET tier = excluded.tier";
                sqlx::query(put).bind(tenant).bind(tier).execute(&self.pool).await.map(|_| ())
            }

            /// Gives a tenant a quota of its own for a class.
            ///
            /// # Errors
            /// Whatever the database says, or a quota that no server would take.
            pub async fn set_quota(&self, tenant: &str, class: &str, quota: Quota) -> Result<(), sqlx::Error> {
                let put = "INSERT INTO rate_limit_overrides (tenant, class, quota) VALUES ($1, $2, $3) \
                           ON CONFLICT (tenant, class) DO UPDATE SET quota = excluded.quota";
                let put = sqlx::query(put).bind(tenant).bind(class).bind(written(quota)?);
                put.execute(&self.pool).await.map(|_| ())
            }

            /// Leaves a class to the tenant's tier again.
            ///
            /// # Errors
            /// Whatever the database says.
            pub async fn remove_quota(&self, tenant: &str, class: &str) -> Result<(), sqlx::Error> {
                let remove = "DELETE FROM rate_limit_overrides WHERE tenant = $1 AND class = $2";
                sqlx::query(remove).bind(tenant).bind(class).execute(&self.pool).await.map(|_| ())
            }

            /// Forgets a tenant's tier and all of its quotas.
            ///
            /// # Errors
            /// Whatever the database says; then nothing has changed.
            pub async fn remove_tenant(&self, tenant: &str) -> Result<(), sqlx::Error> {
                let mut transaction = self.pool.begin().await?;
                for table in [
                    "DELETE FROM rate_limit_overrides WHERE tenant = $1",
                    "DELETE FROM rate_limit_tenants WHERE tenant = $1",
                ] {
                    sqlx::query(table).bind(tenant).execute(&mut *transaction).await?;
                }
                transaction.commit().await
            }
        }

        impl Overrides for $name {
            async fn tenant(&self, name: &str) -> Result<Option<Tenant>, SourceError> {
                // No text column holds one, and asking would be an error and not an absence.
                if name.contains('\0') {
                    return Ok(None);
                }
                let rows = sqlx::query_as(READ).bind(name).fetch_all(&self.pool).await;
                tenant(rows.map_err(|error| -> SourceError { Arc::new(error) })?)
            }
        }
    };
}

#[cfg(feature = "postgres")]
overrides! {
    /// [`Overrides`] in PostgreSQL.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use redis_token_bucket_limiter::{PostgresOverrides, Quota, Tenants, Tiers, UnknownTenant, sqlx};
    ///
    /// let database = PostgresOverrides::new(sqlx::PgPool::connect("postgres://localhost/service").await?);
    /// database.migrate().await?;
    /// database.set_quota("acme", "export", Quota::per_hour(1_000)).await?;
    ///
    /// let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("export", Quota::per_hour(5))]);
    /// let quotas = Tenants::with_overrides(tiers, database)?;
    /// # Ok(())
    /// # }
    /// ```
    PostgresOverrides, sqlx::PgPool,
    begin: "BEGIN",
    // A lock of ours, for two connections that create one table at once are an error even with IF NOT EXISTS.
    lock: "SELECT pg_advisory_xact_lock(8390874583710423); CREATE TABLE IF NOT EXISTS rate_limit_schema (version BIGINT PRIMARY KEY)"
}

#[cfg(feature = "sqlite")]
overrides! {
    /// [`Overrides`] in SQLite, for a service that has no database to share.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use redis_token_bucket_limiter::{SqliteOverrides, sqlx};
    ///
    /// let database = SqliteOverrides::new(sqlx::SqlitePool::connect("sqlite://limits.db?mode=rwc").await?);
    /// database.migrate().await?;
    /// database.set_tier("acme", "pro").await?;
    /// # Ok(())
    /// # }
    /// ```
    SqliteOverrides, sqlx::SqlitePool,
    begin: "BEGIN IMMEDIATE",
    lock: "CREATE TABLE IF NOT EXISTS rate_limit_schema (version INTEGER PRIMARY KEY)"
}
