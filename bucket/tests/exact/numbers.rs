//! The numbers that a caller writes: what is read, what is refused, and that no text of any kind is read wrongly.

use num_traits::ToPrimitive;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use redis_token_bucket_core::{Amount, Balance, Bucket, Micros, NumberError, Quota, Rate};

use crate::config;
use crate::oracle::{self, Exact, power_of_ten, seconds, step, whole};
use crate::world::{balance, nanos, nanos_text, rate_texts};

/// An amount's number, as a bucket holds it.
fn exact(amount: Amount) -> Exact {
    let quota = Quota { capacity: amount, rate: Rate::ZERO };
    whole(Bucket::full(&quota, Micros::MAX).balance.units()) * step()
}

fn assert_amount_read_alike(text: &[u8]) -> Result<(), TestCaseError> {
    let shown = String::from_utf8_lossy(text);
    prop_assert_eq!(Amount::parse(text).map(exact), oracle::amount(text), "{}", shown);
    Ok(())
}

/// Whether a rate gives back what the fractions do, from the shortest to the longest time and wait that a bucket knows.
fn assert_rate_is_between(rate: Rate, least: &Exact, most: &Exact) -> Result<(), TestCaseError> {
    prop_assert_eq!(rate.is_zero(), *most == whole(0));
    let quota = Quota { capacity: Amount::MAX, rate };
    let empty = Bucket { balance: Balance::MIN, stamp: Micros::new(0) };
    for micros in [1, 1_000_000, 86_400_000_000, Micros::MAX.get()] {
        let there = whole(empty.refilled(&quota, Micros::new(micros)).balance.units()) + power_of_ten(27);
        let exact = |rate: &Exact| (seconds(micros) * rate / step()).floor().min(power_of_ten(27) * whole(2));
        prop_assert!(exact(least) <= there && there <= exact(most), "{micros} us bring {there}");
    }
    for units in [1, 1_000_000_000_000, 999_999_999_999_999_999, 1_000_000_000_000_000_000_000_000_000] {
        let debt = Bucket { balance: balance(-units), stamp: Micros::new(0) };
        let told = debt.take(&quota, Amount::ZERO, Micros::new(0)).1.retry.as_millis();
        let exact = |rate: &Exact| {
            let millis = (whole(units) * step() / rate * whole(1_000)).ceil().to_integer();
            millis.to_i64().unwrap_or(i64::MAX).max(1)
        };
        if rate.is_zero() {
            prop_assert_eq!(told, -1);
        } else {
            prop_assert!(exact(most) <= told && told <= exact(least), "{units} units take {told} ms");
        }
    }
    Ok(())
}

fn assert_rate_read_alike(text: &[u8]) -> Result<(), TestCaseError> {
    let shown = String::from_utf8_lossy(text);
    match (Rate::parse(text), oracle::rate(text)) {
        (Ok(rate), Ok(exact)) => assert_rate_is_between(rate, &exact, &exact),
        (Err(error), Err(expected)) => {
            // A ratio may be wrong on both sides; a decimal is wrong in one way.
            prop_assert!(text.contains(&b'/') || error == expected, "{}: {:?}, {:?}", shown, error, expected);
            Ok(())
        }
        (rate, exact) => Err(TestCaseError::fail(format!("{shown}: {rate:?}, by the oracle {exact:?}"))),
    }
}

fn digits(most: usize) -> impl Strategy<Value = String> {
    let digit = prop_oneof![2 => select(b"09".to_vec()), 3 => b'0'..=b'9'];
    vec(digit, 0..=most).prop_map(|digits| String::from_utf8(digits).unwrap())
}

fn exponents() -> impl Strategy<Value = String> {
    let number = prop_oneof![4 => (0..40_u32).prop_map(|n| n.to_string()), 1 => digits(4), 1 => digits(14)];
    prop_oneof![
        2 => Just(String::new()),
        1 => (select(vec!["e", "E", "e-", "e+", "e-0"]), number).prop_map(|(e, number)| format!("{e}{number}")),
    ]
}

/// Decimals, and texts that are nearly so.
fn decimals() -> impl Strategy<Value = String> {
    let point = select(vec!["", ".", "."]);
    (digits(20), point, digits(24), exponents()).prop_map(|(a, point, b, exponent)| format!("{a}{point}{b}{exponent}"))
}

