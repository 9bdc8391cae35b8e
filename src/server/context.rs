//! A call's context and arguments, and what can be told to the server in it.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::{hint, ptr, slice};

use redis_module::raw;

use super::{Expiry, api};
use crate::error::Error;

/// The server's side of one call.
pub(crate) struct Context(*mut raw::RedisModuleCtx);

impl Context {
    /// # Safety
    /// `raw` is the context that the server passed to a callback, and the value does not outlive that callback.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self(raw)
    }

    #[inline(always)]
    pub(super) fn raw(&self) -> *mut raw::RedisModuleCtx {
        self.0
    }
}

/// The arguments of one call, the command's name first.
pub(crate) struct Args<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` holds `argc` strings that stay alive and unchanged for `'a`: a command's own arguments, while it runs. There is
    /// one at least, the command's name.
    #[inline(always)]
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { slice::from_raw_parts(argv, argc as usize) })
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of the argument `at`.
    #[inline(always)]
    pub(crate) fn bytes(&self, at: usize) -> Result<&'a [u8], Error> {
        Ok(self.key(at)?.bytes())
    }

    /// The argument `at` as the name of a key.
    #[inline(always)]
    pub(crate) fn key(&self, at: usize) -> Result<KeyName<'a>, Error> {
        match self.0.get(at) {
            Some(name) => Ok(KeyName(*name, PhantomData)),
            None => Err(Error::Arity),
        }
    }
}

/// The name of a key, any bytes.
#[derive(Clone, Copy)]
pub(crate) struct KeyName<'a>(*mut raw::RedisModuleString, PhantomData<&'a [u8]>);

impl<'a> KeyName<'a> {
    #[inline(always)]
    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.0
    }

    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string is an argument, alive and unchanged for 'a (`Args::new`); the server returns a pointer to `len`
        // bytes of it, never null.
        unsafe {
            let bytes = api!(RedisModule_StringPtrLen)(self.0, &raw mut len);
            hint::assert_unchecked(!bytes.is_null());
            slice::from_raw_parts(bytes.cast(), len)
        }
    }
}

/// Tells `WATCH` and client-side caches that a key changed. The module does so itself, since by default the server would do
/// it for every key that was open for writing, refusals included.
#[inline(always)]
pub(crate) fn signal_modified(ctx: &Context, name: KeyName<'_>) {
    // SAFETY: both pointers are those of the running call.
    unsafe { api!(RedisModule_SignalModifiedKey)(ctx.raw(), name.raw()) };
}

/// Fires a keyspace event of the modules' class, `d`.
#[inline(always)]
pub(crate) fn notify(ctx: &Context, event: &CStr, name: KeyName<'_>) {
    // SAFETY: the pointers are those of the running call; the event's name is NUL-terminated.
    unsafe {
        api!(RedisModule_NotifyKeyspaceEvent)(ctx.raw(), raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), name.raw())
    };
}

/// Hands the resulting state to replicas and the append-only file, as an absolute `SET` that any server understands.
#[inline(always)]
pub(crate) fn replicate_set(ctx: &Context, name: KeyName<'_>, bytes: &[u8], expiry: Expiry) {
    let (ctx, name, value, len) = (ctx.raw(), name.raw(), bytes.as_ptr().cast::<c_char>(), bytes.len());
    // SAFETY: each format matches its arguments: s a string of the server's, b a pointer and a length, l a long long. The
    // server copies or retains what it is given. The two words live as long as the module (`words`).
    unsafe {
        let replicate = api!(RedisModule_Replicate);
        match expiry {
            Expiry::Stands => replicate(ctx, c"SET".as_ptr(), c"sbs".as_ptr(), name, value, len, words::KEEPTTL),
            Expiry::None => replicate(ctx, c"SET".as_ptr(), c"sb".as_ptr(), name, value, len),
            Expiry::At(millis) => {
                replicate(ctx, c"SET".as_ptr(), c"sbsl".as_ptr(), name, value, len, words::PXAT, millis.cast_signed())
            }
        }
    };
}

/// Words of the replicated `SET` that never change, made once.
pub(super) mod words {
    use super::{api, ptr, raw};

    pub(super) static mut KEEPTTL: *mut raw::RedisModuleString = ptr::null_mut();
    pub(super) static mut PXAT: *mut raw::RedisModuleString = ptr::null_mut();

    /// # Safety
    /// Called once, while the module loads, on the server's thread.
    pub(in crate::server) unsafe fn make() {
        // SAFETY: a string made without a context lives until it is freed; the pointers are valid for the given lengths.
        unsafe {
            KEEPTTL = api!(RedisModule_CreateString)(ptr::null_mut(), c"KEEPTTL".as_ptr(), 7);
            PXAT = api!(RedisModule_CreateString)(ptr::null_mut(), c"PXAT".as_ptr(), 4);
        }
    }

    /// # Safety
    /// Called once, while the module unloads; no command runs afterwards.
    pub(in crate::server) unsafe fn free() {
        // SAFETY: made by `make`; the server keeps its own references where it still needs them.
        unsafe {
            api!(RedisModule_FreeString)(ptr::null_mut(), KEEPTTL);
            api!(RedisModule_FreeString)(ptr::null_mut(), PXAT);
        }
    }
}
