//! One key and random calls on it. The calls are symbolic ("all that is there", "a sixteenth of a refill later"), to
//! stay at the edges whatever the quota is.

use proptest::prelude::*;
use proptest::sample::select;
use redis_token_bucket_core::{
    Amount, Balance, Bucket, Deadline, DebtLimit, Decision, Micros, Quota, Rate, Record, Slack,
};

use crate::oracle::{self, Exact, whole};

/// The first second of 2026.
pub(crate) const NEW_YEAR: u64 = 1_767_225_600_000_000;
pub(crate) const SLACK: Slack = Slack::from_millis(1_000);
/// 1e15 tokens in steps of 1e-9.
const MOST_NANOS: u128 = 1_000_000_000_000_000_000_000_000;

/// A number of tokens as the code and as the oracle read it.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) text: String,
    pub(crate) amount: Amount,
    pub(crate) exact: Exact,
}

impl Tokens {
    pub(crate) fn new(text: &str) -> Self {
        let amount = Amount::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        let exact = oracle::amount(text.as_bytes()).unwrap_or_else(|error| panic!("{text} by the oracle: {error}"));
        Self { text: text.to_owned(), amount, exact }
    }

    pub(crate) fn nanos(nanos: u128) -> Self {
        Self::new(&nanos_text(nanos.min(MOST_NANOS)))
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

pub(crate) fn nanos_text(nanos: u128) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// A quota as the code and as the oracle read it.
#[derive(Clone)]
pub(crate) struct Limit {
    pub(crate) quota: Quota,
    pub(crate) exact: oracle::Quota,
    text: String,
    nanos: u128,
}

impl Limit {
    pub(crate) fn new(capacity: &str, rate: &str) -> Self {
        let text = format!("{capacity} at {rate}");
        let tokens = Tokens::new(capacity);
        let speed = Rate::parse(rate.as_bytes()).unwrap_or_else(|error| panic!("{rate}: {error}"));
        let exact_rate = oracle::rate(rate.as_bytes()).unwrap_or_else(|error| panic!("{rate} by the oracle: {error}"));
        let nanos = u128::try_from((&tokens.exact * oracle::power_of_ten(9)).to_integer()).unwrap();
        let quota = Quota { capacity: tokens.amount, rate: speed };
        Self { quota, exact: oracle::Quota { capacity: tokens.exact, rate: exact_rate }, text, nanos }
    }

    /// Microseconds until so many tokens have come back, rounded up; `None` where the clock ends before.
    pub(crate) fn micros_for(&self, tokens: &Exact) -> Option<u64> {
        let micros = (self.exact.seconds_for(tokens)? * oracle::power_of_ten(6)).ceil().to_integer();
        u64::try_from(micros).ok().filter(|micros| *micros <= Micros::MAX.get())
    }
}

impl std::fmt::Debug for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Any balance at all, made of calls: the finest steps come back at one a microsecond.
pub(crate) fn balance(units: i128) -> Balance {
    let slow = Quota { capacity: Amount::MAX, rate: Rate::parse(b"1e-6").unwrap() };
    let none = Quota { capacity: Amount::ZERO, rate: Rate::ZERO };
    let nanos = units.div_euclid(1_000);
    let (then, now) = (Micros::new(0), Micros::new(units.rem_euclid(1_000).unsigned_abs() as u64));
    let tokens = Tokens::nanos(nanos.unsigned_abs()).amount;
    let bucket = if nanos < 0 {
        Bucket::full(&none, then).debit(&none, tokens, then).unwrap().0
    } else {
        Bucket::full(&Quota { capacity: tokens, ..none }, then)
    };
    let balance = bucket.refilled(&slow, now).balance;
    assert_eq!(balance.units(), units);
    balance
}

/// The first deadline at or after a moment; none for the epoch itself.
pub(crate) fn deadline(micros: u64) -> Deadline {
    if micros == 0 {
        return Deadline::NEVER;
    }
    let none = Quota { capacity: Amount::ZERO, rate: Rate::parse(b"1").unwrap() };
    Record::with(None, Bucket::full(&none, Micros::new(micros)), &none, Slack::from_millis(0)).deadline
}

pub(crate) fn exact_balance(bucket: &Bucket) -> Exact {
    whole(bucket.balance.units()) * oracle::step()
}

pub(crate) fn exact_bucket(bucket: &Bucket) -> oracle::Bucket {
    oracle::Bucket { balance: exact_balance(bucket), stamp: bucket.stamp.get() }
}

/// A call with its numbers.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Take(Tokens),
    Peek(Tokens),
    Lease { want: Tokens, least: Tokens },
    Refund(Tokens),
    Debit(Tokens),
}

/// What a caller is told, and what left the bucket for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) allowed: bool,
    pub(crate) granted: Amount,
    pub(crate) remaining: u64,
    pub(crate) retry_ms: i64,
}

