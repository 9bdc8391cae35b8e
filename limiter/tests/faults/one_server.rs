//! A single server that stands still, dies, comes back, is a replica, loads, is full, is busy, or lacks the module.

use std::net::TcpListener;
use std::time::Duration;

use redis_token_bucket_limiter::client::Fault as ServerFault;
use redis_token_bucket_limiter::{Decision, Denied, Fault, Implementation, Limiter, OnFault, Redis, Share, Source};

use crate::service::{Stopped, charged, in_time, limiter, recovery, redis, until_fault};
use crate::support::{Server, free_port};

/// Few tokens: the local policy has to come to its end.
const LOCAL: OnFault = OnFault::Local(Share::one_of(100_000));
const POLICIES: [OnFault; 3] = [OnFault::Open, OnFault::Closed, LOCAL];

/// A limiter for each policy.
fn limiters(server: &Server) -> Vec<(OnFault, Limiter)> {
    POLICIES.map(|policy| (policy, limiter(redis(server), policy))).into()
}

fn follows(policy: OnFault, decision: &Decision) -> Fault {
    match (policy, decision.source) {
        (OnFault::Open, Source::FailedOpen(fault)) => {
            assert!(decision.is_allowed());
            fault
        }
        (OnFault::Closed, Source::FailedClosed(fault)) => {
            assert_eq!(decision.verdict, Err(Denied::Unavailable(fault)));
            fault
        }
        (OnFault::Local(_), Source::FailedLocal(fault)) => fault,
        (policy, source) => panic!("{source:?} under {policy:?}"),
    }
}

