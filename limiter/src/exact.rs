//! Exact arithmetic on the numbers of the client: whole tokens, parts of quotas, waits. No float, no clock.

use std::time::Duration;

use bucket::Amount;
use client::{Quota, Tokens};

use crate::fault::Share;

/// Units of the core in a token.
const UNITS: u128 = 1_000_000_000_000;

fn units(tokens: Tokens) -> Option<u128> {
    Amount::try_from(tokens).ok().map(Amount::units)
}

/// The number of tokens, if it is a whole one.
pub(crate) fn whole(tokens: Tokens) -> Option<u64> {
    // Nearly every cost is one token, and text is a detour for that.
    if tokens == Tokens::ONE {
        return Some(1);
    }
    Amount::try_from(tokens).ok().and_then(Amount::whole)
}

/// How long a quota takes to bring `tokens` back, rounded up; `None` for never, or nearly so.
pub(crate) fn time_for(tokens: Tokens, quota: Quota) -> Option<Duration> {
    let (lack, tokens) = (units(tokens)?, units(quota.rate().tokens())?);
    if lack == 0 {
        return Some(Duration::ZERO);
    }
    // In two parts, so that large quotas of long times fit.
    let every = quota.rate().every().as_nanos();
    let (whole, rest) = (lack.checked_div(tokens)?.checked_mul(every)?, lack.checked_rem(tokens)?.checked_mul(every)?);
    let nanos = whole.checked_add(rest.checked_add(tokens.checked_sub(1)?)?.checked_div(tokens)?)?;
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// How many whole tokens come back in `time`, rounded down.
#[cfg(feature = "tower")]
pub(crate) fn rounded_in(rate: client::Rate, time: Duration) -> u64 {
    let tokens = units(rate.tokens()).and_then(|units| units.checked_mul(time.as_nanos()));
    let tokens = tokens.and_then(|units| units.checked_div(rate.every().as_nanos())?.checked_div(UNITS));
    tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(u64::MAX)
}

/// The part of a quota that one process may grant by itself.
pub(crate) fn part_of(quota: Quota, share: Share) -> Option<bucket::Quota> {
    let (part, of) = (u128::from(share.parts().0), u128::from(share.parts().1));
    let capacity = units(quota.capacity())?.checked_mul(part)?.checked_div(of)?;
    let tokens = units(quota.rate().tokens())?.checked_mul(part)?;
    let nanos = quota.rate().every().as_nanos().checked_mul(of)?;
    if tokens == 0 {
        return Some(bucket::Quota { capacity: rounded_down(capacity)?, rate: bucket::Rate::ZERO });
    }
    let rate = bucket::Rate::parse(format!("{tokens}e-12/{nanos}e-9").as_bytes()).ok()?;
    Some(bucket::Quota { capacity: rounded_down(capacity)?, rate })
}

/// The core names amounts in steps of a thousand units.
fn rounded_down(units: u128) -> Option<Amount> {
    let units = units.checked_sub(units.checked_rem(1_000)?)?;
    Amount::parse(format!("{units}e-12").as_bytes()).ok()
}

/// Whole tokens, rounded down.
pub(crate) fn rounded(tokens: Tokens) -> u64 {
    units(tokens)
        .and_then(|units| units.checked_div(UNITS))
        .and_then(|whole| u64::try_from(whole).ok())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Tokens {
        text.parse().unwrap()
    }

    #[test]
    fn tells_whole_numbers() {
        assert_eq!(whole(tokens("1e15")), Some(1_000_000_000_000_000));
        assert_eq!(whole(Tokens::ZERO), Some(0));
        assert_eq!(whole(tokens("2.5")), None);
        assert_eq!(rounded(tokens("2.5")), 2);
    }

    #[test]
    fn waits_are_rounded_up() {
        let quota = Quota::per_minute(100);
        assert_eq!(time_for(Tokens::ONE, quota), Some(Duration::from_millis(600)));
        assert_eq!(time_for(Tokens::ONE, Quota::per_second(3)), Some(Duration::from_nanos(333_333_334)));
        assert_eq!(time_for(Tokens::ONE, Quota::once(5)), None);
        let most = Quota::per(1_000_000_000_000_000, Duration::from_secs(31_536_000));
        assert_eq!(time_for(tokens("1e15"), most), Some(Duration::from_secs(31_536_000)));
        assert_eq!(time_for(Tokens::ZERO, Quota::once(5)), None.or(Some(Duration::ZERO)));
    }

    #[test]
    fn a_part_has_exactly_that_part_of_the_rate() {
        let part = part_of(Quota::per_minute(100).burst(20), Share::one_of(3)).unwrap();
        assert_eq!(part.rate, bucket::Rate::parse(b"100/180").unwrap());
        assert_eq!(part.capacity, Amount::parse(b"6.666666666").unwrap());
        let part = part_of(Quota::per_second(50), Share::percent(100)).unwrap();
        assert_eq!(part, bucket::Quota::try_from(Quota::per_second(50)).unwrap());
        assert!(part_of(Quota::once(7), Share::one_of(7)).unwrap().rate.is_zero());
        assert_eq!(part_of(Quota::per_second(5), Share::percent(0)).unwrap().capacity, Amount::ZERO);
    }
}
