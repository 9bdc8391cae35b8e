//! Configurations for a limiter, whose answer is worth little when it comes late: redis-rs' own defaults are made for
//! other uses, and some of them charge twice.
#![cfg_attr(
    not(any(feature = "connection-manager", feature = "cluster")),
    allow(unused_imports, reason = "each of these features brings its own configuration")
)]

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

/// How long an answer may take, unless you know better: far longer than a limiter needs, far shorter than callers wait.
pub const DEADLINE: Duration = Duration::from_millis(50);

/// A connection is set up once and for many calls, so it may take longer than an answer.
#[cfg(any(feature = "connection-manager", feature = "cluster"))]
const CONNECT: Duration = Duration::from_millis(500);

/// The server's address, with small packets sent at once (`TCP_NODELAY`), which is not the default.
///
/// # Errors
/// An address that is none.
pub fn connection_info(server: impl IntoConnectionInfo) -> RedisResult<ConnectionInfo> {
    let info = server.into_connection_info()?;
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp))
}

/// For a `ConnectionManager`: answers within `deadline`, and a connection that comes back within a fifth of a second of
/// the server's return.
///
/// With the defaults a call waits half a second for an answer, and the calls after a lost connection wait for it
/// together, for more than nine seconds. Even so a call that finds no connection waits for the next attempt: put a
/// timeout of your own around each.
#[cfg(feature = "connection-manager")]
#[must_use]
pub fn connection_manager_config(deadline: Duration) -> redis::aio::ConnectionManagerConfig {
    redis::aio::ConnectionManagerConfig::new()
        .set_response_timeout(Some(deadline))
        .set_connection_timeout(Some(CONNECT.max(deadline)))
        .set_min_delay(Duration::from_millis(20))
        .set_max_delay(Duration::from_millis(200))
        .set_number_of_retries(1_000)
        .set_pipeline_buffer_size(1_024)
}

/// For a cluster: answers within `deadline`, retries included.
///
/// The cluster connection sends a call again when no answer came in `response_timeout`, if `overall_response_timeout`
/// leaves time for that; and the call that was late is carried out as well, so one take charges twice. Here, as by
/// default, the two are equal, so it has no time left. Without a timeout, the default, a stopped node holds its calls
/// for ever. Do not turn to `retries(0)`: that also stops it from following a slot to its new node.
///
/// What remains: a call whose connection breaks after the server has carried it out is sent again within the deadline, and
/// the async connection does not always come back from the loss of a master. Make another one when calls have been timing
/// out for some seconds.
#[cfg(feature = "cluster")]
#[must_use]
pub fn cluster_client_builder<T: IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = T>,
    deadline: Duration,
) -> redis::cluster::ClusterClientBuilder {
    redis::cluster::ClusterClient::builder(nodes)
        .response_timeout(deadline)
        .connection_timeout(CONNECT.max(deadline))
        .min_retry_wait(5)
        .max_retry_wait(50)
        .tcp_settings(TcpSettings::default().set_nodelay(true))
}
