//! What the tests of the command family share: all that tells of a write, exact balances, and chance that repeats itself.
#![allow(dead_code, reason = "every test file uses its own part of this module")]

use crate::support::{Client, ReplicationStream, Reply, Server};

/// The commands that may change a bucket `k` of `10 1`, with arguments that do.
pub(crate) const WRITERS: [&str; 5] =
    ["TB.TAKE k 10 1 1", "TB.MTAKE k 10 1 1", "TB.LEASE k 10 1 1", "TB.REFUND k 10 1 1", "TB.DEBIT k 10 1 1"];

/// The commands that only look.
pub(crate) const READERS: [&str; 2] = ["TB.PEEK k 10 1 1", "TB.STATE k"];

/// Units of [`tokens`] in a token.
pub(crate) const TOKEN: i128 = 1_000_000_000_000;

/// A channel of our own among those of the server's events.
const END_OF_EVENTS: &str = "__key-end";

/// Hears all that tells of a write in a server: replication, keyspace events, the count of changes.
pub(crate) struct Listener {
    stream: ReplicationStream,
    events: Client,
    client: Client,
    changes: i64,
}

/// What was written in a while.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Written {
    /// The commands sent to replicas.
    pub(crate) sent: Vec<Vec<Vec<u8>>>,
    /// `EVENT KEY`, in order.
    pub(crate) events: Vec<String>,
    /// By how much the server's count of changes rose.
    pub(crate) changes: i64,
}

impl Listener {
    /// Listens from now on.
    pub(crate) fn of(server: &Server) -> Listener {
        let mut client = server.client();
        client.ok("CONFIG SET notify-keyspace-events EA");
        let mut events = server.client();
        assert_eq!(events.ask("PSUBSCRIBE __key*").items()[0].text(), "psubscribe");
        let stream = ReplicationStream::of(server);
        // After the snapshot for the stream, which sets the count back.
        let changes = changes(&mut client);
        Listener { stream, events, client, changes }
    }

    /// What was written since the last call.
    pub(crate) fn written(&mut self) -> Written {
        let changes = changes(&mut self.client);
        let since = changes - std::mem::replace(&mut self.changes, changes);
        let events = self.events();
        let mut sent = self.stream.drain();
        sent.retain(|command| !command.iter().any(|word| word == END_OF_EVENTS.as_bytes()));
        Written { sent, events, changes: since }
    }

    /// Holds what was written against exactly one change, to `key`, told as `event`: an absolute `SET` of what is there.
    pub(crate) fn one_write(&mut self, key: &str, event: &str) {
        let written = self.written();
        assert_eq!(written.events, [format!("{event} {key}")]);
        assert_eq!(written.changes, 1, "{written:?}");
        let [command] = &written.sent[..] else { panic!("one command is sent, not {written:?}") };
        assert_absolute(&mut self.client, command, key);
    }

    /// Holds what was written against nothing at all.
    pub(crate) fn nothing(&mut self, after: &str) {
        assert_eq!(self.written(), Written::default(), "after {after}");
    }

    fn events(&mut self) -> Vec<String> {
        self.client.int(&format!("PUBLISH {END_OF_EVENTS} ."));
        let mut events = Vec::new();
        loop {
            let message = self.events.read();
            match message.texts()[..] {
                ["pmessage", _, END_OF_EVENTS, _] => return events,
                ["pmessage", _, channel, key] => {
                    let event = channel.strip_prefix("__keyevent@0__:").expect("events of database 0");
                    events.push(format!("{event} {key}"));
                }
                _ => panic!("not a message: {message:?}"),
            }
        }
    }
}

impl Written {
    /// The names of the commands sent.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sent.iter().map(|command| String::from_utf8_lossy(&command[0]).to_uppercase()).collect()
    }
}

fn changes(client: &mut Client) -> i64 {
    client.info_int("rdb_changes_since_last_save")
}

/// Holds a replicated command against what is stored under `key`: the same bytes, and a deadline that is the same
/// whenever the command is carried out.
pub(crate) fn assert_absolute(client: &mut Client, command: &[Vec<u8>], key: &str) {
    let value = client.bytes(&format!("GET {key}"));
    let deadline = client.int(&format!("PEXPIRETIME {key}")).to_string();
    let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
    match words[..] {
        [b"SET", name, bytes, b"PXAT", at] => {
            assert_eq!((name, bytes, at), (key.as_bytes(), &value[..], deadline.as_bytes()));
        }
        [b"SET", name, bytes, b"KEEPTTL"] => assert_eq!((name, bytes), (key.as_bytes(), &value[..])),
        [b"SET", name, bytes] => assert_eq!((name, bytes, &deadline[..]), (key.as_bytes(), &value[..], "-1")),
        _ => panic!("replicated as {command:?}"),
    }
}

/// The integers of an answer that is a flat array.
pub(crate) fn ints(client: &mut Client, line: &str) -> Vec<i64> {
    let reply = client.ask(line);
    assert!(matches!(reply, Reply::Array(_)), "{line}: {reply:?}");
    reply.ints()
}

/// The balance stored under `key`, in units of 1e-12 token.
pub(crate) fn tokens(client: &mut Client, key: &str) -> i128 {
    units(client.ask(&format!("TB.STATE {key}")).field("tokens").text())
}

/// A decimal in units of 1e-12 token; a thirteenth decimal is refused.
pub(crate) fn units(decimal: &str) -> i128 {
    let (sign, digits) = decimal.strip_prefix('-').map_or((1, decimal), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    assert!(fraction.len() <= 12, "{decimal} has more than twelve decimals");
    let number = |digits: &str| digits.parse::<i128>().unwrap_or_else(|_| panic!("not a decimal: {decimal}"));
    sign * (number(whole) * TOKEN + number(&format!("{fraction:0<12}")))
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
