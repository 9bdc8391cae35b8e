//! Settings: read and set while the server runs, in its configuration file and when the module is loaded; and what the one
//! setting does.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Client, Server, Setup, WallClock, eventually, module_path, server_binary};

const SLACK: &str = "tokenbucket.expiry-slack-ms";
const NO_SLACKS: [&str; 8] = ["-1", "86400001", "1.5", "abc", "", "1s", "99999999999999999999", "0x10"];
/// The unit of stored deadlines.
const UNIT_MS: i64 = 512;

/// What `CONFIG GET` says of the setting; nothing where the module is not loaded.
fn slack(client: &mut Client) -> Option<i64> {
    match client.ask(&format!("CONFIG GET {SLACK}")).texts()[..] {
        [] => None,
        [SLACK, value] => Some(value.parse().expect("a number")),
        ref other => panic!("CONFIG GET {SLACK} is {other:?}"),
    }
}

fn says_the_bounds(log: &str) -> bool {
    let ours = |line: &&str| line.contains("<tokenbucket>") && line.contains(SLACK);
    log.lines().filter(ours).any(|line| line.contains("from 0 to 86400000"))
}

/// By how much a bucket's key outlives the refill of a bucket that is empty now.
fn lingers_ms(client: &mut Client, clock: &WallClock) -> i64 {
    client.ok("FLUSHALL");
    assert_eq!(client.take("k 10 1 10")[0], 1);
    client.int("PEXPIRETIME k") - clock.now() / 1000 - 10_000
}

#[test]
fn is_a_second_unless_somebody_says_otherwise_and_the_only_one() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.ask("CONFIG GET tokenbucket.*").texts(), [SLACK, "1000"]);
}

#[test]
fn can_be_set_within_its_bounds_and_reads_as_set() {
    let server = Server::start();
    let mut client = server.client();
    for value in [0, 1, 512, 5000, 86_400_000] {
        client.ok(&format!("CONFIG SET {SLACK} {value}"));
        assert_eq!(slack(&mut client), Some(value));
    }
}

#[test]
fn a_value_out_of_bounds_is_refused_and_the_old_one_stays() {
    let server = Server::start();
    let mut client = server.client();
    client.ok(&format!("CONFIG SET {SLACK} 2500"));
    for value in NO_SLACKS {
        let reply = client.call(&["CONFIG", "SET", SLACK, value]);
        assert!(reply.error().contains(SLACK), "{value:?}: {reply:?}");
        assert_eq!(slack(&mut client), Some(2500), "after {value:?}");
        let reply = client.call(&["CONFIG", "SET", "maxmemory", "123456789", SLACK, value]);
        assert!(reply.is_error());
        assert_eq!(client.ask("CONFIG GET maxmemory").texts()[1], "0", "half of a CONFIG SET was carried out");
    }
}

#[test]
fn is_how_much_longer_than_needed_keys_live() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    for slack_ms in [0, 1, 1000, 60_000, 86_400_000] {
        client.ok(&format!("CONFIG SET {SLACK} {slack_ms}"));
        for offset_us in [0, 1, 511_999, 512_000, 777_777] {
            clock.set(support::START_US + offset_us);
            let lingers = lingers_ms(&mut client, &clock);
            assert!((slack_ms..=slack_ms + UNIT_MS).contains(&lingers), "{slack_ms} ms of slack: {lingers} ms");
        }
    }
}

#[test]
fn counts_from_the_next_time_that_a_deadline_moves() {
    let (server, clock) = Server::frozen();
    let mut client = server.client();
    client.take("k 10 1 1");
    let before = client.int("PEXPIRETIME k");
    client.ok(&format!("CONFIG SET {SLACK} 60000"));
    client.take("k 10 1 1");
    assert_eq!(client.int("PEXPIRETIME k"), before, "the deadline suits, so it stays");
    clock.advance_s(8);
    client.take("k 10 1 10");
    let lives = client.int("PEXPIRETIME k") - clock.now() / 1000;
    assert!((70_000..=70_000 + UNIT_MS).contains(&lives), "{lives}");
    client.ok(&format!("CONFIG SET {SLACK} 0"));
    clock.advance_s(1);
    client.take("k 10 1 1");
    let lives = client.int("PEXPIRETIME k") - clock.now() / 1000;
    assert!((10_000..=10_000 + UNIT_MS).contains(&lives), "later than the new slack allows: {lives}");
}

