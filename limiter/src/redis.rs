//! Where the buckets are: one server, the master that a Sentinel names, a cluster, or any connection of redis-rs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use client::redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, IntoConnectionInfo};
use client::redis::{ProtocolVersion, PushInfo, PushKind, RedisResult};
use client::{AsyncTokenBucketCommands, Implementation, Key, Quota, Take, TokenBuckets, Tokens, Want};

use crate::cluster::{self, Cluster};
use crate::link::{Connect, Link, OnLoss};

/// More than the web server's concurrency: who waits for room in the buffer waits within the deadline.
const BUFFERED_CALLS: usize = 4_096;

/// The Redis that holds the buckets.
///
/// Nothing is connected before the first check, and a check waits for that within its own deadline. Later a connection that is
/// lost is made again in the background, and one whose server has become a replica, or has gone without a word, is replaced;
/// no check waits for a server that is known to be down.
///
/// No call is ever sent twice, but where a server has refused it and so not carried it out: a slot that has moved, a script that
/// is not there yet.
#[derive(Clone)]
pub struct Redis {
    pub(crate) buckets: Arc<dyn Buckets>,
    /// How many parts of it can fail by themselves.
    pub(crate) ranges: usize,
}

impl Redis {
    /// One server: `redis://user:password@host:port/database`, `rediss://…`, `unix:…`.
    ///
    /// # Errors
    /// An address that is none.
    pub fn standalone(server: impl IntoConnectionInfo) -> RedisResult<Self> {
        let server = client::recommended::connection_info(server)?;
        Ok(Self::new(Link::new(Standalone::new(server)), 1))
    }

    /// The master that a Sentinel names, asked again whenever the connection is lost or turns out to be one to a replica.
    ///
    /// ```no_run
    /// use redis_token_bucket_limiter::Redis;
    /// use redis_token_bucket_limiter::client::redis::sentinel::{SentinelClient, SentinelServerType};
    ///
    /// let sentinels = vec!["redis://sentinel-1:26379", "redis://sentinel-2:26379", "redis://sentinel-3:26379"];
    /// let master = SentinelClient::build(sentinels, "limits".to_owned(), None, SentinelServerType::Master)?;
    /// let redis = Redis::sentinel(master);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "sentinel")]
    #[must_use]
    pub fn sentinel(master: client::redis::sentinel::SentinelClient) -> Self {
        let sentinels = tokio::sync::Mutex::new(master);
        Self::new(Link::new(sentinel::Sentinel { sentinels, protocol: Protocol::default() }), 1)
    }

    /// A cluster, of which some nodes are named; the user, the password and TLS are those of the first, for all nodes.
    ///
    /// # Errors
    /// Addresses that are none, or none at all.
    pub fn cluster<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        Ok(Self::new(Link::new(Cluster::new(nodes)?), cluster::RANGES))
    }

    /// Any connection of redis-rs, or something that behaves like one.
    ///
    /// It has to reconnect by itself, as a `ConnectionManager` does and a `MultiplexedConnection` does not, and its own
    /// timeouts have to be longer than the limiter's deadline. Whether it sends calls twice is up to it.
    pub fn over(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::new(Plain(connection), 1)
    }

    /// Uses the module, or the script, whatever the server has; otherwise it is asked.
    #[must_use]
    pub fn using(self, implementation: Implementation) -> Self {
        Self { buckets: self.buckets.using(implementation), ..self }
    }

    /// What answered last: the module, or the script.
    #[must_use]
    pub fn served_by(&self) -> Option<Implementation> {
        self.buckets.served_by()
    }

    fn new(wire: impl Wire, ranges: usize) -> Self {
        Self { buckets: Arc::new(Over(TokenBuckets::new(wire))), ranges }
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("served_by", &self.served_by()).finish_non_exhaustive()
    }
}

/// An answer, or why there is none.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, client::Fault>> + Send + 'a>>;

