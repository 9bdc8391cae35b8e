//! What the server tells about a command (COMMAND INFO, COMMAND DOCS, ACL): a command as data.

use std::ffi::CStr;

/// How a command uses its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads them.
    Reads,
    /// It reads and may change them.
    Updates,
}

/// Where the keys are among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The first argument.
    First,
    /// The first argument and every so many after it.
    Every(i32),
}

/// An argument, as COMMAND DOCS shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// A key.
    Key,
    /// A number.
    Number(&'static CStr),
    /// A rate, a number or a ratio.
    Text(&'static CStr),
    /// A number that may be left out.
    Optional(&'static CStr),
    /// A group that may be repeated.
    Repeated(&'static CStr, &'static [Arg]),
}

/// A command's manual entry, for the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manual {
    /// `tb.take`; also the name of its keyspace event.
    pub(crate) name: &'static CStr,
    /// The server's command flags.
    pub(crate) flags: &'static CStr,
    /// ACL categories without `@`, beside the module's own.
    pub(crate) categories: &'static CStr,
    /// One line.
    pub(crate) summary: &'static CStr,
    /// In the number of buckets.
    pub(crate) complexity: &'static CStr,
    /// The fewest arguments, the command's name included.
    pub(crate) arity: i32,
    pub(crate) access: Access,
    pub(crate) keys: Keys,
    pub(crate) args: &'static [Arg],
}
