//! Two hundred callers that are refused at once, on real parts: reqwest, an HTTP service, its limiter, a bucket in a server.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../../limiter/tests/support/program.rs"]
mod program;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use program::example;
use redis_token_bucket_limiter::middleware::Http;
use redis_token_bucket_limiter::{Limiter, OnFault, Quota, Redis};
use redis_token_bucket_retry::{Patience, retry_after};
use support::{PATIENCE, Server};
use tokio::process::Command;

const CALLERS: u32 = 200;
const BURST: u64 = 20;
const QUOTA: Quota = Quota::per_second(100).burst(BURST);
/// What the bucket owes at the start, so that whoever comes in the first nine tenths of a second is refused, and for a second.
const DEBT: u64 = 90;

/// When each caller of each tenant has called, and whether it passed.
type Calls = Arc<Mutex<HashMap<(String, u32), Vec<(Instant, bool)>>>>;

async fn handle(
    State((limiter, calls)): State<(Limiter, Calls)>,
    Path((tenant, caller)): Path<(String, u32)>,
) -> Response {
    let at = Instant::now();
    let decision = limiter.check(&tenant, "api").await;
    calls.lock().unwrap().entry((tenant, caller)).or_default().push((at, decision.is_allowed()));
    if decision.is_allowed() { "done".into_response() } else { Http::default().refusal(&decision).into_response() }
}

fn limiter(server: &Server) -> Limiter {
    let redis = Redis::standalone(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    Limiter::builder(redis, QUOTA, OnFault::Closed).deadline(PATIENCE).build()
}

/// Takes all that a tenant has, and more.
async fn spend(limiter: &Limiter, tenant: &str) {
    let reserved = limiter.check(tenant, "api").reserve().await.unwrap();
    reserved.settle(BURST + DEBT).await;
}

async fn service(limiter: Limiter, calls: Calls) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/{tenant}/{caller}", get(handle)).with_state((limiter, calls));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Comes back to the second, as `Retry-After` says.
async fn to_the_letter(client: reqwest::Client, url: String) -> http::StatusCode {
    loop {
        let response = client.get(&url).send().await.unwrap();
        match retry_after(response.status(), response.headers()) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return response.status(),
        }
    }
}

async fn with_patience(client: reqwest::Client, url: String) -> http::StatusCode {
    let asked = |answer: &reqwest::Result<reqwest::Response>| {
        answer.as_ref().ok().and_then(|it| retry_after(it.status(), it.headers()))
    };
    Patience::default().retry(|| client.get(&url).send(), asked).await.unwrap().status()
}

/// The second attempts, as times since the caller's first and whether they passed.
fn second_attempts(calls: &Calls, of: &str) -> Vec<(Duration, bool)> {
    let calls = calls.lock().unwrap();
    let of_tenant = calls.iter().filter(|((tenant, _), _)| tenant == of).map(|(_, attempts)| attempts);
    let start = of_tenant.clone().map(|attempts| attempts[0].0).min().unwrap();
    assert!(of_tenant.clone().all(|attempts| !attempts[0].1), "a first attempt passed");
    let is_early = |attempts: &Vec<(Instant, bool)>| attempts[1].0 - attempts[0].0 < Duration::from_secs(1);
    assert!(!of_tenant.clone().any(is_early), "nobody is too early");
    of_tenant.map(|attempts| (attempts[1].0 - start, attempts[1].1)).collect()
}

fn histogram(seconds: &[(Duration, bool)]) -> Vec<usize> {
    let mut tenths = vec![0; 32];
    for (at, _) in seconds {
        tenths[usize::try_from(at.as_millis() / 100).unwrap().min(31)] += 1;
    }
    tenths
}

/// The most of them in any quarter of a second, wherever it begins.
fn fullest_quarter(seconds: &[(Duration, bool)]) -> usize {
    let within =
        |from: Duration| move |(at, _): &&(Duration, bool)| *at >= from && *at < from + Duration::from_millis(250);
    seconds.iter().map(|(from, _)| seconds.iter().filter(within(*from)).count()).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_refused_at_once_do_not_come_back_at_once() {
    let (server, calls) = (Server::start(), Calls::default());
    let limiter = limiter(&server);
    let address = service(limiter.clone(), Arc::clone(&calls)).await;
    let client = reqwest::Client::new();

    for tenant in ["to-the-letter", "with-patience"] {
        spend(&limiter, tenant).await;
    }
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let url = |tenant: &str| format!("http://{address}/{tenant}/{caller}");
        callers.spawn(to_the_letter(client.clone(), url("to-the-letter")));
        callers.spawn(with_patience(client.clone(), url("with-patience")));
    }
    // Those to the letter may go on for as long as they like; what counts are two attempts of each.
    let deadline = Instant::now() + PATIENCE;
    let have_tried_twice = || {
        let calls = calls.lock().unwrap();
        calls.len() == 2 * CALLERS as usize && calls.values().all(|attempts| attempts.len() > 1)
    };
    while !have_tried_twice() {
        assert!(Instant::now() < deadline, "not everybody came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let (letter, patience) = (second_attempts(&calls, "to-the-letter"), second_attempts(&calls, "with-patience"));
    println!("second attempts per 100 ms, from 1 s after the first on");
    println!("to the letter: {:?}", &histogram(&letter)[10..]);
    println!("with patience: {:?}", &histogram(&patience)[10..]);
    let passed = |attempts: &[(Duration, bool)]| attempts.iter().filter(|(_, passed)| *passed).count();
    println!("passed at the second attempt: {} and {}", passed(&letter), passed(&patience));

    assert!(fullest_quarter(&letter) >= 150, "{} of {CALLERS}", fullest_quarter(&letter));
    assert!(fullest_quarter(&patience) <= 60, "{} of {CALLERS}", fullest_quarter(&patience));
    assert!(passed(&patience) > 2 * passed(&letter));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_gets_everything_through() {
    let server = Server::start();
    let limiter = limiter(&server);
    let address = service(limiter.clone(), Calls::default()).await;
    spend(&limiter, "acme").await;
    let output = Command::new(example("reqwest")).arg(format!("http://{address}/acme/1")).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("200 OK after ").count(), 30, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().any(|line| !line.contains("after 0.")), "they were refused at first: {text}");
}
