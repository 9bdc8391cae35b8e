//! Several servers as one: a cluster of six and a client that follows its redirections; a primary, its replicas and
//! three sentinels.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::callers::{CALL_PATIENCE, CALLERS, Line, Outcome, command};
use crate::network::{address, at};
use crate::process::{Folder, Process, connect};
use crate::support::{Client, Reply, Server, Setup, eventually, free_port, server_binary};

const SHARDS: usize = 3;
const SLOTS: usize = 16384;

/// Three primaries and a replica of each.
pub(crate) struct Cluster {
    /// The primaries, then their replicas in the same order.
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    /// Nodes that take one another for dead after so long. Only the first shard's replica may take over, so a machine
    /// that stalls fails over nothing that a test does not watch.
    pub(crate) fn start(node_timeout: Duration) -> Cluster {
        Cluster::start_at(node_timeout, |_| LOOPBACK.to_owned())
    }

    /// As [`Cluster::start`], each node with an address of its own, at which it can be cut off.
    pub(crate) fn start_apart(node_timeout: Duration) -> Cluster {
        Cluster::start_at(node_timeout, address)
    }

    fn start_at(node_timeout: Duration, address: impl Fn(usize) -> String) -> Cluster {
        let timeout = node_timeout.as_millis().to_string();
        let nodes = (0..2 * SHARDS).map(|number| node(&timeout, number == SHARDS, &address(number))).collect();
        let cluster = Cluster { nodes };
        let mut clients: Vec<Client> = cluster.nodes.iter().map(Server::client).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
        }
        for (shard, client) in clients[..SHARDS].iter_mut().enumerate() {
            let (first, last) = (shard * SLOTS / SHARDS, (shard + 1) * SLOTS / SHARDS - 1);
            client.ok(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        }
        for (number, node) in cluster.nodes.iter().enumerate().skip(1) {
            let bus = node.client().ask("CONFIG GET cluster-port").field("cluster-port").text().to_owned();
            clients[0].ok(&format!("CLUSTER MEET {} {} {bus}", address(number), node.port()));
        }
        for client in &mut clients {
            eventually("all nodes know one another", || {
                let nodes = client.bytes("CLUSTER NODES");
                let nodes = String::from_utf8_lossy(&nodes).into_owned();
                let known = nodes.lines().filter(|line| !line.contains("handshake") && !line.contains("noaddr"));
                (known.count() == 2 * SHARDS).then_some(())
            });
        }
        for shard in 0..SHARDS {
            let primary = cluster.id(shard);
            clients[SHARDS + shard].ok(&format!("CLUSTER REPLICATE {primary}"));
        }
        for client in &mut clients {
            await_state(client, "ok");
            // A replica that its shard's voters do not know as one gets no votes.
            eventually("all nodes know the replicas", || {
                let nodes = client.bytes("CLUSTER NODES");
                (String::from_utf8_lossy(&nodes).matches("slave").count() == SHARDS).then_some(())
            });
        }
        for shard in 0..SHARDS {
            cluster.nodes[SHARDS + shard].catch_up(&cluster.nodes[shard]);
        }
        cluster
    }

    pub(crate) fn replica_of(&self, shard: usize) -> &Server {
        &self.nodes[SHARDS + shard]
    }

    pub(crate) fn id(&self, node: usize) -> String {
        self.nodes[node].client().ask("CLUSTER MYID").text().to_owned()
    }

    pub(crate) fn router(&self) -> Router {
        let nodes = self.nodes.iter().map(Server::port).collect();
        Router { nodes, owner: HashMap::new(), links: HashMap::new(), patience: CALL_PATIENCE }
    }

    /// A line for each caller.
    pub(crate) fn lines(&self) -> Vec<Router> {
        (0..CALLERS).map(|_| self.router()).collect()
    }

    /// A tag that puts keys into a slot of this shard; every `variant` has another.
    pub(crate) fn tag(&self, shard: usize, variant: usize) -> String {
        let slots = shard * SLOTS / SHARDS..(shard + 1) * SLOTS / SHARDS;
        let tags = (0..).map(|number| format!("{{t{number}}}")).filter(|tag| slots.contains(&usize::from(slot(tag))));
        tags.skip(variant).find(|_| true).expect("tags without end")
    }

    /// Asserts that every node is the process it was and has reported no fault.
    pub(crate) fn assert_sound(&self, but: Option<usize>) {
        for (number, node) in self.nodes.iter().enumerate() {
            if Some(number) != but {
                assert_eq!(node.client().ask("PING").text(), "PONG");
            }
            assert!(!node.log().contains("BUG REPORT"), "node {number} reports a fault");
        }
    }
}

/// Waits until a node takes the cluster for `ok`, or for `fail`.
pub(crate) fn await_state(client: &mut Client, state: &str) {
    eventually("the node's view of the cluster has changed", || {
        let info = client.bytes("CLUSTER INFO");
        String::from_utf8_lossy(&info).contains(&format!("cluster_state:{state}")).then_some(())
    });
}

const LOOPBACK: &str = "127.0.0.1";

fn node(timeout: &str, may_take_over: bool, address: &str) -> Server {
    let mut failure = String::new();
    for _ in 0..5 {
        // The bus is by default ten thousand ports above, where a port that the system hands out has no room.
        let setup = Server::setup()
            .config("cluster-enabled", "yes")
            .config("cluster-port", &free_port().to_string())
            .config("cluster-node-timeout", timeout)
            .config("cluster-replica-no-failover", if may_take_over { "no" } else { "yes" })
            .config("cluster-replica-validity-factor", "0")
            .config("cluster-allow-replica-migration", "no");
        let apart = |setup: Setup| at(setup, address).config("cluster-announce-ip", address);
        let setup = if address == LOOPBACK { setup } else { apart(setup) };
        match setup.try_start() {
            Ok(server) => return server,
            Err(log) => failure = log,
        }
    }
    panic!("no cluster node comes up: {failure}");
}

