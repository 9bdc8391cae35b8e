//! Decimal text to exact numbers. No float is involved anywhere.
//!
//! Accepted: digits with an optional point and an optional exponent (`100`, `2.5`, `.5`, `5.`, `1e3`, `1e-05`), ASCII
//! only, without sign, blank or underscore.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

/// Why a text is not a number that the contract accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberError {
    /// Not a decimal, nor (for a rate) two decimals around a slash.
    Malformed,
    /// A number, but outside the bounds.
    OutOfRange,
    /// A number above zero that would be rounded to zero.
    TooSmall,
    /// A side of a ratio with more than 18 significant digits.
    TooPrecise,
}

impl core::fmt::Display for NumberError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a decimal number",
            Self::OutOfRange => "out of range",
            Self::TooSmall => "rounds to zero",
            Self::TooPrecise => "more than 18 significant digits",
        })
    }
}

impl core::error::Error for NumberError {}

/// A decimal as written: `mantissa * 10^exponent`, and whether digits below the mantissa's last were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) mantissa: u128,
    pub(crate) exponent: i64,
    pub(crate) dropped: bool,
}

/// Where an exponent stops counting. Texts are at most gigabytes long, so no sum of a written exponent and a digit count
/// overflows, and every number that is not zero and whose exponent was cut is far outside all bounds.
pub(crate) const EXPONENT_LIMIT: i64 = 1 << 50;

impl Decimal {
    /// Reads a whole text as a decimal, keeping the first `digits` significant digits (at most 38).
    pub(crate) fn parse(text: &[u8], digits: u32) -> Result<Self, NumberError> {
        let mut number = Self { mantissa: 0, exponent: 0, dropped: false };
        let (mut kept, mut seen_digit, mut point) = (0_u32, false, false);
        let mut rest = text;
        while let [byte, tail @ ..] = rest {
            match byte {
                b'0'..=b'9' => {
                    seen_digit = true;
                    let digit = u128::from(byte - b'0');
                    if kept < digits {
                        // At most 38 digits: below 10^38 < 2^128.
                        number.mantissa = number.mantissa * 10 + digit;
                        kept += u32::from(number.mantissa != 0);
                        number.exponent -= i64::from(point);
                    } else {
                        number.dropped |= digit != 0;
                        number.exponent += i64::from(!point);
                    }
                }
                b'.' if !point => point = true,
                b'e' | b'E' if seen_digit => {
                    number.exponent += written_exponent(tail)?;
                    break;
                }
                _ => return Err(NumberError::Malformed),
            }
            rest = tail;
        }
        if seen_digit { Ok(number) } else { Err(NumberError::Malformed) }
    }
}

fn written_exponent(text: &[u8]) -> Result<i64, NumberError> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(NumberError::Malformed);
    }
    let mut exponent = 0_i64;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return Err(NumberError::Malformed);
        }
        // Capped at 2^50, so ten times it and a digit fit.
        exponent = (exponent * 10 + i64::from(byte - b'0')).min(EXPONENT_LIMIT);
    }
    Ok(if negative { -exponent } else { exponent })
}

/// The digits of a short decimal and how many of them stand after the point: what nearly every caller sends. `None` for
/// whatever has an exponent, more than eighteen bytes, or a fault.
#[inline(always)]
pub(crate) fn short_decimal(text: &[u8]) -> Option<(u64, usize)> {
    if text.len() > SHORT {
        return None;
    }
    let (number, after_point) = match digits(0, text) {
        (number, []) if !text.is_empty() => (number, 0),
        // A point alone is no number.
        (number, [b'.', fraction @ ..]) if text.len() > 1 => match digits(number, fraction) {
            (number, []) => (number, fraction.len()),
            _ => return None,
        },
        _ => return None,
    };
    Some((number, after_point))
}

/// So many digits fit in 64 bits, whatever they are.
pub(crate) const SHORT: usize = 18;

/// Appends the digits that a text begins with to a number, at most [`SHORT`] in all; answers what follows them too.
#[inline(always)]
pub(crate) fn digits(mut number: u64, text: &[u8]) -> (u64, &[u8]) {
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        // Below 10^18 < 2^64.
        number = number * 10 + u64::from(digit);
        rest = tail;
    }
    (number, rest)
}

/// `10^exponent`, where that fits in 128 bits.
#[inline]
pub(crate) fn power_of_ten(exponent: i64) -> Option<u128> {
    u32::try_from(exponent).ok().and_then(|exponent| 10_u128.checked_pow(exponent))
}
