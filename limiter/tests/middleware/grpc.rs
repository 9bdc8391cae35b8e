//! What a gRPC client sees: tonic's own, a bare HTTP/2 client for what tonic does not tell, and Python's grpcio.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use axum::http::request::Parts;
use redis_token_bucket_limiter::middleware::{Charge, RateLimitLayer};
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Tenants, Tiers, UnknownTenant};
use tokio::net::TcpListener;
use tonic::metadata::MetadataValue;
use tonic::service::{InterceptorLayer, LayerExt};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server as Tonic};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::service::{self, patient, redis};
use crate::support::Server;
use crate::web::{Tenant, api};

const METHOD: &str = "/grpc.health.v1.Health/Check";

/// Believes what `authorization` says.
fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(tenant) = request.metadata().get("authorization") {
        let tenant = Tenant(tenant.to_str().unwrap().to_owned());
        request.extensions_mut().insert(tenant);
    }
    Ok(request)
}

/// A cost as the test asks for it; a service would know it from the method.
fn costly(request: &Parts) -> Option<Charge> {
    let cost = request.headers.get("cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap());
    api(request).map(|charge| charge.cost(cost))
}

async fn serve(limiter: Limiter) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    let server = Tonic::builder()
        .layer(InterceptorLayer::new(authenticate))
        .layer(RateLimitLayer::grpc(limiter, costly))
        .add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    url
}

async fn call(url: &str, tenant: Option<&str>, cost: u64) -> Result<(), Status> {
    let mut client = HealthClient::new(Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap());
    let mut request = Request::new(HealthCheckRequest::default());
    if let Some(tenant) = tenant {
        request.metadata_mut().insert("authorization", tenant.parse().unwrap());
    }
    request.metadata_mut().insert("cost", MetadataValue::from(cost));
    client.check(request).await.map(|_| ())
}

fn retry_info(status: &Status) -> Option<Duration> {
    status.get_error_details().retry_info()?.retry_delay
}

#[tokio::test]
async fn is_exhausted_and_says_when_to_come_back_and_means_it() {
    let (server, clock) = Server::frozen();
    let url = serve(patient(redis(&server), Quota::per_minute(6).burst(2))).await;
    for _ in 0..2 {
        call(&url, Some("acme"), 1).await.unwrap();
    }
    for (passes, wait) in [(0, 10_000), (9_500, 500), (499, 1)] {
        clock.advance_ms(passes);
        let refused = call(&url, Some("acme"), 1).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(retry_info(&refused), Some(Duration::from_millis(wait)));
    }
    clock.advance_ms(1);
    call(&url, Some("acme"), 1).await.unwrap();
}

#[tokio::test]
async fn what_waiting_does_not_help_has_no_retry_info() {
    let server = Server::start();
    let url = serve(patient(redis(&server), Quota::once(5))).await;
    let never = call(&url, Some("acme"), 6).await.unwrap_err();
    assert_eq!((never.code(), retry_info(&never)), (Code::ResourceExhausted, None));
    assert_eq!(never.message(), "one call can have 5 tokens at most");
    call(&url, Some("acme"), 4).await.unwrap();
    let spent = call(&url, Some("acme"), 4).await.unwrap_err();
    assert_eq!((spent.code(), retry_info(&spent)), (Code::ResourceExhausted, None));
}

#[tokio::test]
async fn other_refusals_have_codes_of_their_own() {
    let mut server = Server::start();
    let tiers = Tiers::new(UnknownTenant::Refuse)
        .tier("free", [("api", Quota::once(9))])
        .tier("odd", [("other", Quota::once(9))])
        .tenant("acme", "free")
        .tenant("oddball", "odd");
    let url = serve(patient(redis(&server), Tenants::new(tiers).unwrap())).await;
    for (tenant, code) in
        [(None, Code::Unauthenticated), (Some("stranger"), Code::PermissionDenied), (Some("oddball"), Code::Internal)]
    {
        assert_eq!(call(&url, tenant, 1).await.unwrap_err().code(), code);
    }
    let closed = serve(service::limiter(redis(&server), OnFault::Closed)).await;
    let open = serve(service::limiter(redis(&server), OnFault::Open)).await;
    server.kill();
    let unavailable = call(&closed, Some("acme"), 1).await.unwrap_err();
    assert_eq!((unavailable.code(), retry_info(&unavailable)), (Code::Unavailable, None));
    call(&open, Some("acme"), 1).await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_trailers_only() {
    let server = Server::start();
    let url = serve(patient(redis(&server), Quota::per_hour(1))).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let call = || {
        let request = client.post(format!("{url}{METHOD}")).header("content-type", "application/grpc");
        request.header("te", "trailers").header("authorization", "acme").body(vec![0_u8; 5]).send()
    };
    let passed = call().await.unwrap();
    assert!(passed.headers().get("grpc-status").is_none(), "a response with a body has it in its trailers");
    let refused = call().await.unwrap();
    assert_eq!(refused.status(), 200);
    assert_eq!(refused.headers()["content-type"], "application/grpc");
    assert_eq!(refused.headers()["grpc-status"], "8");
    assert!(refused.headers().contains_key("grpc-status-details-bin"));
    assert_eq!(refused.content_length(), Some(0), "the headers end the stream");
}

#[tokio::test]
async fn one_service_of_several_can_be_limited() {
    let server = Server::start();
    let (_, health) = tonic_health::server::health_reporter();
    let everybody = |_: &Parts| Charge::to("everybody", "calls");
    let limits = RateLimitLayer::grpc(patient(redis(&server), Quota::once(1)), everybody);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limited = Tonic::builder().add_service(limits.named_layer(health));
    tokio::spawn(limited.serve_with_incoming(TcpIncoming::from(listener)));
    call(&url, None, 1).await.unwrap();
    assert_eq!(call(&url, None, 1).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// One of the machine's Pythons, which has grpcio.
fn python() -> &'static str {
    let has_grpcio =
        |python: &&str| Command::new(python).args(["-c", "import grpc"]).output().is_ok_and(|run| run.status.success());
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(has_grpcio)
        .expect("a python3 with grpcio; `make test` installs it")
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcio_of_python_reads_the_same() {
    let mut server = Server::start();
    let url = serve(patient(redis(&server), Quota::per_hour(2))).await;
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/middleware/calls.py");
    let calls = |tenant: &str, count: &str| {
        let target = url.trim_start_matches("http://");
        let run = Command::new(python()).arg(&script).args([target, METHOD, tenant, count]).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let lines: Vec<String> = String::from_utf8(run.stdout).unwrap().lines().map(str::to_owned).collect();
        lines
    };
    let seen = calls("acme", "3");
    assert_eq!(seen[..2], ["OK ", "OK "]);
    let (code, details) = seen[2].split_once(' ').unwrap();
    assert_eq!(code, "RESOURCE_EXHAUSTED");
    let details: Vec<u8> =
        (0..details.len()).step_by(2).map(|at| u8::from_str_radix(&details[at..at + 2], 16).unwrap()).collect();
    let wait = retry_info(&Status::with_details(Code::ResourceExhausted, "", details.into())).unwrap();
    assert!(wait > Duration::from_secs(1_700) && wait <= Duration::from_secs(1_800), "{wait:?}");

    server.kill();
    assert_eq!(calls("acme", "1"), ["UNAVAILABLE "]);
    assert_eq!(calls("", "1"), ["UNAUTHENTICATED "]);
}