/// A text with one byte put in, taken out or exchanged.
fn mutated(texts: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => select(b"0123456789.eE+-/ _x\0\n".to_vec()), 1 => any::<u8>()];
    (texts, any::<Index>(), byte, 0..4_u8).prop_map(|(text, at, byte, how)| {
        let mut text = text.into_bytes();
        let at = at.index(text.len() + 1);
        match how {
            0 => text.insert(at, byte),
            1 if at < text.len() => text[at] = byte,
            2 if at < text.len() => drop(text.remove(at)),
            _ => {}
        }
        text
    })
}

fn ratios() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => (decimals(), decimals()).prop_map(|(tokens, seconds)| format!("{tokens}/{seconds}")),
        2 => rate_texts(),
    ]
}

/// Long runs of digits on both sides of a point, with an exponent that brings them back to size.
fn long_decimals() -> impl Strategy<Value = String> {
    let run = (select(vec!["0", "9", "1", "05"]), 0..600_usize).prop_map(|(digits, times)| digits.repeat(times));
    let rest = select(vec!["", "1", "5", "49", "50", "51"]);
    (run.clone(), rest.clone(), run, rest, -700..700_i32, any::<bool>()).prop_map(
        |(before, x, after, y, exponent, written)| {
            let exponent = if written { format!("e{exponent}") } else { String::new() };
            format!("{before}{x}.{after}{y}{exponent}")
        },
    )
}

fn near_ties() -> impl Strategy<Value = String> {
    let tails = select(vec![
        "5",
        "50",
        "500000000000000000000000000000",
        "49999999999999999999999999999999999999",
        "500000000000000000000000000000000000001",
        "0000000000000000000000000000000000000001",
        "4",
        "6",
    ]);
    (nanos(), tails).prop_map(|(nanos, tail)| format!("{}{tail}", nanos_text(nanos)))
}

