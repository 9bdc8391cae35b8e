//! The one way from a key to a bucket and back: open, check, decide, and only if something changed write, expire, signal,
//! replicate and notify.

use std::ffi::CStr;

use bucket::{Bucket, FastTake, FastTaken, Micros, Quota, Record};

use crate::error::Error;
use crate::server::{self, Context, Expiry, Key, KeyName, Value};
use crate::stats;

/// A key that is open for writing, and the bucket under it, if there is one.
pub(crate) struct Slot<'a> {
    key: Key<'a>,
    name: KeyName<'a>,
    record: Option<Record>,
}

impl<'a> Slot<'a> {
    /// Opens a key. A value that is not a bucket is an error, and is left as it is.
    #[inline(always)]
    pub(crate) fn open(ctx: &'a Context, name: KeyName<'a>) -> Result<Self, Error> {
        Self::of(Key::open_for_writing(ctx, name), name)
    }

    #[inline(always)]
    fn of(mut key: Key<'a>, name: KeyName<'a>) -> Result<Self, Error> {
        let record = decode(key.value())?;
        Ok(Self { key, name, record })
    }

    /// The bucket, if there is one.
    #[inline(always)]
    pub(crate) fn bucket(&self) -> Option<Bucket> {
        self.record.map(|record| record.bucket)
    }

    /// Fails if storing a bucket here would create a key and the server is out of memory.
    #[inline(always)]
    pub(crate) fn check_memory(&self, ctx: &Context) -> Result<(), Error> {
        if self.record.is_none() && server::is_out_of_memory(ctx, self.name) { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// Stores what a call made of the bucket. [`server::notify`] is the caller's, once no key is open any more: whoever
    /// listens to keyspace events may change keys.
    #[inline(always)]
    pub(crate) fn commit(self, ctx: &Context, bucket: Bucket, quota: &Quota) -> Result<(), Error> {
        let record = Record::with(self.record.as_ref(), bucket, quota, server::expiry_slack());
        self.write(ctx, &record)
    }

    /// After a call that changed nothing: puts a stamp or a deadline right that cannot stand, which is rare.
    #[inline(always)]
    pub(crate) fn correct(self, ctx: &Context, quota: &Quota, now: Micros) -> Result<(), Error> {
        match self.record.and_then(|record| record.corrected(quota, server::expiry_slack(), now)) {
            Some(record) => self.write(ctx, &record),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn write(mut self, ctx: &Context, record: &Record) -> Result<(), Error> {
        let expiry = match self.record {
            Some(old) if old.deadline == record.deadline => Expiry::Stands,
            _ => Expiry::until(record.deadline),
        };
        let bytes = record.encode();
        self.key.write(&bytes, expiry)?;
        drop(self.key);
        announce(ctx, self.name, &bytes, expiry);
        Ok(())
    }
}

/// A key that was opened by a call of this moment, whatever is under it.
pub(crate) struct Opened<K> {
    key: K,
    now: Micros,
}

/// The fast path of a take: all of it where everything is as usual, or else the key, open and as it was unless the server
/// refused to write.
#[inline(always)]
pub(crate) fn take_fast<'a>(
    ctx: &'a Context,
    name: KeyName<'a>,
    take: &FastTake,
    event: &CStr,
) -> Result<FastTaken, Opened<Key<'a>>> {
    let Opened { mut key, now } = open(ctx, name);
    let taken = match key.value() {
        Value::Bytes(bytes) => take.take(Some(bytes), server::expiry_slack(), now),
        // Whatever this answers creates the key.
        Value::Absent => take.take(None, server::expiry_slack(), now).filter(|_| !server::is_out_of_memory(ctx, name)),
        Value::Other => None,
    };
    let Some(taken) = taken else { return Err(Opened { key, now }) };
    let (bytes, expiry) = match taken {
        FastTaken::Refused(..) => return Ok(taken),
        FastTaken::Granted(_, bytes) => (bytes, Expiry::Stands),
        FastTaken::Dated(_, bytes, deadline) => (bytes, Expiry::until(deadline)),
    };
    if key.write(&bytes, expiry).is_err() {
        return Err(Opened { key, now });
    }
    drop(key);
    announce(ctx, name, &bytes, expiry);
    server::notify(ctx, event, name);
    Ok(taken)
}

/// The fast path of a peek, if it is one for what is under the key, or else the key, open to be read.
#[inline(always)]
pub(crate) fn peek_fast<'a>(
    ctx: &'a Context,
    name: KeyName<'a>,
    take: &FastTake,
) -> Result<(u64, u64), Opened<Option<Key<'a>>>> {
    let Opened { mut key, now } = open_to_read(ctx, name);
    let peeked = match key.as_mut().map(Key::value) {
        None => take.peek(None, now),
        Some(Value::Bytes(bytes)) => take.peek(Some(bytes), now),
        Some(_) => None,
    };
    peeked.ok_or(Opened { key, now })
}

