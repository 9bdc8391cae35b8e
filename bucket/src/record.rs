//! What is stored under a key: a bucket and the key's own deadline, in 24 bytes; and when the two have to be written.
//!
//! ```text
//! byte 0        magic and version of the format
//! byte 1        check: with it, all bytes fold to a constant
//! bits 16..68   stamp, microseconds since the epoch
//! bits 68..101  deadline, in units of 512 ms since the epoch; 0 for none
//! bits 101..192 balance in units of 1e-12 token, plus 1e27
//! ```
//! Little-endian. The deadline is stored so that neither a grant nor a refusal has to ask the server for it.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

use core::cmp::Ordering;

use crate::amount::Balance;
use crate::bucket::Bucket;
use crate::quota::Quota;
use crate::time::Micros;

/// The first byte of every record: "token bucket", version 1.
const MAGIC: u8 = 0xB1;
/// What the bytes of a record fold to: not zero, so that a string of one byte over and over is none.
const FOLD: u8 = 0x5A;
/// Where the balance's zero is, so that the stored number has no sign.
const BIAS: u128 = Balance::MAX.units().unsigned_abs();

/// When the server may forget a key: a multiple of 512 ms since the epoch, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadline(u64);

impl Deadline {
    /// No expiry.
    pub const NEVER: Self = Self(0);
    const BITS: u32 = 33;
    const UNIT_MILLIS: u64 = 512;
    pub(crate) const UNIT_MICROS: u64 = Self::UNIT_MILLIS * 1_000;

    /// The first deadline at or after `micros` since the epoch; [`Deadline::NEVER`] if the format cannot hold it.
    #[inline]
    pub(crate) fn at_or_after(micros: u128) -> Self {
        let units = micros.div_ceil(u128::from(Self::UNIT_MICROS));
        if units >> Self::BITS == 0 { Self(units as u64) } else { Self::NEVER }
    }

    /// Milliseconds since the epoch, or `None` for no expiry.
    #[inline(always)]
    #[must_use]
    pub const fn as_millis(self) -> Option<u64> {
        // 33 bits times 512.
        if self.0 == 0 { None } else { Some(self.0 * Self::UNIT_MILLIS) }
    }

    /// Microseconds since the epoch, or `None` for no expiry.
    #[inline(always)]
    pub(crate) const fn as_micros(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(self.0 * Self::UNIT_MICROS) }
    }
}

/// How long past its use a key is kept, so that the deadline of a busy key need not move with every grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slack(u64);

impl Slack {
    /// The longest, a day.
    pub const MAX_MILLIS: u64 = 86_400_000;

    /// A slack of so many milliseconds, at most [`Slack::MAX_MILLIS`].
    #[inline(always)]
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis < Self::MAX_MILLIS { millis * 1_000 } else { Self::MAX_MILLIS * 1_000 })
    }

    #[inline(always)]
    pub(crate) const fn micros(self) -> u64 {
        self.0
    }
}

/// A bucket as stored, with the deadline of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The bucket.
    pub bucket: Bucket,
    /// When its key expires, unless somebody changed that by hand.
    pub deadline: Deadline,
}

impl Record {
    /// Bytes of a stored record.
    pub const LEN: usize = 24;

    /// The record after a call that changed the bucket: the deadline moves only where it must.
    #[inline(always)]
    #[must_use]
    pub fn with(old: Option<&Self>, bucket: Bucket, quota: &Quota, slack: Slack) -> Self {
        match old {
            Some(old) if suits(old.deadline, bucket, quota, slack) => Self { bucket, deadline: old.deadline },
            _ => Self { bucket, deadline: deadline(bucket, quota, slack) },
        }
    }

    /// What a call that changed nothing still has to put right: a stamp that cannot be true, or a deadline that comes
    /// before the bucket is full under the quota of this call. `None`, as a rule.
    #[inline(always)]
    #[must_use]
    pub fn corrected(&self, quota: &Quota, slack: Slack, now: Micros) -> Option<Self> {
        let bucket = self.bucket.anchored(quota, now);
        if bucket.stamp != self.bucket.stamp {
            return Some(Self::with(Some(self), bucket, quota, slack));
        }
        if outlasts(self.deadline, bucket, quota) {
            return None;
        }
        self.postponed(quota, slack, now)
    }

    #[cold]
    fn postponed(&self, quota: &Quota, slack: Slack, now: Micros) -> Option<Self> {
        // Full by now: forgetting it loses nothing, whenever that is.
        let full_by_now = self.bucket.refilled(quota, now).balance.lacks(quota.capacity) == 0;
        let corrected = Self { deadline: deadline(self.bucket, quota, slack), ..*self };
        (!full_by_now && corrected.deadline != self.deadline).then_some(corrected)
    }

