//! The contract in fractions: slow, exact, and written from the contract, not from the code that it judges. Only what
//! is stored is ever rounded, and that only where a caller asks for it.

use std::str::FromStr;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive, Zero};
use redis_token_bucket_core::NumberError;

pub(crate) type Exact = BigRational;

pub(crate) fn whole(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}

pub(crate) fn power_of_ten(exponent: i64) -> Exact {
    let power = whole(BigInt::from(10).pow(u32::try_from(exponent.unsigned_abs()).unwrap()));
    if exponent < 0 { power.recip() } else { power }
}

/// The smallest step of a stored balance.
pub(crate) fn step() -> Exact {
    power_of_ten(-12)
}

/// `digits * 10^exponent`, without zeros at the end of the digits.
struct Decimal {
    digits: BigInt,
    significant: usize,
    exponent: BigInt,
}

impl Decimal {
    fn read(text: &[u8]) -> Result<Self, NumberError> {
        let text = std::str::from_utf8(text).map_err(|_| NumberError::Malformed)?;
        let (number, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], read_exponent(&text[at + 1..])?),
            None => (text, BigInt::zero()),
        };
        let (before, after) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{before}{after}");
        let digits = read_digits(&digits)?;
        let kept = digits.trim_end_matches('0');
        let exponent = exponent + (digits.len() - kept.len()) - after.len();
        let kept = kept.trim_start_matches('0');
        let digits = if kept.is_empty() { BigInt::zero() } else { kept.parse().unwrap() };
        Ok(Self { digits, significant: kept.len(), exponent })
    }

    fn is_zero(&self) -> bool {
        self.digits.is_zero()
    }

    /// The power of ten just above it: whoever wrote `1e999999999` need not be multiplied out to be refused.
    fn magnitude(&self) -> BigInt {
        self.exponent.clone() + self.significant
    }

    fn value(&self) -> Exact {
        whole(self.digits.clone()) * power_of_ten(self.exponent.to_i64().unwrap())
    }

    /// Its value without the digits after the eighteenth.
    fn cut(&self) -> Exact {
        let surplus = self.significant.saturating_sub(18) as i64;
        let cut = (whole(self.digits.clone()) * power_of_ten(-surplus)).floor();
        cut * power_of_ten(self.exponent.to_i64().unwrap() + surplus)
    }
}

fn read_digits(text: &str) -> Result<&str, NumberError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { Ok(text) } else { Err(NumberError::Malformed) }
}

fn read_exponent(text: &str) -> Result<BigInt, NumberError> {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    Ok(BigInt::from_str(read_digits(digits)?).unwrap() * sign)
}

/// The nearest whole number; of two, the even one.
fn round_half_even(number: &Exact) -> Exact {
    let below = number.floor();
    let half = Exact::new(1.into(), 2.into());
    let odd = !(&below / whole(2)).is_integer();
    match (number - &below).cmp(&half) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Equal if !odd => below,
        _ => below + whole(1),
    }
}

/// A capacity, cost or amount.
pub(crate) fn amount(text: &[u8]) -> Result<Exact, NumberError> {
    let number = Decimal::read(text)?;
    if number.is_zero() {
        return Ok(Exact::zero());
    }
    if number.magnitude() > BigInt::from(16) {
        return Err(NumberError::OutOfRange);
    }
    if number.magnitude() < BigInt::from(-20) {
        return Err(NumberError::TooSmall);
    }
    let number = number.value();
    if number > power_of_ten(15) {
        return Err(NumberError::OutOfRange);
    }
    let nanos = round_half_even(&(number * power_of_ten(9)));
    if nanos.is_zero() { Err(NumberError::TooSmall) } else { Ok(nanos * power_of_ten(-9)) }
}

