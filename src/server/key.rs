//! An open key that holds a bucket, or is to hold one.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use bucket::{Deadline, Record};
use redis_module::raw;

use super::{Context, KeyName, api};
use crate::error::Error;

const READ: c_int = raw::REDISMODULE_READ.cast_signed();
const WRITE: c_int = raw::REDISMODULE_WRITE.cast_signed();

/// An open key; closed when dropped.
pub(crate) struct Key<'a> {
    raw: NonNull<raw::RedisModuleKey>,
    mode: c_int,
    /// Where the value's bytes are, if there are as many as a record has.
    bytes: Option<NonNull<[u8; Record::LEN]>>,
    call: PhantomData<&'a Context>,
}

/// What is under a key.
pub(crate) enum Value<'a> {
    /// Nothing.
    Absent,
    /// A string as long as a record.
    Bytes(&'a [u8; Record::LEN]),
    /// Anything else.
    Other,
}

/// What becomes of a key's expiry when its value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// It stays as it is.
    Stands,
    /// The key lives for ever.
    None,
    /// Milliseconds since the epoch.
    At(u64),
}

impl Expiry {
    /// That of a record.
    #[inline(always)]
    pub(crate) fn until(deadline: Deadline) -> Self {
        deadline.as_millis().map_or(Self::None, Self::At)
    }
}

impl<'a> Key<'a> {
    /// Opens a key to read and write it; it need not exist.
    #[inline(always)]
    pub(crate) fn open_for_writing(ctx: &'a Context, name: KeyName<'a>) -> Self {
        // SAFETY: both pointers are those of the running call. Opened for writing, a key is never null.
        unsafe {
            let raw = api!(RedisModule_OpenKey)(ctx.raw(), name.raw(), READ | WRITE);
            Self { raw: NonNull::new_unchecked(raw.cast()), mode: READ | WRITE, bytes: None, call: PhantomData }
        }
    }

    /// Opens a key to read it, if it exists.
    #[inline(always)]
    pub(crate) fn open_for_reading(ctx: &'a Context, name: KeyName<'a>) -> Option<Self> {
        // SAFETY: both pointers are those of the running call.
        let raw = unsafe { api!(RedisModule_OpenKey)(ctx.raw(), name.raw(), READ) };
        Some(Self { raw: NonNull::new(raw.cast())?, mode: READ, bytes: None, call: PhantomData })
    }

    /// What is under the key. A string of another length is not looked at, so that the server does not change how it is
    /// encoded.
    #[inline(always)]
    pub(crate) fn value(&mut self) -> Value<'_> {
        // SAFETY: the key is open.
        match unsafe { api!(RedisModule_ValueLength)(self.raw.as_ptr()) } {
            Record::LEN => {
                self.locate();
                // SAFETY: `locate` found as many bytes at a place that stays until the key is written.
                self.bytes.map_or(Value::Other, |bytes| Value::Bytes(unsafe { bytes.as_ref() }))
            }
            0 if self.is_empty() => Value::Absent,
            _ => Value::Other,
        }
    }

    /// Milliseconds to live, -1 for ever.
    pub(crate) fn ttl_millis(&self) -> i64 {
        // SAFETY: the key is open.
        unsafe { api!(RedisModule_GetExpire)(self.raw.as_ptr()) }
    }

    /// Writes a record: in place, or as a new string where the key does not exist.
    #[inline(always)]
    pub(crate) fn write(&mut self, record: &[u8; Record::LEN], expiry: Expiry) -> Result<(), Error> {
        if self.bytes.is_none() {
            // SAFETY: the key is open for writing and empty, so this makes a string of as many zero bytes.
            check(unsafe { api!(RedisModule_StringTruncate)(self.raw.as_ptr(), Record::LEN) })?;
        }
        match expiry {
            Expiry::Stands => {}
            Expiry::None => self.set_expiry(raw::REDISMODULE_NO_EXPIRE.into())?,
            Expiry::At(millis) => self.set_expiry(millis.cast_signed())?,
        }
        if self.bytes.is_none() {
            self.locate();
        }
        if self.overwrite(record) { Ok(()) } else { Err(Error::Internal) }
    }

    /// Writes a record over one that [`Key::value`] has found. Answers whether it has.
    #[inline(always)]
    pub(crate) fn overwrite(&mut self, record: &[u8; Record::LEN]) -> bool {
        let Some(bytes) = self.bytes else { return false };
        // SAFETY: `locate` found that many bytes, and neither the value nor the expiry was changed since. A key of this mode is
        // open for writing; one of the other is never written.
        unsafe { ptr::write(bytes.as_ptr(), *record) };
        true
    }

    /// The server may move the value when it sets an expiry, so where it is has to be found again.
    fn set_expiry(&mut self, millis: i64) -> Result<(), Error> {
        self.bytes = None;
        // SAFETY: the key is open for writing and not empty.
        check(unsafe { api!(RedisModule_SetAbsExpire)(self.raw.as_ptr(), millis) })
    }

    #[inline(always)]
    fn locate(&mut self) {
        let mut len = 0;
        // SAFETY: the key is open in this mode. The result is null for a value that is not a string.
        let bytes = unsafe { api!(RedisModule_StringDMA)(self.raw.as_ptr(), &raw mut len, self.mode) };
        self.bytes = if len == Record::LEN { NonNull::new(bytes.cast()) } else { None };
    }

    fn is_empty(&self) -> bool {
        // SAFETY: the key is open.
        let kind = unsafe { api!(RedisModule_KeyType)(self.raw.as_ptr()) };
        kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int
    }
}

impl Drop for Key<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the key is open, and this is the one place that closes it.
        unsafe { api!(RedisModule_CloseKey)(self.raw.as_ptr()) };
    }
}

/// The server refuses only what its documentation says, none of which can hold here.
#[inline(always)]
fn check(status: c_int) -> Result<(), Error> {
    if status == raw::REDISMODULE_OK as c_int { Ok(()) } else { Err(Error::Internal) }
}
