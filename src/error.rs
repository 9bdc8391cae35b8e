//! Every error text, in one place. Texts are ASCII, start with an upper-case code and hold nothing that a client sent.

use std::ffi::CStr;

use bucket::{DebtLimit, NumberError};

/// An argument that is a number, by the name that its error gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Capacity,
    Rate,
    Cost,
    Amount,
    Want,
    Least,
}

/// Why a call was not carried out. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// Too many arguments, or an incomplete group; the server itself refuses too few.
    Arity,
    /// An argument is not a number that the command takes.
    Number(Argument, NumberError),
    /// A lease counts whole tokens.
    NotWhole(Argument),
    /// A lease's least is 0, or above what is wanted.
    LeaseBounds,
    /// The debt would be too deep.
    Debt,
    /// Several takes from one bucket in one call.
    SameKeyTwice,
    /// The key holds something that is not a bucket.
    WrongType,
    /// A key would have to be created at `maxmemory`.
    OutOfMemory,
    /// A fault of ours.
    Internal,
}

impl From<DebtLimit> for Error {
    fn from(_: DebtLimit) -> Self {
        Self::Debt
    }
}

/// `ERR invalid NAME: WHY` for every way in which a number is refused.
macro_rules! number_errors {
    ($name:literal, $range:literal, $error:expr) => {
        match $error {
            NumberError::Malformed => cstr(concat!("ERR invalid ", $name, ": not a decimal number\0")),
            NumberError::OutOfRange => cstr(concat!("ERR invalid ", $name, ": out of range (", $range, ")\0")),
            NumberError::TooSmall => {
                cstr(concat!("ERR invalid ", $name, ": above zero but too small (", $range, ")\0"))
            }
            NumberError::TooPrecise => cstr(concat!("ERR invalid ", $name, ": more than 18 significant digits\0")),
        }
    };
}

const fn cstr(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"ERR internal error",
    }
}

impl Error {
    /// The whole reply, code included. Not used for [`Error::Arity`], whose text is the server's.
    pub(crate) const fn text(self) -> &'static CStr {
        match self {
            Self::Number(Argument::Capacity, error) => {
                number_errors!("capacity", "0 to 1e15 tokens, in steps of 1e-9", error)
            }
            Self::Number(Argument::Rate, error) => {
                number_errors!(
                    "rate",
                    "0, or 1e-18 to 1e12 tokens per second; TOKENS/SECONDS needs SECONDS above 0",
                    error
                )
            }
            Self::Number(Argument::Cost, error) => number_errors!("cost", "0 to 1e15 tokens, in steps of 1e-9", error),
            Self::Number(Argument::Amount, error) => {
                number_errors!("amount", "0 to 1e15 tokens, in steps of 1e-9", error)
            }
            Self::Number(Argument::Want, error) => number_errors!("want", "1 to 1e15 whole tokens", error),
            Self::Number(Argument::Least, error) => number_errors!("least", "1 to 1e15 whole tokens", error),
            Self::NotWhole(Argument::Least) => c"ERR invalid least: a lease counts whole tokens",
            Self::NotWhole(_) => c"ERR invalid want: a lease counts whole tokens",
            Self::LeaseBounds => c"ERR invalid least: needs 1 <= least <= want",
            Self::Debt => c"ERR invalid cost: the debt would be above 1e15 tokens",
            Self::SameKeyTwice => c"ERR the same key is named twice",
            Self::WrongType => c"WRONGTYPE Operation against a key holding a value that is not a token bucket",
            Self::OutOfMemory => {
                c"OOM command not allowed when used memory > 'maxmemory' and the bucket does not exist yet."
            }
            Self::Arity => c"ERR wrong number of arguments",
            Self::Internal => c"ERR internal error",
        }
    }
}
