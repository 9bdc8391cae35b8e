//! A cluster: which node has which slots, and a connection to each node.
//!
//! redis-rs' own cluster connection sends a call again when its connection breaks off, which can charge twice; without those
//! retries it does not follow slots; it never leaves a node that stands still; and while it reads the map of slots anew it
//! serves nobody. Here a call goes to one node, and to another only where the first has refused it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::redis::aio::ConnectionLike;
use client::redis::{
    Arg, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError,
    RedisFuture, RedisResult, ServerErrorKind, Value, cmd,
};
use tokio::time::timeout;

use crate::link::{Connect, Link, OnLoss};
use crate::redis::Standalone;

/// Nodes own contiguous slots, as a rule: of so many ranges most lie on one node.
pub(crate) const RANGES: usize = 64;
const SLOTS: u16 = 16_384;
/// How long a node may take to say which slots are where, before another one is asked.
const ANSWER: Duration = Duration::from_millis(100);
/// How often a call may be sent on: while a slot moves, the nodes may disagree.
const HOPS: usize = 4;
/// How long a node is given that has some keys of a call and not yet the others.
const PAUSE: Duration = Duration::from_millis(5);

/// The cluster slot of a key: CRC-16/XMODEM of its hash tag, if it has one.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|at| {
        let rest = key.get(at.saturating_add(1)..)?;
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..end).filter(|tag| !tag.is_empty())
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    });
    crc % SLOTS
}

/// Which range of slots, out of so many, a key is in.
pub(crate) fn range(key: &[u8], ranges: usize) -> Option<usize> {
    usize::from(slot(key)).checked_mul(ranges)?.checked_div(usize::from(SLOTS))
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Reads `host:port`, as a node writes it that sends a call elsewhere.
    fn parse(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::named(Some(host), port.parse().ok()?, asked))
    }

    /// A node as a node names it; one that does not know the host leaves it out, or writes `?`.
    fn named(host: Option<&str>, port: u16, asked: &Self) -> Self {
        let host = host.filter(|host| !host.is_empty() && *host != "?").unwrap_or(&asked.host);
        Self { host: host.to_owned(), port }
    }
}

/// A connection to each node, made when it is first needed.
struct Nodes {
    /// What goes for all nodes: user, password, TLS.
    template: ConnectionInfo,
    links: Mutex<HashMap<Address, Link<Standalone>>>,
}

impl Nodes {
    fn link(&self, address: &Address) -> Link<Standalone> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let connect = || Link::new(Standalone::new(self.template.clone().set_addr(self.at(address))));
        links.entry(address.clone()).or_insert_with(connect).clone()
    }

    fn at(&self, Address { host, port }: &Address) -> ConnectionAddr {
        match self.template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        }
    }

    fn known(&self) -> Vec<Address> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn retain(&self, map: &Map) {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).retain(|address, _| map.names(address));
    }
}

/// Where the slots are: ranges with their last slot, in order.
struct Map(Vec<(u16, u16, Address)>);

impl Map {
    /// Reads the reply to `CLUSTER SLOTS` of the node that was asked.
    fn read(reply: Value, asked: &Address) -> RedisResult<Self> {
        let ranges: Vec<Vec<Value>> = Vec::from_redis_value(reply)?;
        let mut map = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut range = range.into_iter();
            let (Some(first), Some(last), Some(primary)) = (range.next(), range.next(), range.next()) else {
                return Err(unreadable());
            };
            let mut primary = Vec::<Value>::from_redis_value(primary)?.into_iter();
            let (Some(host), Some(port)) = (primary.next(), primary.next()) else { return Err(unreadable()) };
            let host = Option::<String>::from_redis_value(host)?;
            let address = Address::named(host.as_deref(), u16::from_redis_value(port)?, asked);
            map.push((u16::from_redis_value(first)?, u16::from_redis_value(last)?, address));
        }
        map.sort_by_key(|(first, ..)| *first);
        if map.is_empty() { Err(unreadable()) } else { Ok(Self(map)) }
    }

    fn owner(&self, slot: u16) -> Option<&Address> {
        let at = self.0.partition_point(|(_, last, _)| *last < slot);
        self.0.get(at).filter(|(first, ..)| *first <= slot).map(|(.., address)| address)
    }

    fn names(&self, address: &Address) -> bool {
        self.0.iter().any(|(.., named)| named == address)
    }
}

