//! A safe wrapper over the few module APIs that the module uses: the only folder with `unsafe`.
//!
//! The server calls commands on one thread. Every API that is called without a check was seen to be there when the module
//! was loaded (`load.rs`); where an API came with a later version, its absence is a branch.
#![expect(unsafe_code, reason = "the fence around the module API; each block says why it holds")]

mod allocator;
mod ask;
mod clock;
mod command;
mod config;
mod context;
mod info;
mod key;
mod load;
mod log;
mod memory;
mod options;
mod reply;
mod unload;

pub(crate) use clock::now;
pub(crate) use command::{Command, register};
pub(crate) use config::expiry_slack;
pub(crate) use context::{Args, Context, KeyName, notify, replicate_set, signal_modified};
pub(crate) use key::{Expiry, Key, Value};
pub(crate) use load::LoadError;
pub(crate) use memory::is_out_of_memory;

/// The function behind a module API that `load.rs` requires.
macro_rules! api {
    ($name:ident) => {{
        // Reading the pointer is sound: the server filled it before the first call into the module, and nothing writes it
        // afterwards. It is not null: load.rs refuses to load where one of these is missing.
        redis_module::raw::$name.unwrap_unchecked()
    }};
}
pub(crate) use api;
