//! What a client sees: statuses, fields and problems, each parsed with a library that is not ours.

use axum::Router;
use axum::extract::Extension;
use axum::http::request::Parts;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get as on_get};
use redis_token_bucket_limiter::middleware::{Charge, Classify, Field, Http, RateLimitLayer};
use redis_token_bucket_limiter::{
    Decision, KnownEmpty, Limiter, OnFault, Quota, Source, Tenants, Tiers, Tokens, UnknownTenant,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::ServiceBuilder;

use crate::service::{self, pass, patient, redis};
use crate::support::{PATIENCE, Server};
use crate::web::{Answer, Tenant, api, authenticate, get, member, send, serve};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A service that greets, behind the authentication and a limiter.
fn app(limits: RateLimitLayer<impl Classify>) -> Router {
    let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(limits);
    Router::new().fallback(any(async || "hello")).layer(layers)
}

/// The same, each request for one token of the class `api`.
async fn simple(limiter: Limiter) -> String {
    serve(app(RateLimitLayer::new(limiter, api))).await
}

#[tokio::test]
async fn says_what_is_left_and_when_to_come_back_and_means_it() {
    let (server, clock) = Server::frozen();
    // One in ten seconds.
    let url = simple(patient(redis(&server), Quota::per_minute(6).burst(2))).await;

    for left in [1, 0] {
        let passed = get(&url, "acme").await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
        assert_eq!(passed.list("ratelimit-policy"), [member("api", &[("q", 2), ("w", 20)])]);
        assert_eq!(passed.list("ratelimit"), [member("api", &[("r", left), ("t", 10)])]);
        assert_eq!(passed.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(passed.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        assert_eq!(passed.header("x-ratelimit-reset"), Some("10"));
        assert_eq!(passed.header("retry-after"), None);
    }
    let refused = get(&url, "acme").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("10"));
    assert_eq!(refused.list("ratelimit-policy"), [member("api", &[("q", 2), ("w", 20)])]);
    assert_eq!(refused.list("ratelimit"), [member("api", &[("r", 0), ("t", 10)])]);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(refused.header("x-ratelimit-reset"), Some("10"));
    let problem = refused.problem();
    assert_eq!(problem["type"], QUOTA_EXCEEDED);
    assert_eq!(problem["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(problem["detail"], "over the limit for another 10000 ms");

    clock.advance_ms(8_999);
    assert_eq!(get(&url, "acme").await.header("retry-after"), Some("2"), "rounded up");
    clock.advance_ms(1_000);
    assert_eq!(get(&url, "acme").await.header("retry-after"), Some("1"), "never zero");
    clock.advance_ms(1);
    assert_eq!(get(&url, "acme").await.status, 200);
    assert_eq!(get(&url, "other").await.status, 200);
}

#[tokio::test]
async fn what_waiting_does_not_help_has_no_retry_after() {
    let server = Server::start();
    let classify = |request: &Parts| {
        let cost: Tokens = request.uri.path().trim_start_matches('/').parse().unwrap();
        Charge::to("acme", "api").cost(cost)
    };
    let url = serve(app(RateLimitLayer::new(patient(redis(&server), Quota::once(5)), classify))).await;
    let never = get(&format!("{url}/6"), "").await;
    assert_eq!((never.status, never.limits()), (429, vec!["ratelimit-policy", "x-ratelimit-limit"]));
    assert_eq!(never.list("ratelimit-policy"), [member("api", &[("q", 5)])]);
    assert_eq!(never.problem()["detail"], "one call can have 5 tokens at most");

    let passed = get(&format!("{url}/3"), "").await;
    assert_eq!(passed.list("ratelimit"), [member("api", &[("r", 2)])]);
    let spent = get(&format!("{url}/3"), "").await;
    assert_eq!((spent.status, spent.header("retry-after")), (429, None));
    assert_eq!(spent.list("ratelimit"), [member("api", &[("r", 2)])]);
    assert_eq!(spent.header("x-ratelimit-reset"), None);
    assert_eq!(spent.problem()["type"], QUOTA_EXCEEDED);
}

#[tokio::test]
async fn a_full_bucket_has_nothing_to_wait_for() {
    let server = Server::start();
    let free = |_: &Parts| Charge::to("acme", "api").cost(0);
    let url = serve(app(RateLimitLayer::new(patient(redis(&server), Quota::per_second(50).burst(20)), free))).await;
    let passed = get(&url, "").await;
    // Twenty in less than a second would be said to be slower than it is.
    assert_eq!(passed.list("ratelimit-policy"), [member("api", &[("q", 50), ("w", 1)])]);
    assert_eq!(passed.list("ratelimit"), [member("api", &[("r", 20)])]);
    assert_eq!(passed.header("x-ratelimit-reset"), Some("0"));
}

#[tokio::test]
async fn a_wait_of_many_years_is_said_in_31_bits() {
    let server = Server::start();
    let quota = Quota::per(1, std::time::Duration::from_secs(5_000_000_000));
    let url = simple(patient(redis(&server), quota)).await;
    assert_eq!(get(&url, "acme").await.status, 200);
    let refused = get(&url, "acme").await;
    assert_eq!(refused.header("retry-after"), Some("2147483647"));
    assert_eq!(refused.list("ratelimit"), [member("api", &[("r", 0), ("t", 2_147_483_647)])]);
    assert_eq!(refused.list("ratelimit-policy"), [member("api", &[("q", 1), ("w", 2_147_483_647)])]);
}

#[tokio::test]
async fn a_quota_of_nothing_is_said_to_be_nothing() {
    let server = Server::start();
    let url = simple(patient(redis(&server), Quota::per_second(10).burst(0))).await;
    let never = get(&url, "acme").await;
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.list("ratelimit-policy"), [member("api", &[("q", 0)])]);
    assert_eq!(never.header("x-ratelimit-limit"), Some("0"));
}

#[tokio::test]
async fn ten_terabytes_a_day_are_said_to_be_a_days() {
    let server = Server::start();
    let url = simple(patient(redis(&server), Quota::per_day(10_000_000_000_000))).await;
    assert_eq!(
        get(&url, "acme").await.list("ratelimit-policy"),
        [member("api", &[("q", 10_000_000_000_000), ("w", 86_400)])]
    );
}

#[tokio::test]
async fn a_forged_header_changes_nothing() {
    let server = Server::start();
    let url = simple(patient(redis(&server), Quota::once(3))).await;
    let forged = |client: &reqwest::Client, name: &str| {
        let names = ["X-Tenant", "X-Tenant-Id", "X-Forwarded-For", "X-Real-Ip", "X-Api-Key", "X-User", "Forwarded"];
        names.into_iter().fold(client.get(&url), |request, header| request.header(header, name))
    };
    let client = reqwest::Client::new();
    let mut statuses = Vec::new();
    for name in ["victim", "10.0.0.1", "a", "b", "c"] {
        statuses.push(send(forged(&client, name).header("Authorization", "acme")).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(send(forged(&client, "victim")).await.status, 401);
    assert_eq!(server.client().int("DBSIZE"), 1, "only the bucket of acme was touched");
    assert_eq!(get(&url, "victim").await.list("ratelimit"), [member("api", &[("r", 2)])]);
}

#[tokio::test]
async fn nobody_neither_passes_nor_shares_a_bucket() {
    let server = Server::start();
    let url = simple(patient(redis(&server), Quota::once(3))).await;
    let refused = send(reqwest::Client::new().get(&url)).await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.problem()["type"], "about:blank");
    assert!(refused.limits().is_empty());
    assert_eq!(server.client().int("DBSIZE"), 0);
}

#[tokio::test]
async fn a_missing_quota_is_told_from_a_spent_one() {
    let server = Server::start();
    let tiers = Tiers::new(UnknownTenant::Refuse).tier("free", [("other", Quota::once(1))]).tenant("acme", "free");
    let url = simple(patient(redis(&server), Tenants::new(tiers).unwrap())).await;
    for (tenant, status) in [("stranger", 403), ("acme", 500)] {
        let refused = get(&url, tenant).await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.problem()["type"], "about:blank");
        assert!(refused.limits().is_empty());
    }
}

#[tokio::test]
async fn without_redis_the_policy_is_seen() {
    let mut server = Server::start();
    let limiter = service::limiter(redis(&server), OnFault::Closed);
    let classify = |request: &Parts| {
        let charge = Charge::to("acme", "api");
        if request.uri.path() == "/open" { charge.on_fault(OnFault::Open) } else { charge }
    };
    let url = serve(app(RateLimitLayer::new(limiter, classify))).await;
    server.kill();
    let closed = get(&url, "").await;
    assert_eq!((closed.status, closed.limits()), (503, vec!["retry-after"]));
    assert_eq!(closed.header("retry-after"), Some("1"));
    let problem = closed.problem();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert!(problem.get("violated-policies").is_none(), "the tenant has done nothing wrong");
    let open = get(&format!("{url}/open"), "").await;
    assert_eq!((open.status, open.limits(), open.body.as_str()), (200, vec![], "hello"));
}

#[tokio::test]
async fn of_several_buckets_the_one_that_refused_is_told() {
    let (server, _clock) = Server::frozen();
    let quotas = Tiers::new(UnknownTenant::Refuse)
        .tier("free", [("wide", Quota::per_hour(10)), ("narrow", Quota::per_minute(2))])
        .tenant("acme", "free");
    let both = |_: &Parts| Charge::to("acme", "wide").and("acme", "narrow").of("ann");
    let limiter = patient(redis(&server), Tenants::new(quotas).unwrap());
    let url = serve(app(RateLimitLayer::new(limiter, both))).await;
    let passed = get(&url, "").await;
    assert_eq!(passed.list("ratelimit-policy"), [member("narrow", &[("q", 2), ("w", 60)])]);
    assert_eq!(passed.list("ratelimit"), [member("narrow", &[("r", 1), ("t", 30)])]);
    assert_eq!(get(&url, "").await.status, 200);
    let refused = get(&url, "").await;
    assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("2")));
    assert_eq!(refused.list("ratelimit"), [member("narrow", &[("r", 0), ("t", 30)])]);
    assert_eq!(refused.problem()["violated-policies"], serde_json::json!(["narrow"]));
    let state = server.client().call(&[b"TB.STATE".as_slice(), b"rl:{acme}:wide"]);
    assert_eq!(state.field("tokens").text(), "8", "the other was not charged for the refusal");
}

#[tokio::test]
async fn fields_can_be_left_out() {
    let server = Server::start();
    let all = [
        "ratelimit",
        "ratelimit-policy",
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    let cases: [(&[Field], &[usize]); 4] = [
        (&[], &[0, 1, 2, 3, 4, 5]),
        (&[Field::XRateLimit], &[0, 1, 2]),
        (&[Field::RateLimit, Field::RateLimitPolicy], &[2, 3, 4, 5]),
        (&[Field::RetryAfter, Field::RateLimit, Field::RateLimitPolicy, Field::XRateLimit], &[]),
    ];
    for (at, (without, left)) in cases.into_iter().enumerate() {
        let http = without.iter().fold(Http::default(), |http, field| http.without(*field));
        let limits = RateLimitLayer::new(patient(redis(&server), Quota::per_hour(1)), api).answer(http);
        let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(limits);
        let url = serve(Router::new().fallback(any(async || "hello")).layer(layers)).await;
        let tenant = format!("acme-{at}");
        assert_eq!(get(&url, &tenant).await.status, 200);
        let refused = get(&url, &tenant).await;
        assert_eq!(refused.limits(), left.iter().map(|at| all[*at]).collect::<Vec<_>>());
        assert_eq!(refused.problem()["status"], 429);
    }
}

#[tokio::test]
async fn what_the_service_says_of_its_own_limits_stands() {
    let (server, _clock) = Server::frozen();
    let limiter = patient(redis(&server), Quota::per_hour(2));
    let rows = {
        let limiter = limiter.clone();
        async move |Extension(Tenant(tenant)): Extension<Tenant>| -> Response {
            let decision = limiter.check(&tenant, "rows").cost(2).await;
            if !decision.is_allowed() {
                return Http::default().refusal(&decision).into_response();
            }
            (Http::default().fields("rows", &decision), "imported").into_response()
        }
    };
    let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(RateLimitLayer::new(limiter, api));
    let url = serve(Router::new().route("/", on_get(rows)).layer(layers)).await;
    let passed = get(&url, "acme").await;
    assert_eq!(
        passed.list("ratelimit"),
        [member("rows", &[("r", 0), ("t", 1_800)]), member("api", &[("r", 1), ("t", 1_800)])]
    );
    assert_eq!(passed.list("ratelimit-policy").len(), 2);
    assert_eq!(passed.headers.get_all("x-ratelimit-remaining").iter().count(), 1);
    assert_eq!(passed.header("x-ratelimit-remaining"), Some("0"));
    let refused = get(&url, "acme").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("3600")));
    // The layer let it pass; beside this refusal that would send the client back at once.
    assert_eq!(refused.list("ratelimit"), [member("rows", &[("r", 0), ("t", 3_600)])]);
}

