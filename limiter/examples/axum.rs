//! An HTTP service with limits: the layer in its place among others, a cost by path, one that the handler knows, and metrics
//! for Prometheus (dashboards/ says what to look at).
//!
//! Next to `make run`: `cargo run -p redis-token-bucket-limiter --example axum [127.0.0.1:3000]`.
//! `REDIS_URL` names another server than `redis://127.0.0.1:6379`.

use std::error::Error;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use redis_token_bucket_limiter::middleware::{Charge, Classified, FIELD_NAMES, Http, RateLimitLayer};
use redis_token_bucket_limiter::{
    Decision, KnownEmpty, Limiter, Metrics, OnFault, Quota, Redis, Tenants, Tiers, UnknownTenant,
};
use tokio::time::timeout;
use tower::ServiceBuilder;
use tower_http::cors::{Any, CorsLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// Who sends a request, as its credentials say.
#[derive(Clone)]
struct Tenant(String);

/// The service's own authentication, of which the limits see only what it leaves in the request's extensions. Here a tenant's
/// key is `key-of-` and its name, which is not how it should be done.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let credentials = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Some(tenant) = credentials.and_then(|credentials| credentials.strip_prefix("Bearer key-of-")) {
        let tenant = Tenant(tenant.to_owned());
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

/// What a request is charged to.
fn classify(request: &Parts) -> Classified {
    if request.uri.path() == "/health" {
        return Classified::NotLimited;
    }
    let Some(Tenant(tenant)) = request.extensions.get() else { return Classified::Unauthenticated };
    let charge = Charge::to(tenant, "api");
    if request.uri.path() == "/search" { charge.cost(5).into() } else { charge.into() }
}

async fn hello(Extension(Tenant(tenant)): Extension<Tenant>, Extension(decision): Extension<Decision>) -> String {
    match decision.remaining {
        Some(left) => format!("hello {tenant}, {left} tokens left\n"),
        // Redis was not heard, and the policy let the request pass.
        None => format!("hello {tenant}, nobody knows how many tokens are left: {:?}\n", decision.source),
    }
}

/// The cost is in the body, which the layer does not wait for: it has taken a token for the request, this takes one for
/// each row.
async fn import(
    State(limiter): State<Limiter>,
    Extension(Tenant(tenant)): Extension<Tenant>,
    Json(rows): Json<Vec<String>>,
) -> Response {
    let decision = limiter.check(&tenant, "rows").cost(rows.len() as u64).await;
    let http = Http::default();
    if !decision.is_allowed() {
        return http.refusal(&decision).into_response();
    }
    (http.fields("rows", &decision), format!("imported {} rows\n", rows.len())).into_response()
}

fn app(limiter: Limiter, metrics: PrometheusHandle) -> Router {
    let cors = CorsLayer::new().allow_origin(Any).allow_headers([header::AUTHORIZATION]).expose_headers(FIELD_NAMES);
    // From the outermost to the innermost; docs/middleware.md says why in this order.
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(cors)
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10)))
        .layer(from_fn(authenticate))
        .layer(RateLimitLayer::new(limiter.clone(), classify));
    Router::new()
        .route("/", get(hello))
        .route("/search", get(hello))
        .route("/import", post(import))
        .route("/health", get(async || "well\n"))
        .layer(layers)
        // Behind the layers, so outside them. In a service, on a port that only Prometheus reaches.
        .route("/metrics", get(async move || metrics.render()))
        .with_state(limiter)
}

fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let tiers = Tiers::new(UnknownTenant::Refuse)
        .tier("free", [("api", Quota::per_minute(60).burst(10)), ("rows", Quota::per_hour(100))])
        .tier("pro", [("api", Quota::per_second(100)), ("rows", Quota::per_hour(100_000))])
        .tenant("acme", "free")
        .tenant("bigco", "pro");
    let limiter = Limiter::builder(Redis::standalone(url)?, Tenants::new(tiers)?, OnFault::Open);
    Ok(limiter.known_empty(KnownEmpty::default()).observe(Metrics::new().tenants(20)).build())
}

/// Buckets make the percentiles: from what a check takes on a fast network to beyond its deadline.
const SECONDS: [f64; 11] = [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];

/// Comes first: what is counted before there is a recorder is lost.
fn metrics() -> Result<PrometheusHandle, Box<dyn Error>> {
    let times = Matcher::Full("ratelimit_check_seconds".to_owned());
    Ok(PrometheusBuilder::new().set_buckets_for_metric(times, &SECONDS)?.install_recorder()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let metrics = metrics()?;
    let limiter = limiter()?;
    // The first calls need not be the ones that connect. A service whose Redis is away can begin all the same.
    let _ = timeout(Duration::from_secs(2), limiter.ready()).await;

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let at = listener.local_addr()?;
    println!("listening on {at}; try, and more than ten times:");
    let (key, json) = ("Authorization: Bearer key-of-acme", "Content-Type: application/json");
    println!("  curl -i -H '{key}' http://{at}/");
    println!("  curl -i -H '{key}' http://{at}/search");
    println!("  curl -i -H '{key}' -H '{json}' -d '[\"a\",\"b\",\"c\"]' http://{at}/import");
    println!("  curl -i http://{at}/  # nobody");
    axum::serve(listener, app(limiter, metrics)).await?;
    Ok(())
}
