//! A real cluster of a test's own: primaries that share the slots, and replicas behind them.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use crate::support::{Reply, Server, Setup, eventually, free_port};

/// A cluster of one node, which tells everybody to call it at this port.
pub(crate) fn of_one_behind(port: u16) -> Server {
    let node = start_node(Server::setup().config("cluster-announce-port", &port.to_string()));
    node.client().ok("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("the cluster is up", || {
        let info = node.client().bytes("CLUSTER INFO");
        String::from_utf8_lossy(&info).contains("cluster_state:ok").then_some(())
    });
    node
}

/// The nodes of a cluster, the primaries first; gone when dropped.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    primaries: usize,
}

impl Cluster {
    /// Three primaries without replicas.
    pub(crate) fn of_three() -> Cluster {
        Cluster::start(vec![Server::setup(); 3], 3)
    }

    /// Three primaries of which the first does not have the module.
    pub(crate) fn of_three_mixed() -> Cluster {
        Cluster::start(vec![Server::setup().without_module(), Server::setup(), Server::setup()], 3)
    }

    /// Three primaries with a replica each.
    pub(crate) fn of_three_pairs() -> Cluster {
        Cluster::start(vec![Server::setup(); 6], 3)
    }

    fn start(setups: Vec<Setup>, primaries: usize) -> Cluster {
        let cluster = Cluster { nodes: setups.into_iter().map(start_node).collect(), primaries };
        cluster.share_the_slots();
        cluster.introduce();
        cluster.attach_replicas();
        cluster
    }

    /// Addresses to begin with.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port())).collect()
    }

    pub(crate) fn primaries(&self) -> &[Server] {
        &self.nodes[..self.primaries]
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Waits until every replica holds what its primary holds.
    pub(crate) fn let_the_replicas_catch_up(&self) {
        let (primaries, replicas) = self.nodes.split_at(self.primaries);
        for (primary, replica) in primaries.iter().zip(replicas) {
            replica.catch_up(primary);
        }
    }

    /// `kill -9` to a primary, which leaves the cluster without it.
    pub(crate) fn kill_primary(&mut self, at: usize) {
        self.primaries -= 1;
        self.nodes.remove(at).kill();
    }

    /// Which primary holds a slot.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        usize::from(slot) / slots_each(self.primaries)
    }

    fn share_the_slots(&self) {
        let each = slots_each(self.primaries);
        for (at, node) in self.primaries().iter().enumerate() {
            let last = if at + 1 == self.primaries { 16_383 } else { (at + 1) * each - 1 };
            node.client().ok(&format!("CLUSTER ADDSLOTSRANGE {} {last}", at * each));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            node.client().ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
        }
    }

    fn introduce(&self) {
        let mut first = self.nodes[0].client();
        for node in &self.nodes[1..] {
            let mut client = node.client();
            let bus = client.ask("CONFIG GET cluster-port").items()[1].text().to_owned();
            first.ok(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()));
        }
        for node in &self.nodes {
            let mut client = node.client();
            eventually("the nodes know each other", || {
                let info = client.bytes("CLUSTER INFO");
                let info = String::from_utf8_lossy(&info).into_owned();
                let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
                (info.contains("cluster_state:ok") && info.contains(&known)).then_some(())
            });
        }
    }

    fn attach_replicas(&self) {
        let ids: Vec<String> =
            self.primaries().iter().map(|node| node.client().ask("CLUSTER MYID").text().to_owned()).collect();
        for (at, node) in self.nodes[self.primaries..].iter().enumerate() {
            let mut client = node.client();
            eventually("the replica knows its primary", || {
                let reply = client.ask(&format!("CLUSTER REPLICATE {}", ids[at]));
                matches!(&reply, Reply::Text(text) if text == b"OK").then_some(())
            });
            eventually("the replica is in sync", || (client.info("master_link_status") == "up").then_some(()));
        }
        for node in &self.nodes {
            let mut client = node.client();
            eventually("every node has heard of the replicas", || {
                let nodes = client.bytes("CLUSTER NODES");
                let nodes = String::from_utf8_lossy(&nodes).into_owned();
                (nodes.matches("slave").count() == self.nodes.len() - self.primaries).then_some(())
            });
        }
    }
}

fn slots_each(primaries: usize) -> usize {
    16_384 / primaries
}

fn start_node(setup: Setup) -> Server {
    loop {
        // The default, ten thousand above the port, may lie beyond the last port.
        let setup = setup
            .clone()
            .config("cluster-enabled", "yes")
            .config("cluster-node-timeout", "1500")
            .config("cluster-port", &free_port().to_string());
        match setup.try_start() {
            Ok(server) => return server,
            Err(log) if log.contains("Address already in use") => {}
            Err(log) => panic!("{log}"),
        }
    }
}