impl Reply {
    fn of(decision: Decision, granted: Amount) -> Self {
        let granted = if decision.allowed { granted } else { Amount::ZERO };
        let Decision { allowed, remaining, retry } = decision;
        Self { allowed, granted, remaining, retry_ms: retry.as_millis() }
    }
}

/// A key: its record as bytes, and the calls on it as a server makes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Key {
    pub(crate) bytes: Option<[u8; Record::LEN]>,
    /// Whether the server removes it at its deadline.
    pub(crate) expires: bool,
}

impl Key {
    pub(crate) fn holding(record: Record) -> Self {
        Self { bytes: Some(record.encode()), expires: false }
    }

    pub(crate) fn record(&self) -> Option<Record> {
        self.bytes.as_ref().map(|bytes| Record::decode(bytes).expect("what was stored can be read"))
    }

    fn expire(&mut self, now: Micros) {
        let deadline = self.record().and_then(|record| record.deadline.as_millis());
        if self.expires && deadline.is_some_and(|millis| millis * 1_000 <= now.get()) {
            self.bytes = None;
        }
    }

    pub(crate) fn call(&mut self, quota: &Quota, verb: &Verb, now: Micros) -> Result<Reply, DebtLimit> {
        self.expire(now);
        let old = self.record();
        let bucket = old.map_or_else(|| Bucket::full(quota, now), |record| record.bucket);
        let (changed, reply) = match verb {
            Verb::Take(cost) => {
                let (changed, decision) = bucket.take(quota, cost.amount, now);
                (changed, Reply::of(decision, cost.amount))
            }
            Verb::Peek(cost) => return Ok(Reply::of(bucket.peek(quota, cost.amount, now), Amount::ZERO)),
            Verb::Lease { want, least } => {
                let (changed, lease) = bucket.lease(quota, want.amount, least.amount, now);
                let granted = Amount::from_tokens(lease.granted).unwrap();
                let decision = Decision { allowed: lease.granted > 0, remaining: lease.remaining, retry: lease.retry };
                (changed, Reply::of(decision, granted))
            }
            Verb::Refund(amount) => {
                let (changed, decision) = bucket.refund(quota, amount.amount, now);
                (old.is_some().then_some(changed), Reply::of(decision, Amount::ZERO))
            }
            Verb::Debit(cost) => {
                let (changed, decision) = bucket.debit(quota, cost.amount, now)?;
                let creates = cost.amount != Amount::ZERO;
                ((old.is_some() || creates).then_some(changed), Reply::of(decision, Amount::ZERO))
            }
        };
        let new = match changed {
            Some(bucket) => Some(Record::with(old.as_ref(), bucket, quota, SLACK)),
            None => old.and_then(|old| old.corrected(quota, SLACK, now)),
        };
        self.bytes = new.map(|new| new.encode()).or(self.bytes);
        Ok(reply)
    }
}

