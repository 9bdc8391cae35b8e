//! What a response asks of its caller: to come back, and not before when.

use std::time::{Duration, SystemTime};

use http::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::status::StatusCode;

/// How long a response asks to wait before the same request, or `None` where it is not to be sent again.
///
/// It asks if it is a 429 or a 503 with a `Retry-After` (RFC 9110, 10.2.3), in seconds or as a date; of several the latest
/// counts, and what is neither is as if it were not there. A date is taken against the response's own `Date`, so that clocks
/// which disagree do no harm. A 429 without `Retry-After` is a request that never fits, or a quota that is spent: waiting does
/// not help. The parameter `t` of a `RateLimit` field is not read, for it says when more of the quota is there, not when this
/// request passes.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
/// use redis_token_bucket_retry::retry_after;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(retry_after(StatusCode::TOO_MANY_REQUESTS, &headers), None);
/// headers.insert(RETRY_AFTER, 2.into());
/// assert_eq!(retry_after(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(2)));
/// assert_eq!(retry_after(StatusCode::MOVED_PERMANENTLY, &headers), None);
/// ```
#[must_use]
pub fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let asks = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let now = || headers.get(DATE).and_then(date).unwrap_or_else(SystemTime::now);
    let values = headers.get_all(RETRY_AFTER).iter();
    // Nothing is left of a date that is past.
    let until = |date: SystemTime| date.duration_since(now()).unwrap_or_default();
    values.filter(|_| asks).filter_map(|value| seconds(value).or_else(|| date(value).map(until))).max()
}

/// Digits and nothing else. More seconds than fit are as good as for ever.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    let digits = value.to_str().ok()?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(digits.parse().unwrap_or(u64::MAX)))
}

fn date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// How long a gRPC status asks to wait before the same call, or `None` where it is not to be made again.
///
/// It asks if it is `RESOURCE_EXHAUSTED` or `UNAVAILABLE` with a `google.rpc.RetryInfo` that has a delay. Without one the call
/// never fits, or nobody knows.
///
/// ```
/// use std::time::Duration;
/// use redis_token_bucket_retry::retry_info;
/// use tonic::{Code, Status};
/// use tonic_types::{ErrorDetails, StatusExt};
///
/// let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(250)));
/// let refused = Status::with_error_details(Code::ResourceExhausted, "over the limit", details);
/// assert_eq!(retry_info(&refused), Some(Duration::from_millis(250)));
/// assert_eq!(retry_info(&Status::resource_exhausted("never fits")), None);
/// ```
#[cfg(feature = "tonic")]
#[must_use]
pub fn retry_info(status: &tonic::Status) -> Option<Duration> {
    use tonic_types::StatusExt;
    let asks = matches!(status.code(), tonic::Code::ResourceExhausted | tonic::Code::Unavailable);
    status.get_details_retry_info().filter(|_| asks)?.retry_delay
}
