//! Ten thousand tenants from 256 tasks, each exact to the token against the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bucket::{Amount, Bucket, Micros};
use redis_token_bucket_limiter::{Quota, QuotaError, Quotas, Source};

use crate::service::{pass, patient, redis};
use crate::support::Server;

const TENANTS: usize = 10_000;
const TASKS: usize = 256;
/// Of each round and tenant, on average.
const CHECKS: usize = 3;

/// Every tenant has a quota of its own.
struct Numbered;

fn quota(tenant: usize) -> Quota {
    let capacity = tenant as u64 % 7 + 1;
    Quota::per(tenant as u64 % 11 + 1, Duration::from_secs(tenant as u64 % 13 + 1)).burst(capacity)
}

impl Quotas for Numbered {
    async fn quota(&self, tenant: &str, _: &str) -> Result<Quota, QuotaError> {
        tenant.parse().map(quota).map_err(|_| QuotaError::UnknownTenant)
    }
}

/// Somebody's generator: the same sequence on every machine.
fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tenant_gets_what_the_model_grants() {
    let (server, clock) = Server::frozen();
    let limiter = patient(redis(&server), Numbered);
    let mut model: Vec<Bucket> =
        (0..TENANTS).map(|tenant| Bucket::full(&quota(tenant).try_into().unwrap(), Micros::new(0))).collect();
    for (round, passed_ms) in [0_u64, 700, 1_900].into_iter().enumerate() {
        pass(&clock, Duration::from_millis(passed_ms));
        let now = Micros::new([0, 700_000, 2_600_000][round]);
        let asked: Arc<Vec<AtomicU64>> = Arc::new((0..TENANTS).map(|_| AtomicU64::new(0)).collect());
        let granted: Arc<Vec<AtomicU64>> = Arc::new((0..TENANTS).map(|_| AtomicU64::new(0)).collect());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (limiter, asked, granted) = (limiter.clone(), Arc::clone(&asked), Arc::clone(&granted));
                tokio::spawn(async move {
                    let mut random = (round * TASKS + task) as u64;
                    for _ in 0..TENANTS * CHECKS / TASKS {
                        // Half of the checks are for a hundred tenants.
                        let tenant = if next(&mut random).is_multiple_of(2) {
                            next(&mut random) % 100
                        } else {
                            next(&mut random) % TENANTS
                        };
                        let decision = limiter.check(&tenant.to_string(), "api").await;
                        assert_eq!(decision.source, Source::Redis);
                        asked[tenant].fetch_add(1, Ordering::Relaxed);
                        granted[tenant].fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for (tenant, bucket) in model.iter_mut().enumerate() {
            let quota = quota(tenant).try_into().unwrap();
            let mut expected = 0;
            for _ in 0..asked[tenant].load(Ordering::Relaxed) {
                let (after, decision) = bucket.take(&quota, Amount::ONE, now);
                *bucket = after.unwrap_or(*bucket);
                expected += u64::from(decision.allowed);
            }
            assert_eq!(granted[tenant].load(Ordering::Relaxed), expected, "tenant {tenant} in round {round}");
        }
    }
}
