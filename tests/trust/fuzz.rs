//! A random tester: any command of the family with any bytes, among the server's own commands on the same keys, while
//! the clock is moved at will. Every reply and every stored byte is held against the model. Repeatable by its seed:
//! `make fuzz SEED=... SECONDS=...`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::crash::rewrite_log;
use crate::model::{Call, Expect, Model, Value, ok, text};
use crate::process::exchange_module;
use crate::random::Random;
use crate::seconds;
use crate::support::{Client, Reply, START_US, Server, WallClock, eventually};

const SECOND: i64 = 1_000_000;
/// Calls between two complete comparisons with an empty start.
const EPISODE: u64 = 6_000;

fn seed() -> u64 {
    let given = std::env::var("TB_SEED").ok().filter(|text| !text.is_empty());
    given.map_or_else(
        || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64,
        |text| text.parse().expect("TB_SEED is a number"),
    )
}

struct Tester {
    random: Random,
    seed: u64,
    server: Server,
    /// A server without the module, which must come to hold the same.
    replica: Server,
    client: Client,
    clock: WallClock,
    model: Model,
    /// Payloads of `DUMP`, and what they are.
    dumps: Vec<(Vec<u8>, Value)>,
    sent: u64,
    recent: VecDeque<String>,
    kinds: BTreeMap<String, u64>,
}

/// A call, what it must answer, and whether a script hands the answer on.
struct Planned {
    call: Call,
    expect: Expect,
    in_script: bool,
}

#[test]
fn any_bytes_among_any_commands_are_answered_as_the_model_answers() {
    let mut tester = Tester::new(seed());
    let end = Instant::now() + seconds(6);
    let started = Instant::now();
    let mut told = Instant::now();
    while Instant::now() < end {
        tester.episode();
        if told.elapsed().as_secs() >= 60 {
            // The log of an hour would take the server longer to read than a reply may take.
            tester.reload_everything();
            rewrite_log(&mut tester.client);
            told = Instant::now();
            eprintln!("{} inputs in {:?}", tester.sent, started.elapsed());
        }
    }
    tester.reload_everything();
    println!("seed {}: {} inputs in {:?}; {:?}", tester.seed, tester.sent, started.elapsed(), tester.kinds);
    for kind in ["granted", "refused", "never", "ERR", "WRONGTYPE", "OOM", "EXEC", "EVAL"] {
        assert!(tester.kinds.contains_key(kind), "no answer of the kind {kind}: this tests little");
    }
}

impl Tester {
    fn new(seed: u64) -> Tester {
        let clock = WallClock::frozen();
        let server = Server::setup().clock(&clock).config("appendonly", "yes").config("appendfsync", "no");
        let server = server.config("auto-aof-rewrite-percentage", "0").start();
        let replica = Server::setup().without_module().clock(&clock).start();
        replica.follow(&server);
        let (client, model) = (server.client(), Model::new(START_US));
        let (dumps, recent, kinds) = (Vec::new(), VecDeque::new(), BTreeMap::new());
        Tester { random: Random::new(seed), seed, server, replica, client, clock, model, dumps, sent: 0, recent, kinds }
    }

    fn episode(&mut self) {
        self.client.ok("FLUSHALL");
        self.model.clear();
        self.move_clock_to(START_US);
        let end = self.sent + EPISODE;
        while self.sent < end {
            match self.random.below(40) {
                0..12 => self.move_clock(),
                12 => self.dump(),
                13 => self.without_memory(),
                14 if self.random.once_in(12) => self.reload(),
                15 if self.random.once_in(6) => self.exchange_module(),
                16 => self.set_slack(),
                _ => {}
            }
            let batch: Vec<Planned> = (0..=self.random.below(40)).flat_map(|_| self.plan()).collect();
            self.run(batch);
            if self.random.once_in(8) {
                self.compare_contents();
            }
        }
        self.compare_contents();
        self.compare_replica();
    }

    /// Sends a batch and compares every answer.
    fn run(&mut self, batch: Vec<Planned>) {
        let calls: Vec<Call> = batch.iter().map(|planned| planned.call.clone()).collect();
        let replies = self.client.pipeline(&calls);
        for (planned, reply) in batch.iter().zip(&replies) {
            self.note(&planned.call, reply);
            let right =
                if planned.in_script { planned.expect.allows_from_script(reply) } else { planned.expect.allows(reply) };
            assert!(right, "{}expected {:?}", self.story(), planned.expect);
            if let Reply::Error(_) = reply {
                reply.error();
            }
        }
    }

