//! `TB.PEEK key capacity rate [cost]` says what [`TB.TAKE`](super::take) would answer, and takes nothing.
//!
//! Replies `[allowed, remaining, retry_ms]` as `TB.TAKE` does, but `remaining` is before taking. It writes nothing, not even
//! an expiry, and runs on replicas and in read-only scripts.
//!
//! O(1).

use bucket::{Bucket, Decision};

use super::take;
use crate::args;
use crate::error::Error;
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context, Key};
use crate::store::{self, Opened};

/// `TB.PEEK`.
pub(crate) struct Peek;

impl Command for Peek {
    const MANUAL: Manual = Manual {
        name: c"tb.peek",
        flags: c"readonly fast",
        categories: c"read fast",
        summary: c"Says what a take from a bucket would answer, without taking.",
        complexity: c"O(1)",
        arity: -4,
        access: Access::Reads,
        keys: Keys::First,
        args: &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Optional(c"cost")],
    };

    #[inline(always)]
    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let Some((name, take)) = take::fast(args) else { return Ok(in_full(ctx, args, None)?.into()) };
        match store::peek_fast(ctx, name, &take) {
            Ok((remaining, wait)) => {
                Ok(Reply::Integers([i64::from(wait == 0), remaining.cast_signed(), wait.cast_signed()]))
            }
            Err(opened) => Ok(in_full(ctx, args, Some(opened))?.into()),
        }
    }
}

/// The whole of a peek, from its arguments on.
#[cold]
#[inline(never)]
fn in_full(ctx: &Context, args: &Args<'_>, opened: Option<Opened<Option<Key<'_>>>>) -> Result<Decision, Error> {
    let quota = args::quota(args, 2)?;
    let cost = args::optional_cost(args, 4)?;
    let name = args.key(1)?;
    let (bucket, now) = store::bucket_of(opened.unwrap_or_else(|| store::open_to_read(ctx, name)))?;
    Ok(Bucket::or_full(bucket, &quota, now).peek(&quota, cost, now))
}
