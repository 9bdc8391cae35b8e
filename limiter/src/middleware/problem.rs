//! The body of a refusal: application/problem+json, RFC 9457.

use std::borrow::Cow;

use http::StatusCode;

/// A problem. All its texts are ours and plain, so that quotes are all the JSON they need.
pub(super) struct Problem<'a> {
    /// Where its type is described, or `about:blank` for one that the status describes.
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) status: StatusCode,
    pub(super) detail: Cow<'static, str>,
    /// The name of the policy that was violated, in its quotes.
    pub(super) violated: Option<&'a str>,
}

/// Problem types of draft-ietf-httpapi-ratelimit-headers-11.
pub(super) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(super) const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl Problem<'_> {
    pub(super) fn to_json(&self) -> String {
        let Self { kind, title, status, detail, violated } = self;
        let status = status.as_u16();
        let violated = violated.map(|name| format!(r#","violated-policies":[{name}]"#)).unwrap_or_default();
        format!(r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}"{violated}}}"#)
    }
}
