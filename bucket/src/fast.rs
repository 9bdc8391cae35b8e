//! The fast path: a take where every number fits in 64 bits, as those of nearly every call do (whole tokens up to nine million,
//! a rate of at most six decimals or a ratio). It answers as [`Bucket::take`](crate::Bucket::take) and [`Record`] do, or not at
//! all: whatever is rare, wrong or large is left to them.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms are used where a bound may fail"
)]

use crate::amount::{Amount, UNITS};
use crate::number::{SHORT, digits};
use crate::quota::{BY_PLACES, FASTEST, WHOLE};
use crate::record::{Deadline, Record, Slack};
use crate::time::Micros;

/// The arguments of a take.
#[derive(Clone, Copy, Debug)]
pub struct FastTake {
    capacity: i64,
    cost: i64,
    /// Units in so many microseconds; neither is 0.
    rate: u64,
    micros: u64,
}

/// What a take comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastTaken {
    /// Granted: the whole tokens left, and what is to be stored. The key's deadline stands.
    Granted(u64, [u8; Record::LEN]),
    /// Granted, and the key's deadline is this one, its first or another than before.
    Dated(u64, [u8; Record::LEN], Deadline),
    /// Refused: the whole tokens there, and the milliseconds to wait. Nothing changes.
    Refused(u64, u64),
}

/// A bucket as stored, and what it has come to by now.
struct Judged {
    /// Units that a full bucket has more than the stored one.
    room: i64,
    balance: i64,
    elapsed: u64,
    refilled: i64,
}

impl FastTake {
    /// Reads a capacity, a rate and a cost, 1 if there is none.
    #[inline(always)]
    #[must_use]
    pub fn parse(capacity: &[u8], rate: &[u8], cost: Option<&[u8]>) -> Option<Self> {
        let (rate, micros) = parse_rate(rate)?;
        let cost = if let Some(cost) = cost { parse_whole(cost)? } else { UNITS as i64 };
        Some(Self { capacity: parse_whole(capacity)?, cost, rate, micros })
    }

    /// The cost.
    #[inline(always)]
    #[must_use]
    pub const fn cost(&self) -> Amount {
        Amount::from_units(self.cost.unsigned_abs())
    }

