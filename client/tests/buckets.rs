//! The handle that uses the module where it is and the script elsewhere: what it asks, when it changes, and that it
//! never sends anything twice that may have been carried out.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/family.rs"]
mod family;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{Client, Connection, RedisResult};
use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Decision, Fault, Implementation, Key, Quota, TokenBucketCommands, TokenBucketPipeline,
    TokenBuckets, recommended,
};
use support::{Server, eventually};

const QUOTA: Quota = Quota::per_hour(1000);

fn client(server: &Server) -> Client {
    Client::open(format!("redis://127.0.0.1:{}?protocol=resp3", server.port())).unwrap()
}

/// A connection whose set-up does not show in the server's counts: not every server knows all that it is told then.
fn blocking(server: &Server) -> Connection {
    let connection = client(server).get_connection().unwrap();
    server.client().ok("CONFIG RESETSTAT");
    connection
}

async fn multiplexed(server: &Server) -> MultiplexedConnection {
    client(server).get_multiplexed_async_connection().await.unwrap()
}

async fn manager(server: &Server) -> ConnectionManager {
    let config = recommended::connection_manager_config(Duration::from_secs(5));
    client(server).get_connection_manager_with_config(config).await.unwrap()
}

/// How often a server has run a command, refused or failed ones not counted.
fn runs(server: &Server, command: &str) -> i64 {
    let stats = server.client().info(&format!("cmdstat_{command}"));
    let number = |name: &str| {
        let field = stats.split(',').find_map(|field| field.strip_prefix(name)).unwrap_or("0");
        field.parse::<i64>().unwrap()
    };
    number("calls=") - number("failed_calls=") - number("rejected_calls=")
}

