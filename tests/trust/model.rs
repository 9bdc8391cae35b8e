//! What a server must answer, computed beside it: strings, lists and expiries as Redis has them, and buckets by the
//! pure arithmetic of the core crate. It knows nothing of the module's code.

use std::collections::BTreeMap;

use bucket::{Amount, Bucket, Decision, Micros, NumberError, Quota, Rate, Record, Retry, Slack};

use crate::support::Reply;

pub(crate) type Call = Vec<Vec<u8>>;

/// What an answer may be.
#[derive(Clone, Debug)]
pub(crate) enum Expect {
    Exactly(Reply),
    /// An error that begins with one of these; where several things are wrong with a call, any may be named.
    Error(Vec<&'static str>),
    All(Vec<Expect>),
}

impl Expect {
    pub(crate) fn allows(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Expect::Exactly(expected), reply) => expected == reply,
            (Expect::Error(starts), Reply::Error(text)) => {
                starts.iter().any(|start| text.starts_with(start.as_bytes()))
            }
            (Expect::All(each), Reply::Array(items)) => {
                each.len() == items.len() && each.iter().zip(items).all(|(expect, item)| expect.allows(item))
            }
            _ => false,
        }
    }

    /// As a script hands the answer on: its numbers are doubles.
    pub(crate) fn allows_from_script(&self, reply: &Reply) -> bool {
        fn same(expected: &Reply, reply: &Reply) -> bool {
            match (expected, reply) {
                (Reply::Int(expected), Reply::Int(_)) if expected.unsigned_abs() >> 53 != 0 => true,
                (Reply::Array(expected), Reply::Array(items)) => {
                    expected.len() == items.len() && expected.iter().zip(items).all(|(one, other)| same(one, other))
                }
                _ => expected == reply,
            }
        }
        match self {
            Expect::Exactly(expected) => same(expected, reply),
            Expect::Error(starts) if starts.contains(&WRONG_ARITY) => {
                self.allows(reply) || error(WRONG_ARITY_IN_SCRIPT).allows(reply)
            }
            other => other.allows(reply),
        }
    }
}

fn int(number: i64) -> Expect {
    Expect::Exactly(Reply::Int(number))
}

pub(crate) fn ok() -> Expect {
    text("OK")
}

pub(crate) fn text(text: &str) -> Expect {
    Expect::Exactly(Reply::Text(text.into()))
}

fn error(start: &'static str) -> Expect {
    Expect::Error(vec![start])
}

const WRONG_TYPE: &str = "WRONGTYPE ";
const WRONG_ARITY: &str = "ERR wrong number of arguments";
/// What scripts are told of a call that the server's own check of the number refuses.
const WRONG_ARITY_IN_SCRIPT: &str = "ERR Wrong number of args";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    List(i64),
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    expires_ms: Option<i64>,
}

/// A database, a clock and the settings.
pub(crate) struct Model {
    pub(crate) now_us: i64,
    pub(crate) slack_ms: u64,
    pub(crate) out_of_memory: bool,
    keys: BTreeMap<Vec<u8>, Entry>,
}

/// A refusal of a call by the module, before anything changes.
type Refusals = Vec<&'static str>;

impl Model {
    pub(crate) fn new(now_us: i64) -> Model {
        Model { now_us, slack_ms: 1000, out_of_memory: false, keys: BTreeMap::new() }
    }

    fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    /// Forgets what has expired; a server does so at the latest when it looks at the key.
    pub(crate) fn forget_expired(&mut self) {
        let now = self.now_ms();
        self.keys.retain(|_, entry| entry.expires_ms.is_none_or(|at| now <= at));
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    /// Every key that may still be somewhere.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.keys.keys().cloned().collect()
    }