/// Tells everybody who has to know about a bucket that was stored.
#[inline(always)]
fn announce(ctx: &Context, name: KeyName<'_>, bytes: &[u8], expiry: Expiry) {
    server::signal_modified(ctx, name);
    server::replicate_set(ctx, name, bytes, expiry);
}

/// Lets `decide` make a new bucket of the old one, and stores that.
#[inline(always)]
pub(crate) fn update<T>(
    ctx: &Context,
    name: KeyName<'_>,
    quota: &Quota,
    event: &CStr,
    decide: impl FnOnce(Option<Bucket>, Micros) -> Result<(Option<Bucket>, T), Error>,
) -> Result<T, Error> {
    update_opened(ctx, open(ctx, name), name, quota, event, decide)
}

/// Opens a key for [`update_opened`].
#[inline(always)]
pub(crate) fn open<'a>(ctx: &'a Context, name: KeyName<'a>) -> Opened<Key<'a>> {
    Opened { now: server::now(), key: Key::open_for_writing(ctx, name) }
}

/// [`update`] for a key that is open already.
#[inline(always)]
pub(crate) fn update_opened<T>(
    ctx: &Context,
    Opened { key, now }: Opened<Key<'_>>,
    name: KeyName<'_>,
    quota: &Quota,
    event: &CStr,
    decide: impl FnOnce(Option<Bucket>, Micros) -> Result<(Option<Bucket>, T), Error>,
) -> Result<T, Error> {
    let slot = Slot::of(key, name)?;
    let (bucket, answer) = decide(slot.bucket(), now)?;
    match bucket {
        Some(bucket) => {
            slot.check_memory(ctx)?;
            slot.commit(ctx, bucket, quota)?;
            server::notify(ctx, event, name);
        }
        None => slot.correct(ctx, quota, now)?,
    }
    Ok(answer)
}

/// Opens a key for [`bucket_of`], if it exists.
#[inline(always)]
pub(crate) fn open_to_read<'a>(ctx: &'a Context, name: KeyName<'a>) -> Opened<Option<Key<'a>>> {
    Opened { now: server::now(), key: Key::open_for_reading(ctx, name) }
}

/// The bucket under a key, if there is one, and the moment of the call.
#[inline(always)]
pub(crate) fn bucket_of(Opened { key, now }: Opened<Option<Key<'_>>>) -> Result<(Option<Bucket>, Micros), Error> {
    let Some(mut key) = key else { return Ok((None, now)) };
    Ok((decode(key.value())?.map(|record| record.bucket), now))
}

/// Looks at the record under a key, if there is one, without touching either.
#[inline(always)]
pub(crate) fn read<T>(
    ctx: &Context,
    name: KeyName<'_>,
    look: impl FnOnce(&Key<'_>, &Record) -> T,
) -> Result<Option<T>, Error> {
    let Some(mut key) = Key::open_for_reading(ctx, name) else {
        return Ok(None);
    };
    Ok(decode(key.value())?.map(|record| look(&key, &record)))
}

#[inline(always)]
fn decode(value: Value<'_>) -> Result<Option<Record>, Error> {
    let record = match value {
        Value::Absent => return Ok(None),
        Value::Bytes(bytes) => Record::decode(bytes),
        Value::Other => None,
    };
    match record {
        Some(record) => Ok(Some(record)),
        None => {
            stats::count(&stats::WRONG_TYPE);
            Err(Error::WrongType)
        }
    }
}
