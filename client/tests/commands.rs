//! The typed commands on every kind of connection to a server with the module, in both protocols, and in pipelines.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/family.rs"]
mod family;
#[path = "../../tests/support/mod.rs"]
mod support;

use redis::{Client, RedisResult};
use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Decision, Fault, Key, MultiDecision, Quota, Take, TokenBucketCommands,
    TokenBucketPipeline, Tokens, cmd, recommended,
};
use support::Server;

const QUOTA: Quota = Quota::per_hour(6);

fn client(server: &Server, protocol: &str) -> Client {
    Client::open(format!("redis://127.0.0.1:{}?protocol={protocol}", server.port())).unwrap()
}

#[test]
fn work_on_blocking_connections() {
    let server = Server::start();
    for protocol in ["resp2", "resp3"] {
        family::blocking(&mut client(&server, protocol).get_connection().unwrap(), protocol);
    }
}

#[tokio::test]
async fn work_on_multiplexed_connections() {
    let server = Server::start();
    for protocol in ["resp2", "resp3"] {
        let mut connection = client(&server, protocol).get_multiplexed_async_connection().await.unwrap();
        family::unblocked(&mut connection, protocol).await;
    }
}

#[cfg(feature = "connection-manager")]
#[tokio::test]
async fn work_on_a_connection_manager() {
    let server = Server::start();
    for protocol in ["resp2", "resp3"] {
        let config = recommended::connection_manager_config(std::time::Duration::from_secs(5));
        let mut manager = client(&server, protocol).get_connection_manager_with_config(config).await.unwrap();
        family::unblocked(&mut manager, protocol).await;
    }
}

#[test]
fn connections_as_recommended_send_small_packets_at_once() {
    let server = Server::start();
    let info = recommended::connection_info(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    assert!(info.tcp_settings().nodelay());
    let mut connection = Client::open(info).unwrap().get_connection().unwrap();
    assert!(connection.tb_take("k", QUOTA, 1).unwrap().allowed);
}

#[test]
fn replies_to_plain_commands_are_read_into_the_same_types() {
    let server = Server::start();
    let mut connection = client(&server, "resp3").get_connection().unwrap();
    let decision: Decision = redis::cmd("TB.TAKE").arg("k").arg(10).arg("100/60").query(&mut connection).unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, 9));
    let both: MultiDecision =
        redis::cmd("TB.MTAKE").arg(&["k", "10", "1", "1", "l", "5", "1", "1"]).query(&mut connection).unwrap();
    assert_eq!(both.each.len(), 2);
    let decision: Decision = cmd::tb_take("k", QUOTA, 1).query(&mut connection).unwrap();
    assert!(decision.allowed);
}

#[test]
fn costs_are_whole_numbers_and_exact_decimals() {
    let server = Server::start();
    let mut connection = client(&server, "resp2").get_connection().unwrap();
    let quota: Quota = "1/day, burst 0.3".parse().unwrap();
    let tenth: Tokens = "0.1".parse().unwrap();
    let allowed: Vec<bool> = (0..4).map(|_| connection.tb_take("k", quota, tenth).unwrap().allowed).collect();
    assert_eq!(allowed, [true, true, true, false]);
    let number_of_rows = 7_u64;
    assert_eq!(connection.tb_take("rows", Quota::per_second(10), number_of_rows).unwrap().remaining, 3);
}

#[test]
fn work_in_pipelines() {
    let server = Server::start();
    let mut connection = client(&server, "resp2").get_connection().unwrap();
    let (api, mail) = (Key::new("acme", "api"), Key::new("acme", "mail"));
    let mut pipeline = redis::pipe();
    pipeline
        .tb_take(&api, QUOTA, 4)
        .cmd("PING")
        .ignore()
        .tb_take(&api, QUOTA, 4)
        .tb_mtake(&[Take::new(&mail, QUOTA, 1)]);
    let (first, second, multi): (Decision, Decision, MultiDecision) = pipeline.query(&mut connection).unwrap();
    assert_eq!((first.allowed, second.allowed, multi.each[0].remaining), (true, false, 5));
    let (first,): (Decision,) = redis::pipe().atomic().tb_take(&api, QUOTA, 1).query(&mut connection).unwrap();
    assert_eq!(first.remaining, 1);
}

#[tokio::test]
async fn one_error_in_a_pipeline_hides_no_other_answer() {
    let server = Server::start();
    server.client().ok("SET text hello");
    let mut connection = client(&server, "resp2").get_multiplexed_async_connection().await.unwrap();
    let mut pipeline = redis::pipe();
    pipeline.tb_take("a", QUOTA, 1).tb_take("text", QUOTA, 1).tb_take("b", QUOTA, 1);
    let whole: RedisResult<Vec<Decision>> = pipeline.query_async(&mut connection).await;
    assert_eq!(Fault::of(&whole.unwrap_err()), Fault::WrongType);
    let each: Vec<RedisResult<Decision>> = pipeline.ignore_errors().query_async(&mut connection).await.unwrap();
    let remaining: Vec<_> = each.iter().map(|answer| answer.as_ref().ok().map(|decision| decision.remaining)).collect();
    assert_eq!(remaining, [Some(4), None, Some(4)]);
    assert_eq!(Fault::of(each[1].as_ref().unwrap_err()), Fault::WrongType);
}

#[tokio::test]
async fn many_at_once_share_a_connection_and_get_their_own_answers() {
    let server = Server::start();
    let connection = client(&server, "resp2").get_multiplexed_async_connection().await.unwrap();
    let tasks: Vec<_> = (0..200_u64)
        .map(|tenant| {
            let mut connection = connection.clone();
            tokio::spawn(async move {
                let quota = Quota::per_day(1_000 + tenant);
                connection.tb_take(Key::new(tenant.to_string(), "api"), quota, 1).await.unwrap().remaining
            })
        })
        .collect();
    for (tenant, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), 999 + tenant as u64);
    }
}
