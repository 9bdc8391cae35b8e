//! What a replica does not know yet: a failover with a slow link, the price of waiting for the replica, chains of
//! replicas, and a replica whose clock is not its primary's.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::callers::{
    CALLERS, Direct, Line, Outcome, assert_only_the_lag_is_granted_twice, direct_to, limits, taken, under_load,
    with_lag_watched,
};
use crate::process::connect;
use crate::support::{Client, Reply, START_US, Server, WallClock, eventually};

/// A way from a replica to its primary on which everything takes a while; cut, what is under way is gone.
struct SlowLink {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl SlowLink {
    fn to(primary: u16, delay: Duration) -> SlowLink {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let link = SlowLink { port: listener.local_addr().expect("bound").port(), cut: Arc::default() };
        let cut = link.cut.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(("127.0.0.1", primary))) else { continue };
                if cut.load(Ordering::SeqCst) {
                    return;
                }
                let both = |stream: &TcpStream| {
                    stream.set_nodelay(true).expect("an open stream");
                    stream.try_clone().expect("a second handle")
                };
                let (near_again, far_again, cut_too) = (both(&near), both(&far), cut.clone());
                thread::spawn({
                    let cut = cut.clone();
                    move || carry(near_again, far_again, Duration::ZERO, &cut)
                });
                thread::spawn(move || carry(far, near, delay, &cut_too));
            }
        });
        link
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Hands on what arrives, so much later.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration, cut: &AtomicBool) {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    let mut source = from.try_clone().expect("a second handle");
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        while let Ok(len @ 1..) = source.read(&mut piece) {
            if sender.send((Instant::now() + delay, piece[..len].to_vec())).is_err() {
                return;
            }
        }
    });
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if cut.load(Ordering::SeqCst) || to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both), from.flush());
}

fn follow_over(link: &SlowLink, replica: &Server, primary: &Server) {
    replica.client().ok(&format!("REPLICAOF 127.0.0.1 {}", link.port));
    replica.catch_up(primary);
}

#[test]
fn a_failover_over_a_slow_link_grants_twice_no_more_than_the_lag() {
    let (mut primary, replica) = (Server::start(), Server::start());
    let link = SlowLink::to(primary.port(), Duration::from_millis(50));
    follow_over(&link, &replica, &primary);
    let (old, new) = (primary.port(), replica.port());
    let target = Arc::new(AtomicU16::new(old));
    let line = || direct_to(&target);
    let limits = limits(["a", "b"]);
    let ((seen, ()), safe) = with_lag_watched(old, new, || {
        under_load((0..CALLERS).map(|_| line()).collect(), &limits, || {
            thread::sleep(Duration::from_millis(600));
            link.cut();
            primary.kill();
            replica.client().ok("REPLICAOF NO ONE");
            target.store(new, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(300));
        })
    });
    assert_only_the_lag_is_granted_twice(&mut line(), &limits, &seen, old, safe);
    let known: i64 = taken(&mut line(), &limits).values().sum();
    assert!(known > 0, "the replica knew nothing");
}

#[test]
fn a_planned_failover_grants_no_token_twice_and_loses_none() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let (old, new) = (primary.port(), replica.port());
    let target = Arc::new(AtomicU16::new(old));
    let line = || direct_to(&target);
    let limits = limits(["a", "b"]);
    let (seen, began) = under_load((0..CALLERS).map(|_| line()).collect(), &limits, || {
        thread::sleep(Duration::from_millis(300));
        primary.client().ok(&format!("FAILOVER TO 127.0.0.1 {new}"));
        eventually("the roles are exchanged", || (replica.client().info("role") == "master").then_some(()));
        let began = Instant::now();
        target.store(new, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(300));
        began
    });
    assert_eq!(seen.lost, 0, "a call was not answered");
    assert!(seen.tally.since(new, began).values().sum::<i64>() > 0, "the new primary grants nothing");
    for (key, taken) in taken(&mut line(), &limits) {
        assert_eq!(seen.tally.of(key), taken, "{}: granted, and missing from the bucket", limits[key].key);
    }
    for (key, limit) in limits.iter().enumerate() {
        seen.tally.check_bound(key, limit.capacity, limit.rate, 0);
    }
    println!("{} grants over a planned failover: none twice, none lost", seen.tally.len());
}