    /// What is under a key, and when it expires, -1 for never.
    pub(crate) fn look(&self, key: &[u8]) -> Option<(&Value, i64)> {
        self.keys.get(key).map(|entry| (&entry.value, entry.expires_ms.unwrap_or(-1)))
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now_ms();
        if self.keys.get(key)?.expires_ms.is_some_and(|at| now > at) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    fn put(&mut self, key: &[u8], value: Value, expires_ms: Option<i64>) {
        self.keys.insert(key.to_vec(), Entry { value, expires_ms });
    }

    /// Carries out a call of the server's own commands or of the family.
    pub(crate) fn call(&mut self, call: &Call) -> Expect {
        let args: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
        let number = |at: usize| std::str::from_utf8(args[at]).expect("digits").parse::<i64>().expect("a number");
        match args[0] {
            b"TB.TAKE" | b"TB.PEEK" | b"TB.MTAKE" | b"TB.LEASE" | b"TB.REFUND" | b"TB.DEBIT" | b"TB.STATE" => {
                self.family(&args).unwrap_or_else(Expect::Error)
            }
            b"SET" => {
                let expires_ms = match args[3..] {
                    [] => None,
                    [b"KEEPTTL"] => self.entry(args[1]).and_then(|entry| entry.expires_ms),
                    _ => Some(self.now_ms() + number(4)),
                };
                self.put(args[1], Value::Text(args[2].to_vec()), expires_ms);
                ok()
            }
            b"GET" => match self.entry(args[1]).map(|entry| &entry.value) {
                None => Expect::Exactly(Reply::Nil),
                Some(Value::Text(bytes)) => Expect::Exactly(Reply::Text(bytes.clone())),
                Some(Value::List(_)) => error(WRONG_TYPE),
            },
            b"GETDEL" => {
                let got = self.call(&vec![b"GET".to_vec(), args[1].to_vec()]);
                if matches!(got, Expect::Exactly(_)) {
                    self.keys.remove(args[1]);
                }
                got
            }
            b"DEL" => int(i64::from(self.entry(args[1]).is_some() && self.keys.remove(args[1]).is_some())),
            b"EXISTS" => int(i64::from(self.entry(args[1]).is_some())),
            b"PTTL" => {
                let now = self.now_ms();
                int(self.entry(args[1]).map_or(-2, |entry| entry.expires_ms.map_or(-1, |at| at - now)))
            }
            b"APPEND" => self.edit(args[1], |bytes| {
                bytes.extend(args[2]);
                bytes.len() as i64
            }),
            b"SETRANGE" => {
                let at = number(2) as usize;
                if args[3].is_empty() {
                    return match self.entry(args[1]).map(|entry| &entry.value) {
                        None => int(0),
                        Some(Value::Text(bytes)) => int(bytes.len() as i64),
                        Some(Value::List(_)) => error(WRONG_TYPE),
                    };
                }
                self.edit(args[1], |bytes| {
                    bytes.resize(bytes.len().max(at + args[3].len()), 0);
                    bytes[at..at + args[3].len()].copy_from_slice(args[3]);
                    bytes.len() as i64
                })
            }
            b"SETBIT" => {
                let (at, bit) = (number(2) as usize, number(3) as u8);
                self.edit(args[1], |bytes| {
                    bytes.resize(bytes.len().max(at / 8 + 1), 0);
                    let mask = 0x80 >> (at % 8);
                    let old = i64::from(bytes[at / 8] & mask != 0);
                    bytes[at / 8] = (bytes[at / 8] & !mask) | (mask * bit);
                    old
                })
            }
            b"LPUSH" => match self.entry(args[1]).map(|entry| &mut entry.value) {
                Some(Value::List(len)) => {
                    *len += 1;
                    int(*len)
                }
                Some(Value::Text(_)) => error(WRONG_TYPE),
                None => {
                    self.put(args[1], Value::List(1), None);
                    int(1)
                }
            },
            b"PEXPIRE" => self.expire(args[1], self.now_ms() + number(2)),
            b"EXPIRE" => self.expire(args[1], self.now_ms() + number(2) * 1000),
            b"PEXPIREAT" => self.expire(args[1], number(2)),
            b"PERSIST" => int(self.entry(args[1]).map_or(0, |entry| i64::from(entry.expires_ms.take().is_some()))),
            b"RENAME" => match self.entry(args[1]).cloned() {
                None => error("ERR no such key"),
                Some(entry) => {
                    self.keys.remove(args[1]);
                    self.keys.insert(args[2].to_vec(), entry);
                    ok()
                }
            },
            b"COPY" if args[1] == args[2] => error("ERR source and destination objects are the same"),
            b"COPY" => match self.entry(args[1]).cloned() {
                None => int(0),
                Some(_) if self.entry(args[2]).is_some() && args.len() == 3 => int(0),
                Some(entry) => {
                    self.keys.insert(args[2].to_vec(), entry);
                    int(1)
                }
            },
            _ => panic!("the model does not know {}", args[0].escape_ascii()),
        }
    }

    /// A `RESTORE` of a payload that a `DUMP` of `value` made.
    pub(crate) fn restore(&mut self, key: &[u8], value: Value, ttl_ms: i64, replace: bool) -> Expect {
        if !replace && self.entry(key).is_some() {
            return error("BUSYKEY ");
        }
        self.put(key, value, (ttl_ms > 0).then(|| self.now_ms() + ttl_ms));
        ok()
    }

    fn edit(&mut self, key: &[u8], change: impl FnOnce(&mut Vec<u8>) -> i64) -> Expect {
        if self.entry(key).is_none() {
            self.put(key, Value::Text(Vec::new()), None);
        }
        match self.entry(key).map(|entry| &mut entry.value) {
            Some(Value::Text(bytes)) => int(change(bytes)),
            _ => error(WRONG_TYPE),
        }
    }

    fn expire(&mut self, key: &[u8], at_ms: i64) -> Expect {
        let now = self.now_ms();
        match self.entry(key) {
            None => int(0),
            Some(_) if at_ms <= now => {
                self.keys.remove(key);
                int(1)
            }
            Some(entry) => {
                entry.expires_ms = Some(at_ms);
                int(1)
            }
        }
    }

    fn family(&mut self, args: &[&[u8]]) -> Result<Expect, Refusals> {
        let (fewest, most) = match args[0] {
            b"TB.TAKE" | b"TB.PEEK" => (4, 5),
            b"TB.LEASE" => (5, 6),
            b"TB.REFUND" | b"TB.DEBIT" => (5, 5),
            b"TB.STATE" => (2, 2),
            _ => (5, usize::MAX),
        };
        if args.len() < fewest {
            return Err(vec![WRONG_ARITY]);
        }
        let mut refusals = Vec::new();
        if args.len() > most || args[0] == b"TB.MTAKE" && args.len() % 4 != 1 {
            refusals.push(WRONG_ARITY);
        }
        let now = Micros::new(self.now_us.try_into().unwrap_or(0));
        match args[0] {
            b"TB.STATE" => self.state(args[1], refusals),
            b"TB.MTAKE" => self.take_from_all(args, refusals, now),
            command => self.one_bucket(command, args, refusals, now),
        }
    }

    fn one_bucket(
        &mut self,
        command: &[u8],
        args: &[&[u8]],
        mut refusals: Refusals,
        now: Micros,
    ) -> Result<Expect, Refusals> {
        let quota = quota(args, 2, &mut refusals);
        let given = |at: usize| args.get(at).copied().unwrap_or(b"1");
        let mut first = Amount::ZERO;
        let mut least = Amount::ONE;
        match command {
            b"TB.LEASE" => {
                let want = whole(given(4), "ERR invalid want: ", &mut refusals);
                let fewest = whole(given(5), "ERR invalid least: ", &mut refusals);
                if let (Some(want), Some(fewest)) = (want, fewest) {
                    (first, least) = (want, fewest);
                    if want == Amount::ZERO {
                        refusals.push("ERR invalid want: ");
                    }
                    if least == Amount::ZERO || least > want {
                        refusals.push("ERR invalid least: ");
                    }
                }
            }
            _ => {
                let name = if command == b"TB.REFUND" { "ERR invalid amount: " } else { "ERR invalid cost: " };
                first = amount(given(4), name, &mut refusals).unwrap_or_default();
            }
        }
        let Some(quota) = quota.filter(|_| refusals.is_empty()) else { return Err(refusals) };
        let stored = self.record(args[1])?;
        let bucket = stored.map_or_else(|| Bucket::full(&quota, now), |record| record.bucket);
        let (next, answer) = match command {
            b"TB.PEEK" => return Ok(Expect::Exactly(array(integers(bucket.peek(&quota, first, now))))),
            b"TB.TAKE" => {
                let (next, decision) = bucket.take(&quota, first, now);
                (next, integers(decision))
            }
            b"TB.LEASE" => {
                let (next, lease) = bucket.lease(&quota, first, least, now);
                (next, [lease.granted as i64, lease.remaining as i64, lease.retry.as_millis()])
            }
            b"TB.REFUND" => {
                let (next, decision) = bucket.refund(&quota, first, now);
                (stored.map(|_| next), integers(decision))
            }
            _ => {
                let (next, decision) = bucket.debit(&quota, first, now).map_err(|_| vec!["ERR invalid cost: "])?;
                ((stored.is_some() || first != Amount::ZERO).then_some(next), integers(decision))
            }
        };
        if next.is_some() && stored.is_none() && self.out_of_memory {
            return Err(vec!["OOM "]);
        }
        self.store(args[1], stored, next, &quota, now);
        Ok(Expect::Exactly(array(answer)))
    }

    fn take_from_all(&mut self, args: &[&[u8]], mut refusals: Refusals, now: Micros) -> Result<Expect, Refusals> {
        let mut wanted = Vec::new();
        for at in (1..args.len()).step_by(4).filter(|at| at + 3 < args.len()) {
            let quota = quota(args, at + 1, &mut refusals);
            let cost = amount(args[at + 3], "ERR invalid cost: ", &mut refusals);
            if let (Some(quota), Some(cost)) = (quota, cost) {
                wanted.push((args[at], quota, cost));
            }
        }
        let mut names: Vec<&[u8]> = (1..args.len()).step_by(4).map(|at| args[at]).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            refusals.push("ERR the same key is named twice");
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let stored = wanted.iter().map(|(key, ..)| self.record(key)).collect::<Result<Vec<_>, _>>()?;
        let bucket = |at: usize| stored[at].map_or_else(|| Bucket::full(&wanted[at].1, now), |record| record.bucket);
        let taken: Vec<_> = (0..wanted.len()).map(|at| bucket(at).take(&wanted[at].1, wanted[at].2, now)).collect();
        let allowed = taken.iter().all(|(_, decision)| decision.allowed);
        let creates = |at: usize| stored[at].is_none() && taken[at].0.is_some();
        if allowed && self.out_of_memory && (0..wanted.len()).any(creates) {
            return Err(vec!["OOM "]);
        }
        let mut answers = Vec::new();
        for (at, (key, quota, cost)) in wanted.iter().enumerate() {
            let (next, decision) = taken[at];
            answers.push(integers(if allowed { decision } else { bucket(at).peek(quota, *cost, now) }));
            self.store(key, stored[at], next.filter(|_| allowed), quota, now);
        }
        let least = answers.iter().map(|answer| answer[1]).min().unwrap_or(0);
        let never = answers.iter().any(|answer| answer[2] < 0);
        let longest = if never { -1 } else { answers.iter().map(|answer| answer[2]).max().unwrap_or(0) };
        let verdict = [i64::from(allowed), least, longest].map(Reply::Int).into_iter();
        let each = Reply::Array(answers.into_iter().map(array).collect());
        Ok(Expect::Exactly(Reply::Array(verdict.chain([each]).collect())))
    }

    fn state(&mut self, key: &[u8], refusals: Refusals) -> Result<Expect, Refusals> {
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let Some(record) = self.record(key)? else { return Ok(Expect::Exactly(Reply::Nil)) };
        let ttl = self.look(key).map_or(-1, |(_, at)| if at < 0 { -1 } else { at - self.now_ms() });
        let word = |word: &str| Reply::Text(word.into());
        let stamp = Reply::Int(record.bucket.stamp.get() as i64);
        let fields = [word("tokens"), word(&record.bucket.balance.to_string()), word("last_refill_us"), stamp];
        Ok(Expect::Exactly(Reply::Array(fields.into_iter().chain([word("ttl_ms"), Reply::Int(ttl)]).collect())))
    }

    fn record(&mut self, key: &[u8]) -> Result<Option<Record>, Refusals> {
        match self.entry(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(bytes)) => Record::decode(bytes).map(Some).ok_or_else(|| vec![WRONG_TYPE]),
            Some(Value::List(_)) => Err(vec![WRONG_TYPE]),
        }
    }

