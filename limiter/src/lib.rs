#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod breaker;
mod check;
mod cluster;
mod decide;
mod decision;
mod exact;
mod fallback;
mod fault;
mod known_empty;
mod lease;
mod limiter;
mod link;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tower")]
pub mod middleware;
mod observe;
mod quotas;
mod redis;
mod reserve;
mod time;
#[cfg(feature = "metrics")]
mod top;
#[cfg(feature = "tracing")]
mod trace;

pub use client;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use sqlx;

pub use breaker::Flip;
pub use check::{Check, CheckAll};
pub use client::{Implementation, Key, Quota, Rate, Tokens};
pub use decision::{Decision, Denied, RefusedBy, Source};
pub use fault::{Fault, OnFault, Share};
pub use known_empty::KnownEmpty;
pub use lease::Leasing;
pub use limiter::{Builder, Limiter};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use observe::{Decided, Observer};
#[cfg(feature = "postgres")]
pub use quotas::PostgresOverrides;
#[cfg(feature = "sqlite")]
pub use quotas::SqliteOverrides;
pub use quotas::{
    NoOverrides, Overrides, QuotaError, Quotas, SourceError, Tenant, Tenants, Tiers, TiersError, UnknownTenant,
};
pub use redis::Redis;
pub use reserve::{Reservation, Settled, Settlement};
#[cfg(feature = "metrics")]
pub use top::TenantCount;

/// The page of the manual, whose examples are compiled.
#[cfg(all(doctest, feature = "tonic"))]
#[doc = include_str!("../../docs/middleware.md")]
struct Page;