#[tokio::test]
async fn only_a_member_of_that_name_is_the_services_own() {
    let server = Server::start();
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(50)), api);
    let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(limits);
    let told = async |of: &'static str| {
        let service = any(async move || [("ratelimit-policy", of)]);
        let url = serve(Router::new().route("/", service).layer(layers.clone())).await;
        let told = get(&url, "acme").await;
        told.headers.get_all("ratelimit-policy").iter().any(|policy| policy == r#""api";q=50"#)
    };
    for other in [r#""x";q=1;of="api""#, r#""x\"api";q=1"#, r#""x";of="a, \"api""#, r#"x, y;of="api", "apis""#, "\"api"]
    {
        assert!(told(other).await, "{other}");
    }
    for own in [r#""api";q=1"#, r#""x,y\\";q=1;of="z","api""#, r#"x,  "api" ;q=1"#] {
        assert!(!told(own).await, "{own}");
    }
}

#[tokio::test]
async fn any_name_of_a_class_can_be_parsed() {
    let server = Server::start();
    for (class, name) in
        [("a b", "a b"), (r#"a"b\c"#, r#"a"b\c"#), ("é\r\nX: y", "%C3%A9%0D%0AX: y"), ("50%", "50%25"), ("", "")]
    {
        let charge = move |_: &Parts| Charge::to("acme", class);
        let url = serve(app(RateLimitLayer::new(patient(redis(&server), Quota::once(1)), charge))).await;
        for answer in [get(&url, "").await, get(&url, "").await] {
            assert_eq!(answer.list("ratelimit")[0].0, name);
            assert_eq!(answer.list("ratelimit-policy")[0].0, name);
            assert_eq!(answer.header("x"), None);
            if answer.status == 429 {
                assert_eq!(answer.problem()["violated-policies"], serde_json::json!([name]));
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::start();
    let url = simple(patient(redis(&server), Quota::once(1))).await;
    assert_eq!(get(&url, "acme").await.status, 200);

    let mut slow = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let head =
        "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: acme\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4_096];
    let len = tokio::time::timeout(PATIENCE, slow.read(&mut answer)).await.expect("an answer without a body").unwrap();
    let answer = String::from_utf8_lossy(&answer[..len]);
    // Neither has the body been waited for nor has it been asked for, which would begin with a 100.
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

#[tokio::test]
async fn the_decision_is_seen_inside_and_outside() {
    let server = Server::start();
    let limiter = Limiter::builder(redis(&server), Quota::per_hour(2), OnFault::Closed)
        .deadline(PATIENCE)
        .known_empty(KnownEmpty::default().cap(PATIENCE))
        .build();
    let note = async |request: axum::extract::Request, next: axum::middleware::Next| {
        let mut response = next.run(request).await;
        let source = response.extensions().get::<Decision>().unwrap().source;
        response.headers_mut().insert("source", source.name().parse().unwrap());
        response
    };
    let left = async |Extension(decision): Extension<Decision>| decision.remaining.unwrap().to_string();
    let layers = ServiceBuilder::new()
        .layer(from_fn(note))
        .layer(from_fn(authenticate))
        .layer(RateLimitLayer::new(limiter, api));
    let url = serve(Router::new().route("/", on_get(left)).layer(layers)).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let Answer { status, headers, body, .. } = get(&url, "acme").await;
        seen.push((status, headers["source"].to_str().unwrap().to_owned(), body.chars().next().unwrap()));
    }
    let expected = [
        (200, Source::Redis, '1'),
        (200, Source::Redis, '0'),
        (429, Source::Redis, '{'),
        (429, Source::KnownEmpty, '{'),
    ];
    assert_eq!(seen, expected.map(|(status, source, body)| (status, source.name().to_owned(), body)));
}

#[tokio::test]
async fn the_refusal_of_a_limiter_further_in_is_seen_outside() {
    let server = Server::start();
    let limits = |class: &'static str, quota| {
        RateLimitLayer::new(patient(redis(&server), quota), move |_: &Parts| Charge::to("acme", class))
    };
    let note = async |request: axum::extract::Request, next: axum::middleware::Next| {
        let mut response = next.run(request).await;
        let decision: &Decision = response.extensions().get().unwrap();
        let seen = format!("{} of {}", decision.is_allowed(), decision.quota.unwrap().capacity());
        response.headers_mut().insert("seen", seen.parse().unwrap());
        response
    };
    let layers = ServiceBuilder::new()
        .layer(from_fn(note))
        .layer(limits("all", Quota::once(3)))
        .layer(limits("some", Quota::once(1)));
    let url = serve(Router::new().fallback(any(async || "hello")).layer(layers)).await;
    for (status, seen) in [(200, "true of 3"), (429, "false of 1"), (429, "false of 1"), (429, "false of 3")] {
        let answer = get(&url, "").await;
        assert_eq!((answer.status, answer.header("seen")), (status, Some(seen)));
    }
}

#[tokio::test]
async fn a_remembered_refusal_has_all_fields() {
    let server = Server::start();
    let limiter = Limiter::builder(redis(&server), Quota::per_hour(1), OnFault::Closed)
        .deadline(PATIENCE)
        .known_empty(KnownEmpty::default().cap(PATIENCE))
        .build();
    let url = simple(limiter).await;
    assert_eq!(get(&url, "acme").await.status, 200);
    assert_eq!(get(&url, "acme").await.status, 429);
    let remembered = get(&url, "acme").await;
    let wait: i64 = remembered.header("retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&wait));
    assert_eq!(remembered.list("ratelimit"), [member("api", &[("r", 0), ("t", wait)])]);
}

/// No promise is earlier than the bucket's: for waits of any length, coming back when told passes, and not before.
#[tokio::test]
async fn coming_back_after_retry_after_passes() {
    for (tokens, every, cost) in [(7, 3, 1), (1, 1, 1), (1_000, 1, 999), (3, 86_400, 2), (1, 31_536_000, 1)] {
        let (server, clock) = Server::frozen();
        let quota = Quota::per(tokens, std::time::Duration::from_secs(every));
        let charge = move |_: &Parts| Charge::to("acme", "api").cost(cost);
        let url = serve(app(RateLimitLayer::new(patient(redis(&server), quota), charge))).await;
        let refused = loop {
            let answer = get(&url, "").await;
            if answer.status != 200 {
                break answer;
            }
        };
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        pass(&clock, std::time::Duration::from_secs(wait));
        assert_eq!(get(&url, "").await.status, 200, "{tokens} in {every} s, {cost} at once, after {wait} s");
    }
}
