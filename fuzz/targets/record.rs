//! Any bytes as a stored record: what is read is written back as it was, a change within any one byte is seen, and a
//! bucket read from anywhere can be taken from without a panic or a token too many.
#![no_main]

use bucket::{Amount, Bucket, Micros, Quota, Rate, Record, Slack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    any_bytes(bytes);
    if let Some((fields, rest)) = bytes.split_first_chunk::<32>() {
        made_record(fields, rest);
    }
});

fn any_bytes(bytes: &[u8]) {
    let Some(record) = Record::decode(bytes) else { return };
    assert_eq!(record.encode(), bytes, "another form of the same record");
    assert_eq!(bytes.len(), Record::LEN);
}

fn made_record(fields: &[u8; 32], rest: &[u8]) {
    let word = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("eight bytes"));
    let amount =
        |at: usize| Amount::parse(format!("{}.{:09}", word(at) % 1_000_000_000_000_000, word(at) >> 40).as_bytes());
    let rate = format!("{}/{}", word(16) % 1_000_000_000, word(16) >> 44 | 1);
    let (Ok(capacity), Ok(cost), Ok(rate)) = (amount(0), amount(8), Rate::parse(rate.as_bytes())) else { return };
    let (quota, now, slack) = (Quota { capacity, rate }, Micros::new(word(24)), Slack::from_millis(word(24) >> 44));
    let full = Bucket::full(&quota, now);
    let taken = full.take(&quota, cost, now).0;
    let charged = full.debit(&quota, cost, now).ok().map(|(bucket, _)| bucket);
    for bucket in [Some(full), taken, charged].into_iter().flatten() {
        let record = Record::with(None, bucket, &quota, slack);
        let stored = record.encode();
        assert_eq!(Record::decode(&stored), Some(record));
        if let [at, change @ 1..=255, ..] = rest {
            let mut damaged = stored;
            damaged[usize::from(*at) % Record::LEN] ^= change;
            assert_eq!(Record::decode(&damaged), None, "damage went unseen");
        }
        let later = Micros::new(now.get().wrapping_add(word(8)));
        let refilled = bucket.refilled(&quota, later);
        assert!(refilled.balance.units() <= quota.capacity.units().cast_signed(), "above the capacity");
        let corrected = record.corrected(&quota, slack, later);
        assert!(corrected.is_none_or(|corrected| Record::decode(&corrected.encode()) == Some(corrected)));
    }
}