proptest! {
    #![proptest_config(config(3_000))]

    #[test]
    fn amounts_are_read_as_the_oracle_reads_them(text in mutated(decimals())) {
        assert_amount_read_alike(&text)?;
    }

    #[test]
    fn amounts_beside_a_tie_are_rounded_to_even(text in near_ties()) {
        assert_amount_read_alike(text.as_bytes())?;
    }

    #[test]
    fn amounts_of_up_to_nine_decimals_are_exact(nanos in nanos(), zeros in 0..30_usize) {
        let text = format!("{}{}", nanos_text(nanos), "0".repeat(zeros));
        prop_assert_eq!(Amount::parse(text.as_bytes()).map(exact), Ok(whole(nanos) * power_of_ten(-9)));
        let text = format!("{nanos}e-9");
        prop_assert_eq!(Amount::parse(text.as_bytes()).map(exact), Ok(whole(nanos) * power_of_ten(-9)));
    }

    #[test]
    fn arbitrary_bytes_are_read_as_the_oracle_reads_them(bytes in vec(any::<u8>(), 0..24)) {
        assert_amount_read_alike(&bytes)?;
        assert_rate_read_alike(&bytes)?;
    }

    #[test]
    fn arbitrary_texts_of_the_right_letters_are_read_alike(
        bytes in vec(select(b"0123456789.eE+-/".to_vec()), 0..12)
    ) {
        assert_amount_read_alike(&bytes)?;
        assert_rate_read_alike(&bytes)?;
    }

    #[test]
    fn balances_are_shown_exactly(units in -Balance::MAX.units()..=Balance::MAX.units(), zeros in 0..27_u32) {
        let units = units - units % 10_i128.pow(zeros);
        let shown = balance(units).to_string();
        let (sign, magnitude) = match shown.strip_prefix('-') {
            Some(magnitude) => (-1, magnitude),
            None => (1, shown.as_str()),
        };
        let (before, after) = magnitude.split_once('.').unwrap_or((magnitude, ""));
        prop_assert!(!after.ends_with('0') && (after.is_empty() != magnitude.contains('.')), "{}", shown);
        let digits: i128 = format!("{before}{after}").parse().unwrap();
        let exact = whole(digits * sign) * power_of_ten(-i64::try_from(after.len()).unwrap());
        prop_assert_eq!(exact, whole(units) * step());
    }
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn rates_are_read_as_the_oracle_reads_them(text in mutated(prop_oneof![decimals(), ratios()])) {
        assert_rate_read_alike(&text)?;
    }

    #[test]
    fn ratios_of_eighteen_digits_are_exact(
        tokens in 1..1_000_000_000_000_000_000_u64, seconds in 1..1_000_000_000_000_000_000_u64, shift in -18..=12_i64
    ) {
        let exact = Exact::new(tokens.into(), seconds.into()) * power_of_ten(shift);
        prop_assume!(exact >= power_of_ten(-18) && exact <= power_of_ten(12));
        let rate = Rate::parse(format!("{tokens}e{shift}/{seconds}").as_bytes()).unwrap();
        assert_rate_is_between(rate, &exact, &exact)?;
        prop_assert_eq!(rate, Rate::parse(format!("{tokens}/{seconds}e{}", -shift).as_bytes()).unwrap());
    }

    #[test]
    fn decimal_rates_keep_fifteen_digits_and_are_never_more_than_written(
        digits in vec(b'0'..=b'9', 1..40), shift in -20..=12_i64
    ) {
        let digits = String::from_utf8(digits).unwrap();
        let text = format!("1.{digits}e{shift}");
        if let Ok(written) = oracle::written_rate(text.as_bytes()) {
            let rate = Rate::parse(text.as_bytes()).unwrap();
            let lost = power_of_ten(-15) * &written;
            assert_rate_is_between(rate, &(&written - lost), &written)?;
        }
    }

    #[test]
    fn long_numbers_are_read_as_the_oracle_reads_them(text in long_decimals(), seconds in long_decimals()) {
        assert_amount_read_alike(text.as_bytes())?;
        assert_rate_read_alike(text.as_bytes())?;
        assert_rate_read_alike(format!("{text}/{seconds}").as_bytes())?;
    }

    #[test]
    fn exponents_of_any_length_are_read_alike(
        digits in digits(3), sign in select(vec!["", "-", "+"]), exponent in digits(60), other in digits(60)
    ) {
        let text = format!("{digits}e{sign}{exponent}");
        assert_amount_read_alike(text.as_bytes())?;
        assert_rate_read_alike(text.as_bytes())?;
        // Two exponents beyond all sense may be refused where they cancel out, but are never read as something else.
        let text = format!("{text}/1e{sign}{other}");
        if Rate::parse(text.as_bytes()).is_ok() {
            assert_rate_read_alike(text.as_bytes())?;
        }
    }
}

#[test]
fn refuses_what_is_not_a_number_within_bounds() {
    let malformed = [
        "", " ", " 5", "5 ", "5\n", "nan", "NaN", "inf", "-inf", "infinity", "0x10", "1_000", "+5", "-5", "-0", "٣",
        "５", ".", "e5", ".e5", "5e", "5e+", "5e-", "5e5.5", "1.2.3", "1e5e5", "1,5", "5f", "1\0", "\0", "--5", "5-",
        "1e 5",
    ];
    for text in malformed {
        assert_eq!(Amount::parse(text.as_bytes()), Err(NumberError::Malformed), "{text:?}");
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::Malformed), "{text:?}");
        assert!(Rate::parse(format!("{text}/1").as_bytes()).is_err(), "{text:?} tokens");
        assert!(Rate::parse(format!("1/{text}").as_bytes()).is_err(), "{text:?} seconds");
    }
    for text in [
        "1e999",
        "1e16",
        "1000000000000001",
        "1000000000000000.0000000001",
        "1000000000000000.00000000000000000000000000000000000000001",
        "999999999999999999999",
        "1e99999999999999999999",
    ] {
        assert_eq!(Amount::parse(text.as_bytes()), Err(NumberError::OutOfRange), "{text}");
    }
    for text in ["1e-400", "0.0000000005", "1e-10", "0.00000000049999", "1e-99999999999999999999"] {
        assert_eq!(Amount::parse(text.as_bytes()), Err(NumberError::TooSmall), "{text}");
    }
    for text in ["1e999", "1e13", "1000000000001", "1/0", "0/0", "1e12/0.5", "1e13/1", "1/0.0e9", "1e99/1e-99"] {
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::OutOfRange), "{text}");
    }
    for text in ["1e-400", "1e-19", "0.999999999999999999999e-18", "1/1e19", "1/1000000000000000001e18", "1e-99/1e99"] {
        assert!(Rate::parse(text.as_bytes()).is_err(), "{text}");
    }
    for text in
        ["1234567890123456789/1", "1/1234567890123456789", "0.1234567890123456789/1", "10000000000000000001/1e19"]
    {
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::TooPrecise), "{text}");
    }
    for text in ["1/2/3", "/", "1/", "/1", "//", "1/ 2", "1 /2", "-1/2", "1/-2"] {
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::Malformed), "{text}");
    }
}