fn nanos_there(limit: &Limit, bucket: &Bucket, now: u64) -> u128 {
    bucket.refilled(&limit.quota, Micros::new(now)).balance.units().max(0).unsigned_abs() / 1_000
}

/// How much a call names.
#[derive(Clone, Debug)]
pub(crate) enum Size {
    Zero,
    Nano,
    One,
    Eighths(u8),
    AboveCapacity,
    /// What is in the bucket, to the nano.
    There,
    AboveThere,
    Nanos(u128),
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Take(Size),
    Peek(Size),
    Lease(Size, Size),
    Refund(Size),
    Debit(Size),
}

/// How the clock moves before a call.
#[derive(Clone, Debug)]
pub(crate) enum Tick {
    Still,
    Micros(u64),
    Sixteenths(u8),
    /// As long as the last answer said, and a little less or more.
    Retry(i8),
    Back(u64),
    BackSixteenths(u8),
    /// Back by a whole refill, and a little less or more: where a stamp stops being true.
    BackRefill(i8),
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) tick: Tick,
    pub(crate) action: Action,
    /// Which of the limits the call brings.
    pub(crate) limit: usize,
}

impl Size {
    fn nanos(&self, limit: &Limit, there: u128) -> u128 {
        match *self {
            Self::Zero => 0,
            Self::Nano => 1,
            Self::One => 1_000_000_000,
            Self::Eighths(parts) => limit.nanos * u128::from(parts) / 8,
            Self::AboveCapacity => limit.nanos + 1,
            Self::There => there,
            Self::AboveThere => there + 1,
            Self::Nanos(nanos) => nanos,
        }
    }

    fn tokens(&self, limit: &Limit, there: u128) -> Tokens {
        Tokens::nanos(self.nanos(limit, there))
    }

    /// What it means for a bucket.
    pub(crate) fn of(&self, limit: &Limit, bucket: &Bucket, now: u64) -> Tokens {
        self.tokens(limit, nanos_there(limit, bucket, now))
    }

    fn whole_tokens(&self, limit: &Limit, there: u128) -> u128 {
        (self.nanos(limit, there) / 1_000_000_000).clamp(1, 1_000_000_000_000_000)
    }
}

impl Action {
    fn verb(&self, limit: &Limit, there: u128) -> Verb {
        match self {
            Self::Take(size) => Verb::Take(size.tokens(limit, there)),
            Self::Peek(size) => Verb::Peek(size.tokens(limit, there)),
            Self::Refund(size) => Verb::Refund(size.tokens(limit, there)),
            Self::Debit(size) => Verb::Debit(size.tokens(limit, there)),
            Self::Lease(one, other) => {
                let (one, other) = (one.whole_tokens(limit, there), other.whole_tokens(limit, there));
                let tokens = |number: u128| Tokens::new(&number.to_string());
                Verb::Lease { want: tokens(one.max(other)), least: tokens(one.min(other)) }
            }
        }
    }
}

impl Tick {
    /// The next time. No step is longer than some years, or the clock would soon be at its end.
    fn after(&self, now: u64, limit: &Limit, retry_ms: i64) -> u64 {
        let refill = limit.micros_for(&limit.exact.capacity).unwrap_or(1 << 47).min(1 << 47);
        let near = |micros: u64, by: i8| micros.saturating_add_signed(i64::from(by));
        let next = match *self {
            Self::Still => now,
            Self::Micros(micros) => now + micros,
            Self::Sixteenths(parts) => now + refill * u64::from(parts) / 16,
            Self::Retry(by) => now + near(u64::try_from(retry_ms).unwrap_or(0).min(1 << 37) * 1_000, by),
            Self::Back(micros) => now.saturating_sub(micros),
            Self::BackSixteenths(parts) => now.saturating_sub(refill * u64::from(parts) / 16),
            Self::BackRefill(by) => now.saturating_sub(near(refill, by)),
        };
        next.min(Micros::MAX.get())
    }
}