/// Tokens per second. Of a decimal with more than eighteen significant digits the rest is cut, which the contract
/// leaves free and the documentation of the type promises.
pub(crate) fn rate(text: &[u8]) -> Result<Exact, NumberError> {
    match text.iter().position(|byte| *byte == b'/') {
        Some(at) => ratio(&text[..at], &text[at + 1..]),
        None => {
            let written = written_rate(text)?;
            if written.is_zero() { Ok(written) } else { Ok(Decimal::read(text)?.cut()) }
        }
    }
}

/// A decimal rate with all its digits.
pub(crate) fn written_rate(text: &[u8]) -> Result<Exact, NumberError> {
    let number = Decimal::read(text)?;
    if number.is_zero() {
        return Ok(Exact::zero());
    }
    if number.magnitude() > BigInt::from(100) {
        return Err(NumberError::OutOfRange);
    }
    if number.magnitude() < BigInt::from(-100) {
        return Err(NumberError::TooSmall);
    }
    in_bounds(number.value())
}

fn ratio(tokens: &[u8], seconds: &[u8]) -> Result<Exact, NumberError> {
    let (tokens, seconds) = (Decimal::read(tokens)?, Decimal::read(seconds)?);
    if tokens.significant > 18 || seconds.significant > 18 {
        return Err(NumberError::TooPrecise);
    }
    if seconds.is_zero() {
        return Err(NumberError::OutOfRange);
    }
    if tokens.is_zero() {
        return Ok(Exact::zero());
    }
    let exponent = &tokens.exponent - &seconds.exponent;
    if exponent > BigInt::from(100) {
        return Err(NumberError::OutOfRange);
    }
    if exponent < BigInt::from(-100) {
        return Err(NumberError::TooSmall);
    }
    in_bounds(Exact::new(tokens.digits, seconds.digits) * power_of_ten(exponent.to_i64().unwrap()))
}

fn in_bounds(rate: Exact) -> Result<Exact, NumberError> {
    if rate > power_of_ten(12) {
        return Err(NumberError::OutOfRange);
    }
    if rate < power_of_ten(-18) { Err(NumberError::TooSmall) } else { Ok(rate) }
}

/// Capacity in tokens, rate in tokens per second.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub(crate) capacity: Exact,
    pub(crate) rate: Exact,
}

impl Quota {
    /// Seconds until so many tokens are there; `None` for never.
    pub(crate) fn seconds_for(&self, tokens: &Exact) -> Option<Exact> {
        (!self.rate.is_zero()).then(|| tokens / &self.rate)
    }

    /// Seconds of a whole refill; `None` for ever.
    pub(crate) fn refill(&self) -> Option<Exact> {
        self.seconds_for(&self.capacity)
    }
}

pub(crate) fn seconds(micros: u64) -> Exact {
    whole(micros) * power_of_ten(-6)
}

/// What a write keeps of a balance.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    /// All of it, as no real store can.
    Exactly,
    /// Whole steps of 1e-12 token.
    InSteps,
}

/// Tokens, and the microsecond at which they were there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) balance: Exact,
    pub(crate) stamp: u64,
}

/// What a caller is told, and how many tokens left the bucket for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) granted: Exact,
    pub(crate) remaining: u64,
    pub(crate) retry_ms: i64,
}

impl Bucket {
    pub(crate) fn full(quota: &Quota, now: u64) -> Self {
        Self { balance: quota.capacity.clone(), stamp: now }
    }

    /// 1.5: a stamp further ahead than a whole refill cannot be true.
    pub(crate) fn anchored(&self, quota: &Quota, now: u64) -> Self {
        let ahead = seconds(self.stamp.saturating_sub(now));
        let untrue = quota.refill().is_some_and(|refill| ahead > refill);
        Self { balance: self.balance.clone(), stamp: if untrue { now } else { self.stamp } }
    }

    /// 1.2 and 1.3.
    pub(crate) fn refilled(&self, quota: &Quota, now: u64) -> Self {
        let anchored = self.anchored(quota, now);
        let gained = seconds(now.saturating_sub(anchored.stamp)) * &quota.rate;
        let balance = (anchored.balance + gained).min(quota.capacity.clone());
        Self { balance, stamp: anchored.stamp.max(now) }
    }

