//! A check as it is written: what is asked, on which terms, and then `.await`.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use client::{Key, Tokens};
use tokio::time::Instant;

use crate::decide::Terms;
use crate::decision::Decision;
use crate::fault::OnFault;
use crate::limiter::Limiter;
use crate::observe::Decided;
use crate::reserve::Reservation;
use crate::time::after;

/// Nothing is kept in this process for longer keys, in bytes: a bound on keys is to be one on memory too.
pub(crate) const LONGEST_KEY: usize = 1_024;

/// One class of calls of one tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) class: &'a str,
    pub(crate) subject: Option<&'a str>,
    pub(crate) cost: Tokens,
}

impl<'a> Part<'a> {
    pub(crate) const fn new(tenant: &'a str, class: &'a str) -> Self {
        Self { tenant, class, subject: None, cost: Tokens::ONE }
    }

    /// The key of the bucket, under the tenant's own tag or under another one.
    ///
    /// The second part of a key is the class; `class@subject` for a subject; `class@subject@tenant`, where the subject may be
    /// empty, under a tag that is not the tenant's. In each of them `@` and `%` are written as `%40` and `%25`, so no two ever
    /// meet in one key.
    fn key(&self, tag: Option<&str>) -> Key {
        let class = escaped(self.class);
        match (tag.filter(|tag| *tag != self.tenant), self.subject) {
            (None, None) => Key::new(self.tenant, &*class),
            (None, Some(subject)) => Key::new(self.tenant, format!("{class}@{}", escaped(subject))),
            (Some(tag), subject) => {
                let (subject, tenant) = (escaped(subject.unwrap_or_default()), escaped(self.tenant));
                Key::new(tag, format!("{class}@{subject}@{tenant}"))
            }
        }
    }
}

fn escaped(name: &str) -> Cow<'_, str> {
    if name.contains(['@', '%']) { name.replace('%', "%25").replace('@', "%40").into() } else { name.into() }
}

/// Terms that a check has of its own.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    on_fault: Option<OnFault>,
    deadline: Option<Duration>,
}

impl Options {
    fn terms(self, limiter: &Limiter, start: Instant) -> Terms {
        Terms {
            deadline: after(start, self.deadline.unwrap_or(limiter.core.deadline)),
            policy: self.on_fault.unwrap_or(limiter.core.policy),
            is_exact: false,
        }
    }
}

/// A check of one class: `limiter.check(&tenant, "export").cost(5).await` is a [`Decision`].
///
/// # Dropping it
/// A check whose future is dropped may have taken its tokens, or may still. Nothing else of it remains.
#[derive(Clone, Copy, Debug)]
#[must_use = "a check does nothing until it is awaited"]
pub struct Check<'a> {
    limiter: &'a Limiter,
    part: Part<'a>,
    options: Options,
}

impl<'a> Check<'a> {
    pub(crate) fn new(limiter: &'a Limiter, part: Part<'a>) -> Self {
        Self { limiter, part, options: Options::default() }
    }

    /// How many tokens it takes: one, unless said otherwise.
    pub fn cost(mut self, cost: impl Into<Tokens>) -> Self {
        self.part.cost = cost.into();
        self
    }

    /// Takes from a bucket of this subject's own: a user within a tenant, say. The quota is that of the tenant and class.
    pub fn of(mut self, subject: &'a str) -> Self {
        self.part.subject = Some(subject);
        self
    }

    /// The policy for this check, instead of the limiter's.
    pub fn on_fault(mut self, policy: OnFault) -> Self {
        self.options.on_fault = Some(policy);
        self
    }

    /// The deadline over all of this check, instead of the limiter's.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// Takes from a second bucket as well, or from neither.
    pub fn and(self, tenant: &'a str, class: &'a str) -> CheckAll<'a> {
        self.all().and(tenant, class)
    }

    pub(crate) fn all(self) -> CheckAll<'a> {
        CheckAll { limiter: self.limiter, parts: vec![self.part], tag: None, options: self.options }
    }

    /// The key of the bucket.
    #[must_use]
    pub fn key(&self) -> Key {
        self.part.key(None)
    }

    /// Takes the cost as an estimate, to be settled when the true one is known.
    ///
    /// # Errors
    /// The decision that turned it away.
    pub async fn reserve(self) -> Result<Reservation, Decision> {
        let start = Instant::now();
        let terms = Terms { is_exact: true, ..self.options.terms(self.limiter, start) };
        let decision = self.decide(start, &terms).await;
        if !decision.is_allowed() {
            return Err(decision);
        }
        Ok(Reservation::new(Arc::clone(&self.limiter.core), &self.part, self.key(), decision, terms.policy))
    }

    /// What awaiting it does, for those who have a future to put it in.
    pub(crate) async fn decided(self) -> Decision {
        let start = Instant::now();
        self.decide(start, &self.options.terms(self.limiter, start)).await
    }

    async fn decide(&self, start: Instant, terms: &Terms) -> Decision {
        let core = &self.limiter.core;
        let decision = core.one(&self.part, self.key(), terms).await;
        tell(self.limiter, &self.part, &decision, terms, start);
        decision
    }
}

