//! `TB.PANIC key` panics with the key open: how the tests see that a panic is answered and the key left as it was. Not in
//! release builds.

use crate::error::Error;
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context};
use crate::store::Slot;

/// `TB.PANIC`.
pub(crate) struct Panic;

impl Command for Panic {
    const MANUAL: Manual = Manual {
        name: c"tb.panic",
        flags: c"write fast",
        categories: c"write fast dangerous",
        summary: c"Panics (debug builds only).",
        complexity: c"O(1)",
        arity: 2,
        access: Access::Updates,
        keys: Keys::First,
        args: &[Arg::Key],
    };

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let slot = Slot::open(ctx, args.key(1)?)?;
        panic!("asked for, with a bucket open: {}", slot.bucket().is_some());
    }
}
