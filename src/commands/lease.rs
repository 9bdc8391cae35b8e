//! `TB.LEASE key capacity rate want [least]` takes as many whole tokens as there are, up to `want`, and none if there are
//! fewer than `least` (1 by default).
//!
//! For callers that spend a batch on their own before they ask again. `want` and `least` are whole numbers,
//! 1 <= least <= want.
//!
//! Replies `[granted, remaining, retry_ms]`: whole tokens granted, 0 for none; whole tokens left; and when nothing was
//! granted, the milliseconds until `least` are there (-1 for never).
//!
//! O(1).

use bucket::{Amount, Bucket, NumberError};

use crate::args;
use crate::error::{Argument, Error};
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context};
use crate::{stats, store};

/// `TB.LEASE`.
pub(crate) struct Lease;

impl Command for Lease {
    const MANUAL: Manual = Manual {
        name: c"tb.lease",
        flags: c"write fast",
        categories: c"write fast",
        summary: c"Takes as many whole tokens from a bucket as there are, up to a number.",
        complexity: c"O(1)",
        arity: -5,
        access: Access::Updates,
        keys: Keys::First,
        args: &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Number(c"want"), Arg::Optional(c"least")],
    };

    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        args::at_most(args, 6)?;
        let quota = args::quota(args, 2)?;
        let want = args::whole(args, 4, Argument::Want)?;
        let least = if args.len() > 5 { args::whole(args, 5, Argument::Least)? } else { Amount::ONE };
        if want == Amount::ZERO {
            return Err(Error::Number(Argument::Want, NumberError::OutOfRange));
        }
        if least == Amount::ZERO || least > want {
            return Err(Error::LeaseBounds);
        }
        let lease = store::update(ctx, args.key(1)?, &quota, Self::MANUAL.name, |bucket, now| {
            Ok(Bucket::or_full(bucket, &quota, now).lease(&quota, want, least, now))
        })?;
        let granted = Amount::from_tokens(lease.granted).ok().filter(|granted| *granted != Amount::ZERO);
        stats::count_grant(granted, lease.retry);
        Ok(lease.into())
    }
}
