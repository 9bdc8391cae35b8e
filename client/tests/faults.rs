//! Every kind of trouble, from servers that are really in it: each is told as what it is, and none as a refusal.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisError};
use redis_token_bucket_client::{
    AsyncTokenBucketCommands, Fault, Implementation, Quota, Take, TokenBucketCommands, TokenBuckets, recommended,
};
use support::{Server, eventually, free_port};

const QUOTA: Quota = Quota::per_hour(6);

fn client(port: u16) -> Client {
    Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

fn connect(server: &Server) -> Connection {
    client(server.port()).get_connection().unwrap()
}

fn take(connection: &mut impl TokenBucketCommands) -> RedisError {
    connection.tb_take("k", QUOTA, 1).unwrap_err()
}

#[track_caller]
fn expect(error: &RedisError, fault: Fault) {
    assert_eq!(Fault::of(error), fault, "{error}");
}

#[test]
fn a_server_without_the_module() {
    let server = Server::setup().without_module().start();
    expect(&take(&mut connect(&server)), Fault::ModuleMissing);
    assert!(!Fault::ModuleMissing.may_have_charged());
}

#[test]
fn arguments_that_the_server_refuses() {
    let server = Server::start();
    let mut connection = connect(&server);
    let endless = Quota::per(1, Duration::ZERO);
    expect(&connection.tb_take("k", endless, 1).unwrap_err(), Fault::InvalidArgument);
    expect(&connection.tb_take("k", QUOTA, 2_000_000_000_000_000).unwrap_err(), Fault::InvalidArgument);
    expect(&connection.tb_lease("k", QUOTA, 0).unwrap_err(), Fault::InvalidArgument);
    expect(&connection.tb_mtake::<&str>(&[]).unwrap_err(), Fault::InvalidArgument);
    let twice = [Take::new("k", QUOTA, 1), Take::new("k", QUOTA, 1)];
    expect(&connection.tb_mtake(&twice).unwrap_err(), Fault::InvalidArgument);
    let deep = 1_000_000_000_000_000;
    assert!(!connection.tb_debit("k", QUOTA, deep).unwrap().covered);
    expect(&connection.tb_debit("k", QUOTA, deep).unwrap_err(), Fault::InvalidArgument);
}

#[test]
fn a_key_that_holds_something_else() {
    let server = Server::start();
    server.client().ok("SET k hello");
    expect(&take(&mut connect(&server)), Fault::WrongType);
}

#[test]
fn a_full_server() {
    let server = Server::start();
    let mut connection = connect(&server);
    assert!(connection.tb_take("old", QUOTA, 1).unwrap().allowed);
    server.client().ok("CONFIG SET maxmemory 1");
    expect(&take(&mut connection), Fault::OutOfMemory);
    assert!(connection.tb_take("old", QUOTA, 1).unwrap().allowed);
}

#[test]
fn a_replica() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.follow(&primary);
    let mut connection = connect(&replica);
    expect(&take(&mut connection), Fault::ReadOnly);
    assert_eq!(connection.tb_peek("k", QUOTA, 1).unwrap().remaining, 6);
}

#[test]
fn a_replica_that_has_lost_its_primary() {
    let mut primary = Server::start();
    let replica = Server::setup().config("replica-serve-stale-data", "no").start();
    replica.follow(&primary);
    primary.kill();
    let mut connection = connect(&replica);
    eventually("the replica notices", || {
        let error = connection.tb_peek("k", QUOTA, 1).err()?;
        expect(&error, Fault::ClusterDown);
        Some(())
    });
}

#[test]
fn a_user_without_permission() {
    let server = Server::start();
    server.client().ok("ACL SETUSER weak on nopass ~rl:* +tb.peek");
    let mut connection =
        Client::open(format!("redis://weak:any@127.0.0.1:{}", server.port())).unwrap().get_connection().unwrap();
    expect(&take(&mut connection), Fault::NoPermission);
    expect(&connection.tb_peek("elsewhere", QUOTA, 1).unwrap_err(), Fault::NoPermission);
    assert!(connection.tb_peek("rl:{acme}:api", QUOTA, 1).unwrap().allowed);
    let mut buckets = TokenBuckets::new(connection);
    expect(&take(&mut buckets), Fault::NoPermission);
    assert_eq!(buckets.served_by(), Some(Implementation::Module));
}

#[test]
fn a_password_that_was_not_given() {
    let server = Server::start();
    let mut connection = connect(&server);
    server.client().ok("ACL SETUSER default resetpass >secret");
    let mut stranger = match client(server.port()).get_connection() {
        Ok(stranger) => stranger,
        Err(error) => return expect(&error, Fault::NoPermission),
    };
    expect(&take(&mut stranger), Fault::NoPermission);
    assert!(connection.tb_take("k", QUOTA, 1).unwrap().allowed);
}