/// How often a server has answered with an error of this code.
fn errors(server: &Server, code: &str) -> i64 {
    let count = server.client().info(&format!("errorstat_{code}"));
    count.strip_prefix("count=").map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn answers_the_whole_family_with_the_module_and_with_the_script() {
    for server in [Server::start(), Server::setup().without_module().start()] {
        family::blocking(&mut TokenBuckets::new(blocking(&server)), "blocking");
        family::unblocked(&mut TokenBuckets::new(multiplexed(&server).await), "multiplexed").await;
        family::unblocked(&mut TokenBuckets::new(manager(&server).await), "manager").await;
    }
}

#[test]
fn uses_the_module_where_it_is() {
    let server = Server::start();
    let mut buckets = TokenBuckets::new(blocking(&server));
    assert_eq!(buckets.served_by(), None);
    for left in (990..1000).rev() {
        assert_eq!(buckets.tb_take("k", QUOTA, 1).unwrap().remaining, left);
    }
    assert_eq!(buckets.served_by(), Some(Implementation::Module));
    assert_eq!((runs(&server, "tb.take"), runs(&server, "evalsha"), errors(&server, "ERR")), (10, 0, 0));
}

#[test]
fn asks_once_and_loads_the_script_once_where_the_module_is_missing() {
    let server = Server::setup().without_module().start();
    let mut buckets = TokenBuckets::new(blocking(&server));
    for left in (980..1000).rev() {
        assert_eq!(buckets.tb_take("k", QUOTA, 1).unwrap().remaining, left);
    }
    assert_eq!(buckets.served_by(), Some(Implementation::Script));
    assert_eq!((errors(&server, "ERR"), errors(&server, "NOSCRIPT")), (1, 1));
    assert_eq!((runs(&server, "eval"), runs(&server, "evalsha")), (1, 19));
    // The server keeps the script for the next one.
    let mut other = TokenBuckets::new(blocking(&server));
    assert_eq!(other.tb_take("k", QUOTA, 1).unwrap().remaining, 979);
    assert_eq!((errors(&server, "ERR"), errors(&server, "NOSCRIPT"), runs(&server, "eval")), (1, 0, 0));
}

#[test]
fn a_flushed_script_is_brought_again_and_the_call_runs_once() {
    let server = Server::setup().without_module().start();
    let mut buckets = TokenBuckets::using(Implementation::Script, blocking(&server));
    assert_eq!(buckets.served_by(), Some(Implementation::Script));
    for round in 1..=3 {
        server.client().ok("SCRIPT FLUSH");
        assert_eq!(buckets.tb_take("k", QUOTA, 1).unwrap().remaining, 1000 - 2 * round + 1);
        assert_eq!(buckets.tb_take("k", QUOTA, 1).unwrap().remaining, 1000 - 2 * round);
        assert_eq!(
            (runs(&server, "eval"), errors(&server, "NOSCRIPT"), errors(&server, "ERR")),
            (round as i64, round as i64, 0)
        );
    }
}

#[test]
fn does_as_it_is_told() {
    let server = Server::start();
    let mut script = TokenBuckets::using(Implementation::Script, blocking(&server));
    assert!(script.tb_take("k", QUOTA, 1).unwrap().allowed);
    assert_eq!((runs(&server, "tb.take"), runs(&server, "eval")), (0, 1));

    let server = Server::setup().without_module().start();
    let mut module = TokenBuckets::using(Implementation::Module, blocking(&server));
    for _ in 0..3 {
        assert_eq!(Fault::of(&module.tb_take("k", QUOTA, 1).unwrap_err()), Fault::ModuleMissing);
    }
    assert_eq!((runs(&server, "evalsha"), errors(&server, "NOSCRIPT")), (0, 0));
    assert_eq!(module.served_by(), Some(Implementation::Module));
}

#[test]
fn other_errors_are_answers_and_nothing_is_sent_again() {
    let with = Server::start();
    let without = Server::setup().without_module().start();
    for (server, key, command) in [(&with, "k", "tb.take"), (&without, "k%script", "evalsha")] {
        let mut buckets = TokenBuckets::new(blocking(server));
        let _ = buckets.tb_peek("other", QUOTA, 1).unwrap();
        server.client().ok(&format!("SET {key} hello"));
        server.client().ok("CONFIG RESETSTAT");
        let error = buckets.tb_take("k", QUOTA, 1).unwrap_err();
        assert_eq!(Fault::of(&error), Fault::WrongType);
        let error = buckets.tb_take("k", Quota::per(1, Duration::ZERO), 1).unwrap_err();
        assert_eq!(Fault::of(&error), Fault::InvalidArgument);
        let calls = server.client().info(&format!("cmdstat_{command}"));
        assert!(calls.starts_with("calls=2,"), "{calls}");
        assert_eq!((errors(server, "ERR"), errors(server, "NOSCRIPT"), runs(server, "eval")), (1, 0, 0));
    }
}

#[tokio::test]
async fn follows_a_failover_to_a_node_without_the_module_and_back() {
    let mut server = Server::start();
    let mut buckets = TokenBuckets::new(manager(&server).await);
    assert_eq!(buckets.tb_take("k", QUOTA, 10).await.unwrap().remaining, 990);

    // The address now leads to another node; the connection finds out by breaking.
    server.kill();
    server.restart_with(Server::setup().without_module());
    assert_eq!(answer_after_failover(&mut buckets).await.remaining, 999);
    assert_eq!(buckets.served_by(), Some(Implementation::Script));
    assert_eq!(buckets.tb_take("k", QUOTA, 1).await.unwrap().remaining, 998);

    server.kill();
    server.restart_with(Server::setup());
    assert_eq!(answer_after_failover(&mut buckets).await.remaining, 999);
    assert_eq!(buckets.served_by(), Some(Implementation::Module));
    assert_eq!((runs(&server, "evalsha"), runs(&server, "eval")), (0, 0));
}

async fn answer_after_failover(buckets: &mut TokenBuckets<ConnectionManager>) -> Decision {
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    loop {
        match buckets.tb_take("k", QUOTA, 1).await {
            Ok(decision) => return decision,
            Err(error) => assert_eq!(Fault::of(&error), Fault::Disconnected, "{error}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "no answer after the failover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn finds_a_module_that_is_loaded_later() {
    let server = Server::setup().without_module().start();
    let mut buckets = TokenBuckets::new(blocking(&server)).ask_again_after(Duration::from_millis(200));
    assert!(buckets.tb_take("k", QUOTA, 1).unwrap().allowed);
    server.client().ok(&format!("MODULE LOAD {}", support::module_path().display()));
    eventually("the module is found", || {
        assert!(buckets.tb_take("k", QUOTA, 1).unwrap().allowed);
        (buckets.served_by() == Some(Implementation::Module)).then_some(())
    });
    assert_eq!((runs(&server, "eval"), errors(&server, "NOSCRIPT")), (1, 1));
}

#[tokio::test]
async fn in_a_mixed_cluster_each_node_is_asked_in_the_form_that_it_knows() {
    let cluster = cluster::Cluster::of_three_mixed();
    let connection = recommended::cluster_client_builder(cluster.urls(), Duration::from_secs(5))
        .build()
        .unwrap()
        .get_async_connection()
        .await
        .unwrap();
    let mut buckets = TokenBuckets::new(connection);
    for round in 1..=3 {
        for tenant in 0..60 {
            let decision = buckets.tb_take(Key::new(format!("t{tenant}"), "api"), QUOTA, 1).await.unwrap();
            assert_eq!(decision.remaining, 1000 - round);
        }
    }
    for (at, node) in cluster.primaries().iter().enumerate() {
        let keys = node.client().ask("KEYS *").texts().iter().map(|key| key.ends_with("%script")).collect::<Vec<_>>();
        assert!(keys.len() > 5 && keys.iter().all(|scripted| *scripted == (at == 0)), "node {at}: {keys:?}");
    }
}

#[tokio::test]
async fn pipelines_go_the_same_way() {
    for (server, implementation) in
        [(Server::start(), Implementation::Module), (Server::setup().without_module().start(), Implementation::Script)]
    {
        let mut buckets = TokenBuckets::new(multiplexed(&server).await);
        let mut pipeline = redis::pipe();
        pipeline.tb_take("a", QUOTA, 1).cmd("PING").ignore().tb_take("a", QUOTA, 1).tb_peek("b", QUOTA, 1);
        for round in 0..3 {
            let (one, two, peek): (Decision, Decision, Decision) = pipeline.query_async(&mut buckets).await.unwrap();
            assert_eq!((one.remaining, two.remaining, peek.remaining), (999 - 2 * round, 998 - 2 * round, 1000));
        }
        assert_eq!(buckets.served_by(), Some(implementation));
        let mut atomic = redis::pipe();
        atomic.atomic().tb_take("a", QUOTA, 1).tb_debit("a", QUOTA, 1);
        let (one, _debit): (Decision, redis_token_bucket_client::Debit) =
            atomic.query_async(&mut buckets).await.unwrap();
        assert_eq!(one.remaining, 993);

        let mut buckets = TokenBuckets::new(blocking(&server));
        let (one, two, peek): (Decision, Decision, Decision) = pipeline.query(&mut buckets).unwrap();
        assert_eq!((one.remaining, two.remaining, peek.remaining), (991, 990, 1000));
        let (one, _debit): (Decision, redis_token_bucket_client::Debit) = atomic.query(&mut buckets).unwrap();
        assert_eq!(one.remaining, 989);
        assert_eq!(errors(&server, "NOSCRIPT"), 0);
    }
}

#[tokio::test]
async fn a_pipeline_that_meets_a_server_without_the_module_fails_and_the_next_one_does_not() {
    let mut server = Server::start();
    let mut buckets = TokenBuckets::new(manager(&server).await);
    assert!(buckets.tb_take("k", QUOTA, 1).await.unwrap().allowed);
    server.kill();
    server.restart_with(Server::setup().without_module());
    let mut pipeline = redis::pipe();
    pipeline.tb_take("k", QUOTA, 1).cmd("INCR").arg("n");
    let mut faults = Vec::new();
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    let (decision, increments): (Decision, u64) = loop {
        let answer: RedisResult<(Decision, u64)> = pipeline.query_async(&mut buckets).await;
        match answer {
            Ok(answer) => break answer,
            Err(error) => faults.push(Fault::of(&error)),
        }
        assert!(tokio::time::Instant::now() < deadline, "no answer after the failover, but {:?}", faults.last());
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((decision.remaining, increments), (999, 2));
    faults.retain(|fault| *fault != Fault::Disconnected);
    assert_eq!(faults, [Fault::ModuleMissing]);
}

#[test]
fn other_commands_pass_through() {
    let server = Server::setup().without_module().start();
    let mut buckets = TokenBuckets::new(blocking(&server));
    redis::cmd("SET").arg("a").arg(1).exec(&mut buckets).unwrap();
    assert_eq!(redis::cmd("GET").arg("a").query::<i64>(&mut buckets).unwrap(), 1);
    assert_eq!(redis::ConnectionLike::get_db(&buckets), 0);
    assert!(redis::ConnectionLike::check_connection(&mut buckets));
    assert_eq!(buckets.served_by(), None);
    assert!(redis::cmd("GET").arg("a").query::<i64>(&mut buckets.into_inner()).is_ok());
}