    fn note(&mut self, call: &Call, reply: &Reply) {
        self.sent += 1;
        let words: Vec<String> = call.iter().map(|word| word.escape_ascii().to_string()).collect();
        self.recent.push_back(format!("{} us: {} -> {reply:?}", self.model.now_us, words.join(" ")));
        if self.recent.len() > 60 {
            self.recent.pop_front();
        }
        let kind = match (call[0].as_slice(), reply) {
            (_, Reply::Error(text)) => text.split(|byte| *byte == b' ').next().unwrap_or_default(),
            (b"TB.TAKE" | b"TB.MTAKE" | b"TB.LEASE", Reply::Array(items)) => match (&items[0], &items[2]) {
                (Reply::Int(1..), _) => b"granted".as_slice(),
                (_, Reply::Int(-1)) => b"never",
                _ => b"refused",
            },
            (command, _) => command,
        };
        *self.kinds.entry(String::from_utf8_lossy(kind).into_owned()).or_default() += 1;
    }

    fn story(&self) -> String {
        let recent: Vec<&str> = self.recent.iter().map(String::as_str).collect();
        format!("input {}; repeat it with SEED={}\n{}\n", self.sent, self.seed, recent.join("\n"))
    }

    /// One thing to do, which may be several calls.
    fn plan(&mut self) -> Vec<Planned> {
        match self.random.below(30) {
            0 => self.plan_transaction(),
            1 | 2 => self.plan_script(),
            3 => self.plan_restore(),
            4..14 => {
                let call = self.server_call();
                vec![self.expecting(call)]
            }
            _ => {
                let call = self.family_call();
                vec![self.expecting(call)]
            }
        }
    }

    fn expecting(&mut self, call: Call) -> Planned {
        Planned { expect: self.model.call(&call), call, in_script: false }
    }

    fn any_call(&mut self) -> Call {
        if self.random.once_in(3) { self.server_call() } else { self.family_call() }
    }

    fn plan_transaction(&mut self) -> Vec<Planned> {
        let plain = |call: &[&str], expect| Planned { call: words(call), expect, in_script: false };
        let mut planned = vec![plain(&["MULTI"], ok())];
        let mut answers = Vec::new();
        for _ in 0..=self.random.below(5) {
            let call = self.any_call();
            // A wrong number of arguments would spoil the whole transaction, at the server's discretion.
            let enough = match call[0].as_slice() {
                b"TB.REFUND" | b"TB.DEBIT" => call.len() == 5,
                b"TB.STATE" => call.len() == 2,
                b"TB.TAKE" | b"TB.PEEK" => call.len() >= 4,
                b"TB.LEASE" | b"TB.MTAKE" => call.len() >= 5,
                _ => true,
            };
            if enough {
                answers.push(self.model.call(&call));
                planned.push(Planned { call, expect: text("QUEUED"), in_script: false });
            }
        }
        planned.push(plain(&["EXEC"], Expect::All(answers)));
        planned
    }

    fn plan_script(&mut self) -> Vec<Planned> {
        let call = self.any_call();
        let expect = self.model.call(&call);
        let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"];
        vec![Planned { call: words(&script).into_iter().chain(call).collect(), expect, in_script: true }]
    }

    fn plan_restore(&mut self) -> Vec<Planned> {
        if self.dumps.is_empty() {
            return Vec::new();
        }
        let (payload, value) = self.dumps[self.random.below(self.dumps.len() as u64) as usize].clone();
        let (key, replace) = (self.key(), self.random.once_in(2));
        let ttl = if self.random.once_in(2) { 0 } else { self.random.between(1, 100_000) };
        let expect = self.model.restore(&key, value, ttl, replace);
        let mut call = vec![b"RESTORE".to_vec(), key, ttl.to_string().into_bytes(), payload];
        call.extend(replace.then(|| b"REPLACE".to_vec()));
        vec![Planned { call, expect, in_script: false }]
    }

