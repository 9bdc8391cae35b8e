//! The whole family over one connection, whichever it is: every command once, with answers that are known.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use std::time::Duration;

use redis_token_bucket_client::{AsyncTokenBucketCommands, Key, Quota, Retry, Take, TokenBucketCommands, Want};

/// Six tokens, and one back every ten minutes: no test takes that long.
const QUOTA: Quota = Quota::per_hour(6);

fn is_about_ten_minutes(retry: Retry) -> bool {
    let Retry::After(wait) = retry else { return false };
    wait <= Duration::from_secs(600) && wait > Duration::from_secs(500)
}

macro_rules! family {
    ($connection:ident, $tenant:ident $(, $await:tt)?) => {{
        let (api, mail) = (Key::new($tenant, "api"), Key::new($tenant, "mail"));
        assert_eq!($connection.tb_state(&api)$(.$await)?.unwrap(), None);

        let decision = $connection.tb_take(&api, QUOTA, 1)$(.$await)?.unwrap();
        assert_eq!((decision.allowed, decision.remaining, decision.retry), (true, 5, Retry::Now));

        let decision = $connection.tb_peek(&api, QUOTA, 6)$(.$await)?.unwrap();
        assert_eq!((decision.allowed, decision.remaining), (false, 5));
        assert!(is_about_ten_minutes(decision.retry), "{decision:?}");
        assert_eq!($connection.tb_peek(&api, QUOTA, 7)$(.$await)?.unwrap().retry, Retry::Never);

        let takes = [Take::new(&api, QUOTA, 2), Take::new(&mail, QUOTA, 6)];
        let decision = $connection.tb_mtake(&takes)$(.$await)?.unwrap();
        assert_eq!((decision.verdict.allowed, decision.verdict.remaining), (true, 0));
        let decision = $connection.tb_mtake(&takes)$(.$await)?.unwrap();
        assert_eq!((decision.verdict.allowed, decision.verdict.remaining), (false, 0));
        assert_eq!(decision.each.iter().map(|each| each.allowed).collect::<Vec<_>>(), [true, false]);

        let lease = $connection.tb_lease(&api, QUOTA, Want::up_to(9).at_least(4))$(.$await)?.unwrap();
        assert_eq!((lease.granted, lease.remaining), (0, 3));
        assert!(is_about_ten_minutes(lease.retry), "{lease:?}");
        let lease = $connection.tb_lease(&api, QUOTA, 9)$(.$await)?.unwrap();
        assert_eq!((lease.granted, lease.remaining, lease.retry), (3, 0, Retry::Now));

        assert_eq!($connection.tb_refund(&api, QUOTA, 2)$(.$await)?.unwrap().remaining, 2);
        let debit = $connection.tb_debit(&api, QUOTA, 1)$(.$await)?.unwrap();
        assert_eq!((debit.covered, debit.remaining, debit.retry), (true, 1, Retry::Now));
        let debit = $connection.tb_debit(&api, QUOTA, 2)$(.$await)?.unwrap();
        assert_eq!((debit.covered, debit.remaining), (false, 0));
        assert!(is_about_ten_minutes(debit.retry), "{debit:?}");

        let state = $connection.tb_state(&api)$(.$await)?.unwrap().unwrap();
        assert!(state.tokens.starts_with("-0.99"), "{state:?}");
        assert!(state.last_refill.elapsed().is_ok_and(|age| age < Duration::from_secs(60)), "{state:?}");
        assert!(state.time_to_live.unwrap() > Duration::from_secs(4000), "{state:?}");
    }};
}

/// The family on a blocking connection.
pub(crate) fn blocking(connection: &mut impl TokenBucketCommands, tenant: &str) {
    family!(connection, tenant);
}

/// The family on an async connection.
pub(crate) async fn unblocked(connection: &mut impl AsyncTokenBucketCommands, tenant: &str) {
    family!(connection, tenant, await);
}
