//! Amounts of tokens: capacities, costs, and the balance of a bucket.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

use crate::number::{Decimal, NumberError, power_of_ten, short_decimal};

/// Units of the fixed point in a token: 1e-12 token is the smallest balance step.
pub(crate) const UNITS: u128 = 1_000_000_000_000;
/// Units in the finest amount that a caller can name, 1e-9 token.
const UNITS_PER_NANO: u128 = 1_000;
/// The largest amount, and the deepest debt, in tokens.
const MOST_TOKENS: u64 = 1_000_000_000_000_000;

/// A number of tokens, 0 to 1e15, in steps of 1e-12 (callers name steps of 1e-9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(u128);

impl Amount {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// One token.
    pub const ONE: Self = Self(UNITS);
    /// The largest amount, 1e15 tokens.
    pub const MAX: Self = Self(MOST_TOKENS as u128 * UNITS);

    /// Whole tokens.
    ///
    /// # Errors
    /// [`NumberError::OutOfRange`] above 1e15.
    #[inline]
    pub const fn from_tokens(tokens: u64) -> Result<Self, NumberError> {
        if tokens > MOST_TOKENS { Err(NumberError::OutOfRange) } else { Ok(Self(tokens as u128 * UNITS)) }
    }

    /// Reads a decimal such as `100`, `2.5` or `1e-05`, rounded to the nearest 1e-9 token, ties to even.
    ///
    /// # Errors
    /// [`NumberError::Malformed`] for anything but a decimal, [`NumberError::OutOfRange`] above 1e15,
    /// [`NumberError::TooSmall`] for a number above zero that rounds to zero.
    #[inline(always)]
    pub fn parse(text: &[u8]) -> Result<Self, NumberError> {
        match short_decimal(text) {
            Some((tokens, 0)) => Self::from_tokens(tokens),
            _ => Self::parse_decimal(text),
        }
    }

    fn parse_decimal(text: &[u8]) -> Result<Self, NumberError> {
        // 1e15 with nine decimals has 25 digits; some more keep the comparison with a half exact.
        let number = Decimal::parse(text, 30)?;
        if number.mantissa == 0 {
            return Ok(Self::ZERO);
        }
        let nanos = match number.exponent + 9 {
            up @ 0.. => {
                power_of_ten(up).and_then(|power| number.mantissa.checked_mul(power)).ok_or(NumberError::OutOfRange)?
            }
            down => round_to_even(number, power_of_ten(-down))?,
        };
        let units = nanos.checked_mul(UNITS_PER_NANO).ok_or(NumberError::OutOfRange)?;
        // The bound is on the number as written: 1e15 and a half of the last digit rounds to 1e15 but is beyond it.
        let rounded_down = units == Self::MAX.0 && is_above_most(number);
        if units > Self::MAX.0 || rounded_down { Err(NumberError::OutOfRange) } else { Ok(Self(units)) }
    }

    #[inline(always)]
    pub(crate) const fn from_units(units: u64) -> Self {
        Self(units as u128)
    }

    /// In units of 1e-12 token.
    #[inline(always)]
    #[must_use]
    pub const fn units(self) -> u128 {
        self.0
    }

    /// Whole tokens, rounded down.
    #[inline(always)]
    #[must_use]
    pub const fn tokens(self) -> u64 {
        whole_tokens(self.0)
    }

    /// The same number if it counts whole tokens.
    #[inline]
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        self.0.is_multiple_of(UNITS).then(|| self.tokens())
    }
}

/// `number / power` to the nearest, ties to even, where `power` is `None` if above all mantissas.
fn round_to_even(number: Decimal, power: Option<u128>) -> Result<u128, NumberError> {
    let (quotient, rest, half) = match power {
        Some(power) => (number.mantissa / power, number.mantissa % power, power / 2),
        None => (0, 0, 0),
    };
    let above_half = rest > half || rest == half && number.dropped;
    let tie = power.is_some() && rest == half && !number.dropped;
    let rounded = quotient + u128::from(power.is_some() && above_half || tie && quotient % 2 == 1);
    if rounded == 0 { Err(NumberError::TooSmall) } else { Ok(rounded) }
}

/// Whether a decimal that rounds to 1e15 is in truth above it.
fn is_above_most(number: Decimal) -> bool {
    let most = u128::from(MOST_TOKENS);
    match power_of_ten(-number.exponent) {
        Some(power) => {
            number.mantissa / power > most
                || number.mantissa / power == most && (!number.mantissa.is_multiple_of(power) || number.dropped)
        }
        None => number.dropped,
    }
}

/// Whole tokens in `units`, rounded down.
#[inline(always)]
pub(crate) const fn whole_tokens(units: u128) -> u64 {
    // At most 1e15 tokens, so the quotient fits; the short path spares a 128-bit division.
    if units >> 64 == 0 { units as u64 / UNITS as u64 } else { (units / UNITS) as u64 }
}

/// What is in a bucket: at most 1e15 tokens, or a debt of at most 1e15, in units of 1e-12 token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Balance(i128);

impl Balance {
    /// The deepest debt.
    pub const MIN: Self = Self(-Self::MAX.0);
    /// The fullest bucket.
    pub const MAX: Self = Self(Amount::MAX.0.cast_signed());

    /// A balance of `units`, if that is in bounds.
    #[inline(always)]
    pub(crate) const fn from_units(units: i128) -> Option<Self> {
        if units < Self::MIN.0 || units > Self::MAX.0 { None } else { Some(Self(units)) }
    }

    /// All of an amount.
    #[inline(always)]
    pub(crate) const fn of(amount: Amount) -> Self {
        Self(amount.0.cast_signed())
    }

    /// In units of 1e-12 token.
    #[inline(always)]
    #[must_use]
    pub const fn units(self) -> i128 {
        self.0
    }

    /// Whether it is below zero.
    #[inline(always)]
    #[must_use]
    pub const fn is_debt(self) -> bool {
        self.0 < 0
    }

    /// Whole tokens, rounded down; 0 in debt.
    #[inline(always)]
    #[must_use]
    pub const fn tokens(self) -> u64 {
        if self.is_debt() { 0 } else { whole_tokens(self.0.unsigned_abs()) }
    }

    /// Units by which it falls short of `amount`; 0 if it does not.
    #[inline(always)]
    pub(crate) const fn lacks(self, amount: Amount) -> u128 {
        // Both are within 1e27, so neither the cast nor the difference overflows.
        let lack = amount.0.cast_signed() - self.0;
        if lack < 0 { 0 } else { lack.unsigned_abs() }
    }

    /// Raised by `units`, but not above `capacity`; a balance above it comes down to it.
    #[inline(always)]
    pub(crate) fn raised(self, units: u128, capacity: Amount) -> Self {
        let room = self.lacks(capacity);
        if units >= room { Self::of(capacity) } else { Self(self.0 + units.cast_signed()) }
    }

    /// Lowered by `amount`, below zero if need be; `None` beyond the deepest debt.
    #[inline(always)]
    pub(crate) const fn lowered(self, amount: Amount) -> Option<Self> {
        Self::from_units(self.0 - amount.0.cast_signed())
    }
}

/// Decimal text, exact, without trailing zeros: `2.5`, `-3`, `0.000000000001`.
impl core::fmt::Display for Balance {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let units = self.0.unsigned_abs();
        let (whole, mut fraction, mut digits) = (units / UNITS, units % UNITS, 12_usize);
        if self.is_debt() {
            f.write_str("-")?;
        }
        write!(f, "{whole}")?;
        if fraction == 0 {
            return Ok(());
        }
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, ".{fraction:0digits$}")
    }
}