/// The commands, whatever the connection is.
pub(crate) trait Buckets: Send + Sync {
    fn take<'a>(&'a self, key: &'a Key, quota: Quota, cost: Tokens) -> Answer<'a, client::Decision>;
    fn mtake<'a>(&'a self, takes: &'a [Take<Key>]) -> Answer<'a, client::MultiDecision>;
    fn lease<'a>(&'a self, key: &'a Key, quota: Quota, want: Want) -> Answer<'a, client::Lease>;
    fn refund<'a>(&'a self, key: &'a Key, quota: Quota, amount: Tokens) -> Answer<'a, client::Refund>;
    fn debit<'a>(&'a self, key: &'a Key, quota: Quota, cost: Tokens) -> Answer<'a, client::Debit>;
    /// Many calls went unanswered: the connection may be one to nobody.
    fn doubt(&self);
    /// Waits for a connection, where that is known to be missing: to the server that has this key, if one is named.
    fn ready<'a>(&'a self, key: Option<&'a Key>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    fn using(&self, implementation: Implementation) -> Arc<dyn Buckets>;
    fn served_by(&self) -> Option<Implementation>;
}

/// A connection, and whether there is one.
trait Wire: ConnectionLike + Clone + Send + Sync + 'static {
    fn ready(&self, key: Option<&Key>) -> impl Future<Output = ()> + Send;

    fn doubt(&self);
}

impl<C: Connect> Wire for Link<C> {
    async fn ready(&self, key: Option<&Key>) {
        Link::ready(self, key.map(Key::as_bytes)).await;
    }

    fn doubt(&self) {
        Link::doubt(self);
    }
}

#[derive(Clone)]
struct Plain<C>(C);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Wire for Plain<C> {
    async fn ready(&self, _: Option<&Key>) {}

    fn doubt(&self) {}
}

impl<C: ConnectionLike> ConnectionLike for Plain<C> {
    fn req_packed_command<'a>(
        &'a mut self,
        cmd: &'a client::redis::Cmd,
    ) -> client::redis::RedisFuture<'a, client::redis::Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a client::redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> client::redis::RedisFuture<'a, Vec<client::redis::Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

struct Over<W>(TokenBuckets<W>);

/// Where the module is known to answer, the handle that would find out has nothing to add, and the call goes past it. A server
/// that turns out not to have the module has not carried it out: then it goes by the handle after all.
macro_rules! answer {
    ($over:ident.$command:ident($($arg:expr),*)) => {
        Box::pin(async move {
            let handle = &$over.0;
            let first = if handle.served_by() == Some(Implementation::Module) {
                Some(handle.get_ref().clone().$command($($arg),*).await)
            } else {
                None
            };
            let answer = match first {
                Some(Err(error)) if client::Fault::of(&error) != client::Fault::ModuleMissing => Err(error),
                Some(Ok(answer)) => Ok(answer),
                _ => handle.clone().$command($($arg),*).await,
            };
            answer.map_err(|error| client::Fault::of(&error))
        })
    };
}

impl<W: Wire> Buckets for Over<W> {
    fn take<'a>(&'a self, key: &'a Key, quota: Quota, cost: Tokens) -> Answer<'a, client::Decision> {
        answer!(self.tb_take(key, quota, cost))
    }

    fn mtake<'a>(&'a self, takes: &'a [Take<Key>]) -> Answer<'a, client::MultiDecision> {
        answer!(self.tb_mtake(takes))
    }

    fn lease<'a>(&'a self, key: &'a Key, quota: Quota, want: Want) -> Answer<'a, client::Lease> {
        answer!(self.tb_lease(key, quota, want))
    }

    fn refund<'a>(&'a self, key: &'a Key, quota: Quota, amount: Tokens) -> Answer<'a, client::Refund> {
        answer!(self.tb_refund(key, quota, amount))
    }

    fn debit<'a>(&'a self, key: &'a Key, quota: Quota, cost: Tokens) -> Answer<'a, client::Debit> {
        answer!(self.tb_debit(key, quota, cost))
    }