    /// Takes from the bucket that is stored in these bytes, or from a full one.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, stored: Option<&[u8; Record::LEN]>, slack: Slack, now: Micros) -> Option<FastTaken> {
        let Some(stored) = stored else { return self.dated(self.capacity, slack, now) };
        let (balance, stamp, deadline) = Record::unpacked(stored)?;
        let judged = self.judged(balance, stamp, now)?;
        let deadline_micros = deadline.as_micros()?;
        if judged.refilled < self.cost {
            let is_full_in_time = self.fills(judged.room, deadline_micros.checked_sub(stamp.get())?)?;
            let (remaining, wait) = self.refused(&judged)?;
            return is_full_in_time.then_some(FastTaken::Refused(remaining, wait));
        }
        // Neither is negative, and a cost of 0 stores nothing.
        let left = judged.refilled - self.cost;
        let life = deadline_micros.checked_sub(now.get())?;
        let stands = self.cost > 0
            && self.fills(self.capacity - left, life)?
            && match life.checked_sub(slack.micros() + Deadline::UNIT_MICROS) {
                None | Some(0) => true,
                // As long as filling it from empty takes, for it is not in debt.
                Some(beyond) => {
                    self.capacity.cast_unsigned().checked_mul(self.micros)? >= beyond.checked_mul(self.rate)?
                }
            };
        if !stands {
            return self.dated(judged.refilled, slack, now);
        }
        Some(FastTaken::Granted(tokens(left), Record::packed(left.into(), now, deadline)))
    }

    /// A grant out of so many units under a deadline that holds however low the balance falls; of an absent bucket there may be
    /// fewer than the cost.
    #[inline(never)]
    fn dated(&self, units: i64, slack: Slack, now: Micros) -> Option<FastTaken> {
        if self.cost == 0 || self.cost > units {
            return None;
        }
        let left = units - self.cost;
        let refill = self.capacity.cast_unsigned().checked_mul(self.micros)?.div_ceil(self.rate);
        let deadline = Deadline::at_or_after(refill.checked_add(slack.micros())?.checked_add(now.get())?.into());
        Some(FastTaken::Dated(tokens(left), Record::packed(left.into(), now, deadline), deadline))
    }

    /// What [`FastTake::take`] would answer: the whole tokens before taking, and the milliseconds to wait, 0 for none.
    #[inline(always)]
    #[must_use]
    pub fn peek(&self, stored: Option<&[u8; Record::LEN]>, now: Micros) -> Option<(u64, u64)> {
        let Some(stored) = stored else {
            return (self.cost <= self.capacity).then_some((tokens(self.capacity), 0));
        };
        let (balance, stamp, _) = Record::unpacked(stored)?;
        let judged = self.judged(balance, stamp, now)?;
        if judged.refilled < self.cost { self.refused(&judged) } else { Some((tokens(judged.refilled), 0)) }
    }

    #[inline(always)]
    fn judged(&self, balance: i128, stamp: Micros, now: Micros) -> Option<Judged> {
        let balance = i64::try_from(balance).ok()?;
        let elapsed = now.get().checked_sub(stamp.get())?;
        let room = self.capacity.checked_sub(balance)?;
        let gain = elapsed.checked_mul(self.rate)?;
        let gain = if self.micros == 1 { gain } else { gain / self.micros };
        let is_full = room <= 0 || gain >= room.cast_unsigned();
        let refilled = if is_full { self.capacity } else { balance + gain.cast_signed() };
        Some(Judged { room, balance, elapsed, refilled })
    }

    #[inline(always)]
    fn refused(&self, judged: &Judged) -> Option<(u64, u64)> {
        if self.cost > self.capacity {
            return None;
        }
        // The cost is above the balance by more than the gain, so the time for that is longer than what has elapsed.
        let lack = self.cost.checked_sub(judged.balance)?.cast_unsigned();
        let wait = lack.checked_mul(self.micros)?.div_ceil(self.rate) - judged.elapsed;
        Some((tokens(judged.refilled), wait.checked_add(999)? / 1_000))
    }

    /// Whether so many units come back in so many microseconds.
    #[inline(always)]
    fn fills(&self, units: i64, micros: u64) -> Option<bool> {
        Some(units.max(0).cast_unsigned().checked_mul(self.micros)? <= micros.checked_mul(self.rate)?)
    }
}

/// Whole tokens, rounded down; 0 in debt.
#[inline(always)]
const fn tokens(units: i64) -> u64 {
    if units < 0 { 0 } else { units.cast_unsigned() / UNITS as u64 }
}

/// Whole tokens, in units.
#[inline(always)]
fn parse_whole(text: &[u8]) -> Option<i64> {
    const MOST: u64 = i64::MAX as u64 / UNITS as u64;
    if !(1..=7).contains(&text.len()) {
        return None;
    }
    let (tokens, rest) = digits(0, text);
    (rest.is_empty() && tokens <= MOST).then(|| tokens.cast_signed() * UNITS as i64)
}

/// A rate above 0, as units and the microseconds that they take.
#[inline(always)]
fn parse_rate(text: &[u8]) -> Option<(u64, u64)> {
    if text.len() > SHORT {
        return None;
    }
    let (tokens, rest) = digits(0, text);
    let (rate, micros) = match rest {
        [] => (tokens.checked_mul(WHOLE)?, 1),
        [b'.', fraction @ ..] => {
            let (tokens, rest) = digits(tokens, fraction);
            (if rest.is_empty() { tokens.checked_mul(*BY_PLACES.get(fraction.len())?)? } else { 0 }, 1)
        }
        [b'/', seconds @ ..] => {
            let (seconds, rest) = digits(0, seconds);
            (if rest.is_empty() && seconds > 0 { tokens.checked_mul(WHOLE)? } else { 0 }, seconds)
        }
        _ => return None,
    };
    // A ratio above the bound is rare, whatever its seconds.
    (rate > 0 && rate <= FASTEST).then_some((rate, micros))
}
