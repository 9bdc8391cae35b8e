//! Limits in front of an HTTP or gRPC service, by a tower layer: axum, hyper and tonic take it as it is.
//!
//! [`RateLimitLayer`] asks a classifier what a request is charged to, checks that, and passes the request on or refuses it. The
//! classifier reads what the service's own authentication has put into the request's extensions; nothing here reads a tenant
//! from a header, for [reasons](Classify#why-no-header-is-read).
//!
//! A handler finds the [`Decision`](crate::Decision) in the request's extensions, and layers further out in those of the
//! response: of several limiters, that of the one which refused, or else of the outermost. Where a cost is known in the
//! handler only, or afterwards, the handler calls [`Limiter::check`](crate::Limiter::check) itself and says it with [`Http`].

mod answer;
mod body;
mod charge;
mod classify;
mod fields;
mod future;
#[cfg(feature = "tonic")]
mod grpc;
mod layer;
mod problem;
mod respond;

pub use answer::Http;
pub use body::ResponseBody;
pub use charge::Charge;
pub use classify::{Classified, Classify};
pub use fields::{FIELD_NAMES, Field};
pub use future::ResponseFuture;
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub use grpc::Grpc;
pub use layer::{RateLimit, RateLimitLayer};
pub use respond::{Refusal, Respond};
