//! `TB.MTAKE key capacity rate cost [key capacity rate cost ...]` takes from every bucket, or from none.
//!
//! For limits that hold together: a user's, the organisation's and everybody's. In a cluster the keys must share a slot (a
//! hash tag such as `rl:{org7}:...`).
//!
//! Replies `[allowed, remaining, retry_ms, [[allowed, remaining, retry_ms] ...]]`: the verdict over all (the smallest
//! remaining, the longest retry, -1 if any is never), then each bucket's own answer in order, as
//! [`TB.TAKE`](super::take) when all passed and as [`TB.PEEK`](super::peek) when not. Naming a key twice is an error.
//!
//! O(N log N) in the number of buckets.

use bucket::{Amount, Bucket, Decision, Quota, Retry};
use smallvec::SmallVec;

use crate::args;
use crate::error::{Argument, Error};
use crate::manual::{Access, Arg, Keys, Manual};
use crate::reply::{Reply, integers};
use crate::server::{self, Args, Command, Context, KeyName};
use crate::stats;
use crate::store::Slot;

/// `TB.MTAKE`.
pub(crate) struct MTake;

/// One group of arguments.
struct Request<'a> {
    key: KeyName<'a>,
    quota: Quota,
    cost: Amount,
}

/// Arguments of a group.
const GROUP: usize = 4;

/// A list that needs no allocation up to four, more than limits that hold together usually are.
type Few<T> = SmallVec<[T; 4]>;

impl Command for MTake {
    const MANUAL: Manual = Manual {
        name: c"tb.mtake",
        flags: c"write",
        categories: c"write slow",
        summary: c"Takes tokens from each of several buckets, or from none of them.",
        complexity: c"O(N log N) where N is the number of buckets",
        arity: -5,
        access: Access::Updates,
        keys: Keys::Every(4),
        args: &[Arg::Repeated(
            c"bucket",
            &[Arg::Key, Arg::Number(c"capacity"), Arg::Text(c"rate"), Arg::Number(c"cost")],
        )],
    };

    fn call(ctx: &Context, args: &Args<'_>) -> Result<Reply, Error> {
        let requests = requests(args)?;
        let now = server::now();
        let mut taken = Few::new();
        for request in &requests {
            let slot = Slot::open(ctx, request.key)?;
            let bucket = Bucket::or_full(slot.bucket(), &request.quota, now);
            let (bucket, decision) = bucket.take(&request.quota, request.cost, now);
            taken.push((slot, bucket, decision));
        }
        let allowed = taken.iter().all(|(.., decision)| decision.allowed);
        if allowed {
            let mut stored = taken.iter().filter(|(_, bucket, _)| bucket.is_some());
            stored.try_for_each(|(slot, ..)| slot.check_memory(ctx))?;
        }

        let mut verdict = Decision { allowed, remaining: u64::MAX, retry: Retry::Now };
        let mut answers = Vec::with_capacity(requests.len());
        let mut changed = Few::new();
        for (request, (slot, bucket, mut decision)) in requests.iter().zip(taken) {
            match bucket {
                Some(bucket) if allowed => {
                    slot.commit(ctx, bucket, &request.quota)?;
                    changed.push(request.key);
                }
                _ => {
                    if !allowed {
                        let bucket = Bucket::or_full(slot.bucket(), &request.quota, now);
                        decision = bucket.peek(&request.quota, request.cost, now);
                    }
                    slot.correct(ctx, &request.quota, now)?;
                }
            }
            if allowed {
                stats::TOKENS_GRANTED.add(request.cost);
            }
            verdict.remaining = verdict.remaining.min(decision.remaining);
            verdict.retry = verdict.retry.later(decision.retry);
            answers.push(integers(decision));
        }
        for key in changed {
            server::notify(ctx, Self::MANUAL.name, key);
        }
        stats::count_take(verdict, Amount::ZERO);
        Ok(Reply::Verdict(integers(verdict), answers))
    }
}

fn requests<'a>(args: &Args<'a>) -> Result<Few<Request<'a>>, Error> {
    let groups = args.len().saturating_sub(1);
    if groups == 0 || !groups.is_multiple_of(GROUP) {
        return Err(Error::Arity);
    }
    let mut requests = Few::new();
    for at in (1..args.len()).step_by(GROUP) {
        let quota = args::quota(args, at.saturating_add(1))?;
        let cost = args::amount(args, at.saturating_add(3), Argument::Cost)?;
        requests.push(Request { key: args.key(at)?, quota, cost });
    }
    let mut names: Few<&[u8]> = requests.iter().map(|request| request.key.bytes()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        return Err(Error::SameKeyTwice);
    }
    Ok(requests)
}
