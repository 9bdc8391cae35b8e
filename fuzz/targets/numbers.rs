//! Any bytes as an amount and as a rate: the parsers must not panic, must take exactly the decimals of the contract,
//! and must agree with the standard library's floats as far as those are exact.
#![no_main]

use bucket::{Amount, NumberError, Rate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    amount(text);
    rate(text);
});

/// What the contract calls a decimal, by the standard library's grammar less signs, words and underscores.
fn decimal(text: &[u8]) -> Option<f64> {
    let allowed = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    let signed = matches!(text.first(), None | Some(b'+' | b'-'));
    if signed || !text.iter().all(allowed) { None } else { std::str::from_utf8(text).ok()?.parse().ok() }
}

fn amount(text: &[u8]) {
    let Some(float) = decimal(text) else {
        return assert_eq!(Amount::parse(text), Err(NumberError::Malformed));
    };
    let near = |bound: f64| (float / bound - 1.0).abs() < 1e-12;
    match Amount::parse(text) {
        Ok(amount) => {
            assert!(amount <= Amount::MAX && (float <= 1e15 || near(1e15)));
            let parsed = amount.units() as f64 / 1e12;
            assert!((parsed - float).abs() <= 0.5e-9 + float * 1e-12, "{parsed} from {float}");
            assert_eq!(amount.units() % 1000, 0, "finer than a caller can name");
        }
        Err(NumberError::OutOfRange) => assert!(float > 1e15 || near(1e15)),
        Err(NumberError::TooSmall) => assert!(float < 0.5e-9 || near(0.5e-9)),
        Err(other) => panic!("{other:?} for the decimal {float}"),
    }
}

fn rate(text: &[u8]) {
    let slash = text.iter().position(|byte| *byte == b'/');
    let (tokens, seconds) = match slash {
        Some(at) => (decimal(&text[..at]), decimal(&text[at + 1..])),
        None => (decimal(text), Some(1.0)),
    };
    let (Some(tokens), Some(seconds)) = (tokens, seconds) else {
        // Of a ratio with two faults either may be named.
        return assert!(Rate::parse(text).is_err());
    };
    let float = tokens / seconds;
    // Beyond what floats hold, only that there is an answer counts.
    let held = tokens.is_normal() && seconds.is_normal() && float.is_normal();
    let near = |bound: f64| (float / bound - 1.0).abs() < 1e-12;
    match Rate::parse(text) {
        Ok(rate) => {
            assert!(!held || (1e-18..=1e12).contains(&float) || near(1e12) || near(1e-18), "{float}");
            assert!(!rate.is_zero() || !held, "{float} became a rate of 0");
        }
        Err(NumberError::Malformed) => panic!("malformed: {float}"),
        Err(NumberError::OutOfRange) => assert!(!held || float > 1e12 || near(1e12)),
        // Of a decimal with more digits than are kept, those kept count.
        Err(NumberError::TooSmall) => assert!(!held || float < 1e-18 || near(1e-18)),
        Err(NumberError::TooPrecise) => assert!(slash.is_some()),
    }
}
