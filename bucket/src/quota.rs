//! What a caller brings with every call: how much a bucket holds and how fast it refills.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

use core::cmp::Ordering;

use crate::amount::Amount;
use crate::number::{Decimal, EXPONENT_LIMIT, NumberError, power_of_ten, short_decimal};
use crate::wide::{cmp_products, mul_div_ceil, mul_div_floor};

/// Units (1e-12 token) a microsecond in one token a second, as a power of ten.
const SCALE: i64 = 6;
/// Units a microsecond in one token a second.
pub(crate) const WHOLE: u64 = 1_000_000;
/// The same for a number that counts the last of so many decimals. More than six leave no whole number of units.
pub(crate) const BY_PLACES: [u64; 7] = [WHOLE, 100_000, 10_000, 1_000, 100, 10, 1];
/// The fastest rate, 1e12 tokens a second, in units a microsecond.
pub(crate) const FASTEST: u64 = 1_000_000_000_000_000_000;
/// The slowest rate above zero, 1e-18 tokens a second, as its inverse in microseconds a unit.
const SLOWEST: u128 = 1_000_000_000_000;
/// Significant digits of a number in a rate.
const DIGITS: u32 = 18;

/// A sustained rate, exact: a ratio of whole numbers, in units of 1e-12 token a microsecond.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    units: u128,
    micros: u128,
}

impl Rate {
    /// Nothing ever comes back.
    pub const ZERO: Self = Self { units: 0, micros: 1 };

    /// Reads tokens per second, as a decimal (`50`, `0.5`, `1e-3`; digits after the eighteenth significant one are cut,
    /// so the rate is never above what was written) or as `TOKENS/SECONDS` (`100/60` is one hundred a minute, exact).
    ///
    /// # Errors
    /// [`NumberError::Malformed`], [`NumberError::TooPrecise`] for a side of a ratio with more than 18 significant
    /// digits, [`NumberError::OutOfRange`] above 1e12 tokens a second or for `SECONDS` of 0, [`NumberError::TooSmall`]
    /// below 1e-18 but not 0.
    #[inline(always)]
    pub fn parse(text: &[u8]) -> Result<Self, NumberError> {
        match short_decimal(text) {
            Some((tokens, after_point)) => Self::short(tokens, after_point),
            None => Self::parse_long(text),
        }
    }

    /// `tokens / 10^after_point` a second.
    #[inline(always)]
    fn short(tokens: u64, after_point: usize) -> Result<Self, NumberError> {
        let Some(units) = BY_PLACES.get(after_point) else { return Self::short_and_fine(tokens, after_point) };
        // Below 10^18 * 10^6 < 2^128.
        let units = u128::from(tokens) * u128::from(*units);
        if units > FASTEST.into() { Err(NumberError::OutOfRange) } else { Ok(Self { units, micros: 1 }) }
    }

    /// More than six decimals, of eighteen digits at most: neither above the fastest rate nor below the slowest.
    #[cold]
    fn short_and_fine(tokens: u64, after_point: usize) -> Result<Self, NumberError> {
        let micros = i64::try_from(after_point).ok().and_then(|places| power_of_ten(places - SCALE));
        Ok(Self { units: tokens.into(), micros: micros.ok_or(NumberError::Malformed)? })
    }

    fn parse_long(text: &[u8]) -> Result<Self, NumberError> {
        let Some(slash) = text.iter().position(|byte| *byte == b'/') else {
            let tokens = Decimal::parse(text, DIGITS)?;
            return Self::new(tokens, Decimal { mantissa: 1, exponent: 0, dropped: false });
        };
        let (tokens, seconds) = text.split_at(slash);
        let seconds = seconds.get(1..).unwrap_or_default();
        if let (Some((tokens, 0)), Some((seconds, 0))) = (short_decimal(tokens), short_decimal(seconds))
            && let (Some(units), 1..) = (tokens.checked_mul(WHOLE), seconds)
            && u128::from(units) <= u128::from(FASTEST) * u128::from(seconds)
        {
            // At most 10^18 seconds, so a rate above zero is not below the slowest.
            return Ok(if units == 0 { Self::ZERO } else { Self { units: units.into(), micros: seconds.into() } });
        }
        let side = |text| match Decimal::parse(text, DIGITS)? {
            Decimal { dropped: true, .. } => Err(NumberError::TooPrecise),
            // Cut exponents must not cancel out.
            Decimal { mantissa: 1.., exponent, .. } if exponent.unsigned_abs() >= EXPONENT_LIMIT.unsigned_abs() / 2 => {
                Err(NumberError::OutOfRange)
            }
            side => Ok(side),
        };
        Self::new(side(tokens)?, side(seconds)?)
    }

    fn new(tokens: Decimal, seconds: Decimal) -> Result<Self, NumberError> {
        if seconds.mantissa == 0 {
            return Err(NumberError::OutOfRange);
        }
        if tokens.mantissa == 0 {
            return Ok(Self::ZERO);
        }
        let shift = tokens.exponent - seconds.exponent + SCALE;
        let scaled = |mantissa: u128, exponent| power_of_ten(exponent).and_then(|power| mantissa.checked_mul(power));
        // A side that does not fit in 128 bits is beyond its bound whatever the other is: both mantissas are below
        // 10^18, so 10^38 over one of them is above 10^18, and one of them over 10^38 is below 10^-12.
        let rate = if shift >= 0 {
            let units = scaled(tokens.mantissa, shift).ok_or(NumberError::OutOfRange)?;
            Self { units, micros: seconds.mantissa }
        } else {
            let micros = scaled(seconds.mantissa, -shift).ok_or(NumberError::TooSmall)?;
            Self { units: tokens.mantissa, micros }
        };
        // The bound is on the number as written, so digits that were cut count.
        match cmp_products(rate.units, 1, FASTEST.into(), rate.micros) {
            Ordering::Greater => return Err(NumberError::OutOfRange),
            Ordering::Equal if tokens.dropped => return Err(NumberError::OutOfRange),
            _ => {}
        }
        if cmp_products(rate.units, SLOWEST, 1, rate.micros) == Ordering::Less {
            return Err(NumberError::TooSmall);
        }
        Ok(rate)
    }

    /// Whether nothing ever comes back.
    #[inline(always)]
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.units == 0
    }

    /// Units that come back in so many microseconds, rounded down.
    #[inline(always)]
    pub(crate) fn gain(self, micros: u64) -> u128 {
        mul_div_floor(u128::from(micros), self.units, self.micros)
    }

    /// Microseconds until so many units have come back, rounded up; `u128::MAX` for never (or nearly so).
    #[inline(always)]
    pub(crate) fn time_for(self, units: u128) -> u128 {
        mul_div_ceil(units, self.micros, self.units)
    }

    /// How the time for so many units compares with so many microseconds.
    #[inline(always)]
    pub(crate) fn cmp_time(self, units: u128, micros: u64) -> Ordering {
        cmp_products(units, self.micros, u128::from(micros), self.units)
    }
}

/// Equal rates are equal numbers: `1/2` is `0.5`.
impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        cmp_products(self.units, other.micros, other.units, self.micros) == Ordering::Equal
    }
}

impl Eq for Rate {}

/// A bucket's size and rate of refill. It travels with every call and is stored nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most tokens that a bucket holds: the largest burst.
    pub capacity: Amount,
    /// How fast tokens come back: the sustained throughput.
    pub rate: Rate,
}
