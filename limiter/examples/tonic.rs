//! A gRPC service with limits. It is the health service that tonic brings, so that there is no .proto here to be compiled; any
//! other takes its place in `add_service`.
//!
//! Next to `make run`: `cargo run -p redis-token-bucket-limiter --example tonic [127.0.0.1:50051]`.
//! `REDIS_URL` names another server than `redis://127.0.0.1:6379`.

use std::error::Error;
use std::time::Duration;

use axum::http::request::Parts;
use redis_token_bucket_limiter::middleware::{Charge, RateLimitLayer};
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Redis, Tenants, Tiers, UnknownTenant};
use tokio::time::timeout;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};

/// Who calls, as the credentials say.
#[derive(Clone)]
struct Tenant(String);

/// The service's own authentication: it leaves the tenant in the request's extensions. Here a tenant's key is `key-of-` and its
/// name, which is not how it should be done.
fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    let credentials = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    if let Some(tenant) = credentials.and_then(|credentials| credentials.strip_prefix("Bearer key-of-")) {
        let tenant = Tenant(tenant.to_owned());
        request.extensions_mut().insert(tenant);
    }
    Ok(request)
}

/// What a call is charged to; nobody who is not known by now goes on.
fn classify(request: &Parts) -> Option<Charge> {
    request.extensions.get().map(|Tenant(tenant)| Charge::to(tenant, "calls"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let tiers = Tiers::new(UnknownTenant::Refuse)
        .tier("free", [("calls", Quota::per_minute(6).burst(3))])
        .tenant("acme", "free");
    let limiter = Limiter::new(Redis::standalone(redis)?, Tenants::new(tiers)?, OnFault::Closed);
    // The first calls need not be the ones that connect. A service whose Redis is away can begin all the same.
    let _ = timeout(Duration::from_secs(2), limiter.ready()).await;

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let at = listener.local_addr()?;
    println!("listening on {at}; try, and more than three times (the five bytes are an empty message):");
    println!("  printf '\\0\\0\\0\\0\\0' | curl -si --http2-prior-knowledge -H 'Authorization: Bearer key-of-acme' \\");
    println!("    -H 'Content-Type: application/grpc' -H 'TE: trailers' --data-binary @- -o - \\");
    println!("    http://{at}/grpc.health.v1.Health/Check | cat -v");

    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        // From the outermost to the innermost.
        .layer(InterceptorLayer::new(authenticate))
        .layer(RateLimitLayer::grpc(limiter, classify))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?;
    Ok(())
}