/// A call as it was made, with what the key held before and after.
pub(crate) struct Moment<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) verb: Verb,
    pub(crate) now: Micros,
    pub(crate) before: Option<Record>,
    pub(crate) after: Option<Record>,
    pub(crate) reply: Result<Reply, DebtLimit>,
}

impl Moment<'_> {
    /// Whether the stamp, too far ahead of the clock to be true, became the time of the call.
    pub(crate) fn gave_up_the_stamp(&self) -> bool {
        let Some((before, after)) = self.before.zip(self.after) else {
            return false;
        };
        let anchored = exact_bucket(&before.bucket).anchored(&self.limit.exact, self.now.get()).stamp;
        before.bucket.stamp.get() != anchored && after.bucket.stamp == self.now
    }

    /// Whether the verb itself stored a bucket: not a refusal, a peek or an error.
    pub(crate) fn wrote(&self) -> bool {
        let Ok(reply) = self.reply else {
            return false;
        };
        match &self.verb {
            Verb::Take(_) | Verb::Lease { .. } => reply.granted > Amount::ZERO,
            Verb::Peek(_) => false,
            Verb::Refund(_) | Verb::Debit(_) => self.after.is_some(),
        }
    }
}

/// Makes the calls in turn and shows each.
pub(crate) fn run(
    mut key: Key,
    start: u64,
    limits: &[Limit],
    steps: &[Step],
    mut see: impl FnMut(&Moment<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut now, mut retry_ms) = (start, 0);
    for step in steps {
        let limit = &limits[step.limit % limits.len()];
        now = step.tick.after(now, limit, retry_ms);
        let time = Micros::new(now);
        key.expire(time);
        let before = key.record();
        let bucket = before.map_or_else(|| Bucket::full(&limit.quota, time), |record| record.bucket);
        let verb = step.action.verb(limit, nanos_there(limit, &bucket, now));
        let reply = key.call(&limit.quota, &verb, time);
        retry_ms = reply.map_or(0, |reply| reply.retry_ms);
        see(&Moment { limit, verb, now: time, before, after: key.record(), reply })?;
    }
    Ok(())
}

/// Numbers of nanos of every size, up to 1e15 tokens.
pub(crate) fn nanos() -> impl Strategy<Value = u128> {
    prop_oneof![
        3 => (0..=20_u128).prop_map(|tokens| tokens * 1_000_000_000),
        2 => (1..1_000_u128, 0..=21_u32).prop_map(|(digits, zeros)| digits * 10_u128.pow(zeros)),
        2 => 0..=MOST_NANOS,
        1 => select(vec![0, 1, 100_000_000, 300_000_000, MOST_NANOS - 1, MOST_NANOS]),
    ]
}

/// Rates of every size and form.
pub(crate) fn rate_texts() -> impl Strategy<Value = String> {
    let side = 1..1_000_000_000_000_000_000_u64;
    let named = ["0", "1e-18", "1e12", "1/86400", "1000/60", "1/3", "0.000011574074074074074", "1/31536000", "1e-6"];
    let texts = prop_oneof![
        3 => (1..200_u32, 1..200_u32).prop_map(|(tokens, seconds)| format!("{tokens}/{seconds}")),
        2 => (1..1_000_u32, -20..=9_i32).prop_map(|(tokens, exponent)| format!("{tokens}e{exponent}")),
        2 => (side.clone(), -18..=12_i32, side.clone())
            .prop_map(|(tokens, exponent, seconds)| format!("{tokens}e{exponent}/{seconds}")),
        1 => (side, -35..=-6_i32).prop_map(|(digits, exponent)| format!("{digits}e{exponent}")),
        2 => select(named.map(str::to_owned).to_vec()),
    ];
    texts.prop_filter("a rate in bounds", |text| oracle::rate(text.as_bytes()).is_ok())
}

