//! The quotas of a service with tenants: tiers, and over them what a database says about single tenants.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use client::Quota;

use super::cache::Cache;
use super::tiers::{Tiers, TiersError};
use super::{QuotaError, Quotas};

/// Why a source did not answer.
pub type SourceError = Arc<dyn Error + Send + Sync>;

/// What a database knows about a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its tier; without one, the tiers' own list of tenants says it.
    pub tier: Option<String>,
    /// Quotas of its own, by class; they go before those of the tier.
    pub quotas: BTreeMap<String, Quota>,
}

/// The primary database, which knows single tenants.
///
/// It is asked once in a while about each tenant, for all of its quotas together, and never by two checks at a time.
///
/// A service that keeps its tenants in tables of its own reads them itself:
///
/// ```
/// use std::sync::Arc;
/// use redis_token_bucket_limiter::{Overrides, SourceError, Tenant};
///
/// struct Accounts;
///
/// impl Overrides for Accounts {
///     async fn tenant(&self, tenant: &str) -> Result<Option<Tenant>, SourceError> {
///         let plan = self.plan_of(tenant).await.map_err(|error| -> SourceError { Arc::new(error) })?;
///         Ok(plan.map(|plan| Tenant { tier: Some(plan), ..Tenant::default() }))
///     }
/// }
/// # impl Accounts {
/// #     async fn plan_of(&self, _: &str) -> Result<Option<String>, std::io::Error> { Ok(None) }
/// # }
/// ```
pub trait Overrides: Send + Sync + 'static {
    /// What is known about a tenant; `None` if there is nothing.
    fn tenant(&self, tenant: &str) -> impl Future<Output = Result<Option<Tenant>, SourceError>> + Send;
}

/// No database: the tiers say everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOverrides;

impl Overrides for NoOverrides {
    async fn tenant(&self, _: &str) -> Result<Option<Tenant>, SourceError> {
        Ok(None)
    }
}

/// [`Quotas`] made of tiers and of what a database says about single tenants.
///
/// The database's quota for the class goes first, then that of the tenant's tier. The tier is the database's, or else the one
/// that [`Tiers`] name for the tenant; a tenant for whom neither names one is unknown, and [`Tiers`] say what becomes of it.
///
/// What the database said is kept for 45 seconds: for each tenant a random time between 30 and 60, so that the tenants of a
/// service that has just started do not come back all at once. That a tenant has no overrides is kept like any other answer.
/// While the database is down the last good answer is served, however old it is.
///
/// ```
/// use redis_token_bucket_limiter::{Quota, Tenants, Tiers, UnknownTenant};
///
/// let tiers = Tiers::new(UnknownTenant::Refuse)
///     .tier("free", [("api", Quota::per_minute(100).burst(20))])
///     .tenant("acme", "free");
/// let quotas = Tenants::new(tiers)?;
/// # Ok::<(), redis_token_bucket_limiter::TiersError>(())
/// ```
pub struct Tenants<D = NoOverrides> {
    database: Arc<D>,
    known: Cache<Option<Tenant>>,
    tiers: RwLock<Arc<Tiers>>,
    settings: Settings,
}

#[derive(Clone, Copy)]
struct Settings {
    window: Duration,
    tenants: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window: Duration::from_secs(45), tenants: 10_000 }
    }
}

impl Tenants {
    /// Tiers alone.
    ///
    /// # Errors
    /// Tiers that name a tier which is not there.
    pub fn new(tiers: Tiers) -> Result<Self, TiersError> {
        Self::with_overrides(tiers, NoOverrides)
    }
}

impl<D: Overrides> Tenants<D> {
    /// Tiers, and a database.
    ///
    /// # Errors
    /// Tiers that name a tier which is not there.
    pub fn with_overrides(tiers: Tiers, database: D) -> Result<Self, TiersError> {
        tiers.check()?;
        Ok(Self::build(tiers, Arc::new(database), Settings::default()))
    }

    fn build(tiers: Tiers, database: Arc<D>, settings: Settings) -> Self {
        let known = Cache::new(settings.window, settings.tenants);
        Self { database, known, tiers: RwLock::new(Arc::new(tiers)), settings }
    }

