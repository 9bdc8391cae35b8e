//! Reserve and settle: the difference moves once, however the caller goes about it, and whatever Redis does meanwhile.

use std::sync::Arc;
use std::time::Duration;

use redis_token_bucket_limiter::client::Fault as ServerFault;
use redis_token_bucket_limiter::{
    Denied, Fault, Limiter, OnFault, Quota, Settled, Share, Source, Tenants, Tiers, Tokens, UnknownTenant,
};

use crate::service::{QUOTA, Stopped, charged, limiter, pass, patient, redis};
use crate::support::{PATIENCE, Server, eventually};

async fn reserve(limiter: &Limiter, estimate: u64) -> redis_token_bucket_limiter::Reservation {
    limiter.check("acme", "api").cost(estimate).deadline(PATIENCE).reserve().await.expect("there is enough")
}

#[tokio::test]
async fn the_difference_is_given_back_or_charged() {
    let server = Server::start();
    let limiter = patient(redis(&server), QUOTA);
    assert_eq!(reserve(&limiter, 500).await.settle(120).await, Settled::Refunded(Tokens::new(380)));
    assert_eq!(charged(&server, "acme"), 120);
    assert_eq!(reserve(&limiter, 500).await.settle(900).await, Settled::Charged(Tokens::new(400)));
    assert_eq!(charged(&server, "acme"), 1_020);
    assert_eq!(reserve(&limiter, 500).await.settle(500).await, Settled::AsEstimated);
    assert_eq!(charged(&server, "acme"), 1_520);
    assert_eq!(reserve(&limiter, 500).await.cancel().await, Settled::Refunded(Tokens::new(500)));
    assert_eq!(charged(&server, "acme"), 1_520);
}

#[tokio::test]
async fn what_was_used_beyond_the_bucket_is_a_debt() {
    let (server, clock) = Server::frozen();
    let limiter = patient(redis(&server), Quota::per_second(10));
    let reserved = limiter.check("acme", "llm").cost(10).reserve().await.unwrap();
    assert_eq!(reserved.settle(25).await, Settled::Charged(Tokens::new(15)));
    let refused = limiter.check("acme", "llm").reserve().await.unwrap_err();
    assert_eq!(refused.verdict, Err(Denied::RetryAfter(Duration::from_millis(1_600))));
    pass(&clock, Duration::from_millis(1_600));
    assert!(limiter.check("acme", "llm").reserve().await.is_ok());
}

/// Under the quota of the reservation, a refund would cut the bucket off at the old capacity.
#[tokio::test]
async fn a_quota_that_was_raised_meanwhile_holds_for_the_settlement() {
    let server = Server::start();
    let tiers = |capacity| {
        Tiers::new(UnknownTenant::Refuse).tier("free", [("api", Quota::once(capacity))]).tenant("acme", "free")
    };
    let quotas = Arc::new(Tenants::new(tiers(20)).unwrap());
    let limiter = patient(redis(&server), Arc::clone(&quotas));
    let reserved = reserve(&limiter, 5).await;
    quotas.reload(tiers(100)).unwrap();
    assert_eq!(server.client().ask("TB.REFUND rl:{acme}:api 100 0 80").ints()[1], 95);
    assert_eq!(reserved.settle(2).await, Settled::Refunded(Tokens::new(3)));
    assert_eq!(limiter.check("acme", "api").cost(0).await.remaining, Some(98));
}

#[tokio::test]
async fn dropped_unsettled_the_estimate_stands() {
    let server = Server::start();
    let limiter = patient(redis(&server), QUOTA);
    drop(reserve(&limiter, 500).await);
    limiter.shutdown().await;
    assert_eq!(charged(&server, "acme"), 500);
}

/// The service dies while the call that it reserved for is under way.
#[test]
fn a_service_that_dies_leaves_the_estimate() {
    let server = Server::start();
    let service = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let reserved = service.block_on(async { reserve(&patient(redis(&server), QUOTA), 500).await });
    service.shutdown_background();
    drop(reserved);
    assert_eq!(charged(&server, "acme"), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_nobody_waits_for_takes_place_once() {
    let server = Server::start();
    let limiter = patient(redis(&server), QUOTA);
    for n in 0..100_u64 {
        let settlement = reserve(&limiter, 500).await.settle(100);
        match n % 3 {
            0 => drop(settlement),
            1 => drop(tokio::time::timeout(Duration::from_micros(n), settlement).await),
            _ => drop(tokio::spawn(settlement)),
        }
    }
    limiter.shutdown().await;
    assert_eq!(charged(&server, "acme"), 100 * 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_without_an_answer_is_sent_once() {
    let server = Server::start();
    let limiter = patient(redis(&server), QUOTA);
    let reserved = reserve(&limiter, 500).await;
    let stopped = Stopped::new(&server);
    let settled = reserved.settle(100).await;
    assert_eq!(settled, Settled::Unknown(Fault::Deadline));
    drop(stopped);
    // It was on its way, and once is all it can have been.
    eventually("the server has gone through its queue", || (charged(&server, "acme") == 100).then_some(()));
    limiter.shutdown().await;
    assert_eq!(charged(&server, "acme"), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_waits_for_a_server_that_is_away_or_refuses() {
    let (other, mut server) = (Server::start(), Server::setup().append_only().start());
    let limiter = patient(redis(&server), QUOTA);
    let (first, second) = (reserve(&limiter, 500).await, reserve(&limiter, 500).await);
    server.client().ok(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    let settlement = first.settle(100);
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.client().ok("REPLICAOF NO ONE");
    assert_eq!(settlement.await, Settled::Refunded(Tokens::new(400)));

    server.kill();
    // The limiter has to find out before it can know that there is nothing to send to.
    while limiter.check("other", "api").deadline(Duration::from_millis(50)).await.fault()
        != Some(Fault::Redis(ServerFault::Disconnected))
    {}
    let settlement = second.settle(100);
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.restart();
    assert_eq!(settlement.await, Settled::Refunded(Tokens::new(400)));
}

#[tokio::test]
async fn a_reservation_by_policy_charges_nothing_later() {
    let mut server = Server::start();
    let open = limiter(redis(&server), OnFault::Open);
    let local = limiter(redis(&server), OnFault::Local(Share::one_of(10_000)));
    server.kill();
    let reserved = open.check("acme", "api").cost(500).reserve().await.unwrap();
    assert!(matches!(reserved.decision().source, Source::FailedOpen(_)));
    assert_eq!(reserved.settle(900).await, Settled::NotCharged);

    // A local bucket of a hundred tokens.
    let take = |cost: u64| local.check("acme", "api").cost(cost).reserve();
    let reserved = take(80).await.unwrap();
    assert!(take(30).await.is_err());
    assert_eq!(reserved.settle(20).await, Settled::Refunded(Tokens::new(60)));
    let reserved = take(70).await.unwrap();
    assert_eq!(reserved.settle(100).await, Settled::Charged(Tokens::new(30)));
    assert!(take(1).await.is_err());
}