    fn with(&self, balance: Exact, kept: Kept) -> Self {
        let balance = match kept {
            Kept::Exactly => balance,
            Kept::InSteps => (balance / step()).floor() * step(),
        };
        Self { balance, stamp: self.stamp }
    }

    pub(crate) fn tokens(&self) -> u64 {
        if self.balance.is_negative() { 0 } else { self.balance.to_integer().to_u64().unwrap() }
    }

    /// Milliseconds until `needed` tokens are there, counted from the stamp.
    fn retry_ms(&self, quota: &Quota, needed: &Exact, now: u64) -> i64 {
        if *needed > quota.capacity {
            return -1;
        }
        let Some(wait) = quota.seconds_for(&(needed - &self.balance)) else {
            return -1;
        };
        let due = seconds(self.stamp) + wait;
        let millis = ((due - seconds(now)) * whole(1000)).ceil().to_integer();
        millis.to_i64().unwrap_or(i64::MAX).max(1)
    }

    fn refused(&self, quota: &Quota, needed: &Exact, now: u64) -> (Self, Answer) {
        let anchored = self.anchored(quota, now);
        let remaining = self.refilled(quota, now).tokens();
        let retry_ms = anchored.retry_ms(quota, needed, now);
        (anchored, Answer { allowed: false, granted: Exact::zero(), remaining, retry_ms })
    }

    fn granted(&self, quota: &Quota, taken: &Exact, now: u64, kept: Kept) -> (Self, Answer) {
        let there = self.refilled(quota, now);
        let after = there.with(&there.balance - taken, kept);
        let answer = Answer { allowed: true, granted: taken.clone(), remaining: after.tokens(), retry_ms: 0 };
        (if taken.is_zero() { self.anchored(quota, now) } else { after }, answer)
    }

    pub(crate) fn take(&self, quota: &Quota, cost: &Exact, now: u64, kept: Kept) -> (Self, Answer) {
        if self.refilled(quota, now).balance >= *cost {
            self.granted(quota, cost, now, kept)
        } else {
            self.refused(quota, cost, now)
        }
    }

    pub(crate) fn peek(&self, quota: &Quota, cost: &Exact, now: u64) -> Answer {
        let (_, answer) = self.take(quota, cost, now, Kept::Exactly);
        Answer { granted: Exact::zero(), remaining: self.refilled(quota, now).tokens(), ..answer }
    }

    pub(crate) fn lease(&self, quota: &Quota, want: &Exact, least: &Exact, now: u64, kept: Kept) -> (Self, Answer) {
        let there = whole(self.refilled(quota, now).tokens());
        let lease = there.min(want.clone());
        if lease >= *least { self.granted(quota, &lease, now, kept) } else { self.refused(quota, least, now) }
    }

    pub(crate) fn refund(&self, quota: &Quota, amount: &Exact, now: u64, kept: Kept) -> (Self, Answer) {
        let there = self.refilled(quota, now);
        let after = there.with((&there.balance + amount).min(quota.capacity.clone()), kept);
        let answer = Answer { allowed: true, granted: Exact::zero(), remaining: after.tokens(), retry_ms: 0 };
        (after, answer)
    }

    /// `None` where the debt would be too deep.
    pub(crate) fn debit(&self, quota: &Quota, cost: &Exact, now: u64, kept: Kept) -> Option<(Self, Answer)> {
        let there = self.refilled(quota, now);
        let after = there.with(&there.balance - cost, kept);
        if after.balance < -power_of_ten(15) {
            return None;
        }
        let allowed = !after.balance.is_negative();
        let retry_ms = if allowed { 0 } else { after.retry_ms(quota, &Exact::zero(), now) };
        let answer = Answer { allowed, granted: Exact::zero(), remaining: after.tokens(), retry_ms };
        Some((after, answer))
    }
}
