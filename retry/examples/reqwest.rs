//! Thirty requests at once to a service with limits, each of which comes back for as long as it pays.
//!
//! Next to `make run` and the limiter's example `axum`: `cargo run -p redis-token-bucket-retry --example reqwest
//! [http://127.0.0.1:3000/]`.

use std::error::Error;
use std::time::{Duration, Instant};

use redis_token_bucket_retry::{Patience, retry_after};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000/".to_owned());
    let (client, patience, start) = (reqwest::Client::new(), Patience::new(5, Duration::from_secs(30)), Instant::now());
    let requests: Vec<_> = (0..30)
        .map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                let send = || client.get(&url).bearer_auth("key-of-acme").send();
                let answer = patience.retry(send, asked).await;
                (answer.map(|response| response.status()), start.elapsed())
            })
        })
        .collect();
    for request in requests {
        let (status, took) = request.await?;
        println!("{} after {:.1} s", status?, took.as_secs_f64());
    }
    Ok(())
}

fn asked(answer: &reqwest::Result<reqwest::Response>) -> Option<Duration> {
    answer.as_ref().ok().and_then(|response| retry_after(response.status(), response.headers()))
}
