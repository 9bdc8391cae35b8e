//! A cluster of six: slots that move back and forth under load, a primary that is killed, one that stands still and
//! comes back. What is granted twice is no more than what the old primary had granted and not yet told its replica.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::callers::{
    Limit, Line, Outcome, Seen, assert_only_the_lag_is_granted_twice, limits, taken, under_load, with_lag_watched,
};
use crate::process::{info, signal};
use crate::short_or_long;
use crate::support::{Client, Reply, eventually};
use crate::topology::{Cluster, Router, await_state, slot};

/// Every key is on one primary, has its expiry there and on the replica, is granted again, and vanishes.
pub(crate) fn assert_no_key_is_stuck(cluster: &Cluster, limits: &[Limit]) {
    let mut holders: HashMap<String, usize> = HashMap::new();
    for node in &cluster.nodes {
        let Some(info) = info(node.port()) else { continue };
        let mut client = node.client();
        client.ok("READONLY");
        let is_primary = info.contains("role:master");
        for key in client.ask("KEYS *").texts() {
            if is_primary {
                *holders.entry(key.to_owned()).or_default() += 1;
            }
            let ttl = client.call(&["PTTL", key]).int();
            let eternal = key.ends_with(":never");
            assert!(if eternal { ttl == -1 } else { ttl != -1 }, "{key} lives {ttl} ms, primary: {is_primary}");
        }
    }
    assert!(holders.values().all(|count| *count == 1), "keys on several primaries: {holders:?}");
    let mut router = cluster.router();
    for limit in limits.iter().filter(|limit| limit.refills()) {
        eventually("a bucket is granted again", || {
            match router.call::<Vec<i64>>(&limit.tag, &limit.call("TB.TAKE", 1)) {
                Outcome::Answer(_, answer) if answer[0] == 1 => Some(()),
                Outcome::Answer(_, answer) => {
                    assert!((1..=1000).contains(&answer[2]), "{} waits {} ms", limit.key, answer[2]);
                    None
                }
                _ => None,
            }
        });
    }
    for node in &cluster.nodes {
        let Some(_) = info(node.port()) else { continue };
        let mut client = node.client();
        eventually("the buckets that refill are forgotten", || {
            client.ask("KEYS *").texts().iter().all(|key| key.ends_with(":never")).then_some(())
        });
    }
}

/// Moves a slot key by key, as `redis-cli --cluster reshard` does.
fn move_slot(cluster: &Cluster, moving: u16, from: usize, to: usize) {
    let (ids, mut source, mut target) =
        ([cluster.id(from), cluster.id(to)], cluster.nodes[from].client(), cluster.nodes[to].client());
    target.ok(&format!("CLUSTER SETSLOT {moving} IMPORTING {}", ids[0]));
    source.ok(&format!("CLUSTER SETSLOT {moving} MIGRATING {}", ids[1]));
    let port = cluster.nodes[to].port().to_string();
    eventually("the slot is empty", || {
        let keys = source.ask(&format!("CLUSTER GETKEYSINSLOT {moving} 2"));
        if keys.items().is_empty() {
            return Some(());
        }
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys.texts());
        let answer = source.call(&migrate);
        assert!(!answer.is_error(), "{answer:?}");
        None
    });
    target.ok(&format!("CLUSTER SETSLOT {moving} NODE {}", ids[1]));
    source.ok(&format!("CLUSTER SETSLOT {moving} NODE {}", ids[1]));
    for other in &cluster.nodes[..3] {
        other.client().ok(&format!("CLUSTER SETSLOT {moving} NODE {}", ids[1]));
    }
}

#[test]
fn slots_that_move_back_and_forth_under_load_grant_no_token_twice() {
    let cluster = Cluster::start(Duration::from_secs(60));
    let tags: Vec<String> = (0..3).map(|variant| cluster.tag(0, variant)).collect();
    let limits = limits(tags.iter().map(String::as_str));
    let rounds = short_or_long(2, 20);
    let (seen, ()) = under_load(cluster.lines(), &limits, || {
        for _ in 0..rounds {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                for tag in &tags {
                    move_slot(&cluster, slot(tag), from, to);
                }
            }
        }
    });
    check_nothing_is_lost(&cluster, &limits, &seen, &format!("{} slots moved key by key", rounds * 9));
}