fn unreadable() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "not a map of slots").into()
}

/// How the map of slots is found.
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    nodes: Arc<Nodes>,
    turn: AtomicUsize,
}

impl Cluster {
    pub(crate) fn new<T: IntoConnectionInfo>(seeds: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        let seeds = seeds.into_iter().map(client::recommended::connection_info).collect::<RedisResult<Vec<_>>>()?;
        let addresses = seeds.iter().map(|seed| match seed.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(Address { host: host.clone(), port: *port })
            }
            _ => Err(RedisError::from((ErrorKind::InvalidClientConfig, "a cluster has no node at such an address"))),
        });
        let addresses = addresses.collect::<RedisResult<_>>()?;
        let Some(template) = seeds.into_iter().next() else {
            return Err((ErrorKind::InvalidClientConfig, "a cluster needs a node to begin with").into());
        };
        let nodes = Arc::new(Nodes { template, links: Mutex::default() });
        Ok(Self { seeds: addresses, nodes, turn: AtomicUsize::new(0) })
    }

    async fn ask(&self, address: &Address) -> RedisResult<Map> {
        let mut question = cmd("CLUSTER");
        question.arg("SLOTS");
        let mut link = self.nodes.link(address);
        match timeout(ANSWER, link.req_packed_command(&question)).await {
            Ok(reply) => Map::read(reply.and_then(Value::extract_error)?, address),
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
}

impl Connect for Cluster {
    type Connection = Routed;
    const PATIENCE: Duration = Duration::from_secs(2);
    const REST: Duration = Duration::from_millis(100);
    const MENDS_ITSELF: bool = true;

    async fn leads_to(routed: &Routed, key: &[u8]) -> bool {
        match routed.owner(slot(key)) {
            Ok(node) => routed.nodes.link(&node).is_up().await,
            Err(_) => false,
        }
    }

    /// Asks one node after the other, beginning with another one each time: one of them may be wrong, or stand still.
    async fn connect(&self, is_stale: OnLoss) -> RedisResult<Routed> {
        let mut asked = self.nodes.known();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(asked.len().max(1)).unwrap_or_default();
        asked.rotate_left(turn);
        asked.extend(self.seeds.iter().cloned());
        let mut failure = unreadable();
        for address in &asked {
            match self.ask(address).await {
                Ok(map) => {
                    self.nodes.retain(&map);
                    return Ok(Routed {
                        map: Arc::new(map),
                        nodes: Arc::clone(&self.nodes),
                        is_stale: Arc::new(is_stale),
                    });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// A map of slots, and the connections to the nodes on it.
#[derive(Clone)]
pub(crate) struct Routed {
    map: Arc<Map>,
    nodes: Arc<Nodes>,
    is_stale: Arc<OnLoss>,
}

/// What to do about an answer.
enum Next {
    Done,
    /// Send it there, with or without telling the node that it may answer.
    To(Address),
    Asking(Address),
    Again,
}

impl Routed {
    fn owner(&self, slot: u16) -> RedisResult<Address> {
        self.map.owner(slot).cloned().ok_or_else(|| {
            self.is_stale.report();
            (ServerErrorKind::ClusterDown.into(), "no node has this slot").into()
        })
    }

    async fn send(&self, node: &Address, cmd: &Cmd) -> RedisResult<Value> {
        match self.nodes.link(node).req_packed_command(cmd).await {
            // An error in an answer comes as a value.
            Ok(Value::ServerError(error)) => Err(error.into()),
            answer => answer,
        }
    }

    /// Reads an answer for what it says about the map.
    fn next(&self, error: &RedisError, asked: &Address) -> Next {
        use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
        let elsewhere = || error.redirect_node().and_then(|(node, _)| Address::parse(node, asked));
        match error.kind() {
            ErrorKind::Server(Moved) => {
                self.is_stale.report();
                elsewhere().map_or(Next::Done, Next::To)
            }
            ErrorKind::Server(Ask) => elsewhere().map_or(Next::Done, Next::Asking),
            ErrorKind::Server(TryAgain) => Next::Again,
            ErrorKind::Server(ReadOnly | ClusterDown | MasterDown) | ErrorKind::Io => {
                self.is_stale.report();
                Next::Done
            }
            _ => Next::Done,
        }
    }
}

/// The first key of a command of ours.
fn key(cmd: &Cmd) -> &[u8] {
    let arg = |at| match cmd.args_iter().nth(at) {
        Some(Arg::Simple(bytes)) => bytes,
        _ => b"".as_slice(),
    };
    // EVALSHA hash count key
    if arg(0).starts_with(b"EVAL") { arg(3) } else { arg(1) }
}

impl ConnectionLike for Routed {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut node = self.owner(slot(key(cmd)))?;
            let mut answer = self.send(&node, cmd).await;
            for _ in 0..HOPS {
                let Err(error) = &answer else { break };
                answer = match self.next(error, &node) {
                    Next::Done => break,
                    Next::To(address) => {
                        node = address;
                        self.send(&node, cmd).await
                    }
                    Next::Asking(address) => {
                        node = address;
                        asking(self.nodes.link(&node), cmd).await
                    }
                    Next::Again => {
                        tokio::time::sleep(PAUSE).await;
                        self.send(&node, cmd).await
                    }
                };
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let first = pipeline.cmd_iter().next().map(key).unwrap_or_default();
            let node = self.owner(slot(first))?;
            self.nodes.link(&node).req_packed_commands(pipeline, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Sends a call to the node that its slot is moving to, which has to be told that it may answer.
async fn asking(mut node: Link<Standalone>, cmd: &Cmd) -> RedisResult<Value> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("ASKING").add_command(cmd.clone());
    let mut answers = node.req_packed_commands(&pipeline, 1, 1).await?;
    answers.pop().ok_or_else(unreadable)?.extract_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_the_ones_of_the_server() {
        // As CLUSTER KEYSLOT says.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"rl:{user1000}:api"), 3443);
        assert_eq!(slot(b"{user1000}.followers"), 3443);
        assert_eq!(slot(b"foo{}{bar}"), 8363);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b""), 0);
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    #[test]
    fn a_map_says_who_owns_a_slot_and_where_nobody_does() {
        let asked = Address { host: "seed".to_owned(), port: 1 };
        let reply = Value::Array(vec![
            range(8_000, 16_383, Value::Nil, 3),
            range(0, 99, Value::BulkString(b"a".to_vec()), 1),
            range(200, 7_999, Value::BulkString(b"".to_vec()), 2),
        ]);
        let map = Map::read(reply, &asked).unwrap();
        let owner = |slot| map.owner(slot).map(|address| (address.host.as_str(), address.port));
        assert_eq!(owner(0), Some(("a", 1)));
        assert_eq!(owner(99), Some(("a", 1)));
        assert_eq!(owner(100), None);
        assert_eq!(owner(200), Some(("seed", 2)));
        assert_eq!(owner(8_000), Some(("seed", 3)));
        assert_eq!(owner(16_383), Some(("seed", 3)));
        assert!(Map::read(Value::Array(vec![]), &asked).is_err());
        assert!(Map::read(Value::Int(1), &asked).is_err());
    }

    #[test]
    fn a_node_is_found_by_whatever_it_is_called() {
        let asked = Address { host: "asked".to_owned(), port: 1 };
        let parse = |text| Address::parse(text, &asked).map(|address| (address.host, address.port));
        let names = [
            ("10.0.0.1:7000", "10.0.0.1"),
            ("::1:7000", "::1"),
            ("fe80::1:2:7000", "fe80::1:2"),
            (":7000", "asked"),
            ("?:7000", "asked"),
        ];
        for (text, host) in names {
            assert_eq!(parse(text), Some((host.to_owned(), 7_000)), "{text}");
        }
        for text in ["", "host", "host:", "host:70000"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_key_is_found_in_commands_and_scripts() {
        let mut take = cmd("TB.TAKE");
        take.arg("k").arg(1);
        assert_eq!(key(&take), b"k");
        let mut script = cmd("EVALSHA");
        script.arg("hash").arg(1).arg("k");
        assert_eq!(key(&script), b"k");
    }
}
