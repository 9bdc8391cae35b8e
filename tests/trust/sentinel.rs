//! A failover by sentinels, under load: callers ask a sentinel where the primary is, as client libraries do.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::callers::{
    CALLERS, Direct, assert_only_the_lag_is_granted_twice, limits, taken, under_load, with_lag_watched,
};
use crate::is_long;
use crate::process::info;
use crate::support::eventually;
use crate::topology::Watched;

#[test]
fn a_failover_by_sentinels_costs_no_more_than_the_grants_in_the_lag() {
    // One replica, so that it is known which one is to take over.
    let mut watched = Watched::start(1);
    let (old, new) = (watched.primary.port(), watched.replicas[0].port());
    let sentinels: Vec<_> = watched.sentinels.iter().map(|sentinel| Mutex::new(sentinel.client())).collect();
    let line = |number: usize| {
        let sentinel = &sentinels[number % sentinels.len()];
        Direct::new(move || Watched::address(&mut sentinel.lock().expect("a sentinel")))
    };
    let limits = limits(["a", "b"]);
    let ((seen, ()), safe) = with_lag_watched(old, new, || {
        under_load((0..CALLERS).map(line).collect(), &limits, || {
            thread::sleep(Duration::from_millis(500));
            watched.primary.kill();
            for sentinel in &sentinels {
                eventually("the sentinel names the new primary", || {
                    (Watched::address(&mut sentinel.lock().expect("a sentinel")) == new).then_some(())
                });
            }
            thread::sleep(Duration::from_millis(500));
        })
    });
    assert_only_the_lag_is_granted_twice(&mut line(0), &limits, &seen, old, safe);
    if !is_long() {
        return;
    }
    // The old primary comes back with an empty memory; the sentinels take some ten seconds to make it follow.
    watched.primary.restart();
    // A sentinel ends its connections when it makes it a replica.
    eventually("the old primary follows", || {
        let info = info(old)?;
        (info.contains("role:slave") && info.contains("master_link_status:up")).then_some(())
    });
    watched.primary.catch_up(&watched.replicas[0]);
    let mut old_line = Direct::new(|| old);
    assert_eq!(taken(&mut old_line, &limits), taken(&mut line(0), &limits));
}