    fn doubt(&self) {
        self.0.get_ref().doubt();
    }

    fn ready<'a>(&'a self, key: Option<&'a Key>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(self.0.get_ref().ready(key))
    }

    fn using(&self, implementation: Implementation) -> Arc<dyn Buckets> {
        Arc::new(Self(TokenBuckets::using(implementation, self.0.get_ref().clone())))
    }

    fn served_by(&self) -> Option<Implementation> {
        self.0.served_by()
    }
}

/// RESP3 tells of a lost connection before a call has to find out. What cannot speak it is spoken to in RESP2.
#[derive(Default)]
struct Protocol {
    is_old: AtomicBool,
}

impl Protocol {
    fn version(&self) -> ProtocolVersion {
        if self.is_old.load(Ordering::Relaxed) { ProtocolVersion::RESP2 } else { ProtocolVersion::RESP3 }
    }

    /// Whether to try again, in the older one.
    fn refused<T>(&self, attempt: &RedisResult<T>) -> bool {
        let refused = attempt.as_ref().is_err_and(|error| error.kind() == ErrorKind::RESP3NotSupported);
        refused && !self.is_old.swap(true, Ordering::Relaxed)
    }
}

impl AsyncPushSender for OnLoss {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if push.kind == PushKind::Disconnection {
            self.report();
        }
        Ok(())
    }
}

async fn connect(server: &ConnectionInfo, protocol: &Protocol, on_loss: OnLoss) -> RedisResult<MultiplexedConnection> {
    // The limiter's deadline is over all of a call; a second timer in each would only cost.
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None)
        .set_pipeline_buffer_size(BUFFERED_CALLS);
    let dial = async |version: ProtocolVersion, config: &AsyncConnectionConfig| {
        let redis = server.redis_settings().clone().set_protocol(version);
        Client::open(server.clone().set_redis_settings(redis))?
            .get_multiplexed_async_connection_with_config(config)
            .await
    };
    if protocol.version() == ProtocolVersion::RESP3 {
        let attempt = dial(ProtocolVersion::RESP3, &config.clone().set_push_sender(on_loss)).await;
        if !protocol.refused(&attempt) {
            return attempt;
        }
    }
    dial(ProtocolVersion::RESP2, &config).await
}

/// One server, or one node of a cluster.
pub(crate) struct Standalone {
    server: ConnectionInfo,
    protocol: Protocol,
}

impl Standalone {
    pub(crate) fn new(server: ConnectionInfo) -> Self {
        Self { server, protocol: Protocol::default() }
    }
}

impl Connect for Standalone {
    type Connection = MultiplexedConnection;
    const PATIENCE: Duration = Duration::from_millis(500);
    const REST: Duration = Duration::from_millis(500);
    const MENDS_ITSELF: bool = false;

    async fn connect(&self, on_loss: OnLoss) -> RedisResult<MultiplexedConnection> {
        connect(&self.server, &self.protocol, on_loss).await
    }
}

#[cfg(feature = "sentinel")]
mod sentinel {
    //! The master that a Sentinel names.

    use client::redis::sentinel::SentinelClient;

    use super::{Connect, Duration, MultiplexedConnection, OnLoss, Protocol, RedisResult};

    pub(super) struct Sentinel {
        pub(super) sentinels: tokio::sync::Mutex<SentinelClient>,
        pub(super) protocol: Protocol,
    }

    impl Connect for Sentinel {
        type Connection = MultiplexedConnection;
        /// Several Sentinels may be down, and the one that is not is asked last.
        const PATIENCE: Duration = Duration::from_secs(2);
        const REST: Duration = Duration::from_millis(500);
        const MENDS_ITSELF: bool = false;

        async fn connect(&self, on_loss: OnLoss) -> RedisResult<MultiplexedConnection> {
            let master = self.sentinels.lock().await.async_get_client().await?;
            let master = client::recommended::connection_info(master.get_connection_info().clone())?;
            super::connect(&master, &self.protocol, on_loss).await
        }
    }
}