#[test]
fn with_more_slack_a_busy_bucket_moves_its_deadline_less_often() {
    let moves = |slack_ms: i64| -> usize {
        let (server, clock) = Server::frozen();
        let mut client = server.client();
        client.ok(&format!("CONFIG SET {SLACK} {slack_ms}"));
        let (mut deadline, mut moves) = (0, 0);
        for _ in 0..300 {
            clock.advance_ms(100);
            client.take("k 1 10 1");
            let now = client.int("PEXPIRETIME k");
            moves += usize::from(std::mem::replace(&mut deadline, now) != now);
        }
        moves
    };
    let (none, second, minute) = (moves(0), moves(1000), moves(60_000));
    assert!(none > 2 * second && second > 5 * minute && minute == 1, "{none}, {second}, {minute} moves");
}

#[test]
fn can_be_given_on_the_command_line() {
    let clock = WallClock::frozen();
    let server = Server::setup().config(SLACK, "5000").clock(&clock).start();
    let mut client = server.client();
    assert_eq!(slack(&mut client), Some(5000));
    assert!((5000..=5000 + UNIT_MS).contains(&lingers_ms(&mut client, &clock)));
}

#[test]
fn a_value_out_of_bounds_keeps_the_server_from_starting_and_the_log_says_why() {
    for value in NO_SLACKS {
        let outcome = Server::setup().config(SLACK, value).try_start();
        let log = outcome.err().unwrap_or_else(|| panic!("started with {value:?}"));
        assert!(says_the_bounds(&log), "with {value:?} the log says:\n{log}");
    }
}

#[test]
fn an_unknown_setting_keeps_the_server_from_starting() {
    for setting in ["tokenbucket.surprise", "tokenbucket.expiry-slack"] {
        assert!(Server::setup().config(setting, "1").try_start().is_err(), "started with {setting}");
    }
}

#[test]
fn can_be_given_to_a_running_server_that_loads_the_module() {
    let clock = WallClock::frozen();
    let server = Server::setup().without_module().clock(&clock).start();
    let mut client = server.client();
    let load = format!("MODULE LOADEX {}", module_path().display());
    client.ok(&format!("{load} CONFIG {SLACK} 7000"));
    assert_eq!(slack(&mut client), Some(7000));
    assert!((7000..=7000 + UNIT_MS).contains(&lingers_ms(&mut client, &clock)));
    client.ok("MODULE UNLOAD tokenbucket");
    assert_eq!(slack(&mut client), None);
    client.ok(&load);
    assert_eq!(slack(&mut client), Some(1000), "the default is back");
    assert!((1000..=1000 + UNIT_MS).contains(&lingers_ms(&mut client, &clock)));
}

#[test]
fn a_running_server_loads_the_module_with_no_bad_setting_and_no_argument() {
    let server = Server::setup().without_module().start();
    let mut client = server.client();
    let module = module_path();
    let module = module.to_str().expect("a path in UTF-8");
    let mut wrong: Vec<Vec<&str>> = NO_SLACKS.iter().map(|value| vec!["CONFIG", SLACK, value]).collect();
    wrong.push(vec!["CONFIG", "tokenbucket.surprise", "1"]);
    wrong.push(vec!["ARGS", "surprise"]);
    wrong.push(vec!["CONFIG", SLACK, "5", "ARGS", "surprise"]);
    for given in wrong {
        let mut load = vec!["MODULE", "LOADEX", module];
        load.extend(&given);
        assert!(client.call(&load).is_error(), "loaded with {given:?}");
        let modules = client.ask("MODULE LIST");
        assert!(modules.items().iter().all(|module| module.field("name").text() != "tokenbucket"), "{given:?}");
        assert_eq!(slack(&mut client), None, "{given:?}");
        assert!(!client.knows("tb.take"), "{given:?}");
    }
    let log = server.log();
    assert!(says_the_bounds(&log), "the log says:\n{log}");
    assert!(
        log.lines().any(|line| line.contains("<tokenbucket>") && line.contains("no arguments")),
        "the log says:\n{log}"
    );
    client.ok(&format!("MODULE LOADEX {module} CONFIG {SLACK} 5"));
    assert_eq!(slack(&mut client), Some(5));
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
}