    /// How long what the database said is kept: a random time between two and four thirds of `window`, for each tenant anew.
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        let settings = Settings { window, ..self.settings };
        Self { known: Cache::new(settings.window, settings.tenants), settings, ..self }
    }

    /// About how many tenants something is kept, known or unknown: ten thousand, unless said otherwise.
    #[must_use]
    pub fn room_for(self, tenants: usize) -> Self {
        let settings = Settings { tenants, ..self.settings };
        Self { known: Cache::new(settings.window, settings.tenants), settings, ..self }
    }

    /// Replaces the tiers; the next check goes by the new ones.
    ///
    /// # Errors
    /// Tiers that name a tier which is not there. The old ones stay.
    pub fn reload(&self, tiers: Tiers) -> Result<(), TiersError> {
        tiers.check()?;
        *self.tiers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tiers);
        Ok(())
    }

    /// Has the next check of this tenant ask the database, in this process.
    pub fn refresh(&self, tenant: &str) {
        self.known.expire(tenant);
    }

    /// The database.
    pub fn database(&self) -> &D {
        &self.database
    }

    pub(super) fn tiers(&self) -> Arc<Tiers> {
        Arc::clone(&self.tiers.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn load(&self, tenant: &str) -> Result<Arc<Option<Tenant>>, SourceError> {
        let load = || {
            let (database, tenant) = (Arc::clone(&self.database), Box::<str>::from(tenant));
            async move { database.tenant(&tenant).await }
        };
        self.known.get(tenant, load).await
    }

    /// The quota of a tenant of whom this is known.
    fn of(&self, known: Option<&Tenant>, tenant: &str, class: &str) -> Result<Quota, QuotaError> {
        if let Some(quota) = known.and_then(|known| known.quotas.get(class)) {
            return Ok(*quota);
        }
        let tiers = self.tiers();
        let tier = known.and_then(|known| known.tier.as_deref()).or_else(|| tiers.tier_of(tenant));
        let tier = tier.ok_or(QuotaError::UnknownTenant)?;
        // The database may know tiers that a configuration still has to bring.
        let quotas = tiers.quotas(tier).ok_or_else(|| QuotaError::unavailable(format!("there is no tier {tier:?}")))?;
        quotas.get(class).copied().ok_or(QuotaError::UnknownClass)
    }
}

impl<D: Overrides> Quotas for Tenants<D> {
    fn at_hand(&self, tenant: &str, class: &str) -> Option<Result<Quota, QuotaError>> {
        let known = self.known.fresh(tenant)?;
        Some(self.of(known.as_ref().as_ref(), tenant, class))
    }

    async fn quota(&self, tenant: &str, class: &str) -> Result<Quota, QuotaError> {
        let known = self.load(tenant).await.map_err(QuotaError::Unavailable)?;
        self.of(known.as_ref().as_ref(), tenant, class)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tiers::UnknownTenant;
    use super::*;

    struct Database;

    impl Overrides for Database {
        async fn tenant(&self, tenant: &str) -> Result<Option<Tenant>, SourceError> {
            let own = |quota| BTreeMap::from([("api".to_owned(), quota)]);
            Ok(match tenant {
                "special" => Some(Tenant { tier: Some("pro".to_owned()), quotas: own(Quota::per_second(1_000)) }),
                "pro" => Some(Tenant { tier: Some("pro".to_owned()), quotas: BTreeMap::new() }),
                "own-only" => Some(Tenant { tier: None, quotas: own(Quota::per_second(7)) }),
                "gold" => Some(Tenant { tier: Some("gold".to_owned()), quotas: BTreeMap::new() }),
                _ => None,
            })
        }
    }

    fn tiers(unknown: UnknownTenant) -> Tiers {
        Tiers::new(unknown)
            .tier("free", [("api", Quota::per_second(1))])
            .tier("pro", [("api", Quota::per_second(50)), ("export", Quota::per_hour(5))])
            .tenant("listed", "free")
    }

    async fn api(quotas: &Tenants<Database>, tenant: &str) -> Result<Quota, QuotaError> {
        quotas.quota(tenant, "api").await
    }

    #[tokio::test]
    async fn an_override_goes_before_the_tier_and_the_database_before_the_list() {
        let quotas = Tenants::with_overrides(tiers(UnknownTenant::Refuse), Database).unwrap();
        assert_eq!(api(&quotas, "special").await.unwrap(), Quota::per_second(1_000));
        assert_eq!(quotas.quota("special", "export").await.unwrap(), Quota::per_hour(5));
        assert_eq!(api(&quotas, "pro").await.unwrap(), Quota::per_second(50));
        assert_eq!(api(&quotas, "listed").await.unwrap(), Quota::per_second(1));
        assert_eq!(api(&quotas, "own-only").await.unwrap(), Quota::per_second(7));
    }

    #[tokio::test]
    async fn nobody_falls_into_a_tier_in_silence() {
        let quotas = Tenants::with_overrides(tiers(UnknownTenant::Refuse), Database).unwrap();
        assert!(matches!(api(&quotas, "stranger").await, Err(QuotaError::UnknownTenant)));
        assert!(matches!(quotas.quota("own-only", "export").await, Err(QuotaError::UnknownTenant)));
        assert!(matches!(quotas.quota("listed", "export").await, Err(QuotaError::UnknownClass)));
        assert!(matches!(api(&quotas, "gold").await, Err(QuotaError::Unavailable(_))));
        let named = Tenants::with_overrides(tiers(UnknownTenant::Tier("free".to_owned())), Database).unwrap();
        assert_eq!(api(&named, "stranger").await.unwrap(), Quota::per_second(1));
    }

    #[tokio::test]
    async fn reloaded_tiers_hold_from_the_next_check_and_wrong_ones_never() {
        let quotas = Tenants::with_overrides(tiers(UnknownTenant::Refuse), Database).unwrap();
        assert_eq!(api(&quotas, "listed").await.unwrap(), Quota::per_second(1));
        let wrong = Tiers::new(UnknownTenant::Tier("nowhere".to_owned()));
        assert!(quotas.reload(wrong).is_err());
        assert_eq!(api(&quotas, "listed").await.unwrap(), Quota::per_second(1));
        let raised = tiers(UnknownTenant::Refuse).tier("free", [("api", Quota::per_second(2))]);
        quotas.reload(raised).unwrap();
        assert_eq!(api(&quotas, "listed").await.unwrap(), Quota::per_second(2));
    }
}
