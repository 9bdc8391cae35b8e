//! The 24 bytes: whatever is stored is read back, and nothing else is read.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis_token_bucket_core::{Balance, Bucket, Deadline, Micros, Record};

use crate::config;
use crate::world::{NEW_YEAR, balance, deadline};

fn balances() -> impl Strategy<Value = Balance> {
    let most = Balance::MAX.units();
    let edges = vec![0, 1, -1, most, -most, most - 1, 1 - most, 1 << 64, -(1 << 64), (1 << 64) - 1];
    prop_oneof![3 => -most..=most, 2 => -10_000_000_000_000..=10_000_000_000_000_i128, 1 => select(edges)]
        .prop_map(balance)
}

fn moments() -> impl Strategy<Value = u64> {
    let edges = vec![0, 1, NEW_YEAR, (1 << 48) - 1, 1 << 48, Micros::MAX.get()];
    prop_oneof![2 => 0..=Micros::MAX.get(), 1 => select(edges)]
}

fn records() -> impl Strategy<Value = Record> {
    let deadlines = prop_oneof![4 => moments().prop_map(deadline), 1 => Just(Deadline::NEVER)];
    (balances(), moments(), deadlines).prop_map(|(balance, stamp, deadline)| {
        let bucket = Bucket { balance, stamp: Micros::new(stamp) };
        Record { bucket, deadline }
    })
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn what_is_stored_is_read_back(record in records()) {
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    #[test]
    fn other_lengths_are_refused(record in records(), length in 0..64_usize) {
        let mut bytes = record.encode().to_vec();
        bytes.resize(length, 0);
        prop_assert_eq!(Record::decode(&bytes).is_some(), length == Record::LEN);
        let twice = [record.encode(), record.encode()].concat();
        prop_assert_eq!(Record::decode(&twice), None);
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in vec(any::<u8>(), 0..64)) {
        // One in 65536 has the right first byte and the right check; none of those may come back as other bytes.
        if let Some(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode().to_vec(), bytes);
        }
    }

    #[test]
    fn one_form_only_is_read(record in records(), bytes in any::<[u8; Record::LEN]>(), from in 2..=Record::LEN) {
        let mut bytes = bytes;
        bytes[..from].copy_from_slice(&record.encode()[..from]);
        let mut read = 0;
        for check in 0..=255 {
            bytes[1] = check;
            if let Some(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
                read += 1;
            }
        }
        prop_assert!(read <= 1, "{read} check bytes are right");
    }

    #[test]
    fn words_in_another_order_are_refused(record in records(), swap in select(vec![(0, 1), (0, 2), (1, 2)])) {
        let mut words: Vec<[u8; 8]> = record.encode().chunks(8).map(|word| word.try_into().unwrap()).collect();
        words.swap(swap.0, swap.1);
        let bytes = words.concat();
        if bytes != record.encode() && let Some(other) = Record::decode(&bytes) {
            prop_assert_eq!(other.encode().to_vec(), bytes);
        }
    }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn every_change_of_a_single_byte_is_refused(record in records()) {
        let bytes = record.encode();
        for at in 0..Record::LEN {
            for change in 1..=255 {
                let mut bytes = bytes;
                bytes[at] ^= change;
                prop_assert_eq!(Record::decode(&bytes), None, "byte {} changed by {:#x}", at, change);
            }
        }
    }
}

#[test]
fn ordinary_strings_are_refused() {
    let strings: [&[u8]; 7] =
        [b"", b"hello", b"0", b"1767225600000000", b"tokens 10, stamp 1767225", &[0; 24], &[0xFF; 24]];
    for string in strings {
        assert_eq!(Record::decode(string), None, "{string:?}");
    }
}
