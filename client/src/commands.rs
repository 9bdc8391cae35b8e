//! The commands, each defined once: as a [`redis::Cmd`], on blocking and on async connections, and in pipelines.

use redis::{Cmd, ConnectionLike, Pipeline, RedisResult, ToSingleRedisArg};

use crate::quota::Quota;
use crate::reply::{BucketState, Debit, Decision, Lease, MultiDecision, Refund};
use crate::tokens::Tokens;

/// One of the takes of [`tb_mtake`](cmd::tb_mtake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Take<K> {
    key: K,
    quota: Quota,
    cost: Tokens,
}

impl<K> Take<K> {
    /// Takes `cost` from the bucket under `key`.
    pub fn new(key: K, quota: Quota, cost: impl Into<Tokens>) -> Self {
        Self { key, quota, cost: cost.into() }
    }
}

/// How many whole tokens a lease is for. A plain number asks for up to as many, and for one at least.
///
/// ```
/// use redis_token_bucket_client::Want;
///
/// let want = Want::up_to(50).at_least(10);
/// assert_eq!(Want::from(50), Want::up_to(50));
/// # let _ = want;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    most: u64,
    least: u64,
}

impl Want {
    /// Up to `most` tokens, and one at least.
    #[must_use]
    pub const fn up_to(most: u64) -> Self {
        Self { most, least: 1 }
    }

    /// Nothing rather than fewer than `least`.
    #[must_use]
    pub const fn at_least(self, least: u64) -> Self {
        Self { least, ..self }
    }
}

impl From<u64> for Want {
    fn from(most: u64) -> Self {
        Self::up_to(most)
    }
}

/// From one list of commands, every form in which redis-rs takes a command.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        fn $name:ident<$K:ident>($($arg:ident: $type:ty),*) -> $reply:ty $body:block
    )*) => {
        /// The commands as values: to route by hand, to send elsewhere, or to look at.
        pub mod cmd {
            use super::*;

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name<$K: ToSingleRedisArg>($($arg: $type),*) -> Cmd $body
            )*
        }

        /// The commands on any blocking connection: `Connection`, `ClusterConnection`, one that a Sentinel named.
        pub trait TokenBucketCommands: ConnectionLike + Sized {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// None of them is a refusal; [`Fault::of`](crate::Fault::of) tells them apart.
                fn $name<$K: ToSingleRedisArg>(&mut self, $($arg: $type),*) -> RedisResult<$reply> {
                    cmd::$name($($arg),*).query(self)
                }
            )*
        }

        /// The commands on any async connection: `MultiplexedConnection`, `ConnectionManager`, `ClusterConnection`, one
        /// that a Sentinel named.
        ///
        /// Dropping the future leaves the connection in order, but not the bucket as it was: the call may be carried
        /// out.
        #[cfg(feature = "aio")]
        pub trait AsyncTokenBucketCommands: redis::aio::ConnectionLike + Send + Sized {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// None of them is a refusal; [`Fault::of`](crate::Fault::of) tells them apart.
                fn $name<$K: ToSingleRedisArg>(
                    &mut self,
                    $($arg: $type),*
                ) -> impl Future<Output = RedisResult<$reply>> + Send {
                    let cmd = cmd::$name($($arg),*);
                    async move { cmd.query_async(self).await }
                }
            )*
        }

        /// The commands in a pipeline. With [`Pipeline::ignore_errors`], ask for each reply as a `RedisResult`:
        /// otherwise one error hides the answers of calls that were carried out.
        pub trait TokenBucketPipeline: Queue {
            $(
                $(#[$doc])*
                fn $name<$K: ToSingleRedisArg>(&mut self, $($arg: $type),*) -> &mut Self {
                    self.queue(cmd::$name($($arg),*))
                }
            )*
        }
    };
}

commands! {
    /// `TB.TAKE`: takes `cost` if it is there. A refusal changes nothing.
    fn tb_take<K>(key: K, quota: Quota, cost: impl Into<Tokens>) -> Decision {
        one("TB.TAKE", key, quota, cost)
    }

    /// `TB.PEEK`: what a take would answer, with the tokens before taking. Writes nothing.
    fn tb_peek<K>(key: K, quota: Quota, cost: impl Into<Tokens>) -> Decision {
        one("TB.PEEK", key, quota, cost)
    }

    /// `TB.MTAKE`: takes from every bucket, or from none. No key may come twice; in a cluster all must share a slot, as
    /// the [`Key`](crate::Key)s of one tenant do.
    fn tb_mtake<K>(takes: &[Take<K>]) -> MultiDecision {
        let mut cmd = redis::cmd("TB.MTAKE");
        for take in takes {
            cmd.arg(&take.key).arg(take.quota).arg(take.cost);
        }
        cmd
    }

    /// `TB.LEASE`: takes as many whole tokens as there are, up to a number, for a caller that spends them on its own.
    fn tb_lease<K>(key: K, quota: Quota, want: impl Into<Want>) -> Lease {
        let Want { most, least } = want.into();
        let mut cmd = one("TB.LEASE", key, quota, most);
        cmd.arg(least);
        cmd
    }

    /// `TB.REFUND`: gives tokens back, never above the capacity. Sent twice it gives twice: refund what you know was
    /// taken.
    fn tb_refund<K>(key: K, quota: Quota, amount: impl Into<Tokens>) -> Refund {
        one("TB.REFUND", key, quota, amount)
    }

    /// `TB.DEBIT`: charges a cost known only afterwards; the bucket may fall into debt.
    fn tb_debit<K>(key: K, quota: Quota, cost: impl Into<Tokens>) -> Debit {
        one("TB.DEBIT", key, quota, cost)
    }

    /// `TB.STATE`: what is stored, if anything is.
    fn tb_state<K>(key: K) -> Option<BucketState> {
        let mut cmd = redis::cmd("TB.STATE");
        cmd.arg(key);
        cmd
    }
}

fn one(name: &'static str, key: impl ToSingleRedisArg, quota: Quota, number: impl Into<Tokens>) -> Cmd {
    let mut cmd = Cmd::with_capacity(6, ROOM);
    cmd.arg(name).arg(key).arg(quota).arg(number.into());
    cmd
}

/// Bytes enough for the arguments of most calls.
const ROOM: usize = 96;

impl<C: ConnectionLike> TokenBucketCommands for C {}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike + Send> AsyncTokenBucketCommands for C {}

/// What commands can be queued in: redis-rs' two kinds of pipeline.
pub trait Queue {
    /// Appends a command.
    fn queue(&mut self, cmd: Cmd) -> &mut Self;
}

impl Queue for Pipeline {
    fn queue(&mut self, cmd: Cmd) -> &mut Self {
        self.add_command(cmd)
    }
}

#[cfg(feature = "cluster")]
impl Queue for redis::cluster::ClusterPipeline {
    fn queue(&mut self, cmd: Cmd) -> &mut Self {
        self.add_command(cmd)
    }
}

impl<P: Queue> TokenBucketPipeline for P {}
