//! The same for tower: a policy for its `Retry`, which any client that is a `Service` can stand behind.

use std::fmt;
use std::time::Duration;

use http::{Request, Response};
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::Policy;

use crate::asked::retry_after;
use crate::patience::Patience;

/// A policy for [`tower::retry::RetryLayer`]: sends a request again when its answer asks for that, as [`Patience`] allows.
///
/// ```
/// # use http::{Request, Response};
/// # use redis_token_bucket_retry::{Patience, RetryPolicy};
/// use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer};
///
/// # async fn example() -> Result<(), std::io::Error> {
/// # let client = tower::service_fn(async |request: Request<String>| Ok::<_, std::io::Error>(Response::new(request)));
/// let client = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::http(Patience::default()))).service(client);
/// let response = client.oneshot(Request::new("hello".to_owned())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RetryPolicy<C, A> {
    patience: Patience,
    copy: C,
    asked: A,
    made: u32,
    start: Option<Instant>,
}

type CopyHttp<Body> = fn(&Request<Body>) -> Option<Request<Body>>;
type AskedHttp<Body, Error> = fn(&Result<Response<Body>, Error>) -> Option<Duration>;

impl<ReqBody: Clone, ResBody, Error> RetryPolicy<CopyHttp<ReqBody>, AskedHttp<ResBody, Error>> {
    /// For HTTP requests whose bodies can be sent twice.
    #[must_use]
    pub fn http(patience: Patience) -> Self {
        let asked: AskedHttp<ResBody, Error> =
            |answer| answer.as_ref().ok().and_then(|response| retry_after(response.status(), response.headers()));
        Self { patience, copy: |request| Some(request.clone()), asked, made: 0, start: None }
    }
}

impl<C, A> RetryPolicy<C, A> {
    /// For any requests: with how they are copied, where `None` is a request that cannot be sent twice and so is not retried, and
    /// with what an answer asks for.
    ///
    /// ```
    /// # use redis_token_bucket_retry::{Patience, RetryPolicy, retry_after};
    /// use tower::{ServiceBuilder, retry::RetryLayer};
    ///
    /// let policy = RetryPolicy::new(Patience::default(), reqwest::Request::try_clone, |answer: &reqwest::Result<_>| {
    ///     let response: &reqwest::Response = answer.as_ref().ok()?;
    ///     retry_after(response.status(), response.headers())
    /// });
    /// let client = ServiceBuilder::new().layer(RetryLayer::new(policy)).service(reqwest::Client::new());
    /// ```
    pub const fn new<Req, Res, Error>(patience: Patience, copy: C, asked: A) -> Self
    where
        C: Fn(&Req) -> Option<Req>,
        A: Fn(&Result<Res, Error>) -> Option<Duration>,
    {
        Self { patience, copy, asked, made: 0, start: None }
    }
}

impl<Req, Res, Error, C, A> Policy<Req, Res, Error> for RetryPolicy<C, A>
where
    C: Fn(&Req) -> Option<Req>,
    A: Fn(&Result<Res, Error>) -> Option<Duration>,
{
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, answer: &mut Result<Res, Error>) -> Option<Sleep> {
        self.made = self.made.saturating_add(1);
        let spent = self.start.map(|start| start.elapsed()).unwrap_or_default();
        Some(sleep(self.patience.wait(self.made, spent, (self.asked)(answer)?)?))
    }

    // tower calls this before each attempt, and the first time on the policy that all requests have in common, of which it then
    // makes a copy for this request.
    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        if self.made == 0 {
            self.start = Some(Instant::now());
        }
        (self.copy)(request)
    }
}

impl<C, A> fmt::Debug for RetryPolicy<C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy").field("patience", &self.patience).finish_non_exhaustive()
    }
}
