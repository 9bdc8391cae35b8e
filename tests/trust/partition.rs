//! A primary that the network cuts off from the other servers, but not from its callers: how long it goes on granting,
//! and what that costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::callers::{CALLERS, assert_only_the_lag_is_granted_twice, direct_to, limits, under_load, with_lag_watched};
use crate::cluster::{NODE_TIMEOUT, assert_no_key_is_stuck, await_return, become_primary};
use crate::network::{address, at, cut_off, heal, with_own_network};
use crate::support::{Server, eventually};
use crate::topology::{Cluster, await_state};

#[test]
fn a_primary_of_a_cluster_that_is_cut_off_goes_on_for_about_the_node_timeout() {
    with_own_network(|| {
        let cluster = Cluster::start_apart(NODE_TIMEOUT);
        let tags: Vec<String> = (0..2).map(|variant| cluster.tag(0, variant)).collect();
        let limits = limits(tags.iter().map(String::as_str));
        let (old, new) = (cluster.nodes[0].port(), cluster.replica_of(0).port());
        let body = || {
            thread::sleep(Duration::from_millis(500));
            cut_off(&address(0));
            let cut = Instant::now();
            let mut client = cluster.nodes[0].client();
            await_state(&mut client, "fail");
            let went_on = cut.elapsed();
            become_primary(&mut cluster.replica_of(0).client());
            thread::sleep(Duration::from_millis(300));
            let quiet = Instant::now();
            thread::sleep(Duration::from_millis(500));
            heal();
            await_return(&mut client);
            (cut, quiet, went_on)
        };
        let ((seen, (cut, quiet, went_on)), safe) =
            with_lag_watched(old, new, || under_load(cluster.lines(), &limits, body));
        let grants = |port: u16, since: Instant| seen.tally.since(port, since).values().sum::<i64>();
        assert!(grants(old, cut) > 0, "its callers were cut off too");
        assert_eq!(grants(old, quiet), 0, "it still grants");
        assert!(grants(new, quiet) > 0, "the new primary grants nothing");
        assert!(went_on < 3 * NODE_TIMEOUT, "it went on for {went_on:?}");
        println!("cut off, the primary went on for {went_on:?}, with a node timeout of {NODE_TIMEOUT:?}");
        assert_only_the_lag_is_granted_twice(&mut cluster.router(), &limits, &seen, old, safe);
        assert_no_key_is_stuck(&cluster, &limits);
        cluster.assert_sound(None);
    });
}

#[test]
fn a_primary_that_must_have_a_replica_stops_soon_after_it_is_cut_off() {
    with_own_network(|| {
        let primary = at(Server::setup(), &address(0));
        let primary = primary.config("min-replicas-to-write", "1").config("min-replicas-max-lag", "1").start();
        let replica = at(Server::setup(), &address(1)).start();
        replica.client().ok(&format!("REPLICAOF {} {}", address(0), primary.port()));
        replica.catch_up(&primary);
        let (old, new) = (primary.port(), replica.port());
        let target = Arc::new(AtomicU16::new(old));
        let line = || direct_to(&target).excusing(&["NOREPLICAS "]);
        let limits = limits(["a", "b"]);
        let mut client = primary.client();
        eventually("the replica counts", || (client.info("min_slaves_good_slaves") == "1").then_some(()));
        let body = || {
            thread::sleep(Duration::from_millis(500));
            cut_off(&address(0));
            let cut = Instant::now();
            eventually("the primary misses its replica", || {
                client.ask("TB.TAKE probe 1e15 0").is_error().then_some(())
            });
            let went_on = cut.elapsed();
            thread::sleep(Duration::from_millis(300));
            let quiet = Instant::now();
            assert!(client.ask("TB.TAKE probe 1e15 0").error().starts_with("NOREPLICAS "));
            assert_eq!(client.ask("TB.PEEK fresh 5 1").ints(), [1, 5, 0], "whoever only looks is answered");
            replica.client().ok("REPLICAOF NO ONE");
            target.store(new, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(300));
            (cut, quiet, went_on)
        };
        let lines = (0..CALLERS).map(|_| line()).collect();
        let ((seen, (cut, quiet, went_on)), safe) = with_lag_watched(old, new, || under_load(lines, &limits, body));
        let grants = |port: u16, since: Instant| seen.tally.since(port, since).values().sum::<i64>();
        assert!(grants(old, cut) > 0, "its callers were cut off too");
        assert_eq!(grants(old, quiet), 0, "it still grants");
        assert!(grants(new, quiet) > 0, "the new primary grants nothing");
        // A replica answers every second, and is missed by a check that comes every second.
        assert!(went_on < Duration::from_secs(5), "it went on for {went_on:?}");
        println!("cut off, the primary went on for {went_on:?}, with a replica due every second");
        assert_only_the_lag_is_granted_twice(&mut line(), &limits, &seen, old, safe);
    });
}