/// The slot of a key with a tag.
pub(crate) fn slot(tag: &str) -> u16 {
    let inside = tag.trim_start_matches('{').split('}').next().unwrap_or_default();
    let crc = inside.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc >> 15 == 1 { crc << 1 ^ 0x1021 } else { crc << 1 })
    });
    crc % SLOTS as u16
}

/// A cluster client: it remembers who owns a slot, and follows `MOVED` and `ASK`.
pub(crate) struct Router {
    nodes: Vec<u16>,
    owner: HashMap<u16, u16>,
    links: HashMap<u16, redis::Connection>,
    patience: Duration,
}

impl Router {
    /// Takes a call for lost after half a second: for nodes that stand still.
    pub(crate) fn impatient(self) -> Router {
        Router { patience: Duration::from_millis(500), ..self }
    }
}

const HOPS: usize = 64;

impl Line for Router {
    fn call<T: redis::FromRedisValue>(&mut self, tag: &str, line: &str) -> Outcome<T> {
        let command = command(line);
        let slot = slot(tag);
        let (mut port, mut asking) = (*self.owner.entry(slot).or_insert(self.nodes[0]), false);
        for hop in 0..HOPS {
            let link = match self.links.remove(&port).or_else(|| connect(port, self.patience)) {
                Some(link) => self.links.entry(port).or_insert(link),
                None => {
                    (port, asking) = (self.nodes[hop % self.nodes.len()], false);
                    continue;
                }
            };
            if asking && redis::cmd("ASKING").exec(link).is_err() {
                self.links.remove(&port);
                return Outcome::Unavailable;
            }
            match command.query(link) {
                Ok(answer) => return Outcome::Answer(port, answer),
                Err(error) => {
                    let redirect = error
                        .redirect_node()
                        .and_then(|(address, _)| address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()));
                    match (error.code(), redirect) {
                        (Some("MOVED"), Some(to)) => {
                            self.owner.insert(slot, to);
                            (port, asking) = (to, false);
                        }
                        (Some("ASK"), Some(to)) => (port, asking) = (to, true),
                        (Some("TRYAGAIN" | "LOADING"), _) => std::thread::sleep(Duration::from_millis(1)),
                        (Some("CLUSTERDOWN" | "READONLY" | "MASTERDOWN"), _) => {
                            std::thread::sleep(Duration::from_millis(5));
                            self.owner.insert(slot, self.nodes[(hop + 1) % self.nodes.len()]);
                            return Outcome::Unavailable;
                        }
                        (Some(code), _) => panic!("{line} was answered {code}: {error}"),
                        (None, _) => {
                            self.links.remove(&port);
                            self.owner.insert(slot, self.nodes[(hop + 1) % self.nodes.len()]);
                            return Outcome::Lost;
                        }
                    }
                }
            }
        }
        Outcome::Unavailable
    }
}

/// A primary, its replicas and three sentinels that watch them.
pub(crate) struct Watched {
    pub(crate) primary: Server,
    pub(crate) replicas: Vec<Server>,
    pub(crate) sentinels: Vec<Process>,
    _folders: Vec<Folder>,
}

impl Watched {
    pub(crate) fn start(replicas: usize) -> Watched {
        let primary = Server::start();
        let replicas: Vec<Server> = (0..replicas).map(|_| Server::start()).collect();
        for replica in &replicas {
            replica.follow(&primary);
        }
        let folders: Vec<Folder> = (0..3).map(|_| Folder::new("sentinel")).collect();
        let sentinels: Vec<Process> = folders.iter().map(|folder| sentinel(folder, primary.port())).collect();
        for sentinel in &sentinels {
            let mut client = sentinel.client();
            eventually("the sentinels know the replicas and one another", || {
                let state = client.ask("SENTINEL MASTER watched");
                let count = |field: &str| state.field(field).text().parse::<usize>().expect("a count");
                (count("num-slaves") == replicas.len() && count("num-other-sentinels") == 2).then_some(())
            });
            // A sentinel that has met another has not yet heard from it; a failover needs both.
            eventually("a quorum is there", || (!client.ask("SENTINEL CKQUORUM watched").is_error()).then_some(()));
        }
        Watched { primary, replicas, sentinels, _folders: folders }
    }

    /// Where a sentinel sends clients now.
    pub(crate) fn address(sentinel: &mut Client) -> u16 {
        match sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME watched") {
            Reply::Array(address) => address[1].text().parse().expect("a port"),
            other => panic!("no address: {other:?}"),
        }
    }
}

fn sentinel(folder: &Folder, primary: u16) -> Process {
    let port = free_port();
    let config = folder.path().join("sentinel.conf");
    let lines = format!(
        "bind 127.0.0.1\nport {port}\ndir {}\n\
         sentinel monitor watched 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds watched 1000\n\
         sentinel failover-timeout watched 20000\n",
        folder.path().display()
    );
    fs::write(&config, lines).expect("a configuration");
    let mut command = Command::new(server_binary());
    command.arg(&config).arg("--sentinel");
    Process::start(command, port, folder.path())
}