impl<'a> IntoFuture for Check<'a> {
    type Output = Decision;
    type IntoFuture = Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.decided())
    }
}

/// A check of several classes, which takes from every bucket or from none. [`Decision::refused_by`] names the one that refused.
///
/// ```no_run
/// # async fn example(limiter: redis_token_bucket_limiter::Limiter, organisation: String, user: String) {
/// let decision = limiter
///     .check(&organisation, "api")
///     .and(&organisation, "api-per-user").of(&user)
///     .and("everyone", "api-in-total")
///     .under("everyone")
///     .await;
/// # let _ = decision;
/// # }
/// ```
///
/// In a cluster all keys of one check must lie in one slot. Those of one tenant do; for others [`CheckAll::under`] names the
/// tag that they share. Leases are not used.
#[derive(Clone, Debug)]
#[must_use = "a check does nothing until it is awaited"]
pub struct CheckAll<'a> {
    limiter: &'a Limiter,
    parts: Vec<Part<'a>>,
    tag: Option<&'a str>,
    options: Options,
}

impl<'a> CheckAll<'a> {
    /// Takes from one more bucket. A bucket can be in a check once: a second time is an argument that servers refuse.
    pub fn and(mut self, tenant: &'a str, class: &'a str) -> Self {
        self.parts.push(Part::new(tenant, class));
        self
    }

    /// How many tokens the class named last takes: one, unless said otherwise.
    pub fn cost(mut self, cost: impl Into<Tokens>) -> Self {
        if let Some(last) = self.parts.last_mut() {
            last.cost = cost.into();
        }
        self
    }

    /// Has the class named last take from a bucket of this subject's own.
    pub fn of(mut self, subject: &'a str) -> Self {
        if let Some(last) = self.parts.last_mut() {
            last.subject = Some(subject);
        }
        self
    }

    /// Puts the keys of all classes under one tag, so that in a cluster they share a slot. A tenant's bucket under a tag that
    /// is not its own is another one than under its own.
    pub fn under(mut self, tag: &'a str) -> Self {
        self.tag = Some(tag);
        self
    }

    /// The policy for this check, instead of the limiter's.
    pub fn on_fault(mut self, policy: OnFault) -> Self {
        self.options.on_fault = Some(policy);
        self
    }

    /// The deadline over all of this check, instead of the limiter's.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// The keys of the buckets, in the order of the classes.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.parts.iter().map(|part| part.key(self.tag)).collect()
    }

    /// What awaiting it does, for those who have a future to put it in.
    pub(crate) async fn decided(self) -> Decision {
        let start = Instant::now();
        let terms = self.options.terms(self.limiter, start);
        let parts = self.parts.iter().copied().zip(self.keys()).collect();
        let decision = self.limiter.core.all(parts, &terms).await;
        let at = decision.refused_by.as_ref().map_or(0, |refused| refused.index);
        if let Some(part) = self.parts.get(at) {
            tell(self.limiter, part, &decision, &terms, start);
        }
        decision
    }
}

impl<'a> IntoFuture for CheckAll<'a> {
    type Output = Decision;
    type IntoFuture = Pin<Box<dyn Future<Output = Decision> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.decided())
    }
}

fn tell(limiter: &Limiter, part: &Part<'_>, decision: &Decision, terms: &Terms, start: Instant) {
    let observers = &limiter.core.observers;
    if observers.care_about(decision) {
        let decided = Decided::new(part.tenant, part.class, decision, terms.policy, start.elapsed());
        observers.tell(|observer| observer.decided(&decided));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn text(part: Part<'_>, tag: Option<&str>) -> String {
        part.key(tag).to_string()
    }

    #[test]
    fn keys_read_as_what_they_are_for() {
        let part = Part::new("acme", "api");
        let user = Part { subject: Some("ann"), ..part };
        assert_eq!(text(part, None), "rl:{acme}:api");
        assert_eq!(text(user, None), "rl:{acme}:api@ann");
        assert_eq!(text(part, Some("acme")), "rl:{acme}:api");
        assert_eq!(text(part, Some("everyone")), "rl:{everyone}:api@@acme");
        assert_eq!(text(user, Some("everyone")), "rl:{everyone}:api@ann@acme");
    }

    #[test]
    fn no_two_buckets_share_a_key() {
        let names = ["", "a", "@", "a@", "@a", "a@a", "%", "%40", "a%40a", "%25", "}", "{", "a:a", "}:a"];
        let mut seen: HashMap<Key, (&str, &str, Option<&str>, bool)> = HashMap::new();
        for tenant in names {
            for class in names {
                for subject in std::iter::once(None).chain(names.map(Some)) {
                    for tag in [None, Some("everyone"), Some("a")] {
                        let key = Part { tenant, class, subject, cost: Tokens::ONE }.key(tag);
                        // Under its own tag a tenant has the bucket that it has without one.
                        let is_moved = tag.is_some_and(|tag| tag != tenant);
                        let bucket =
                            (tenant, class, subject.filter(|subject| !is_moved || !subject.is_empty()), is_moved);
                        let first = *seen.entry(key).or_insert(bucket);
                        assert_eq!(first, bucket);
                    }
                }
            }
        }
    }
}
