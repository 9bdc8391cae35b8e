//! Why a call has no answer. No fault is ever taken for a refusal; what to do without an answer is the caller's to
//! decide.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a call has no answer: the few kinds of errors that a caller may want to tell apart.
///
/// ```
/// use redis_token_bucket_client::{Fault, redis::RedisError};
///
/// fn admit_without_an_answer(error: &RedisError) -> bool {
///     match Fault::of(error) {
///         // Ours to mend: let people in, and say so loudly.
///         Fault::ModuleMissing | Fault::NoPermission | Fault::InvalidArgument => true,
///         fault => !fault.may_have_charged(),
///     }
/// }
/// # let _ = admit_without_an_answer;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// No answer in time. The call may be carried out yet.
    Timeout,
    /// No connection, or one that broke. The call may have been carried out.
    Disconnected,
    /// The server does not know the command.
    ModuleMissing,
    /// The server refused an argument: a number that is none, or out of range, or the same key twice.
    InvalidArgument,
    /// The key holds something that is not a bucket.
    WrongType,
    /// The server is at `maxmemory`, and the call would have created a bucket.
    OutOfMemory,
    /// The node is a replica.
    ReadOnly,
    /// The user may not run the command, or not on this key, or is not logged in.
    NoPermission,
    /// The server is still loading its data.
    Loading,
    /// The server is busy with a script.
    Busy,
    /// The keys of one call, or of one pipeline, are in different cluster slots.
    CrossSlot,
    /// The cluster, or its node for this key, does not serve at present.
    ClusterDown,
    /// A reply that is not one of the command's.
    Unreadable,
    /// Anything else.
    Other,
}

impl Fault {
    /// What kind of fault an error is. The first one, for the errors of a pipeline.
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        if let Some(errors) = error.clone().into_server_errors() {
            return errors.first().map_or(Self::Other, |(_, error)| Self::of_reply(error.code(), error.details()));
        }
        match error.kind() {
            _ if error.is_timeout() => Self::Timeout,
            ErrorKind::Io
            | ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::NoValidReplicasFoundBySentinel => Self::Disconnected,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Unreadable,
            ErrorKind::AuthenticationFailed => Self::NoPermission,
            ErrorKind::Server(kind) => Self::of_kind(kind).unwrap_or(Self::Other),
            _ => Self::Other,
        }
    }

    /// Whether the call may have been carried out, or may still be, although no answer came.
    #[must_use]
    pub const fn may_have_charged(self) -> bool {
        matches!(self, Self::Timeout | Self::Disconnected | Self::Unreadable | Self::Other)
    }

    /// Of an error that redis-rs made itself, in the name of the server.
    fn of_kind(kind: ServerErrorKind) -> Option<Self> {
        Some(match kind {
            ServerErrorKind::ReadOnly => Self::ReadOnly,
            ServerErrorKind::NoPerm => Self::NoPermission,
            ServerErrorKind::BusyLoading => Self::Loading,
            ServerErrorKind::CrossSlot => Self::CrossSlot,
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask => Self::ClusterDown,
            _ => return None,
        })
    }

    fn of_reply(code: &str, text: Option<&str>) -> Self {
        let text = text.unwrap_or_default();
        match code {
            "ERR" if is_unknown_command(text) => Self::ModuleMissing,
            "ERR"
                if ["invalid ", "wrong number of arguments", "the same key"]
                    .iter()
                    .any(|start| text.starts_with(start)) =>
            {
                Self::InvalidArgument
            }
            "WRONGTYPE" => Self::WrongType,
            "OOM" => Self::OutOfMemory,
            "READONLY" => Self::ReadOnly,
            "NOPERM" | "NOAUTH" | "WRONGPASS" => Self::NoPermission,
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            "CROSSSLOT" => Self::CrossSlot,
            "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => Self::ClusterDown,
            _ => Self::Other,
        }
    }
}

fn is_unknown_command(text: &str) -> bool {
    text.starts_with("unknown command")
}

/// A short phrase.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "no answer in time",
            Self::Disconnected => "no connection",
            Self::ModuleMissing => "the server does not have the module",
            Self::InvalidArgument => "an argument that the server refuses",
            Self::WrongType => "the key holds something else",
            Self::OutOfMemory => "the server is out of memory",
            Self::ReadOnly => "the server is a replica",
            Self::NoPermission => "no permission",
            Self::Loading => "the server is loading its data",
            Self::Busy => "the server is busy with a script",
            Self::CrossSlot => "keys in different slots",
            Self::ClusterDown => "the cluster does not serve this key",
            Self::Unreadable => "a reply that cannot be read",
            Self::Other => "another fault",
        })
    }
}
