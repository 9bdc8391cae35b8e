//! Any arguments on any record: the fast path answers as the whole arithmetic does, or not at all.
#![no_main]

use bucket::{Amount, Bucket, FastTake, FastTaken, Micros, Quota, Rate, Record, Slack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((fields, text)) = input.split_first_chunk::<40>() else { return };
    let mut words = text.splitn(3, |byte| *byte == b' ');
    let (Some(capacity), Some(rate)) = (words.next(), words.next()) else { return };
    take(fields, capacity, rate, words.next());
});

fn take(fields: &[u8; 40], capacity: &[u8], rate: &[u8], cost: Option<&[u8]>) {
    let Some(fast) = FastTake::parse(capacity, rate, cost) else { return };
    let read = |text| Amount::parse(text).expect("the fast path reads what the parsers read");
    let rate = Rate::parse(rate).expect("the fast path reads what the parsers read");
    let (quota, cost) = (Quota { capacity: read(capacity), rate }, cost.map_or(Amount::ONE, read));
    assert_eq!(fast.cost(), cost);

    let word = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("eight bytes"));
    // No input at all is an ordinary bucket at an ordinary time; every bit of it changes that.
    let noon = Micros::new(1_767_225_600_000_000);
    let (now, slack) = (Micros::new(noon.get().wrapping_add(word(24))), Slack::from_millis(word(32)));
    let mut stored = Record::with(None, Bucket::full(&quota, noon), &quota, slack).encode();
    for (stored, change) in stored.iter_mut().zip(fields) {
        *stored ^= change;
    }
    // One of these check bytes fits, if the first byte and the balance can be a record's.
    let record = (0..=u8::MAX).find_map(|check| {
        stored[1] = check;
        Record::decode(&stored)
    });
    let bucket = Bucket::or_full(record.map(|record| record.bucket), &quota, now);
    let stored = record.map(|_| &stored);

    if let Some((remaining, wait)) = fast.peek(stored, now) {
        let decision = bucket.peek(&quota, cost, now);
        assert_eq!((remaining, wait.cast_signed()), (decision.remaining, decision.retry.as_millis()));
    }
    let (taken, decision) = bucket.take(&quota, cost, now);
    let whole = taken.map(|bucket| Record::with(record.as_ref(), bucket, &quota, slack));
    match fast.take(stored, slack, now) {
        None => {}
        Some(FastTaken::Refused(remaining, wait)) => {
            let corrected = record.and_then(|record| record.corrected(&quota, slack, now));
            assert_eq!((whole, corrected, decision.allowed), (None, None, false));
            assert_eq!((remaining, wait.cast_signed()), (decision.remaining, decision.retry.as_millis()));
        }
        Some(FastTaken::Granted(remaining, bytes)) => {
            assert_eq!((whole.map(|whole| whole.encode()), remaining), (Some(bytes), decision.remaining));
            assert_eq!(whole.map(|whole| whole.deadline), record.map(|record| record.deadline));
        }
        Some(FastTaken::Dated(remaining, bytes, deadline)) => {
            assert_eq!((whole.map(|whole| whole.encode()), remaining), (Some(bytes), decision.remaining));
            assert_eq!(whole.map(|whole| whole.deadline), Some(deadline));
        }
    }
}
