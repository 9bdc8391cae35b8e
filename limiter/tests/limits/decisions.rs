//! What a decision says: who decided, who refused, how long to wait, and what never fits.

use std::collections::BTreeMap;
use std::time::Duration;

use redis_token_bucket_limiter::client::Fault as ServerFault;
use redis_token_bucket_limiter::{
    Denied, Fault, Implementation, OnFault, Quota, QuotaError, Quotas, Source, Tenants, Tiers, Tokens, UnknownTenant,
};

use crate::service::{charged_to, pass, patient, redis};
use crate::support::Server;

/// A quota a class, the same for every tenant.
struct Classes(BTreeMap<&'static str, Quota>);

impl Classes {
    fn new<const N: usize>(classes: [(&'static str, Quota); N]) -> Self {
        Self(classes.into())
    }
}

impl Quotas for Classes {
    async fn quota(&self, _: &str, class: &str) -> Result<Quota, QuotaError> {
        self.0.get(class).copied().ok_or(QuotaError::UnknownClass)
    }
}

#[tokio::test]
async fn grants_until_the_bucket_is_empty_and_then_says_when() {
    let (server, clock) = Server::frozen();
    let limiter = patient(redis(&server), Quota::per_minute(100).burst(2));
    for left in [1, 0] {
        let decision = limiter.check("acme", "api").await;
        assert_eq!((decision.verdict, decision.source, decision.remaining), (Ok(()), Source::Redis, Some(left)));
        assert_eq!(decision.refused_by, None);
    }
    let decision = limiter.check("acme", "api").await;
    assert_eq!(decision.ok(), Err(Denied::RetryAfter(Duration::from_millis(600))));
    assert_eq!((decision.source, decision.remaining), (Source::Redis, Some(0)));
    assert_eq!(decision.refused_by.unwrap().class.as_ref(), "api");
    pass(&clock, Duration::from_millis(599));
    assert!(!limiter.check("acme", "api").await.is_allowed());
    pass(&clock, Duration::from_millis(1));
    assert!(limiter.check("acme", "api").await.is_allowed());
}

#[tokio::test]
async fn what_never_fits_is_told_apart_and_asks_nobody() {
    let server = Server::start();
    let quotas = Classes::new([("api", Quota::per_second(5)), ("once", Quota::once(1))]);
    let limiter = patient(redis(&server), quotas);
    let decision = limiter.check("acme", "api").cost(6).await;
    assert_eq!(decision.verdict, Err(Denied::NeverFits { capacity: Tokens::new(5) }));
    assert_eq!(decision.source, Source::Quotas);
    assert_eq!(server.client().int("DBSIZE"), 0);
    assert!(limiter.check("acme", "once").await.is_allowed());
    let decision = limiter.check("acme", "once").await;
    assert_eq!((decision.verdict, decision.source), (Err(Denied::Spent), Source::Redis));
}

#[tokio::test]
async fn a_name_is_any_text_and_has_a_bucket_of_its_own() {
    let server = Server::start();
    let long = "x".repeat(1 << 20);
    let names = ["", "\0", "{", "}", "{}", "%", "%25", "é", "a\nb", "a\r\nb", "acme", "Acme", "acme ", &long];
    for implementation in [Implementation::Module, Implementation::Script] {
        let limiter = patient(redis(&server).using(implementation), Quota::once(10));
        for name in names {
            for check in [limiter.check(name, "api"), limiter.check("t", name), limiter.check("t", "api").of(name)] {
                let decision = check.await;
                assert_eq!((decision.source, decision.remaining), (Source::Redis, Some(9)), "{name:.20}");
            }
        }
    }
}

#[tokio::test]
async fn unknown_tenants_and_classes_are_turned_away_as_such() {
    let server = Server::start();
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", Quota::per_second(5))]).tenant("acme", "free");
    let limiter = patient(redis(&server), Tenants::new(tiers).unwrap());
    let stranger = limiter.check("stranger", "api").await;
    assert_eq!((stranger.verdict, stranger.source), (Err(Denied::UnknownTenant), Source::Quotas));
    let decision = limiter.check("acme", "exports").await;
    assert_eq!((decision.verdict, decision.source), (Err(Denied::UnknownClass), Source::Quotas));
    assert!(limiter.check("acme", "api").await.is_allowed());
}

struct Broken;

impl Quotas for Broken {
    async fn quota(&self, _: &str, class: &str) -> Result<Quota, QuotaError> {
        match class {
            "slow" => std::future::pending().await,
            _ => Err(QuotaError::unavailable("the database is down")),
        }
    }
}

#[tokio::test]
async fn quotas_that_cannot_be_read_are_a_fault_like_any_other() {
    let server = Server::start();
    let limiter = patient(redis(&server), Broken);
    for class in ["api", "slow"] {
        let check = || limiter.check("acme", class).deadline(Duration::from_millis(50));
        assert_eq!(check().await.source, Source::FailedClosed(Fault::Quotas));
        assert!(check().on_fault(OnFault::Open).await.is_allowed());
        let share = redis_token_bucket_limiter::Share::one_of(2);
        assert!(!check().on_fault(OnFault::Local(share)).await.is_allowed(), "no quota, no share of it");
    }
}

#[tokio::test]
async fn several_classes_pass_together_or_not_at_all() {
    let (server, _clock) = Server::frozen();
    let quotas = Classes::new([
        ("organisation", Quota::per_second(5)),
        ("user", Quota::per_minute(2)),
        ("in-total", Quota::per_second(100)),
    ]);
    let limiter = patient(redis(&server), quotas);
    let check = |user: &'static str| {
        limiter
            .check("acme", "organisation")
            .and("acme", "user")
            .of(user)
            .and("everyone", "in-total")
            .cost(10)
            .under("everyone")
    };
    let keys = check("ann").keys();
    for left in [1, 0] {
        let decision = check("ann").await;
        assert_eq!((decision.verdict, decision.remaining), (Ok(()), Some(left)), "the scarcest is told");
    }
    let before: Vec<u64> = keys.iter().map(|key| charged_to(&server, key)).collect();
    let decision = check("ann").await;
    assert_eq!(decision.verdict, Err(Denied::RetryAfter(Duration::from_secs(30))));
    let refused = decision.refused_by.unwrap();
    assert_eq!((refused.index, refused.class.as_ref()), (1, "user"));
    assert_eq!(decision.quota, Some(Quota::per_minute(2)));
    let after: Vec<u64> = keys.iter().map(|key| charged_to(&server, key)).collect();
    assert_eq!(before, after, "nothing was taken anywhere");

    assert!(check("bob").await.is_allowed());
    assert!(check("eve").await.is_allowed());
    assert!(check("eve").await.is_allowed());
    let decision = check("bob").await;
    assert_eq!(decision.refused_by.unwrap().class.as_ref(), "organisation");
}

/// The server refuses it, and so the policy decides: a check that can never be carried out is not an empty bucket.
#[tokio::test]
async fn a_bucket_that_is_named_twice_is_a_fault() {
    let server = Server::start();
    let limiter = patient(redis(&server), Quota::once(10));
    let decision = limiter.check("acme", "api").and("acme", "api").await;
    assert_eq!(decision.fault(), Some(Fault::Redis(ServerFault::InvalidArgument)));
    assert!(limiter.check("acme", "api").and("acme", "api").of("ann").await.is_allowed());
    assert_eq!(limiter.check("acme", "api").cost(0).await.remaining, Some(9), "taken from once");
}

#[tokio::test]
async fn of_several_refusals_the_longest_wait_counts() {
    let (server, _clock) = Server::frozen();
    let quotas = Classes::new([("a", Quota::per_second(1)), ("b", Quota::per_hour(1)), ("c", Quota::per_second(2))]);
    let limiter = patient(redis(&server), quotas);
    let check = || limiter.check("acme", "a").and("acme", "b").and("acme", "c");
    assert!(check().await.is_allowed());
    let decision = check().await;
    assert_eq!(decision.verdict, Err(Denied::RetryAfter(Duration::from_secs(3_600))));
    assert_eq!(decision.refused_by.unwrap().index, 1);
    let never = check().cost(3).await;
    assert_eq!(never.verdict, Err(Denied::NeverFits { capacity: Tokens::new(2) }));
    assert_eq!(never.refused_by.unwrap().index, 2);
}

#[tokio::test]
async fn a_changed_quota_holds_from_the_next_check() {
    let (server, clock) = Server::frozen();
    let tiers = |api| Tiers::new(UnknownTenant::Refuse).tier("free", [("api", api)]).tenant("acme", "free");
    let quotas = std::sync::Arc::new(Tenants::new(tiers(Quota::per_second(1).burst(16))).unwrap());
    let limiter = patient(redis(&server), std::sync::Arc::clone(&quotas));
    assert!(limiter.check("acme", "api").cost(16).await.is_allowed());
    assert!(!limiter.check("acme", "api").await.is_allowed());
    pass(&clock, Duration::from_millis(100));
    quotas.reload(tiers(Quota::per_second(50).burst(16))).unwrap();
    let decision = limiter.check("acme", "api").await;
    assert_eq!(decision.remaining, Some(4), "a raised rate denies nobody");
    quotas.reload(tiers(Quota::per_second(50).burst(3))).unwrap();
    let decision = limiter.check("acme", "api").await;
    assert_eq!(decision.remaining, Some(2), "a lowered capacity clamps");
}