#[test]
fn slots_that_move_as_a_whole_under_load_grant_no_token_twice() {
    let cluster = Cluster::start(Duration::from_secs(60));
    let Some(mover) = Mover::of(&mut cluster.nodes[0].client()) else {
        println!("skipped: this server moves slots key by key only");
        return;
    };
    let tags: Vec<String> = (0..3).map(|variant| cluster.tag(0, variant)).collect();
    let limits = limits(tags.iter().map(String::as_str));
    let rounds = short_or_long(1, 20);
    let (seen, ()) = under_load(cluster.lines(), &limits, || {
        for _ in 0..rounds {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                for tag in &tags {
                    mover.move_slot(&cluster, slot(tag), from, to);
                }
            }
        }
    });
    check_nothing_is_lost(&cluster, &limits, &seen, &format!("{} slots moved as a whole", rounds * 9));
}

fn check_nothing_is_lost(cluster: &Cluster, limits: &[Limit], seen: &Seen, after: &str) {
    assert_eq!(seen.lost, 0, "calls without an answer while nothing broke");
    let taken = taken(&mut cluster.router(), limits);
    for (key, taken) in &taken {
        assert_eq!(seen.tally.of(*key), *taken, "{}: granted, and missing from the bucket", limits[*key].key);
    }
    for (key, limit) in limits.iter().enumerate() {
        seen.tally.check_bound(key, limit.capacity, limit.rate, 0);
    }
    assert_no_key_is_stuck(cluster, limits);
    cluster.assert_sound(None);
    println!("{} grants, {after}: none twice, none lost", seen.tally.len());
}

/// The servers' own ways of moving a slot in one piece.
enum Mover {
    /// Valkey 9: `CLUSTER MIGRATESLOTS`, asked of the source.
    Push,
    /// Redis 8.4: `CLUSTER MIGRATION IMPORT`, asked of the target.
    Pull,
}

impl Mover {
    fn of(client: &mut Client) -> Option<Mover> {
        let help = client.ask("CLUSTER HELP");
        let has = |word: &str| help.texts().iter().any(|line| line.starts_with(word));
        match (has("MIGRATESLOTS"), has("MIGRATION")) {
            (true, _) => Some(Mover::Push),
            (_, true) => Some(Mover::Pull),
            _ => None,
        }
    }

    fn move_slot(&self, cluster: &Cluster, moving: u16, from: usize, to: usize) {
        let mut asked = cluster.nodes[if matches!(self, Mover::Push) { from } else { to }].client();
        let answer = match self {
            Mover::Push => {
                asked.ask(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {moving} {moving} NODE {}", cluster.id(to)))
            }
            Mover::Pull => asked.ask(&format!("CLUSTER MIGRATION IMPORT {moving} {moving}")),
        };
        assert!(!answer.is_error(), "{answer:?}");
        for node in &cluster.nodes[..3] {
            let (mut client, port) = (node.client(), i64::from(cluster.nodes[to].port()));
            eventually("everybody knows the slot's new owner", || {
                let slots = client.ask("CLUSTER SLOTS");
                let of = |range: &Reply| {
                    let range = range.items();
                    (range[0].int()..=range[1].int()).contains(&i64::from(moving)).then(|| range[2].items()[1].int())
                };
                (slots.items().iter().find_map(of) == Some(port)).then_some(())
            });
        }
    }
}

#[test]
fn a_take_from_several_buckets_of_a_moving_slot_takes_from_all_or_none() {
    let cluster = Cluster::start(Duration::from_secs(60));
    let tag = cluster.tag(0, 0);
    let (mut router, stop) = (cluster.router(), AtomicBool::new(false));
    let call = format!("TB.MTAKE {tag}:a 1000000 0 1 {tag}:b 1000000 0 1 {tag}:c 1000000 0 1");
    let granted = thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut granted = 0;
            while !stop.load(Ordering::Relaxed) {
                // While the keys are on two nodes the cluster answers TRYAGAIN; then nothing may have been taken.
                let answer = router.call::<(i64, i64, i64, Vec<Vec<i64>>)>(&tag, &call);
                granted += i64::from(matches!(answer, Outcome::Answer(_, (1, ..))));
            }
            granted
        });
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
            move_slot(&cluster, slot(&tag), from, to);
        }
        stop.store(true, Ordering::Relaxed);
        caller.join().expect("the caller")
    });
    for name in ["a", "b", "c"] {
        let peek = format!("TB.PEEK {tag}:{name} 1000000 0 0");
        let Outcome::Answer(_, answer) = cluster.router().call::<Vec<i64>>(&tag, &peek) else { panic!("no answer") };
        assert_eq!(1_000_000 - answer[1], granted, "{name}");
    }
    assert!(granted > 0);
    let elsewhere = cluster.tag(1, 0);
    let across = cluster.nodes[0].client().ask(&format!("TB.MTAKE {tag}:a 10 1 1 {elsewhere}:a 10 1 1"));
    assert!(across.error().starts_with("CROSSSLOT "), "{across:?}");
    cluster.assert_sound(None);
}