/// Twenty checks, each in time and by the policy; the faults that there were.
async fn twenty_faults(policy: OnFault, limiter: &Limiter, tenant: &str) -> Vec<Fault> {
    let (mut faults, mut allowed) = (Vec::new(), 0);
    for _ in 0..20 {
        let decision = in_time(limiter.check(tenant, "api")).await;
        faults.push(follows(policy, &decision));
        allowed += u64::from(decision.is_allowed());
    }
    let expected = match policy {
        OnFault::Open => 20,
        OnFault::Closed => 0,
        OnFault::Local(_) => 10,
    };
    assert_eq!(allowed, expected, "under {policy:?}");
    faults
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stands_still() {
    let server = Server::start();
    for (policy, limiter) in limiters(&server) {
        let tenant = policy.name();
        let mut checks = recovery(&limiter, tenant).await;
        let stopped = Stopped::new(&server);
        let faults = twenty_faults(policy, &limiter, tenant).await;
        checks += 20;
        assert_eq!(faults[..5], [Fault::Deadline; 5]);
        assert!(faults.contains(&Fault::BreakerOpen), "the breaker spares the others the wait");
        drop(stopped);
        checks += recovery(&limiter, tenant).await;
        let charged = charged(&server, tenant);
        assert!((2..=checks).contains(&charged), "{charged} charged for {checks} checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_killed_and_comes_back_empty() {
    let mut server = Server::start();
    let limiters = limiters(&server);
    for (policy, limiter) in &limiters {
        recovery(limiter, policy.name()).await;
    }
    server.kill();
    for (policy, limiter) in &limiters {
        for fault in twenty_faults(*policy, limiter, policy.name()).await {
            let expected = [Fault::Redis(ServerFault::Disconnected), Fault::BreakerOpen, Fault::Deadline];
            assert!(expected.contains(&fault), "{fault:?}");
        }
    }
    server.restart();
    for (policy, limiter) in &limiters {
        let checks = recovery(limiter, policy.name()).await;
        let charged = charged(&server, policy.name());
        assert!((1..=checks).contains(&charged), "a fresh bucket: {charged} charged for {checks} checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_not_there_at_the_first_check() {
    let port = free_port();
    for policy in POLICIES {
        let limiter = limiter(Redis::standalone(format!("redis://127.0.0.1:{port}")).unwrap(), policy);
        let faults = twenty_faults(policy, &limiter, "acme").await;
        assert_eq!(faults[0], Fault::Redis(ServerFault::Disconnected), "nobody waits where nobody listens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_connections_and_never_says_a_word() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    for policy in POLICIES {
        let limiter = limiter(Redis::standalone(&*address).unwrap(), policy);
        let faults = twenty_faults(policy, &limiter, "acme").await;
        assert_eq!(faults[0], Fault::Deadline, "the first check has the same deadline as any other");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn becomes_a_replica_and_a_primary_again() {
    let (primary, server) = (Server::start(), Server::start());
    let limiters = limiters(&server);
    for (policy, limiter) in &limiters {
        recovery(limiter, policy.name()).await;
    }
    server.client().ok(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    for (policy, limiter) in &limiters {
        let faults = twenty_faults(*policy, limiter, policy.name()).await;
        assert!(faults.contains(&Fault::Redis(ServerFault::ReadOnly)), "{faults:?}");
    }
    server.client().ok("REPLICAOF NO ONE");
    for (policy, limiter) in &limiters {
        recovery(limiter, policy.name()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_its_data() {
    let server = Server::setup().config("loading-process-events-interval-bytes", "1024").start();
    let limiter = limiter(redis(&server), OnFault::Closed);
    recovery(&limiter, "acme").await;
    let mut client = server.client();
    client.call(&["DEBUG", "POPULATE", "500", "filler", "100"]);
    client.ok("CONFIG SET key-load-delay 5000");
    client.send(&["DEBUG", "RELOAD"]);
    until_fault(&limiter, "acme", Fault::Redis(ServerFault::Loading), &[Fault::Deadline, Fault::BreakerOpen]).await;
    recovery(&limiter, "acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_at_maxmemory() {
    let server = Server::start();
    let limiters = limiters(&server);
    for (_, limiter) in &limiters {
        recovery(limiter, "known").await;
    }
    server.client().ok("CONFIG SET maxmemory 1");
    for (policy, limiter) in &limiters {
        // It is one tenant's trouble, not the server's: the breaker has no part in it.
        let faults = twenty_faults(*policy, limiter, policy.name()).await;
        assert_eq!(faults, vec![Fault::Redis(ServerFault::OutOfMemory); 20]);
        assert_eq!(in_time(limiter.check("known", "api")).await.source, Source::Redis);
    }
    server.client().ok("CONFIG SET maxmemory 0");
    for (policy, limiter) in &limiters {
        assert_eq!(recovery(limiter, policy.name()).await, 1);
        assert_eq!(charged(&server, policy.name()), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_busy_with_a_script() {
    let server = Server::setup().config("busy-reply-threshold", "300").start();
    for (policy, limiter) in limiters(&server) {
        let tenant = policy.name();
        let mut checks = recovery(&limiter, tenant).await;
        let mut script = server.client();
        script.send(&["EVAL", "while true do end", "0"]);
        // Slow at first, and then it says why.
        let before = [Fault::Deadline, Fault::BreakerOpen];
        checks += until_fault(&limiter, tenant, Fault::Redis(ServerFault::Busy), &before).await;
        server.client().ok("SCRIPT KILL");
        assert!(script.reply().is_error());
        checks += recovery(&limiter, tenant).await;
        let charged = charged(&server, tenant);
        assert!((2..=checks).contains(&charged), "{charged} charged for {checks} checks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_without_the_module() {
    let server = Server::setup().without_module().start();
    let scripted = redis(&server);
    let limiter = limiter(scripted.clone(), OnFault::Closed);
    recovery(&limiter, "acme").await;
    assert_eq!(scripted.served_by(), Some(Implementation::Script));
    let decision = in_time(limiter.check("acme", "api").cost(2_000)).await;
    assert_eq!((decision.source, decision.is_allowed()), (Source::Redis, true));

    for policy in POLICIES {
        let limiter = crate::service::limiter(redis(&server).using(Implementation::Module), policy);
        let faults = twenty_faults(policy, &limiter, "acme").await;
        assert_eq!(faults, vec![Fault::Redis(ServerFault::ModuleMissing); 20]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_something_else_under_the_key() {
    let server = Server::start();
    let limiter = limiter(redis(&server), OnFault::Closed);
    server.client().ok("SET rl:{acme}:api hello");
    for _ in 0..20 {
        let decision = in_time(limiter.check("acme", "api")).await;
        assert_eq!(decision.fault(), Some(Fault::Redis(ServerFault::WrongType)));
    }
    assert_eq!(in_time(limiter.check("other", "api")).await.source, Source::Redis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wants_a_password() {
    let server = Server::start();
    server.client().ok("CONFIG SET requirepass secret");
    let limiter = limiter(redis(&server), OnFault::Open);
    for _ in 0..20 {
        let decision = in_time(limiter.check("acme", "api")).await;
        assert!(matches!(decision.source, Source::FailedOpen(_)), "{decision:?}");
    }
    let told = Redis::standalone(format!("redis://:secret@127.0.0.1:{}", server.port())).unwrap();
    recovery(&crate::service::limiter(told, OnFault::Open), "acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn does_not_let_its_user_take() {
    let server = Server::start();
    server.client().ok("ACL SETUSER weak on >secret ~rl:* +hello +client");
    let weak = |password| Redis::standalone(format!("redis://weak:{password}@127.0.0.1:{}", server.port())).unwrap();
    let (told, mistaken) = (limiter(weak("secret"), OnFault::Open), limiter(weak("guess"), OnFault::Open));
    for _ in 0..20 {
        for limiter in [&told, &mistaken] {
            let decision = in_time(limiter.check("acme", "api")).await;
            assert_eq!(decision.source, Source::FailedOpen(Fault::Redis(ServerFault::NoPermission)));
        }
    }
    server.client().ok("ACL SETUSER weak +tb.take >guess");
    for limiter in [&told, &mistaken] {
        recovery(limiter, "acme").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_one_check_goes_before_the_limiters() {
    let mut server = Server::start();
    let limiter = limiter(redis(&server), OnFault::Open);
    recovery(&limiter, "acme").await;
    server.kill();
    assert!(in_time(limiter.check("acme", "api")).await.is_allowed());
    let payment = in_time(limiter.check("acme", "payment").on_fault(OnFault::Closed)).await;
    assert!(matches!(payment.verdict, Err(Denied::Unavailable(_))), "{payment:?}");
    let quick = in_time(limiter.check("acme", "api").deadline(Duration::ZERO)).await;
    assert!(quick.is_allowed());
}