    fn store(&mut self, key: &[u8], stored: Option<Record>, next: Option<Bucket>, quota: &Quota, now: Micros) {
        let slack = Slack::from_millis(self.slack_ms);
        let record = match (next, stored) {
            (Some(bucket), _) => Record::with(stored.as_ref(), bucket, quota, slack),
            (None, Some(stored)) => match stored.corrected(quota, slack, now) {
                Some(record) => record,
                None => return,
            },
            (None, None) => return,
        };
        let deadline = record.deadline.as_millis().map(u64::cast_signed);
        let expires_ms = match stored {
            Some(stored) if stored.deadline == record.deadline => {
                self.look(key).map(|(_, at)| at).filter(|at| *at >= 0)
            }
            _ => deadline,
        };
        self.put(key, Value::Text(record.encode().to_vec()), expires_ms);
    }
}

fn quota(args: &[&[u8]], at: usize, refusals: &mut Refusals) -> Option<Quota> {
    let capacity = amount(args[at], "ERR invalid capacity: ", refusals);
    let rate = number(Rate::parse(args[at + 1]), "ERR invalid rate: ", refusals);
    Some(Quota { capacity: capacity?, rate: rate? })
}

fn amount(text: &[u8], refusal: &'static str, refusals: &mut Refusals) -> Option<Amount> {
    number(Amount::parse(text), refusal, refusals)
}

fn whole(text: &[u8], refusal: &'static str, refusals: &mut Refusals) -> Option<Amount> {
    let amount = amount(text, refusal, refusals)?;
    if amount.whole().is_none() {
        refusals.push(refusal);
    }
    amount.whole().map(|_| amount)
}

fn number<T>(parsed: Result<T, NumberError>, refusal: &'static str, refusals: &mut Refusals) -> Option<T> {
    parsed.map_err(|_| refusals.push(refusal)).ok()
}

fn integers(decision: Decision) -> [i64; 3] {
    debug_assert!(decision.allowed || decision.retry != Retry::Now);
    [i64::from(decision.allowed), decision.remaining as i64, decision.retry.as_millis()]
}

fn array(integers: [i64; 3]) -> Reply {
    Reply::Array(integers.map(Reply::Int).to_vec())
}
