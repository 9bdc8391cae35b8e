//! An HTTP service whose costs are known afterwards: a language model's tokens are reserved by an estimate and settled by what
//! was used.
//!
//! Next to `make run`: `cargo run -p redis-token-bucket-limiter --example axum_llm [127.0.0.1:3000]`.
//! `REDIS_URL` names another server than `redis://127.0.0.1:6379`.

use std::error::Error;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use redis_token_bucket_limiter::middleware::{Charge, Http, RateLimitLayer};
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Redis, Tenants, Tiers, UnknownTenant};
use serde::Deserialize;
use tokio::time::timeout;
use tower::ServiceBuilder;

#[derive(Clone)]
struct Tenant(String);

/// See the example `axum`.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key =
        request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if let Some(tenant) = key.and_then(|key| key.strip_prefix("key-of-")).map(str::to_owned) {
        request.extensions_mut().insert(Tenant(tenant));
    }
    next.run(request).await
}

#[derive(Deserialize)]
struct Ask {
    prompt: String,
    /// How long the answer may be.
    max_tokens: u64,
}

/// A model that answers with the first words of the prompt, a token each.
async fn model(ask: &Ask) -> Vec<&str> {
    ask.prompt.split_whitespace().take(usize::try_from(ask.max_tokens).unwrap_or(usize::MAX)).collect()
}

/// The layer has taken a token for the request. The tokens of the model are another class: what the answer may cost at most is
/// taken before the model is asked, and what it did not cost goes back.
async fn complete(
    State(limiter): State<Limiter>,
    Extension(Tenant(tenant)): Extension<Tenant>,
    Json(ask): Json<Ask>,
) -> Response {
    let prompt = ask.prompt.split_whitespace().count() as u64;
    let http = Http::default();
    let estimate = prompt.saturating_add(ask.max_tokens);
    let reserved = match limiter.check(&tenant, "llm-tokens").cost(estimate).reserve().await {
        Ok(reserved) => reserved,
        Err(decision) => return http.refusal(&decision).into_response(),
    };
    let fields = http.fields("llm-tokens", reserved.decision());

    // A caller who goes away here drops the reservation with everything else, and pays the estimate.
    let answer = model(&ask).await;

    let used = prompt.saturating_add(answer.len() as u64);
    // It takes its course without being waited for.
    drop(reserved.settle(used));
    (fields, format!("{}\n{used} tokens used of {estimate} reserved\n", answer.join(" "))).into_response()
}

fn app(limiter: Limiter) -> Router {
    let limits = RateLimitLayer::new(limiter.clone(), |request: &Parts| {
        request.extensions.get().map(|Tenant(tenant)| Charge::to(tenant, "requests"))
    });
    let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(limits);
    Router::new().route("/complete", post(complete)).layer(layers).with_state(limiter)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let tiers = Tiers::new(UnknownTenant::Refuse)
        .tier("free", [("requests", Quota::per_minute(20)), ("llm-tokens", Quota::per_hour(1_000))])
        .tenant("acme", "free");
    let limiter = Limiter::new(Redis::standalone(redis)?, Tenants::new(tiers)?, OnFault::Closed);
    // The first calls need not be the ones that connect. A service whose Redis is away can begin all the same.
    let _ = timeout(Duration::from_secs(2), limiter.ready()).await;

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let at = listener.local_addr()?;
    println!("listening on {at}; try, with a larger max_tokens too:");
    let (key, ask) = ("Authorization: Bearer key-of-acme", r#"{"prompt":"say this again","max_tokens":400}"#);
    println!("  curl -i -H '{key}' -H 'Content-Type: application/json' -d '{ask}' http://{at}/complete");
    axum::serve(listener, app(limiter)).await?;
    Ok(())
}
