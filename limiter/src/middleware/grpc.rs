//! Decisions as gRPC says them.

use std::time::Duration;

use http::Response;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::fields::seconds;
use super::respond::{Refusal, Respond};
use crate::decision::Denied;

/// Decisions as gRPC says them: a response of trailers only, which is what proxies and clients can act on.
///
/// | decision | code | `google.rpc.RetryInfo` |
/// |---|---|---|
/// | refused, for a time | `RESOURCE_EXHAUSTED` | the time, in whole milliseconds, never zero |
/// | never fits, or spent for good | `RESOURCE_EXHAUSTED` | none |
/// | Redis not heard, failed closed | `UNAVAILABLE` | none |
/// | unknown tenant | `PERMISSION_DENIED` | none |
/// | unknown class, a fault of the service's own | `INTERNAL` | none |
/// | not authenticated | `UNAUTHENTICATED` | none |
///
/// A handler that checks for itself says the same with `?`, for a [`Denied`] becomes a [`Status`]:
///
/// ```
/// # use redis_token_bucket_limiter::Limiter;
/// # async fn handler(limiter: Limiter, tenant: &str) -> Result<(), tonic::Status> {
/// limiter.check(tenant, "import").cost(20).await.ok()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl Respond for Grpc {
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<String> {
        let status = match *refusal {
            Refusal::Denied { why, .. } => why.into(),
            Refusal::Unauthenticated => Status::unauthenticated("not authenticated"),
        };
        status.into_http()
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::RetryAfter(delay) => {
                let details = ErrorDetails::with_retry_info(Some(told(delay)));
                Status::with_error_details(Code::ResourceExhausted, denied.to_string(), details)
            }
            Denied::NeverFits { .. } | Denied::Spent => Status::resource_exhausted(denied.to_string()),
            // What is wrong inside is nobody's business outside.
            Denied::Unavailable(_) => Status::unavailable("limits cannot be checked at present"),
            Denied::UnknownTenant => Status::permission_denied(denied.to_string()),
            Denied::UnknownClass => Status::internal(denied.to_string()),
        }
    }
}

/// Whole milliseconds, rounded up: at least one, at most what HTTP would say.
fn told(delay: Duration) -> Duration {
    let millis = delay.as_nanos().div_ceil(1_000_000).max(1);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)).min(Duration::from_secs(seconds(delay)))
}