#[test]
fn a_server_that_is_loading() {
    let server = Server::start();
    let mut connection = connect(&server);
    let mut admin = server.client();
    for key in 0..200 {
        admin.ok(&format!("SET key:{key} value"));
    }
    admin.ok("CONFIG SET key-load-delay 20000");
    admin.ok("CONFIG SET loading-process-events-interval-bytes 1024");
    admin.send(&["DEBUG", "RELOAD"]);
    eventually("the server loads", || {
        let error = connection.tb_take("k", QUOTA, 1).err()?;
        expect(&error, Fault::Loading);
        Some(())
    });
}

#[test]
fn a_server_that_is_busy_with_a_script() {
    let server = Server::setup().config("busy-reply-threshold", "1").start();
    let mut connection = connect(&server);
    let mut admin = server.client();
    admin.send(&["EVAL", "while true do end", "0"]);
    eventually("the script is taken for a slow one", || {
        let error = connection.tb_take("k", QUOTA, 1).err()?;
        expect(&error, Fault::Busy);
        Some(())
    });
    server.client().ok("SCRIPT KILL");
    assert!(admin.reply().is_error());
    assert!(connection.tb_take("k", QUOTA, 1).unwrap().remaining >= 4);
}

#[test]
fn a_cluster_node_that_does_not_serve_and_keys_apart() {
    let server =
        Server::setup().config("cluster-enabled", "yes").config("cluster-port", &free_port().to_string()).start();
    let mut connection = connect(&server);
    expect(&take(&mut connection), Fault::ClusterDown);
    server.client().ok("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("the node serves", || connection.tb_take("k", QUOTA, 1).ok().map(drop));
    let apart = [Take::new("a", QUOTA, 1), Take::new("b", QUOTA, 1)];
    expect(&connection.tb_mtake(&apart).unwrap_err(), Fault::CrossSlot);
}

#[test]
fn nobody_at_the_address() {
    let error = client(free_port()).get_connection().err().unwrap();
    expect(&error, Fault::Disconnected);
}

#[test]
fn a_server_that_dies() {
    let mut server = Server::start();
    let mut connection = connect(&server);
    assert!(connection.tb_take("k", QUOTA, 1).unwrap().allowed);
    server.kill();
    expect(&take(&mut connection), Fault::Disconnected);
    assert!(Fault::Disconnected.may_have_charged());
}

#[tokio::test]
async fn a_server_that_dies_under_an_async_connection() {
    let mut server = Server::start();
    let mut plain = client(server.port()).get_multiplexed_async_connection().await.unwrap();
    let config = recommended::connection_manager_config(Duration::from_secs(5));
    let mut manager = client(server.port()).get_connection_manager_with_config(config).await.unwrap();
    assert!(plain.tb_take("k", QUOTA, 1).await.unwrap().allowed);
    assert!(manager.tb_take("k", QUOTA, 1).await.unwrap().allowed);
    server.kill();
    expect(&plain.tb_take("k", QUOTA, 1).await.unwrap_err(), Fault::Disconnected);
    expect(&manager.tb_take("k", QUOTA, 1).await.unwrap_err(), Fault::Disconnected);
}

/// Something at an address that answers our commands with this, and all others with `OK`.
fn answer_with(reply: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        while let Ok(read) = stream.read(&mut bytes) {
            if read == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&bytes[..read]);
            for command in text.split('*').skip(1) {
                let answer = if command.contains("TB.") { reply } else { "+OK\r\n" };
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    port
}

#[test]
fn replies_that_are_not_the_commands() {
    let other_types = ["+OK\r\n", ":0\r\n", "$-1\r\n", "*-1\r\n", "?\r\n"];
    let other_numbers = ["*2\r\n:0\r\n:0\r\n", "*3\r\n:0\r\n:0\r\n:0\r\n", "*3\r\n:1\r\n:-5\r\n:0\r\n"];
    for reply in other_types.into_iter().chain(other_numbers) {
        let mut connection = client(answer_with(reply)).get_connection().unwrap();
        expect(&take(&mut connection), Fault::Unreadable);
    }
    assert!(Fault::Unreadable.may_have_charged());
}

#[test]
fn a_server_that_does_not_answer_a_blocking_connection() {
    let server = Server::start();
    let mut connection = connect(&server);
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    server.client().send(&["DEBUG", "SLEEP", "0.5"]);
    let start = Instant::now();
    eventually("the server sleeps", || {
        let error = connection.tb_peek("k", QUOTA, 1).err()?;
        expect(&error, Fault::Timeout);
        Some(())
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(Fault::Timeout.may_have_charged());
}
