//! A request on its way: checked, then passed on or refused.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::charge::Charge;
use super::respond::{Refusal, Respond};
use crate::decision::Decision;
use crate::limiter::Limiter;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        respond: R,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        Checking { check: Checking, next: Option<(S, Request<B>)> },
        Calling { #[pin] response: F, checked: Option<Checked> },
        Refused { response: Option<Response<String>> },
    }
}

type Checking = Pin<Box<dyn Future<Output = Checked> + Send>>;

/// A decision, and the class that it speaks of.
struct Checked {
    decision: Decision,
    class: Cow<'static, str>,
}

impl<S: Service<Request<B>>, B, R> ResponseFuture<S, B, R> {
    pub(super) fn checking(limiter: Limiter, charge: Charge, service: S, request: Request<B>, respond: R) -> Self {
        let check = Box::pin(async move {
            let decision = charge.decided(&limiter).await;
            Checked { class: charge.into_class(decision.index), decision }
        });
        Self { state: State::Checking { check, next: Some((service, request)) }, respond }
    }

    pub(super) fn calling(response: S::Future, respond: R) -> Self {
        Self { state: State::Calling { response, checked: None }, respond }
    }

    pub(super) fn refused(response: Response<String>, respond: R) -> Self {
        Self { state: State::Refused { response: Some(response) }, respond }
    }
}

impl<S, B, R, Body> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<Body>>,
    R: Respond,
{
    type Output = Result<Response<ResponseBody<Body>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Checking { check, next } => {
                    let checked = ready!(check.as_mut().poll(context));
                    let Some((service, request)) = next.take() else { return Poll::Pending };
                    after_check(checked, service, request, this.respond)
                }
                StateProjection::Calling { response, checked } => {
                    let response = ready!(response.poll(context))?;
                    return Poll::Ready(Ok(told(response, checked.take(), this.respond)));
                }
                StateProjection::Refused { response } => {
                    // Asked again after its end, it has nothing more to say.
                    let Some(response) = response.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

/// The request goes on, or does not.
fn after_check<S, B, R>(
    checked: Checked,
    mut service: S,
    mut request: Request<B>,
    respond: &R,
) -> State<S, B, S::Future>
where
    S: Service<Request<B>>,
    R: Respond,
{
    let Checked { decision, .. } = &checked;
    if let Err(why) = decision.verdict {
        let mut response = respond.refuse(&Refusal::Denied { why, decision });
        response.extensions_mut().insert(checked.decision);
        return State::Refused { response: Some(response) };
    }
    request.extensions_mut().insert(decision.clone());
    State::Calling { response: service.call(request), checked: Some(checked) }
}

/// The response, with what is to be told of the decision.
fn told<Body, R: Respond>(
    response: Response<Body>,
    checked: Option<Checked>,
    respond: &R,
) -> Response<ResponseBody<Body>> {
    let mut response = response.map(ResponseBody::passed);
    if let Some(Checked { decision, class }) = checked {
        let status = response.status();
        respond.pass(&class, &decision, status, response.headers_mut());
        // The refusal of a layer further in is what this response is.
        let is_refusal = response.extensions().get().is_some_and(|inner: &Decision| !inner.is_allowed());
        if !is_refusal {
            response.extensions_mut().insert(decision);
        }
    }
    response
}

impl<S: Service<Request<B>>, B, R> fmt::Debug for ResponseFuture<S, B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
