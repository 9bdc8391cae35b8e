//! The layer among others: in the order that docs/middleware.md advises, and on hyper without axum.

use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::any;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use redis_token_bucket_limiter::middleware::{Charge, FIELD_NAMES, RateLimitLayer};
use redis_token_bucket_limiter::{Key, Quota};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};
use tower_http::cors::{Any, CorsLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::service::{charged_to, patient, redis};
use crate::support::{PATIENCE, Server};
use crate::web::{api, authenticate, get, send, serve};

#[tokio::test]
async fn works_among_trace_cors_and_timeout_in_the_order_advised() {
    let server = Server::start();
    let limiter = patient(redis(&server), Quota::once(1_000_000));
    let cors = CorsLayer::new().allow_origin(Any).allow_headers([header::AUTHORIZATION]).expose_headers(FIELD_NAMES);
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(cors)
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(200)))
        .layer(from_fn(authenticate))
        .layer(RateLimitLayer::new(limiter, |request: &Parts| {
            let charge = api(request)?;
            Some(if request.uri.path() == "/dear" { charge.cost(1_000_001) } else { charge })
        }));
    let app = Router::new()
        .route("/slow", any(async || tokio::time::sleep(PATIENCE).await))
        .fallback(any(async || "hello"))
        .layer(layers);
    let url = serve(app).await;
    let key = Key::new("acme", "api");
    let client = reqwest::Client::new();

    let preflight = client
        .request(Method::OPTIONS, &url)
        .header("Origin", "https://app.example")
        .header("Access-Control-Request-Method", "GET");
    let preflight = send(preflight).await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (200, Some("*")));
    assert_eq!(charged_to(&server, &key), 0, "a preflight is nobody's, and not charged");

    for (path, status) in [("/", 200), ("/dear", 429)] {
        let origin = ("Origin", "https://app.example");
        let request = client.get(format!("{url}{path}")).header("Authorization", "acme").header(origin.0, origin.1);
        let answer = send(request).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "a refusal too can be read by a script");
        let exposed = answer.header("access-control-expose-headers").unwrap();
        assert!(answer.limits().iter().all(|name| exposed.contains(name)), "{exposed}");
    }
    assert_eq!(get(&format!("{url}/slow"), "acme").await.status, 504);
    assert_eq!(charged_to(&server, &key), 2);
}

#[tokio::test]
async fn works_on_hyper_without_axum() {
    let server = Server::start();
    let hello = service_fn(async |_: hyper::Request<hyper::body::Incoming>| {
        Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
    });
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(1)), |_: &Parts| Charge::to("acme", "api"));
    let service = ServiceBuilder::new().layer(limits).service(hello);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    let passed = get(&url, "").await;
    assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
    assert_eq!(passed.headers[header::CONTENT_LENGTH], HeaderValue::from_static("5"));
    let refused = get(&url, "").await;
    assert_eq!((refused.status, refused.problem()["status"].as_u64()), (429, Some(429)));
}