#[test]
fn a_grant_that_waited_for_the_replica_survives_the_primary() {
    let (mut primary, replica) = (Server::start(), Server::start());
    let link = SlowLink::to(primary.port(), Duration::from_millis(5));
    follow_over(&link, &replica, &primary);
    let stop = AtomicBool::new(false);
    // Callers who count a grant only when the replica has it.
    let caller = |number: usize| {
        let mut link = connect(primary.port(), Duration::from_secs(5)).expect("a connection");
        let (mut kept, mut waited) = (0, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let take = redis::cmd("TB.TAKE").arg((format!("k{number}"), 1_000_000, 0)).query::<Vec<i64>>(&mut link);
            if take.is_err() {
                break;
            }
            let asked = Instant::now();
            match redis::cmd("WAIT").arg((1, 5000)).query::<i64>(&mut link) {
                Ok(1..) => (kept, waited) = (kept + 1, waited + asked.elapsed()),
                _ => break,
            }
        }
        (kept, waited)
    };
    let kept: Vec<(i64, Duration)> = thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> = (0..CALLERS).map(|number| scope.spawn(move || caller(number))).collect();
        thread::sleep(Duration::from_millis(600));
        let pid = primary.client().info_int("process_id");
        crate::process::signal(pid, "KILL");
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    link.cut();
    primary.kill();
    let mut client = replica.client();
    client.ok("REPLICAOF NO ONE");
    for (number, (kept, _)) in kept.iter().enumerate() {
        let taken = 1_000_000 - client.ask(&format!("TB.PEEK k{number} 1000000 0 0")).ints()[1];
        assert!(*kept > 0 && taken >= *kept, "k{number}: {kept} grants waited for, the replica knows {taken}");
    }
    let (grants, waited) = kept.iter().fold((0, Duration::ZERO), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!(
        "{grants} grants waited {:?} each over a link of 5 ms; none lost",
        waited / u32::try_from(grants).unwrap()
    );
}

/// Every key with its bytes and its deadline.
fn contents(server: &Server) -> Vec<(String, Reply, i64)> {
    let mut client = server.client();
    let mut keys: Vec<String> = client.ask("KEYS *").texts().into_iter().map(str::to_owned).collect();
    keys.sort();
    let mut of = |key: String| {
        let (value, deadline) = (client.call(&["GET", &key]), client.call(&["PEXPIRETIME", &key]).int());
        (key, value, deadline)
    };
    keys.into_iter().map(&mut of).collect()
}

#[test]
fn a_chain_of_replicas_holds_the_same_bytes_and_goes_on_when_its_head_is_gone() {
    let (mut head, clock) = Server::frozen();
    let links: Vec<Server> = (0..3).map(|_| Server::setup().clock(&clock).start()).collect();
    links[0].follow(&head);
    for pair in links.windows(2) {
        pair[1].client().ok(&format!("REPLICAOF 127.0.0.1 {}", pair[0].port()));
    }
    let settle = |head: &mut Client, replicas: &[Server]| {
        for replica in replicas {
            let mut client = replica.client();
            eventually("the chain is in sync", || {
                let sent = head.info_int("master_repl_offset");
                let up = client.info("master_link_status") == "up";
                (up && client.info_int("slave_repl_offset") == sent).then_some(())
            });
        }
    };
    let take = |client: &mut Client, clock: &WallClock| {
        for number in 0..200 {
            clock.advance_ms(7);
            client.take(&format!("k{} 20 5 {}", number % 9, 1 + number % 3));
            client.take(&format!("never{} 50 0", number % 3));
        }
    };
    let mut client = head.client();
    take(&mut client, &clock);
    settle(&mut client, &links);
    let held = contents(&head);
    assert_eq!(held.len(), 12);
    for replica in &links {
        assert_eq!(contents(replica), held);
    }
    head.kill();
    let mut client = links[0].client();
    client.ok("REPLICAOF NO ONE");
    take(&mut client, &clock);
    settle(&mut client, &links[1..]);
    for replica in &links[1..] {
        assert_eq!(contents(replica), contents(&links[0]));
    }
}

/// A primary and a replica, each with a clock of its own; `capacity` 10 and `rate` 1 on the key `k`, empty.
fn apart_by(offset_s: i64) -> (Server, Client, WallClock) {
    let (mut primary, _clock) = Server::frozen();
    let clock = WallClock::frozen_at(START_US + offset_s * 1_000_000);
    let replica = Server::setup().clock(&clock).start();
    assert_eq!(primary.client().take("k 10 1 10"), [1, 0, 0]);
    replica.follow(&primary);
    primary.kill();
    let mut client = replica.client();
    client.ok("REPLICAOF NO ONE");
    (replica, client, clock)
}

#[test]
fn a_promoted_replica_whose_clock_is_ahead_grants_what_its_clock_says_has_come_back() {
    for (ahead_s, there) in [(1, 1), (4, 4), (10, 10), (11, 10), (3600, 10), (86_400, 10)] {
        let (_replica, mut client, clock) = apart_by(ahead_s);
        assert_eq!(client.take("k 10 1 0"), [1, there, 0], "{ahead_s} s ahead");
        assert_eq!(client.take(&format!("k 10 1 {there}"))[0], 1);
        assert_eq!(client.take("k 10 1"), [0, 0, 1000]);
        clock.advance_s(1);
        assert_eq!(client.take("k 10 1"), [1, 0, 0], "from then on, by its own clock");
    }
}

#[test]
fn a_promoted_replica_whose_clock_is_behind_grants_nothing_twice_and_locks_nobody_out() {
    for (behind_s, wait_ms) in [(1, 2000), (4, 5000), (10, 11_000), (11, 1000), (3600, 1000), (86_400, 1000)] {
        let (_replica, mut client, clock) = apart_by(-behind_s);
        assert_eq!(client.take("k 10 1"), [0, 0, wait_ms], "{behind_s} s behind");
        clock.advance_ms(wait_ms - 1);
        assert_eq!(client.take("k 10 1"), [0, 0, 1]);
        clock.advance_ms(1);
        assert_eq!(client.take("k 10 1"), [1, 0, 0]);
        assert!(client.int("PTTL k") > 0, "the key lives for ever");
        clock.advance_s(25);
        assert_eq!(client.int("EXISTS k"), 0, "the key outlives its use on the new clock");
    }
}

#[test]
fn a_replica_with_another_clock_reads_without_changing_what_it_holds() {
    let (primary, _clock) = Server::frozen();
    for offset_s in [-3600, -5, 5, 3600] {
        let clock = WallClock::frozen_at(START_US + offset_s * 1_000_000);
        let replica = Server::setup().clock(&clock).start();
        assert!(primary.client().take("k 10 1 1")[0] == 1);
        replica.follow(&primary);
        let before = contents(&replica);
        for call in ["TB.PEEK k 10 1", "TB.PEEK k 10 1 11", "TB.PEEK k 5 1/60 1", "TB.STATE k"] {
            assert!(!replica.client().ask(call).is_error(), "{call}");
        }
        assert_eq!(contents(&replica), before, "{offset_s} s off");
        let mut line = Direct::new(|| replica.port());
        assert!(matches!(line.call::<Vec<i64>>("", "TB.TAKE k 10 1"), Outcome::Unavailable), "a replica took");
    }
}
