//! `TB.REFUND key capacity rate amount` gives tokens back, never above the capacity.
//!
//! Replies `[1, remaining, 0]`. A bucket that does not exist is full already: nothing is stored.
//!
//! O(1).

use crate::args;
use crate::error::{Argument, Error};
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context};
use crate::{stats, store};
use bucket::Bucket;

/// `TB.REFUND`.
pub(crate) struct Refund;

impl Command for Refund {
    const MANUAL: Manual = Manual {
        name: c"tb.refund",
        flags: c"write fast",
        categories: c"write fast",
        summary: c"Gives tokens back to a bucket, never above its capacity.",
        complexity: c"O(1)",
        arity: 5,
        access: Access::Updates,
        keys: Keys::First,
        args: &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Number(c"amount")],
    };

    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let quota = args::quota(args, 2)?;
        let amount = args::amount(args, 4, Argument::Amount)?;
        let decision = store::update(ctx, args.key(1)?, &quota, Self::MANUAL.name, |stored, now| {
            let bucket = Bucket::or_full(stored, &quota, now);
            let (refunded, decision) = bucket.refund(&quota, amount, now);
            if stored.is_some() {
                stats::TOKENS_REFUNDED.add(amount);
            }
            Ok((stored.map(|_| refunded), decision))
        })?;
        Ok(decision.into())
    }
}
