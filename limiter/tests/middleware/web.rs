//! What these tests have in common: an authentication, a web server, and its responses, read with libraries that are not ours.

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use redis_token_bucket_limiter::middleware::Charge;
use reqwest::header::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::net::TcpListener;

/// Who the tests' authentication says it is.
#[derive(Clone)]
pub(crate) struct Tenant(pub(crate) String);

/// Believes what `Authorization` says.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    if let Some(tenant) = request.headers().get("authorization") {
        let tenant = Tenant(tenant.to_str().unwrap().to_owned());
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

/// One token of the class `api`.
pub(crate) fn api(request: &axum::http::request::Parts) -> Option<Charge> {
    request.extensions.get().map(|Tenant(tenant)| Charge::to(tenant, "api"))
}

/// Serves for as long as the runtime lives; answers where.
pub(crate) async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// A response, all of it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The names of all fields about limits.
    pub(crate) fn limits(&self) -> Vec<&str> {
        let is_about_limits = |name: &&str| name.contains("ratelimit") || *name == "retry-after";
        let mut names: Vec<&str> = self.headers.keys().map(|name| name.as_str()).filter(is_about_limits).collect();
        names.sort_unstable();
        names
    }

    /// A structured field, parsed: the members' names with their parameters.
    pub(crate) fn list(&self, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
        let values: Vec<&str> = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
        parsed(&values.join(", "))
    }

    /// The problem in the body.
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        problem
    }
}

fn parsed(list: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(list).parse().unwrap_or_else(|why| panic!("{list}: {why}"));
    let members = list.into_iter().map(|member| {
        let ListEntry::Item(item) = member else { panic!("an inner list") };
        let BareItem::String(name) = item.bare_item else { panic!("{:?} is no string", item.bare_item) };
        let parameters = item.params.into_iter().map(|(key, value)| {
            let BareItem::Integer(value) = value else { panic!("{key} is no integer") };
            (key.as_str().to_owned(), i64::from(value))
        });
        (name.as_str().to_owned(), parameters.collect())
    });
    members.collect()
}

/// What a parsed member looks like.
pub(crate) fn member(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    (name.to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect())
}

pub(crate) async fn get(url: &str, tenant: &str) -> Answer {
    send(reqwest::Client::new().get(url).header("Authorization", tenant)).await
}

pub(crate) async fn send(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.text().await.unwrap() }
}
