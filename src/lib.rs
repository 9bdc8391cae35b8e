//! A Redis and Valkey module: token buckets as native commands, exact and atomic.
//!
//! One call is one round trip and one decision on the server's only command thread, by the server's clock. The arithmetic
//! is in the crate `redis-token-bucket-core`; this crate translates between it and the server:
//!
//! ```text
//! commands::*  ->  args, store, reply  ->  redis-token-bucket-core
//!                  store, reply        ->  server  ->  the server's module API
//! ```
//!
//! | command | does |
//! |---|---|
//! | [`TB.TAKE`](commands::take) | takes a cost if it is there |
//! | [`TB.PEEK`](commands::peek) | says what a take would answer |
//! | [`TB.MTAKE`](commands::mtake) | takes from every one of several buckets, or from none |
//! | [`TB.LEASE`](commands::lease) | takes as many whole tokens as there are |
//! | [`TB.REFUND`](commands::refund) | gives tokens back |
//! | [`TB.DEBIT`](commands::debit) | charges a cost known only afterwards |
//! | [`TB.STATE`](commands::state) | shows what is stored |

mod args;
pub mod commands;
mod error;
mod manual;
mod reply;
mod server;
mod stats;
mod store;

use server::{Context, LoadError};

/// Registers every command. Called once, while the module loads.
fn register(ctx: &Context) -> Result<(), LoadError> {
    server::register::<commands::take::Take>(ctx)?;
    server::register::<commands::peek::Peek>(ctx)?;
    server::register::<commands::mtake::MTake>(ctx)?;
    server::register::<commands::lease::Lease>(ctx)?;
    server::register::<commands::refund::Refund>(ctx)?;
    server::register::<commands::debit::Debit>(ctx)?;
    server::register::<commands::state::State>(ctx)?;
    #[cfg(debug_assertions)]
    server::register::<commands::panic::Panic>(ctx)?;
    Ok(())
}
