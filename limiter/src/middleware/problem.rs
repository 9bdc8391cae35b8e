//! The body of a refusal: application/problem+json, RFC 9457.

use http::StatusCode;

/// A problem. All its texts are ours and plain, so that quotes are all the JSON they need.
pub(super) struct Problem<'a> {
    /// Where the kind is described, if it has a description; it is told by its status otherwise.
    pub(super) kind: Option<&'static str>,
    pub(super) title: &'static str,
    pub(super) status: StatusCode,
    pub(super) detail: Option<String>,
    /// The name of the policy that was violated, in its quotes.
    pub(super) violated: Option<&'a str>,
}

/// Problem types of draft-ietf-httpapi-ratelimit-headers-11.
pub(super) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(super) const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

impl Problem<'_> {
    pub(super) fn to_json(&self) -> String {
        let kind = self.kind.unwrap_or("about:blank");
        let mut json = format!(r#"{{"type":"{kind}","title":"{}","status":{}"#, self.title, self.status.as_u16());
        if let Some(detail) = &self.detail {
            json.push_str(&format!(r#","detail":"{detail}""#));
        }
        if let Some(violated) = self.violated {
            json.push_str(&format!(r#","violated-policies":[{violated}]"#));
        }
        json.push('}');
        json
    }
}
