//! `TB.STATE key` shows what is stored, for people who look into a limit by hand.
//!
//! Replies a map: `tokens`, the exact balance as decimal text, as of `last_refill_us`, microseconds since the epoch; and
//! `ttl_ms`, milliseconds until the key expires, -1 for never. Nil if there is no bucket. What has come back since is not
//! counted, for the rate is not stored: [`TB.PEEK`](super::peek) does that.
//!
//! O(1).

use crate::args;
use crate::error::Error;
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context};
use crate::store;

/// `TB.STATE`.
pub(crate) struct State;

impl Command for State {
    const MANUAL: Manual = Manual {
        name: c"tb.state",
        flags: c"readonly fast",
        categories: c"read fast",
        summary: c"Shows what is stored of a bucket.",
        complexity: c"O(1)",
        arity: 2,
        access: Access::Reads,
        keys: Keys::First,
        args: &[Arg::Key],
    };

    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        args::at_most(args, 2)?;
        let state = store::read(ctx, args.key(1)?, |key, record| Reply::State(*record, key.ttl_millis()))?;
        Ok(state.unwrap_or(Reply::Nil))
    }
}