    /// The stored form.
    #[inline(always)]
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        Self::packed(self.bucket.balance.units(), self.bucket.stamp, self.deadline)
    }

    /// Reads the stored form; `None` for anything that [`Record::encode`] did not make.
    #[inline(always)]
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (balance, stamp, deadline) = Self::unpacked(bytes.try_into().ok()?)?;
        Some(Self { bucket: Bucket { balance: Balance::from_units(balance)?, stamp }, deadline })
    }

    /// Packs a balance, which is within 1e27 units of zero, so 91 bits.
    #[inline(always)]
    pub(crate) fn packed(balance: i128, stamp: Micros, Deadline(deadline): Deadline) -> [u8; Self::LEN] {
        let balance = (balance + BIAS.cast_signed()).cast_unsigned();
        let stamp = stamp.get();
        let low = u64::from(MAGIC) | stamp << 16;
        let middle = stamp >> 48 | deadline << 4 | ((balance >> 64) as u64) << 37;
        let high = balance as u64;
        let low = low | u64::from(fold(low, middle, high) ^ FOLD) << 8;
        let mut bytes = [0; Self::LEN];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip([low, middle, high]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What was packed. The balance may be out of bounds, for who writes a string of our making byte by byte.
    #[inline(always)]
    pub(crate) fn unpacked(bytes: &[u8; Self::LEN]) -> Option<(i128, Micros, Deadline)> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (low, middle, high) = (word(0)?, word(8)?, word(16)?);
        if low as u8 != MAGIC || fold(low, middle, high) != FOLD {
            return None;
        }
        let stamp = low >> 16 | (middle & 0xF) << 48;
        let deadline = middle >> 4 & ((1 << Deadline::BITS) - 1);
        let balance = (u128::from(middle >> 37) << 64 | u128::from(high)).cast_signed() - BIAS.cast_signed();
        Some((balance, Micros::new(stamp), Deadline(deadline)))
    }
}

/// One byte over three words: the exclusive or of all bytes, each word's turned by another amount so that exchanged words
/// show. Whatever changes within a single byte changes it.
#[inline(always)]
const fn fold(low: u64, middle: u64, high: u64) -> u8 {
    // The word that holds the check byte is not turned, so the check byte changes the fold by just itself.
    let folded = low ^ middle.rotate_left(3) ^ high.rotate_left(5);
    let folded = folded ^ folded >> 32;
    let folded = folded ^ folded >> 16;
    (folded ^ folded >> 8) as u8
}

/// The longest that a key of this quota is of use after its bucket's stamp, in microseconds; `None` for ever.
#[inline]
fn horizon(bucket: Bucket, quota: &Quota) -> Option<u128> {
    let most = quota.capacity.units().max(bucket.balance.lacks(quota.capacity));
    if quota.rate.is_zero() { None } else { Some(quota.rate.time_for(most)) }
}

/// A fresh deadline for a bucket: it holds however low the balance falls, so it moves once in a while and not with every
/// grant.
#[inline]
fn deadline(bucket: Bucket, quota: &Quota, slack: Slack) -> Deadline {
    match horizon(bucket, quota) {
        None => Deadline::NEVER,
        Some(micros) => {
            let after_stamp = micros.saturating_add(u128::from(slack.0));
            Deadline::at_or_after(after_stamp.saturating_add(u128::from(bucket.stamp.get())))
        }
    }
}

/// Whether a key with this deadline lives until its bucket is full.
#[inline(always)]
fn outlasts(deadline: Deadline, bucket: Bucket, quota: &Quota) -> bool {
    let Some(deadline) = deadline.as_micros() else {
        return true;
    };
    let lack = bucket.balance.lacks(quota.capacity);
    quota.rate.cmp_time(lack, deadline.saturating_sub(bucket.stamp.get())) != Ordering::Greater
}

/// Whether a stored deadline may stand after a call that writes: not before the bucket is full, and not so late that the key
/// outlives its use by more than the slack and a unit.
#[inline(always)]
fn suits(deadline: Deadline, bucket: Bucket, quota: &Quota, slack: Slack) -> bool {
    let Some(micros) = deadline.as_micros() else {
        return self::deadline(bucket, quota, slack) == Deadline::NEVER;
    };
    if quota.rate.is_zero() || !outlasts(deadline, bucket, quota) {
        return false;
    }
    let beyond = micros.saturating_sub(bucket.stamp.get()).saturating_sub(slack.0 + Deadline::UNIT_MICROS);
    let most = quota.capacity.units().max(bucket.balance.lacks(quota.capacity));
    beyond == 0 || quota.rate.cmp_time(most, beyond) != Ordering::Less
}