/// Starts a server that reads more of its configuration from a file with these lines.
fn including(lines: &str) -> Result<Server, String> {
    let dir = Scratch::new();
    let file = dir.0.join("included.conf");
    fs::write(&file, lines).expect("a file");
    let setup: Setup = Server::setup().without_module();
    setup.config("include", file.to_str().expect("a path in UTF-8")).try_start()
}

#[test]
fn can_be_a_line_of_the_configuration_file_before_or_after_the_module() {
    let module = module_path();
    let module = module.display();
    for lines in [format!("loadmodule {module}\n{SLACK} 2345\n"), format!("{SLACK} 2345\nloadmodule {module}\n")] {
        let server = including(&lines).unwrap_or_else(|log| panic!("with\n{lines}\n{log}"));
        assert_eq!(slack(&mut server.client()), Some(2345), "{lines}");
    }
    let log = including(&format!("loadmodule {module}\n{SLACK} never\n")).err().expect("must not start");
    assert!(says_the_bounds(&log), "{log}");
    let log = including(&format!("loadmodule {module} slack 5\n")).err().expect("must not start");
    assert!(log.contains("takes no arguments"), "{log}");
}

#[test]
fn a_rewrite_of_the_configuration_file_keeps_it_for_the_next_start() {
    let dir = Scratch::new();
    let file = dir.0.join("redis.conf");
    let module = module_path();
    fs::write(&file, format!("# kept\nloadmodule {}\n{SLACK} 2000\n", module.display())).expect("a file");
    let server = FromFile::start(&file);
    let mut client = server.client();
    assert_eq!(slack(&mut client), Some(2000));
    client.ok(&format!("CONFIG SET {SLACK} 3000"));
    client.ok("CONFIG REWRITE");
    drop(server);
    let text = fs::read_to_string(&file).expect("the file");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(SLACK)).collect();
    assert_eq!(lines, [format!("{SLACK} 3000")], "in\n{text}");
    assert!(text.contains("# kept"), "{text}");
    let server = FromFile::start(&file);
    let mut client = server.client();
    assert_eq!(slack(&mut client), Some(3000));
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
    client.ok(&format!("CONFIG SET {SLACK} 1000"));
    client.ok("CONFIG REWRITE");
    drop(server);
    let server = FromFile::start(&file);
    assert_eq!(slack(&mut server.client()), Some(1000), "in\n{}", fs::read_to_string(&file).expect("the file"));
}

/// A directory of a test's own, gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let name = format!("tb-settings-{:?}", std::thread::current().id()).replace(['(', ')'], "-");
        let dir = std::env::temp_dir().join(format!("{name}{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server started as `redis-server FILE`: the only kind that can rewrite its configuration.
struct FromFile {
    child: Child,
    port: u16,
}

impl FromFile {
    fn start(file: &Path) -> FromFile {
        let dir = file.parent().expect("a directory");
        let port = TcpListener::bind(("127.0.0.1", 0)).expect("a free port").local_addr().expect("bound").port();
        // What outlives its test by a kill ends by itself.
        let mut command = Command::new("timeout");
        command.arg("120").arg(server_binary()).arg(file).args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
        ]);
        let log = dir.join("server.log");
        command.arg("--dir").arg(dir).arg("--logfile").arg(&log).stdin(Stdio::null());
        let mut child = command.spawn().expect("the server's binary starts");
        eventually("the server answers", || {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "the server ended:\n{}", fs::read_to_string(&log).unwrap_or_default());
            Client::connect(port).ok()
        });
        FromFile { child, port }
    }

    fn client(&self) -> Client {
        Client::connect(self.port).expect("a connection")
    }
}

impl Drop for FromFile {
    fn drop(&mut self) {
        if let Ok(mut client) = Client::connect(self.port) {
            client.send(&["SHUTDOWN", "NOSAVE"]);
        }
        let _ = self.child.wait();
    }
}
