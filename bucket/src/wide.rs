//! Products and quotients of 128-bit numbers that are exact where 128 bits would overflow.
//!
//! Every operand that real quotas bring fits in 64 bits, so each function has a short path for that; the long one is
//! for the corners of the contract (1e15 tokens, one token in 1e18 seconds).
#![allow(
    clippy::arithmetic_side_effects,
    reason = "each operation's bounds are argued where it stands; checked forms would hide the arithmetic"
)]

use core::cmp::Ordering;

/// Whether all three fit in 64 bits.
#[inline(always)]
const fn small(a: u128, b: u128, c: u128) -> bool {
    (a | b | c) >> 64 == 0
}

/// The product of two numbers that fit in 64 bits, told to the compiler as such: one multiplication, not three.
#[inline(always)]
const fn small_product(a: u128, b: u128) -> u128 {
    (a as u64 as u128) * (b as u64 as u128)
}

/// `a * b / d` rounded down, or `u128::MAX` where that does not fit or `d` is 0.
#[inline(always)]
pub(crate) fn mul_div_floor(a: u128, b: u128, d: u128) -> u128 {
    if small(a, b, d) && d != 0 {
        let product = small_product(a, b);
        return if product >> 64 == 0 { u128::from(product as u64 / d as u64) } else { product / d };
    }
    wide_mul_div(a, b, d).0
}

/// `a * b / d` rounded up, or `u128::MAX` where that does not fit or `d` is 0.
#[inline(always)]
pub(crate) fn mul_div_ceil(a: u128, b: u128, d: u128) -> u128 {
    if small(a, b, d) && d != 0 {
        let product = a * b;
        return if product >> 64 == 0 { u128::from((product as u64).div_ceil(d as u64)) } else { product.div_ceil(d) };
    }
    let (quotient, exact) = wide_mul_div(a, b, d);
    quotient.saturating_add(u128::from(!exact))
}

/// How `a * b` compares with `c * d`.
#[inline(always)]
pub(crate) fn cmp_products(a: u128, b: u128, c: u128, d: u128) -> Ordering {
    if (a | b | c | d) >> 64 == 0 {
        return small_product(a, b).cmp(&small_product(c, d));
    }
    wide_mul(a, b).cmp(&wide_mul(c, d))
}

/// The 256-bit product as `(high, low)`.
#[cold]
fn wide_mul(a: u128, b: u128) -> (u128, u128) {
    const LOW: u128 = u64::MAX as u128;
    let (a_high, a_low) = (a >> 64, a & LOW);
    let (b_high, b_low) = (b >> 64, b & LOW);
    // Schoolbook: each partial product is below 2^128, and the sums below cannot carry out of 128 bits because
    // (2^64 - 1)^2 + 2 * (2^64 - 1) < 2^128.
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 64);
    let cross = a_low * b_high + (middle & LOW);
    let high = a_high * b_high + (middle >> 64) + (cross >> 64);
    (high, cross << 64 | low & LOW)
}

/// `(a * b / d, whether nothing was left over)`; the quotient is `u128::MAX` where it does not fit or `d` is 0.
#[cold]
fn wide_mul_div(a: u128, b: u128, d: u128) -> (u128, bool) {
    let (high, low) = wide_mul(a, b);
    if high >= d {
        return (u128::MAX, true);
    }
    if high == 0 {
        return (low / d, low % d == 0);
    }
    // Long division, a bit at a time. `rest` stays below `d`; the bit shifted out of it is kept in `carry`.
    let (mut rest, mut quotient) = (high, 0_u128);
    for bit in (0..128).rev() {
        let carry = rest >> 127 == 1;
        rest = rest << 1 | (low >> bit) & 1;
        quotient <<= 1;
        if carry || rest >= d {
            rest = rest.wrapping_sub(d);
            quotient |= 1;
        }
    }
    (quotient, rest == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_arithmetic_where_that_suffices() {
        for (a, b, d) in [(7, 9, 4), (1 << 70, 3, 7), (u64::MAX as u128, u64::MAX as u128, 3), (0, 5, 1 << 90)] {
            assert_eq!(mul_div_floor(a, b, d), a * b / d);
            assert_eq!(mul_div_ceil(a, b, d), (a * b).div_ceil(d));
        }
    }

    #[test]
    fn is_exact_beyond_128_bits() {
        let big = 10_u128.pow(38);
        assert_eq!(mul_div_floor(big, big, big), big);
        assert_eq!(mul_div_floor(big, big - 1, big), big - 1);
        assert_eq!(mul_div_ceil(big, big - 1, big - 2), big + 2);
        assert_eq!(mul_div_floor(u128::MAX, u128::MAX, u128::MAX), u128::MAX);
        assert_eq!(cmp_products(big, big, big + 1, big - 1), Ordering::Greater);
        assert_eq!(cmp_products(big, 10, 10 * (big / 10), 10), Ordering::Equal);
    }

    #[test]
    fn saturates_instead_of_wrapping() {
        assert_eq!(mul_div_floor(u128::MAX, 2, 1), u128::MAX);
        assert_eq!(mul_div_ceil(u128::MAX, 2, 1), u128::MAX);
        assert_eq!(mul_div_floor(1, 1, 0), u128::MAX);
    }
}
