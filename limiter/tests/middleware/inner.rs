//! What the layer owes the service behind it: readiness, errors, and to be left alone.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::http::request::Parts;
use axum::http::{Request, Response};
use redis_token_bucket_limiter::Quota;
use redis_token_bucket_limiter::middleware::{Charge, Classified, RateLimitLayer};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::service::{Stopped, patient, redis};
use crate::support::{PATIENCE, Server, eventually};

/// As the path says: `/2` is two tokens, `/free` is not limited, `/nobody` is not authenticated.
fn by_path(request: &Parts) -> Classified {
    match request.uri.path() {
        "/free" => Classified::NotLimited,
        "/nobody" => Classified::Unauthenticated,
        cost => Charge::to("acme", "api").cost(cost[1..].parse::<u64>().unwrap()).into(),
    }
}

fn request(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

/// A service that has to be asked for readiness before each call, as its clones have to be.
#[derive(Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been ready");
        ready(Ok(Response::default()))
    }
}

#[tokio::test]
async fn the_service_that_said_it_was_ready_is_the_one_that_is_called() {
    let server = Server::start();
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(3)), by_path);
    let mut service = ServiceBuilder::new().layer(limits).service(Strict::default());
    for (path, status) in
        [("/1", 200), ("/free", 200), ("/1", 200), ("/9", 429), ("/nobody", 401), ("/1", 200), ("/1", 429)]
    {
        let response = service.ready().await.unwrap().call(request(path)).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
}

#[tokio::test]
async fn is_ready_when_the_service_behind_it_is_and_keeps_no_place_for_a_refusal() {
    let server = Server::start();
    let (open, gate) = tokio::sync::watch::channel(false);
    let slow = service_fn(move |_: Request<()>| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|is_open| *is_open).await.unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(2)), by_path);
    let mut service = ServiceBuilder::new().layer(limits).layer(ConcurrencyLimitLayer::new(1)).service(slow);

    for path in ["/9", "/nobody", "/9"] {
        assert_ne!(service.ready().await.unwrap().call(request(path)).await.unwrap().status(), 200);
    }
    let first = tokio::spawn(service.ready().await.unwrap().call(request("/1")));
    // One is in there, and there is no room for a second.
    assert!(poll_once(&mut service).await.is_pending());
    open.send_replace(true);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.ready().await.unwrap().call(request("/1")).await.unwrap().status(), 200);
}

/// Asks once whether it is ready.
async fn poll_once<S: Service<Request<()>>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    std::future::poll_fn(|context| Poll::Ready(service.poll_ready(context))).await
}

#[derive(Debug, PartialEq)]
struct Broken(u32);

#[tokio::test]
async fn errors_of_the_service_come_through_as_they_are() {
    let server = Server::start();
    let broken = service_fn(async |_: Request<()>| Err::<Response<String>, _>(Broken(7)));
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(1)), by_path);
    let service = ServiceBuilder::new().layer(limits).service(broken);
    for path in ["/1", "/free"] {
        assert_eq!(service.clone().oneshot(request(path)).await.unwrap_err(), Broken(7));
    }
    assert_eq!(service.oneshot(request("/1")).await.unwrap().status(), 429, "it was charged all the same");
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_is_checked_goes_no_further() {
    let server = Server::start();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let counting = service_fn(move |_: Request<()>| {
        counted.fetch_add(1, Ordering::SeqCst);
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let limits = RateLimitLayer::new(patient(redis(&server), Quota::once(10)), by_path);
    let service = ServiceBuilder::new().layer(limits).service(counting);
    assert_eq!(service.clone().oneshot(request("/1")).await.unwrap().status(), 200);

    let stopped = Stopped::new(&server);
    let waiting = tokio::spawn(service.clone().oneshot(request("/1")));
    // As long as it takes for the take to be sent; that it was is seen below.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    drop(stopped);
    let key = redis_token_bucket_limiter::Key::new("acme", "api");
    eventually("the server has done what it was sent", || {
        (server.client().call(&[b"TB.STATE".as_slice(), key.as_bytes()]).field("tokens").text() == "8").then_some(())
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    tokio::time::timeout(PATIENCE, service.oneshot(request("/1"))).await.unwrap().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}
