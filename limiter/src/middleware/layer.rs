//! The layer, and the service that it makes of another.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::answer::Http;
use super::body::ResponseBody;
use super::classify::{Classified, Classify};
use super::future::ResponseFuture;
#[cfg(feature = "tonic")]
use super::grpc::Grpc;
use super::respond::{Refusal, Respond};
use crate::limiter::Limiter;

/// Puts a limiter in front of a service.
///
/// ```
/// use http::request::Parts;
/// use redis_token_bucket_limiter::Limiter;
/// use redis_token_bucket_limiter::middleware::{Charge, RateLimitLayer};
///
/// # #[derive(Clone)] struct Tenant(String);
/// fn app(limiter: Limiter) -> axum::Router {
///     let limits = RateLimitLayer::new(limiter, |request: &Parts| {
///         request.extensions.get::<Tenant>().map(|tenant| Charge::to(&tenant.0, "api"))
///     });
///     axum::Router::new().route("/", axum::routing::get(async || "hello\n")).layer(limits)
/// }
/// ```
pub struct RateLimitLayer<C, R = Http> {
    limiter: Limiter,
    classifier: Arc<C>,
    respond: R,
}

impl<C: Classify> RateLimitLayer<C> {
    /// For HTTP: refusals are 429, with the fields of [`Http`].
    pub fn new(limiter: Limiter, classifier: C) -> Self {
        Self { limiter, classifier: Arc::new(classifier), respond: Http::default() }
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl<C: Classify> RateLimitLayer<C, Grpc> {
    /// For gRPC: refusals are `RESOURCE_EXHAUSTED`, see [`Grpc`].
    pub fn grpc(limiter: Limiter, classifier: C) -> Self {
        RateLimitLayer::new(limiter, classifier).answer(Grpc)
    }
}

impl<C, R> RateLimitLayer<C, R> {
    /// Answers in this way: an [`Http`] told which fields to send, or a [`Respond`] of your own.
    pub fn answer<A: Respond>(self, respond: A) -> RateLimitLayer<C, A> {
        RateLimitLayer { limiter: self.limiter, classifier: self.classifier, respond }
    }
}

impl<C, R: Clone> Clone for RateLimitLayer<C, R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), classifier: Arc::clone(&self.classifier), respond: self.respond.clone() }
    }
}

impl<C, R: fmt::Debug> fmt::Debug for RateLimitLayer<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("respond", &self.respond).finish_non_exhaustive()
    }
}

impl<S, C, R: Clone> Layer<S> for RateLimitLayer<C, R> {
    type Service = RateLimit<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, limits: self.clone() }
    }
}

/// A service behind a limiter. A request reaches it only when its charge has been taken; a refused one is answered before
/// anybody reads its body.
///
/// It is ready when the service behind it is.
///
/// # Dropping a response's future
/// Nothing goes on, as with a [`Check`](crate::Check): the tokens may have been taken.
pub struct RateLimit<S, C, R = Http> {
    inner: S,
    limits: RateLimitLayer<C, R>,
}

impl<S: Clone, C, R: Clone> Clone for RateLimit<S, C, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limits: self.limits.clone() }
    }
}

impl<S: fmt::Debug, C, R: fmt::Debug> fmt::Debug for RateLimit<S, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("limits", &self.limits).finish()
    }
}

impl<S, C, R, B, Body> Service<Request<B>> for RateLimit<S, C, R>
where
    S: Service<Request<B>, Response = Response<Body>> + Clone,
    C: Classify,
    R: Respond,
{
    type Response = Response<ResponseBody<Body>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let classified = self.limits.classifier.classify(&head);
        let request = Request::from_parts(head, body);
        let respond = self.limits.respond.clone();
        // Whatever becomes of the request, what was reserved for it goes with it: the service that said it was ready is the
        // one that is called, or dropped, and the next request starts anew.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        match classified {
            Classified::Charged(charge) => {
                ResponseFuture::checking(self.limits.limiter.clone(), charge, ready, request, respond)
            }
            Classified::NotLimited => ResponseFuture::calling(ready.call(request), respond),
            Classified::Unauthenticated => {
                let response = respond.refuse(&Refusal::Unauthenticated);
                ResponseFuture::refused(response, respond)
            }
        }
    }
}
