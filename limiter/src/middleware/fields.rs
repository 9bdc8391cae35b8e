//! The header fields of a decision: `Retry-After`, `RateLimit` and `RateLimit-Policy` as of
//! draft-ietf-httpapi-ratelimit-headers-11, and the older `X-RateLimit-*`.

use std::time::Duration;

use client::{Quota, Tokens};
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::decision::{Decision, Denied};
use crate::exact;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// All the fields there can be. A browser shows a script of another origin only those that CORS exposes, so these are for
/// `expose_headers`.
pub const FIELD_NAMES: [HeaderName; 6] = [RETRY_AFTER, RATELIMIT, RATELIMIT_POLICY, LIMIT, REMAINING, RESET];

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;
/// The longest wait that is told, in seconds, 68 years: what 31 bits hold, and every client can read.
const LONGEST: u64 = 2_147_483_647;

/// Header fields that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// `Retry-After`: whole seconds, rounded up, at least one, and no more than 2147483647, which is 68 years.
    RetryAfter,
    /// `RateLimit`: what is left, and for how many seconds that is all.
    RateLimit,
    /// `RateLimit-Policy`: the quota.
    RateLimitPolicy,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`. The last is in seconds from now.
    XRateLimit,
}

/// Which fields are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    left_out: [Option<Field>; 4],
}

impl Fields {
    pub(super) fn without(mut self, field: Field) -> Self {
        if self.has(field)
            && let Some(free) = self.left_out.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(field);
        }
        self
    }

    pub(super) fn has(self, field: Field) -> bool {
        !self.left_out.contains(&Some(field))
    }

    /// The fields of a decision about a class. Where Redis was not heard there is no telling what is left.
    pub(super) fn write(self, class: &str, decision: &Decision, headers: &mut HeaderMap) {
        let Some(told) = Told::of(decision) else { return };
        if self.has(Field::RateLimitPolicy) {
            append(headers, RATELIMIT_POLICY, class, |name| told.policy(name));
        }
        if self.has(Field::RateLimit) {
            append(headers, RATELIMIT, class, |name| told.limit(name));
        }
        if self.has(Field::XRateLimit) && ![LIMIT, REMAINING, RESET].iter().any(|name| headers.contains_key(name)) {
            headers.insert(LIMIT, told.capacity.into());
            insert(headers, REMAINING, told.remaining);
            insert(headers, RESET, told.reset());
        }
    }

    pub(super) fn write_retry_after(self, seconds: u64, headers: &mut HeaderMap) {
        if self.has(Field::RetryAfter) {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

/// What the fields say.
struct Told {
    capacity: u64,
    /// Tokens in so many seconds.
    quota: (u64, Option<u64>),
    remaining: Option<u64>,
    /// In how many seconds there is more; for a refusal, enough.
    more: Option<u64>,
}

impl Told {
    fn of(decision: &Decision) -> Option<Self> {
        let quota = decision.quota.filter(|_| decision.fault().is_none())?;
        let capacity = exact::rounded(quota.capacity()).min(LARGEST);
        let remaining = match decision.verdict {
            // A refusal that is remembered: less than the cost, and nobody counts it.
            Err(Denied::RetryAfter(_) | Denied::Spent) => Some(decision.remaining.unwrap_or_default()),
            _ => decision.remaining,
        };
        let remaining = remaining.map(|tokens| tokens.min(capacity));
        let more = match decision.verdict {
            Ok(()) if remaining.is_some_and(|tokens| tokens < capacity) => exact::time_for(Tokens::ONE, quota),
            Err(Denied::RetryAfter(delay)) => Some(delay),
            _ => None,
        };
        Some(Self { capacity, quota: window(quota), remaining, more: more.map(seconds) })
    }

    /// A member of `RateLimit-Policy`.
    fn policy(&self, name: &str) -> Option<String> {
        Some(match self.quota {
            (tokens, Some(window)) => format!("{name};q={tokens};w={window}"),
            (tokens, None) => format!("{name};q={tokens}"),
        })
    }

    /// A member of `RateLimit`, which has to say what is left.
    fn limit(&self, name: &str) -> Option<String> {
        let remaining = self.remaining?;
        Some(match self.more {
            Some(seconds) => format!("{name};r={remaining};t={seconds}"),
            None => format!("{name};r={remaining}"),
        })
    }

    /// Nothing to wait for is no time to wait.
    fn reset(&self) -> Option<u64> {
        self.more.or_else(|| self.remaining.filter(|tokens| *tokens >= self.capacity).map(|_| 0))
    }
}

/// So many tokens in so many seconds: the capacity in the time it takes to come back, or where that is less than a second's
/// tokens, a second's. Without a time if nothing comes back, or there is no room for it.
fn window(quota: Quota) -> (u64, Option<u64>) {
    let capacity = exact::rounded(quota.capacity()).min(LARGEST);
    // A bucket that holds nothing grants nothing, however much flows into it.
    if quota.rate().tokens() == Tokens::ZERO || quota.capacity() == Tokens::ZERO {
        return (capacity, None);
    }
    let refill = exact::time_for(quota.capacity(), quota).unwrap_or(Duration::MAX);
    if refill < Duration::from_secs(1) {
        let second = exact::rounded_in(quota.rate(), Duration::from_secs(1)).min(LARGEST);
        return (capacity.max(second), Some(1));
    }
    (capacity, Some(seconds(refill)))
}

/// Whole seconds, rounded up: at least one, at most [`LONGEST`].
pub(super) fn seconds(delay: Duration) -> u64 {
    delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0)).clamp(1, LONGEST)
}

/// Adds a member to a list, unless the service behind has one of that name already, and so knows better.
fn append(headers: &mut HeaderMap, field: HeaderName, class: &str, member: impl Fn(&str) -> Option<String>) {
    let name = quoted(class);
    let is_there = |value: &HeaderValue| value.to_str().is_ok_and(|list| has_member(list, &name));
    if headers.get_all(&field).iter().any(is_there) {
        return;
    }
    if let Some(value) = member(&name).and_then(|member| HeaderValue::try_from(member).ok()) {
        headers.append(field, value);
    }
}

/// Whether a list has a member that is this string, in its quotes. Strings that are parameters, or parts of others, are none.
fn has_member(list: &str, name: &str) -> bool {
    let (mut in_string, mut is_escaped) = (false, false);
    let mut members = list.split(|char| {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            '"' => in_string = !in_string,
            _ => return char == ',' && !in_string,
        }
        false
    });
    members.any(|member| member.trim_start().starts_with(name))
}

fn insert(headers: &mut HeaderMap, field: HeaderName, number: Option<u64>) {
    if let Some(number) = number {
        headers.insert(field, number.into());
    }
}

/// A class's name in quotes, as a structured field and as JSON: both hold printable ASCII and escape two characters of it.
/// Whatever else a name holds is written as `%` and two digits, and so is `%`.
pub(super) fn quoted(class: &str) -> String {
    let mut text = String::with_capacity(class.len().saturating_add(2));
    text.push('"');
    for byte in class.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'%' => text.push_str("%25"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text.push('"');
    text
}
