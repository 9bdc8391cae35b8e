//! `TB.DEBIT key capacity rate cost` charges a cost known only afterwards; the balance may go below zero.
//!
//! Debt is paid back by refill before anything is granted. It ends at 1e15 tokens: a debit that would go beyond is an
//! error and changes nothing.
//!
//! Replies `[covered, remaining, retry_ms]`: 1 if the balance is not below zero afterwards; whole tokens left; and in debt,
//! the milliseconds until it is paid (-1 for never: the rate is 0). A debit of 0 creates no key.
//!
//! O(1).

use bucket::{Amount, Bucket};

use crate::args;
use crate::error::{Argument, Error};
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::Reply;
use crate::server::{Args, Command, Context};
use crate::{stats, store};

/// `TB.DEBIT`.
pub(crate) struct Debit;

impl Command for Debit {
    const MANUAL: Manual = Manual {
        name: c"tb.debit",
        flags: c"write fast",
        categories: c"write fast",
        summary: c"Charges a bucket a cost known only afterwards, into debt if need be.",
        complexity: c"O(1)",
        arity: 5,
        access: Access::Updates,
        keys: Keys::First,
        args: &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Number(c"cost")],
    };

    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let quota = args::quota(args, 2)?;
        let cost = args::amount(args, 4, Argument::Cost)?;
        let decision = store::update(ctx, args.key(1)?, &quota, Self::MANUAL.name, |stored, now| {
            let bucket = Bucket::or_full(stored, &quota, now);
            let (charged, decision) = bucket.debit(&quota, cost, now)?;
            let worth_storing = stored.is_some() || cost != Amount::ZERO;
            Ok((worth_storing.then_some(charged), decision))
        })?;
        stats::TOKENS_DEBITED.add(cost);
        Ok(decision.into())
    }
}
