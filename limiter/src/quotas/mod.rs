//! Where quotas come from: tiers, which are configuration, and what a database says about single tenants.

mod cache;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod database;
mod tenants;
mod tiers;
#[cfg(any(feature = "toml", feature = "yaml", feature = "json"))]
mod watch;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use client::Quota;

#[cfg(feature = "postgres")]
pub use database::PostgresOverrides;
#[cfg(feature = "sqlite")]
pub use database::SqliteOverrides;
pub use tenants::{NoOverrides, Overrides, SourceError, Tenant, Tenants};
pub use tiers::{Tiers, TiersError, UnknownTenant};

/// What a tenant may do. A [`Quota`] is one: the same for everybody.
///
/// It is asked in every check, so it has to answer from memory as a rule; [`Tenants`] does.
pub trait Quotas: Send + Sync + 'static {
    /// The quota, where that needs no waiting. Only a short cut: what it leaves open, [`Quotas::quota`] answers.
    fn at_hand(&self, tenant: &str, class: &str) -> Option<Result<Quota, QuotaError>> {
        let _ = (tenant, class);
        None
    }

    /// The quota of a tenant for a class of calls.
    fn quota(&self, tenant: &str, class: &str) -> impl Future<Output = Result<Quota, QuotaError>> + Send;
}

/// Why there is no quota.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QuotaError {
    /// Nobody knows the tenant. The call is turned away; Redis and the fault policy have no part in it.
    UnknownTenant,
    /// The tenant's tier does not name the class. The call is turned away likewise.
    UnknownClass,
    /// It could not be found out. The fault policy decides.
    Unavailable(Arc<dyn Error + Send + Sync>),
}

impl QuotaError {
    /// It could not be found out, because of this.
    pub fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(cause.into().into())
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTenant => f.write_str("unknown tenant"),
            Self::UnknownClass => f.write_str("no quota for this class of calls"),
            Self::Unavailable(cause) => write!(f, "the quota could not be read: {cause}"),
        }
    }
}

impl Error for QuotaError {}

impl Quotas for Quota {
    fn at_hand(&self, _: &str, _: &str) -> Option<Result<Quota, QuotaError>> {
        Some(Ok(*self))
    }

    async fn quota(&self, _: &str, _: &str) -> Result<Quota, QuotaError> {
        Ok(*self)
    }
}

impl<Q: Quotas> Quotas for Arc<Q> {
    fn at_hand(&self, tenant: &str, class: &str) -> Option<Result<Quota, QuotaError>> {
        Q::at_hand(self, tenant, class)
    }

    fn quota(&self, tenant: &str, class: &str) -> impl Future<Output = Result<Quota, QuotaError>> + Send {
        Q::quota(self, tenant, class)
    }
}

/// [`Quotas`] of any kind.
pub(crate) trait AnyQuotas: Send + Sync {
    fn at_hand(&self, tenant: &str, class: &str) -> Option<Result<Quota, QuotaError>>;
    fn quota<'a>(&'a self, tenant: &'a str, class: &'a str) -> QuotaFuture<'a>;
}

type QuotaFuture<'a> = Pin<Box<dyn Future<Output = Result<Quota, QuotaError>> + Send + 'a>>;

impl<Q: Quotas> AnyQuotas for Q {
    fn at_hand(&self, tenant: &str, class: &str) -> Option<Result<Quota, QuotaError>> {
        Quotas::at_hand(self, tenant, class)
    }

    fn quota<'a>(&'a self, tenant: &'a str, class: &'a str) -> QuotaFuture<'a> {
        Box::pin(Quotas::quota(self, tenant, class))
    }
}