    fn server_call(&mut self) -> Call {
        let key = self.key();
        let number = |number: i64| number.to_string().into_bytes();
        let word = |word: &str| word.as_bytes().to_vec();
        let mut call = vec![Vec::new(), key];
        // Most calls leave a bucket a bucket, or few calls of the family would find one.
        let kind = if self.random.once_in(4) { self.random.below(6) } else { self.random.between(6, 18) as u64 };
        if kind < 6 && !self.random.once_in(4) {
            call[1] = self.random.pick(&[&b"c"[..], b"d e"]).to_vec();
        }
        let name = match kind {
            0 | 1 => {
                call.push(self.value());
                match self.random.below(3) {
                    0 => call.push(word("KEEPTTL")),
                    1 => call.extend([word("PX"), number(self.random.between(1, 60_000))]),
                    _ => {}
                }
                "SET"
            }
            2 => {
                call.push(self.random.bytes(3));
                "APPEND"
            }
            3 => {
                call.extend([number(self.random.between(0, 30)), self.random.bytes(4)]);
                "SETRANGE"
            }
            4 => {
                call.extend([number(self.random.between(0, 200)), number(self.random.between(0, 1))]);
                "SETBIT"
            }
            5 => {
                call.push(word("x"));
                "LPUSH"
            }
            6 => {
                call.push(number(self.random.between(-1, 30)));
                "EXPIRE"
            }
            7 => {
                call.push(number(self.random.between(-10, 5000)));
                "PEXPIRE"
            }
            8 => {
                call.push(number(self.model.now_us / 1000 + self.random.between(-1000, 100_000)));
                "PEXPIREAT"
            }
            9 => "PERSIST",
            10 => {
                call.push(self.key());
                "RENAME"
            }
            11 | 12 => {
                call.push(self.key());
                call.extend(self.random.once_in(2).then(|| word("REPLACE")));
                "COPY"
            }
            13 | 18 => "DEL",
            14 => "GETDEL",
            15 => "PTTL",
            16 => "EXISTS",
            _ => "GET",
        };
        call[0] = word(name);
        call
    }

    fn family_call(&mut self) -> Call {
        let mut call = vec![Vec::new()];
        let (name, usual) = match self.random.below(16) {
            0..5 => ("TB.TAKE", 1),
            5 | 6 => ("TB.PEEK", 1),
            7..9 => ("TB.MTAKE", self.random.below(6) + 1),
            9 | 10 => ("TB.LEASE", 1),
            11 => ("TB.REFUND", 1),
            12 | 13 => ("TB.DEBIT", 1),
            _ => ("TB.STATE", 1),
        };
        call[0] = name.as_bytes().to_vec();
        for _ in 0..usual {
            call.push(self.key());
            if name != "TB.STATE" {
                call.extend([self.amount(), self.rate(), self.cost()]);
            }
        }
        match self.random.below(16) {
            0 if name == "TB.TAKE" || name == "TB.PEEK" => drop(call.pop()),
            1 | 2 if name == "TB.LEASE" => call.push(self.cost()),
            3 if self.random.once_in(3) => {
                // Any number of any words.
                call.truncate(1);
                for _ in 0..self.random.below(12) {
                    call.push(match self.random.below(4) {
                        0 => self.key(),
                        1 => self.rate(),
                        2 => self.amount(),
                        _ => self.random.bytes(40),
                    });
                }
            }
            _ => {}
        }
        call
    }

    fn key(&mut self) -> Vec<u8> {
        match self.random.below(40) {
            0 => self.random.bytes(30),
            1 => vec![b'k'; 300],
            2 => b"".to_vec(),
            _ => self.random.pick(&[&b"a"[..], b"b", b"c", b"d e", b"\0\r\n%s%n\xff"]).to_vec(),
        }
    }