#[test]
fn reads_every_way_to_write_a_number() {
    let ones =
        ["1", "1.", "01", "1.0", "1e0", "1E0", "1e+00", "1e-0", "0.1e1", ".1e1", "10e-1", "1000000000e-9", "0001.000"];
    for text in ones {
        assert_eq!(Amount::parse(text.as_bytes()), Ok(Amount::ONE), "{text}");
        assert_eq!(Rate::parse(text.as_bytes()), Rate::parse(b"60/60"), "{text}");
    }
    for text in ["1e15", "1000000000000000", "1000000000000000.0", "999999999999999.9999999999", "0.001e18"] {
        assert_eq!(Amount::parse(text.as_bytes()), Ok(Amount::MAX), "{text}");
    }
    for (text, ratio) in [
        ("1e12", "1000000000000/1"),
        ("1e-18", "1/1e18"),
        ("0.5", "1/2"),
        ("1e-05", "1/100000"),
        ("2e30/4e30", "0.5"),
        ("1000000000000000000000/1e9", "1e12"),
        ("999999999999999999/999999999999999999", "1"),
        ("100/60", "5/3"),
    ] {
        assert_eq!(Rate::parse(text.as_bytes()).unwrap(), Rate::parse(ratio.as_bytes()).unwrap(), "{text}");
    }
}

#[test]
fn zero_is_zero_however_it_is_written() {
    for text in ["0", "0.", ".0", "00", "0e5", "0.0000000000000", "0e99999999999999999999", "0e-99999999999999999999"] {
        assert_eq!(Amount::parse(text.as_bytes()), Ok(Amount::ZERO), "{text}");
        assert_eq!(Rate::parse(text.as_bytes()), Ok(Rate::ZERO), "{text}");
        assert_eq!(Rate::parse(format!("{text}/60").as_bytes()), Ok(Rate::ZERO), "{text}/60");
    }
}

#[test]
fn a_rate_is_bounded_as_written_and_not_as_cut() {
    for text in
        ["1000000000000.0000001", "1.0000000000000000000000001e12", "1000000000000.00000000000000000000000000001"]
    {
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::OutOfRange), "{text}");
    }
    for text in ["0.99999999999999999999e-18", "9.9999999999999999999999e-19"] {
        assert_eq!(Rate::parse(text.as_bytes()), Err(NumberError::TooSmall), "{text}");
    }
    assert_eq!(Rate::parse(b"1.0000000000000000000000001e-18"), Rate::parse(b"1e-18"), "cut, but not out of bounds");
}

#[test]
fn one_a_day_as_a_decimal_is_one_a_day() {
    let rate = Rate::parse(b"0.000011574074074074074").unwrap();
    let quota = Quota { capacity: Amount::ONE, rate };
    let start = Micros::new(0);
    let (bucket, _) = Bucket::full(&quota, start).take(&quota, Amount::ONE, start);
    let told = bucket.unwrap().take(&quota, Amount::ONE, start).1.retry.as_millis();
    assert_eq!(told, 86_400_001, "a millisecond late, for the digits say a little less than 1/86400");
}

#[test]
fn counts_whole_tokens() {
    assert_eq!(Amount::from_tokens(3), Amount::parse(b"3"));
    assert_eq!(Amount::from_tokens(1_000_000_000_000_001), Err(NumberError::OutOfRange));
    assert_eq!(Amount::parse(b"1e3").unwrap().whole(), Some(1_000));
    assert_eq!(Amount::parse(b"2.5").unwrap().whole(), None);
    assert_eq!(Amount::parse(b"999999999999999.999999999").unwrap().tokens(), 999_999_999_999_999);
    assert_eq!(Amount::MAX.whole(), Some(1_000_000_000_000_000));
}
