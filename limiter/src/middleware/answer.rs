//! Decisions as HTTP says them.

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use super::fields::{Field, Fields, quoted, seconds};
use super::problem::{Problem, QUOTA_EXCEEDED, REDUCED_CAPACITY};
use super::respond::{Refusal, Respond};
use crate::decision::{Decision, Denied};

/// When a client may try again where limits cannot be checked. Nobody knows; it is the time for which a breaker is open.
const AGAIN: u64 = 1;

/// Decisions as HTTP says them: the status, a body of `application/problem+json`, and the fields.
///
/// | decision | status | `Retry-After` |
/// |---|---|---|
/// | refused, for a time | 429 | the time, rounded up |
/// | never fits, or spent for good | 429 | none |
/// | Redis not heard, failed closed | 503 | 1 |
/// | unknown tenant | 403 | none |
/// | unknown class, a fault of the service's own | 500 | none |
/// | not authenticated | 401 | none |
///
/// Refusals are not to be stored (`Cache-Control: no-store`). The fields are those of
/// draft-ietf-httpapi-ratelimit-headers-11, and of the older custom; they are on responses to requests that passed as well,
/// but not where the fault policy has decided. Of several classes they speak of the one that refused, or else of the one with
/// the fewest tokens left.
///
/// A handler that checks for itself says it in the same way:
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use redis_token_bucket_limiter::Limiter;
/// use redis_token_bucket_limiter::middleware::Http;
///
/// async fn import(limiter: &Limiter, tenant: &str, rows: Vec<String>) -> Response {
///     let decision = limiter.check(tenant, "import").cost(rows.len() as u64).await;
///     let http = Http::default();
///     if !decision.is_allowed() {
///         return http.refusal(&decision).into_response();
///     }
///     (http.fields("import", &decision), "imported\n").into_response()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Http {
    fields: Fields,
    challenge: HeaderValue,
}

impl Default for Http {
    /// With all fields.
    fn default() -> Self {
        Self { fields: Fields::default(), challenge: HeaderValue::from_static("Bearer") }
    }
}

impl Http {
    /// Leaves a field out.
    #[must_use]
    pub fn without(mut self, field: Field) -> Self {
        self.fields = self.fields.without(field);
        self
    }

    /// What a 401 asks for in `WWW-Authenticate`: `Bearer`, unless said otherwise.
    #[must_use]
    pub fn challenge(mut self, challenge: HeaderValue) -> Self {
        self.challenge = challenge;
        self
    }

    /// The response to a request that was refused. About one that may go on there is nothing to say but an empty 200.
    #[must_use]
    pub fn refusal(&self, decision: &Decision) -> Response<String> {
        decision.verdict.err().map(|why| self.denied(why, decision)).unwrap_or_default()
    }

    /// The fields of a decision about this class of calls.
    #[must_use]
    pub fn fields(&self, class: &str, decision: &Decision) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.fields.write(class, decision, &mut headers);
        headers
    }

    fn denied(&self, why: Denied, decision: &Decision) -> Response<String> {
        let class = decision.refused_by.as_ref().map_or("", |refused| &*refused.class);
        let name = quoted(class);
        let mut response = denial(why, &name).response();
        let headers = response.headers_mut();
        self.fields.write(class, decision, headers);
        match why {
            Denied::RetryAfter(delay) => self.fields.write_retry_after(seconds(delay), headers),
            Denied::Unavailable(_) => self.fields.write_retry_after(AGAIN, headers),
            _ => {}
        }
        response
    }
}

impl Respond for Http {
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<String> {
        match *refusal {
            Refusal::Denied { why, decision } => self.denied(why, decision),
            Refusal::Unauthenticated => {
                let mut response = plain(StatusCode::UNAUTHORIZED, "not authenticated").response();
                response.headers_mut().insert(WWW_AUTHENTICATE, self.challenge.clone());
                response
            }
        }
    }

    /// Adds to what the service behind says. Where that refuses in its turn, it speaks for itself.
    fn pass(&self, class: &str, decision: &Decision, status: StatusCode, headers: &mut HeaderMap) {
        if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            self.fields.write(class, decision, headers);
        }
    }
}

/// The problem of a denial by the class whose name, in quotes, this is. What is wrong inside is nobody's business outside.
fn denial(why: Denied, name: &str) -> Problem<'_> {
    match why {
        Denied::RetryAfter(_) | Denied::NeverFits { .. } | Denied::Spent => Problem {
            kind: QUOTA_EXCEEDED,
            title: "Quota Exceeded",
            violated: Some(name),
            ..plain(StatusCode::TOO_MANY_REQUESTS, why.to_string())
        },
        Denied::Unavailable(_) => Problem {
            kind: REDUCED_CAPACITY,
            title: "Temporary Reduced Capacity",
            ..plain(StatusCode::SERVICE_UNAVAILABLE, "limits cannot be checked at present")
        },
        Denied::UnknownTenant => plain(StatusCode::FORBIDDEN, why.to_string()),
        Denied::UnknownClass => plain(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()),
    }
}

/// A problem that its status says.
fn plain(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Problem<'static> {
    let title = status.canonical_reason().unwrap_or_default();
    Problem { kind: "about:blank", title, status, detail: detail.into(), violated: None }
}

impl Problem<'_> {
    fn response(&self) -> Response<String> {
        let mut response = Response::new(self.to_json());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
