//! `TB.TAKE key capacity rate [cost]` takes `cost` tokens (1 by default) if they are there.
//!
//! `capacity` is the most tokens that the bucket holds, `rate` how many come back per second (`50`, `0.5`, or `100/60` for
//! one hundred a minute). A key that does not exist is a full bucket.
//!
//! Replies `[allowed, remaining, retry_ms]`: 1 or 0; whole tokens left; and when refused, the milliseconds after which the
//! same call passes if nobody else takes (-1 for never: the cost is above the capacity, or the rate is 0). A refusal
//! changes nothing. A cost of 0 is allowed unless the bucket is in debt, and stores nothing.
//!
//! O(1).

use bucket::{Bucket, Decision, FastTake, FastTaken, Retry};

use crate::args;
use crate::error::Error;
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context, Key, KeyName};
use crate::store::Opened;
use crate::{stats, store};

/// `TB.TAKE`.
pub(crate) struct Take;

impl Command for Take {
    const MANUAL: Manual = Manual {
        name: c"tb.take",
        flags: c"write fast",
        categories: c"write fast",
        summary: c"Takes tokens from a bucket if they are there.",
        complexity: c"O(1)",
        arity: -4,
        access: Access::Updates,
        keys: Keys::First,
        args: &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Optional(c"cost")],
    };

    #[inline(always)]
    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let Some((name, take)) = fast(args) else { return Ok(in_full(ctx, args, None)?.into()) };
        match store::take_fast(ctx, name, &take, Self::MANUAL.name) {
            Ok(FastTaken::Granted(remaining, _) | FastTaken::Dated(remaining, ..)) => {
                stats::count_grant(Some(take.cost()), Retry::Now);
                Ok(Reply::Integers([1, remaining.cast_signed(), 0]))
            }
            Ok(FastTaken::Refused(remaining, wait)) => {
                stats::count(&stats::REFUSED);
                Ok(Reply::Integers([0, remaining.cast_signed(), wait.cast_signed()]))
            }
            Err(opened) => Ok(in_full(ctx, args, Some(opened))?.into()),
        }
    }
}

/// The arguments, if the fast path is one for them; those of [`TB.PEEK`](super::peek) are the same.
#[inline(always)]
pub(super) fn fast<'a>(args: &Args<'a>) -> Option<(KeyName<'a>, FastTake)> {
    let bytes = |at| args.bytes(at).ok();
    let cost = match args.len() {
        4 => None,
        5 => Some(bytes(4)?),
        _ => return None,
    };
    Some((args.key(1).ok()?, FastTake::parse(bytes(2)?, bytes(3)?, cost)?))
}

/// The whole of a take, from its arguments on.
#[cold]
#[inline(never)]
fn in_full(ctx: &Context, args: &Args<'_>, opened: Option<Opened<Key<'_>>>) -> Result<Decision, Error> {
    let quota = args::quota(args, 2)?;
    let cost = args::optional_cost(args, 4)?;
    let name = args.key(1)?;
    let opened = opened.unwrap_or_else(|| store::open(ctx, name));
    let decision = store::update_opened(ctx, opened, name, &quota, Take::MANUAL.name, |bucket, now| {
        Ok(Bucket::or_full(bucket, &quota, now).take(&quota, cost, now))
    })?;
    stats::count_take(decision, cost);
    Ok(decision)
}
