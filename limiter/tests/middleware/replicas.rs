//! Four replicas of a service on one bucket, as their clients see it.

use std::time::{Duration, Instant};

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::any;
use redis_token_bucket_limiter::Quota;
use redis_token_bucket_limiter::middleware::RateLimitLayer;
use tower::ServiceBuilder;

use crate::service::{patient, redis};
use crate::support::Server;
use crate::web::{api, authenticate, serve};

const CAPACITY: u64 = 20;
const RATE: u64 = 50;
const CLIENTS: usize = 24;

async fn replica(server: &Server) -> String {
    let limits = RateLimitLayer::new(patient(redis(server), Quota::per_second(RATE).burst(CAPACITY)), api);
    let layers = ServiceBuilder::new().layer(from_fn(authenticate)).layer(limits);
    serve(Router::new().fallback(any(async || "hello")).layer(layers)).await
}

/// Requests one after the other; how many were admitted and how many refused.
async fn client(urls: Vec<String>, until: Instant) -> (u64, u64) {
    let client = reqwest::Client::new();
    let (mut admitted, mut refused) = (0, 0);
    for url in urls.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        match client.get(url).header("Authorization", "acme").send().await.unwrap().status().as_u16() {
            200 => admitted += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    (admitted, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn four_replicas_admit_what_the_bucket_holds_and_no_more() {
    let server = Server::start();
    let mut urls = Vec::new();
    for _ in 0..4 {
        urls.push(replica(&server).await);
    }
    let start = Instant::now();
    let until = start + Duration::from_secs(3);
    let clients = (0..CLIENTS).map(|at| {
        urls.rotate_left(at % 4);
        tokio::spawn(client(urls.clone(), until))
    });
    let clients: Vec<_> = clients.collect();
    let (mut admitted, mut refused) = (0, 0);
    for client in clients {
        let (more, less) = client.await.unwrap();
        admitted += more;
        refused += less;
    }
    let most = CAPACITY as f64 + RATE as f64 * start.elapsed().as_secs_f64();
    eprintln!("{admitted} admitted of {}, {most:.1} at most", admitted + refused);
    assert!(admitted > 0 && admitted as f64 <= most, "{admitted} of {most}");
    // Whoever is refused is refused because the bucket is empty, so what came back was used.
    assert!(refused > 0 && admitted as f64 >= 0.5 * most, "{admitted} of {most}, {refused} refused");
}
