//! How a refusal is said, and what is said of a decision that lets pass.

use http::{HeaderMap, Response, StatusCode};

use crate::decision::{Decision, Denied};

/// The answers of a [`RateLimit`](super::RateLimit): [`Http`](super::Http), `Grpc`, or your own.
pub trait Respond: Clone {
    /// The response to a request that is turned away.
    fn refuse(&self, refusal: &Refusal<'_>) -> Response<String>;

    /// Says in the response to a request that passed what was decided; `class` is the class of calls that the decision's quota
    /// is of.
    fn pass(&self, class: &str, decision: &Decision, status: StatusCode, headers: &mut HeaderMap) {
        let _ = (class, decision, status, headers);
    }
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Refusal<'a> {
    /// Nobody has authenticated it.
    Unauthenticated,
    /// It was checked.
    Denied {
        /// The verdict of the decision.
        why: Denied,
        /// All of the decision.
        decision: &'a Decision,
    },
}