pub(crate) fn become_primary(client: &mut Client) {
    eventually("the replica has taken over", || (client.info("role") == "master").then_some(()));
    await_state(client, "ok");
}

/// Waits until a primary that was replaced follows the new one and answers for the cluster again.
pub(crate) fn await_return(client: &mut Client) {
    eventually("the old primary follows the new one", || {
        (client.info("role") == "slave" && client.info("master_link_status") == "up").then_some(())
    });
    await_state(client, "ok");
}

pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(1500);

#[test]
fn a_killed_primary_of_a_cluster_costs_no_more_than_the_grants_in_the_lag() {
    let mut cluster = Cluster::start(NODE_TIMEOUT);
    let tags: Vec<String> = (0..2).map(|variant| cluster.tag(0, variant)).collect();
    let limits = limits(tags.iter().map(String::as_str));
    let (old, new) = (cluster.nodes[0].port(), cluster.replica_of(0).port());
    let ((seen, began), safe) = with_lag_watched(old, new, || {
        under_load(cluster.lines(), &limits, || {
            thread::sleep(Duration::from_millis(500));
            cluster.nodes[0].kill();
            become_primary(&mut cluster.replica_of(0).client());
            let began = Instant::now();
            thread::sleep(Duration::from_millis(500));
            began
        })
    });
    assert!(seen.tally.since(new, began).values().sum::<i64>() > 0, "the new primary grants nothing");
    assert_only_the_lag_is_granted_twice(&mut cluster.router(), &limits, &seen, old, safe);
    assert_no_key_is_stuck(&cluster, &limits);
    cluster.assert_sound(Some(0));
}

#[test]
fn a_primary_that_stood_still_and_comes_back_costs_no_more_than_the_grants_it_alone_knew() {
    let cluster = Cluster::start(NODE_TIMEOUT);
    let tags: Vec<String> = (0..2).map(|variant| cluster.tag(0, variant)).collect();
    let limits = limits(tags.iter().map(String::as_str));
    let (old, new) = (cluster.nodes[0].port(), cluster.replica_of(0).port());
    let lines = cluster.lines().into_iter().map(Router::impatient).collect();
    let pid = cluster.nodes[0].client().info_int("process_id");
    let body = || {
        thread::sleep(Duration::from_millis(500));
        signal(pid, "STOP");
        become_primary(&mut cluster.replica_of(0).client());
        thread::sleep(Duration::from_millis(300));
        signal(pid, "CONT");
        await_return(&mut cluster.nodes[0].client());
        thread::sleep(Duration::from_millis(300));
    };
    let ((seen, ()), safe) = with_lag_watched(old, new, || under_load(lines, &limits, body));
    assert_only_the_lag_is_granted_twice(&mut cluster.router(), &limits, &seen, old, safe);
    assert_no_key_is_stuck(&cluster, &limits);
    cluster.nodes[0].catch_up(cluster.replica_of(0));
    let contents = |client: &mut Client| {
        client.ok("READONLY");
        let mut keys: Vec<String> = client.ask("KEYS *").texts().into_iter().map(str::to_owned).collect();
        keys.sort();
        keys.into_iter().map(|key| (client.call(&["GET", &key]), key)).collect::<Vec<_>>()
    };
    assert_eq!(contents(&mut cluster.nodes[0].client()), contents(&mut cluster.replica_of(0).client()));
    cluster.assert_sound(None);
}

#[test]
fn a_planned_failover_of_a_cluster_grants_no_token_twice_and_loses_none() {
    let cluster = Cluster::start(Duration::from_secs(60));
    let tags: Vec<String> = (0..2).map(|variant| cluster.tag(0, variant)).collect();
    let limits = limits(tags.iter().map(String::as_str));
    let new = cluster.replica_of(0);
    let (seen, began) = under_load(cluster.lines(), &limits, || {
        thread::sleep(Duration::from_millis(300));
        new.client().ok("CLUSTER FAILOVER");
        become_primary(&mut new.client());
        let began = Instant::now();
        thread::sleep(Duration::from_millis(300));
        began
    });
    assert!(seen.tally.since(new.port(), began).values().sum::<i64>() > 0, "the new primary grants nothing");
    check_nothing_is_lost(&cluster, &limits, &seen, "a planned failover");
}
