//! The examples, run against a real server.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::Command;

use program::{Program, example, serving};
use reqwest::blocking::{Client, Response};
use support::Server;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[test]
fn replicas_admit_many_times_the_quota_unless_they_share_the_bucket() {
    const SECONDS: f64 = 3.0;
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let output = Command::new(example("replicas")).args([&url, "3"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");

    // A burst of ten, and ten a second.
    let granted = 10.0 + 10.0 * SECONDS;
    let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split('|').map(str::trim).collect()).collect();
    let expected = [("1", 1.0), ("4", 4.0), ("10", 10.0), ("4, then 10", 5.5)];
    assert_eq!(rows.len(), expected.len());
    for (row, (replicas, times)) in rows.iter().zip(expected) {
        assert_eq!(row[1], replicas);
        let (alone, together): (f64, f64) = (row[3].parse().unwrap(), row[4].parse().unwrap());
        assert!(
            together <= granted + 10.0 && together >= granted * 0.7,
            "{replicas} replicas: {together} of {granted}"
        );
        assert!(alone >= granted * times * 0.7, "{replicas} replicas on their own: {alone}");
    }
}

/// An example that serves until this is dropped.
struct Service {
    _program: Program,
    url: String,
}

impl Service {
    fn start(name: &str, server: &Server) -> Service {
        let (program, address) = serving(name, server);
        Service { _program: program, url: format!("http://{address}") }
    }

    /// A request with the key of the tenant of the examples.
    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::blocking::RequestBuilder {
        Client::new().request(method, format!("{}{path}", self.url)).bearer_auth("key-of-acme")
    }

    fn get(&self, path: &str) -> Response {
        self.request(reqwest::Method::GET, path).send().unwrap()
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> Response {
        self.request(reqwest::Method::POST, path).json(body).send().unwrap()
    }
}

#[test]
fn axum_limits_by_path_and_in_the_handler() {
    let (server, _clock) = Server::frozen();
    let service = Service::start("axum", &server);
    assert_eq!(service.get("/").text().unwrap(), "hello acme, 9 tokens left\n");
    assert_eq!(service.get("/search").text().unwrap(), "hello acme, 4 tokens left\n");
    let refused = service.get("/search");
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");

    let imported = service.post("/import", &serde_json::json!(["a", "b", "c"]));
    assert_eq!(imported.headers()["x-ratelimit-remaining"], "97");
    assert_eq!(imported.text().unwrap(), "imported 3 rows\n");
    let never = service.post("/import", &serde_json::json!(vec!["a"; 101]));
    assert_eq!((never.status().as_u16(), never.headers().get("retry-after")), (429, None));

    assert_eq!(reqwest::blocking::get(format!("{}/", service.url)).unwrap().status(), 401);
    assert_eq!(reqwest::blocking::get(format!("{}/health", service.url)).unwrap().status(), 200);
}

#[test]
fn axum_llm_charges_what_was_used() {
    let (server, _clock) = Server::frozen();
    let service = Service::start("axum_llm", &server);
    let ask = |max_tokens: u64| {
        service.post("/complete", &serde_json::json!({ "prompt": "say this again", "max_tokens": max_tokens }))
    };
    let answer = ask(400);
    assert_eq!(answer.status(), 200);
    assert!(answer.text().unwrap().contains("6 tokens used of 403 reserved"));
    let left = || {
        let state = server.client().call(&[b"TB.STATE".as_slice(), b"rl:{acme}:llm-tokens"]);
        state.field("tokens").text().to_owned()
    };
    support::eventually("the reservation is settled", || (left() == "994").then_some(()));
    assert_eq!(ask(995).status(), 429);
    assert_eq!(left(), "994", "what was refused was not charged");
}

#[tokio::test]
async fn tonic_limits_calls() {
    let (server, _clock) = Server::frozen();
    let service = Service::start("tonic", &server);
    let channel = Endpoint::from_shared(service.url.clone()).unwrap().connect().await.unwrap();
    let call = async |key: &str| {
        let mut request = tonic::Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        HealthClient::new(channel.clone()).check(request).await
    };
    for _ in 0..3 {
        call("key-of-acme").await.unwrap();
    }
    let refused = call("key-of-acme").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let wait = refused.get_error_details().retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(wait.as_secs(), 10);
    assert_eq!(call("nonsense").await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(call("key-of-stranger").await.unwrap_err().code(), Code::PermissionDenied);
}
