//! Who a request is charged to, as the service says. There is nothing ready-made here: what a client sends is not an identity.

use http::request::Parts;

use super::charge::Charge;

/// Says what a request is charged to. Functions and closures do: `|request: &Parts| …` with an answer that is a
/// [`Classified`], a [`Charge`], or an `Option<Charge>`, in which `None` is nobody.
///
/// ```
/// use http::request::Parts;
/// use redis_token_bucket_limiter::middleware::Charge;
///
/// /// What the service's own authentication has put into the request's extensions.
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// fn classify(request: &Parts) -> Option<Charge> {
///     let tenant = request.extensions.get::<Tenant>()?;
///     Some(Charge::to(&tenant.0, if request.uri.path() == "/search" { "search" } else { "api" }))
/// }
/// ```
///
/// It sees a request's head and never its body, and it must not wait: what has to be looked up belongs into the
/// authentication before it.
///
/// # Why no header is read
/// A tenant read from a header, or from an address that came in one, is one that the client has chosen: with a new name in
/// each request it is never limited, and with somebody else's name it spends what is theirs. So the tenant is what the layer
/// that checked the credentials has put into [`Parts::extensions`], where no client can put anything.
pub trait Classify: Send + Sync + 'static {
    /// What this request is charged to.
    fn classify(&self, request: &Parts) -> Classified;
}

impl<F, C> Classify for F
where
    F: Fn(&Parts) -> C + Send + Sync + 'static,
    C: Into<Classified>,
{
    fn classify(&self, request: &Parts) -> Classified {
        self(request).into()
    }
}

/// What is to be done with a request.
#[derive(Clone, Debug)]
pub enum Classified {
    /// It is charged, and passes if there is room.
    Charged(Charge),
    /// It is charged to nobody and passes: a health check, say.
    NotLimited,
    /// It is turned away, because nobody has authenticated it. It neither passes unseen nor shares a bucket with its like.
    Unauthenticated,
}

impl From<Charge> for Classified {
    fn from(charge: Charge) -> Self {
        Self::Charged(charge)
    }
}

impl From<Option<Charge>> for Classified {
    fn from(charge: Option<Charge>) -> Self {
        charge.map_or(Self::Unauthenticated, Self::Charged)
    }
}
