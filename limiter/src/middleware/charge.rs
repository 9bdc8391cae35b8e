//! What a request is charged to. It owns what it names, for the request has gone on by the time it is asked.

use std::borrow::Cow;

use client::Tokens;

use crate::check::{Check, CheckAll};
use crate::decision::Decision;
use crate::fault::OnFault;
use crate::limiter::Limiter;

/// What a request is charged to: a class of calls of a tenant, or several of which all must have room.
///
/// ```
/// use redis_token_bucket_limiter::middleware::Charge;
///
/// let (organisation, user) = ("acme", "ann");
/// let charge = Charge::to(organisation, "search").cost(5).and(organisation, "search-per-user").of(user);
/// # let _ = charge;
/// ```
///
/// It says what [`Limiter::check`] says, and [`Check`] and [`CheckAll`] say what it means.
#[derive(Clone, Debug)]
#[must_use = "it is an answer to who is charged"]
pub struct Charge {
    first: Part,
    more: Vec<Part>,
    tag: Option<Box<str>>,
    on_fault: Option<OnFault>,
}

#[derive(Clone, Debug)]
struct Part {
    tenant: Box<str>,
    class: Cow<'static, str>,
    subject: Option<Box<str>>,
    cost: Tokens,
}

impl Part {
    fn new(tenant: &str, class: Cow<'static, str>) -> Self {
        Self { tenant: tenant.into(), class, subject: None, cost: Tokens::ONE }
    }
}

impl Charge {
    /// One token of this tenant's for this class of calls.
    pub fn to(tenant: impl AsRef<str>, class: impl Into<Cow<'static, str>>) -> Self {
        let first = Part::new(tenant.as_ref(), class.into());
        Self { first, more: Vec::new(), tag: None, on_fault: None }
    }

    /// Of a second class as well, or of neither.
    pub fn and(mut self, tenant: impl AsRef<str>, class: impl Into<Cow<'static, str>>) -> Self {
        self.more.push(Part::new(tenant.as_ref(), class.into()));
        self
    }

    /// How many tokens of the class named last: one, unless said otherwise.
    pub fn cost(mut self, cost: impl Into<Tokens>) -> Self {
        self.last().cost = cost.into();
        self
    }

    /// From a bucket of this subject's own, for the class named last: a user within a tenant, say.
    pub fn of(mut self, subject: impl AsRef<str>) -> Self {
        self.last().subject = Some(subject.as_ref().into());
        self
    }

    /// Puts the keys of all classes under one tag, for classes of several tenants in a cluster: see [`CheckAll::under`].
    pub fn under(mut self, tag: impl AsRef<str>) -> Self {
        self.tag = Some(tag.as_ref().into());
        self
    }

    /// The fault policy for this request, instead of the limiter's.
    pub fn on_fault(mut self, policy: OnFault) -> Self {
        self.on_fault = Some(policy);
        self
    }

    fn last(&mut self) -> &mut Part {
        self.more.last_mut().unwrap_or(&mut self.first)
    }

    /// The class at this place.
    pub(super) fn into_class(self, index: usize) -> Cow<'static, str> {
        let more = index.checked_sub(1).and_then(|index| self.more.into_iter().nth(index));
        more.unwrap_or(self.first).class
    }

    pub(super) async fn decided(&self, limiter: &Limiter) -> Decision {
        let first = self.first_check(limiter);
        if self.more.is_empty() && self.tag.is_none() {
            first.decided().await
        } else {
            self.whole(first).decided().await
        }
    }

    fn first_check<'a>(&'a self, limiter: &'a Limiter) -> Check<'a> {
        let first = &self.first;
        let mut check = limiter.check(&first.tenant, &first.class).cost(first.cost);
        if let Some(subject) = &first.subject {
            check = check.of(subject);
        }
        match self.on_fault {
            Some(policy) => check.on_fault(policy),
            None => check,
        }
    }

    fn whole<'a>(&'a self, first: Check<'a>) -> CheckAll<'a> {
        let mut check = first.all();
        for part in &self.more {
            check = check.and(&part.tenant, &part.class).cost(part.cost);
            if let Some(subject) = &part.subject {
                check = check.of(subject);
            }
        }
        match &self.tag {
            Some(tag) => check.under(tag),
            None => check,
        }
    }
}