    /// What somebody might store under a bucket's key: anything, a bucket, nearly a bucket.
    fn value(&mut self) -> Vec<u8> {
        let key = self.key();
        let mut bytes = match self.model.look(&key) {
            Some((Value::Text(bytes), _)) => bytes.clone(),
            _ => return self.random.bytes(30),
        };
        match self.random.below(6) {
            0 => bytes.truncate(self.random.below(25) as usize),
            1 => {
                let at = self.random.below(bytes.len().max(1) as u64) as usize;
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.random.next() as u8);
            }
            2 => bytes = self.random.bytes(30),
            _ => {}
        }
        bytes
    }

    fn amount(&mut self) -> Vec<u8> {
        const USUAL: [&str; 16] =
            ["0", "1", "2", "3", "5", "10", "10", "10", "10", "100", "100", "0.5", "0.1", "0.3", "2.5", "7.000000001"];
        const RARE: [&str; 15] = [
            "1e15",
            "1000000000000000",
            "999999999999999.999999999",
            "1e-9",
            "0.0000000005",
            "1e-05",
            "1e3",
            "5.",
            ".5",
            "007",
            "00000000000000000000000000000000000000001",
            "0.10000000000000000000000000000000000001",
            "1.5e1",
            "100000000000000000e-17",
            "0e99999999999999999999",
        ];
        const BAD: [&str; 22] = [
            "",
            " ",
            " 5",
            "5 ",
            "-1",
            "+1",
            "-0",
            "nan",
            "inf",
            "-inf",
            "0x10",
            "1_000",
            "1e",
            "e5",
            ".",
            "1.2.3",
            "1e999",
            "1e-400",
            "1000000000000000.0000000001",
            "\u{663}",
            "1e-10",
            "99999999999999999999999999999999999999999999",
        ];
        match self.random.below(40) {
            0..26 => self.random.pick(&USUAL).as_bytes().to_vec(),
            26..32 => {
                let (whole, nanos) = (self.random.below(50), self.random.below(1_000_000_000));
                format!("{whole}.{nanos:09}").into_bytes()
            }
            32..36 => self.random.pick(&RARE).as_bytes().to_vec(),
            36 => self.random.bytes(20),
            37 => (0..self.random.below(12))
                .flat_map(|_| self.random.pick(&["0", "9", ".", "e", "-", "1"]).bytes())
                .collect(),
            38 => self.random.pick(&BAD).as_bytes().to_vec(),
            _ => format!("{}e{}", self.random.below(1000), self.random.between(-15, 14)).into_bytes(),
        }
    }

    /// Mostly less than a capacity.
    fn cost(&mut self) -> Vec<u8> {
        const SMALL: [&str; 8] = ["1", "1", "1", "2", "3", "0.5", "0.1", "0"];
        if self.random.once_in(3) { self.amount() } else { self.random.pick(&SMALL).as_bytes().to_vec() }
    }

    fn rate(&mut self) -> Vec<u8> {
        const USUAL: [&str; 12] =
            ["1", "1", "10", "100/60", "1/3", "0.5", "0.1", "1/86400", "1000", "7/3", "0", "1/60"];
        const RARE: [&str; 12] = [
            "1e12",
            "1000000000000",
            "1e-18",
            "0.000011574074074074074",
            "123456789012345678/987654321098765432",
            "0/5",
            ".5/1.5",
            "1e-3/1e3",
            "999999999.999999999",
            "1/31557600",
            "1e6/1e-6",
            "3e0",
        ];
        const BAD: [&str; 18] = [
            "",
            "1/0",
            "1/",
            "/1",
            "/",
            "1/2/3",
            "1 / 2",
            "1e13",
            "1e-19",
            "1000000000000.1",
            "-1/2",
            "1/-2",
            "1234567890123456789/1",
            "1/1234567890123456789",
            "inf/1",
            "1/1e400",
            "1e400/1e400",
            "1e1125899906842624",
        ];
        match self.random.below(40) {
            0..28 => self.random.pick(&USUAL).as_bytes().to_vec(),
            28..32 => format!("{}/{}", self.random.below(1000), self.random.below(100_000)).into_bytes(),
            32..36 => self.random.pick(&RARE).as_bytes().to_vec(),
            36 => self.random.bytes(20),
            37 => (0..self.random.below(12))
                .flat_map(|_| self.random.pick(&["0", "9", ".", "e", "/", "1"]).bytes())
                .collect(),
            _ => self.random.pick(&BAD).as_bytes().to_vec(),
        }
    }

    fn move_clock(&mut self) {
        let by = match self.random.below(12) {
            0..4 => self.random.between(0, 3000),
            4..7 => self.random.between(0, 5 * SECOND),
            7 => self.random.between(0, 3600 * SECOND),
            8 => self.random.between(0, 1000) * 86_400 * SECOND,
            9 => -self.random.between(0, 3 * SECOND),
            10 => -self.random.between(0, 3600 * SECOND),
            _ => {
                // A clock gone mad; before it comes back, as any step back, all that expired is looked at.
                let mad = [SECOND, 1 << 51, (1 << 52) - 1, 1 << 52, (1 << 52) + 12_345_678, 1 << 53];
                let to = mad[self.random.below(mad.len() as u64) as usize];
                return self.move_clock_to(to);
            }
        };
        let to = self.model.now_us + by;
        let sane = (SECOND..1 << 52).contains(&to) && !self.random.once_in(30);
        self.move_clock_to(if sane { to } else { START_US });
    }

    fn move_clock_to(&mut self, us: i64) {
        if us < self.model.now_us {
            self.settle();
        }
        self.clock.set(us);
        self.model.now_us = us;
    }

    /// Has the server forget what has expired: whether it has done so is its own affair until somebody looks, and a
    /// clock that went back would bring the key to life.
    fn settle(&mut self) {
        let looks: Vec<Call> = self.model.keys().into_iter().map(|key| vec![b"EXISTS".to_vec(), key]).collect();
        self.client.pipeline(&looks);
        self.model.forget_expired();
    }

    fn dump(&mut self) {
        self.settle();
        let key = self.key();
        let reply = self.client.call(&[b"DUMP".as_slice(), &key]);
        match (reply, self.model.look(&key)) {
            (Reply::Text(payload), Some((value, _))) => self.dumps.push((payload, value.clone())),
            (Reply::Nil, None) => {}
            (reply, there) => panic!("{}DUMP of {there:?} is {reply:?}", self.story()),
        }
        if self.dumps.len() > 20 {
            self.dumps.remove(0);
        }
    }

    /// At the memory limit only calls of the family are sent: whose commands are refused is the servers' own affair.
    fn without_memory(&mut self) {
        self.client.ok("CONFIG SET maxmemory 1");
        self.model.out_of_memory = true;
        let batch = (0..self.random.below(30))
            .map(|_| {
                let call = self.family_call();
                self.expecting(call)
            })
            .collect();
        self.run(batch);
        self.model.out_of_memory = false;
        self.client.ok("CONFIG SET maxmemory 0");
    }

    fn set_slack(&mut self) {
        let slack = [0, 1, 500, 1000, 60_000, 86_400_000][self.random.below(6) as usize];
        self.client.ok(&format!("CONFIG SET tokenbucket.expiry-slack-ms {slack}"));
        self.model.slack_ms = slack;
        assert!(self.client.ask("CONFIG SET tokenbucket.expiry-slack-ms 86400001").is_error());
    }

    fn reload(&mut self) {
        // A server that loads drops what has expired, and tells no replica.
        self.settle();
        self.client.ok("DEBUG RELOAD");
        self.compare_contents();
    }

    fn exchange_module(&mut self) {
        if exchange_module(&mut self.client) {
            self.model.slack_ms = 1000;
        }
    }

    /// Reads everything back from the append-only file.
    fn reload_everything(&mut self) {
        self.client.ok("DEBUG LOADAOF");
        self.compare_contents();
    }

    fn compare_contents(&mut self) {
        self.settle();
        let story = self.story();
        compare(&mut self.client, &self.model, "", &story);
    }

    fn compare_replica(&mut self) {
        // Looked at on the primary first, which tells the replica what has expired.
        let client = &mut self.client;
        eventually("nothing expired is left", || {
            client.ask("SCAN 0 COUNT 1000");
            (client.int("DBSIZE") == self.model.keys().len() as i64).then_some(())
        });
        self.replica.catch_up(&self.server);
        let story = self.story();
        compare(&mut self.replica.client(), &self.model, "on the replica ", &story);
    }
}

fn compare(client: &mut Client, model: &Model, place: &str, story: &str) {
    let keys = model.keys();
    let mut calls: Vec<Call> = Vec::new();
    for key in &keys {
        calls.extend(["TYPE", "PEXPIRETIME", "GET"].map(|command| vec![command.as_bytes().to_vec(), key.clone()]));
    }
    for (key, replies) in keys.iter().zip(client.pipeline(&calls).chunks(3)) {
        let (value, expires_ms) = model.look(key).expect("a key of the model");
        let name = key.escape_ascii();
        assert_eq!(replies[1], Reply::Int(expires_ms), "{story}{place}the expiry of {name}");
        match value {
            Value::Text(bytes) => {
                assert_eq!(replies[2], Reply::Text(bytes.clone()), "{story}{place}the value of {name}")
            }
            Value::List(_) => assert_eq!(replies[0].text(), "list", "{story}{place}{name}"),
        }
    }
    let found = client.ask("KEYS *");
    assert_eq!(found.items().len(), keys.len(), "{story}{place}there are {found:?}");
}

fn words(words: &[&str]) -> Call {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}