pub(crate) fn limits() -> impl Strategy<Value = Limit> {
    (nanos(), rate_texts()).prop_map(|(nanos, rate)| Limit::new(&nanos_text(nanos), &rate))
}

/// Limits whose refills take less than ten thousand years, so that waiting gets somewhere.
pub(crate) fn refilling_limits() -> impl Strategy<Value = Limit> {
    limits().prop_filter("refills", |limit| limit.nanos > 0 && limit.micros_for(&limit.exact.capacity).is_some())
}

pub(crate) fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(NEW_YEAR), 1 => 0..=Micros::MAX.get(), 1 => select(vec![0, 1, Micros::MAX.get()])]
}

/// A stored bucket of any kind: full, drained, in debt, of a larger quota; its stamp before, at or after `now`.
pub(crate) fn buckets(limit: &Limit, now: u64) -> impl Strategy<Value = Bucket> + use<> {
    let most = Balance::MAX.units();
    let capacity = limit.nanos.cast_signed() * 1_000;
    let refill = limit.micros_for(&limit.exact.capacity).unwrap_or(1 << 40);
    let units = prop_oneof![
        4 => 0..=capacity,
        2 => -capacity..=0,
        1 => -most..=most,
        1 => select(vec![0, -1, 1, capacity, most, -most]),
    ];
    let stamps = prop_oneof![
        2 => Just(now),
        3 => (0..=refill.saturating_mul(2)).prop_map(move |before| now.saturating_sub(before)),
        2 => (0..=refill.saturating_mul(2)).prop_map(move |ahead| now.saturating_add(ahead)),
        1 => (0..=2_u64).prop_map(move |more| now.saturating_add(refill).saturating_add(more).saturating_sub(1)),
    ];
    (units, stamps).prop_map(|(units, stamp)| Bucket { balance: balance(units), stamp: Micros::new(stamp) })
}

/// A limit, a moment, and what a key holds then.
pub(crate) fn scenes(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = (Limit, u64, Bucket)> {
    (limits, starts()).prop_flat_map(|(limit, now)| {
        let buckets = buckets(&limit, now);
        (Just(limit), Just(now), buckets)
    })
}

pub(crate) fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        1 => Just(Size::Zero),
        1 => Just(Size::Nano),
        4 => Just(Size::One),
        4 => (0..=8_u8).prop_map(Size::Eighths),
        1 => Just(Size::AboveCapacity),
        3 => Just(Size::There),
        2 => Just(Size::AboveThere),
        1 => nanos().prop_map(Size::Nanos),
    ]
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => sizes().prop_map(Action::Take),
        1 => sizes().prop_map(Action::Peek),
        2 => (sizes(), sizes()).prop_map(|(one, other)| Action::Lease(one, other)),
        1 => sizes().prop_map(Action::Refund),
        2 => sizes().prop_map(Action::Debit),
    ]
}

/// A clock that stands still or moves on.
pub(crate) fn forward() -> impl Strategy<Value = Tick> {
    prop_oneof![
        2 => Just(Tick::Still),
        3 => (0..5_000_000_u64).prop_map(Tick::Micros),
        3 => (0..40_u8).prop_map(Tick::Sixteenths),
        3 => (-1..=1_i8).prop_map(Tick::Retry),
    ]
}

/// A clock that is also set back.
pub(crate) fn any_way() -> impl Strategy<Value = Tick> {
    prop_oneof![
        8 => forward(),
        1 => (0..10_000_000_u64).prop_map(Tick::Back),
        1 => (0..40_u8).prop_map(Tick::BackSixteenths),
        1 => (-1..=1_i8).prop_map(Tick::BackRefill),
    ]
}

pub(crate) fn steps(ticks: impl Strategy<Value = Tick>) -> impl Strategy<Value = Vec<Step>> {
    let step = (ticks, actions(), 0..6_usize).prop_map(|(tick, action, limit)| Step { tick, action, limit });
    proptest::collection::vec(step, 1..30)
}
