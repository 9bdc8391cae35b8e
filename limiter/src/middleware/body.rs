//! The body of a response: that of the service behind the limiter, untouched, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body that came from the service behind the limiter, or the text of a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: Either<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = EitherProjection]
    enum Either<B> {
        Passed { #[pin] body: B },
        Refused { text: String },
    }
}

impl<B> ResponseBody<B> {
    pub(super) const fn passed(body: B) -> Self {
        Self { body: Either::Passed { body } }
    }

    pub(super) const fn refusal(text: String) -> Self {
        Self { body: Either::Refused { text } }
    }
}

/// Empty. Some layers want to be able to make one.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::refusal(String::new())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().body.project() {
            EitherProjection::Passed { body } => body.poll_frame(context),
            EitherProjection::Refused { text } => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Passed { body } => body.is_end_stream(),
            Either::Refused { text } => text.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Passed { body } => body.size_hint(),
            Either::Refused { text } => text.size_hint(),
        }
    }
}
