//! The section `INFO tokenbucket`.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::Ordering::Relaxed;

use redis_module::raw;

use super::load::LoadError;
use super::{Context, api};
use crate::stats;

/// Registers the section.
pub(super) fn register(ctx: &Context) -> Result<(), LoadError> {
    // SAFETY: the callback lives as long as the module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc)(ctx.raw(), Some(fill)) };
    if status == raw::REDISMODULE_OK as c_int { Ok(()) } else { Err(LoadError(c"the server refuses an INFO section")) }
}

/// Fills the section. Nothing in a crash report: a signal handler must not allocate.
unsafe extern "C" fn fill(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return;
    }
    // SAFETY: the context is that of the running callback; an empty name makes a section named after the module.
    if unsafe { api!(RedisModule_InfoAddSection)(ctx, c"".as_ptr()) } != raw::REDISMODULE_OK as c_int {
        return;
    }
    text(ctx, c"version", concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes());
    for (name, counter) in [
        (c"calls_granted", &stats::GRANTED),
        (c"calls_refused", &stats::REFUSED),
        (c"calls_refused_forever", &stats::REFUSED_FOREVER),
        (c"wrong_type_hits", &stats::WRONG_TYPE),
        (c"rejected_inputs", &stats::REJECTED_INPUTS),
    ] {
        // SAFETY: the context is that of the running callback; the name is NUL-terminated and copied.
        unsafe { api!(RedisModule_InfoAddFieldULongLong)(ctx, name.as_ptr(), counter.load(Relaxed)) };
    }
    for (name, tokens) in [
        (c"tokens_granted", &stats::TOKENS_GRANTED),
        (c"tokens_refunded", &stats::TOKENS_REFUNDED),
        (c"tokens_debited", &stats::TOKENS_DEBITED),
    ] {
        if let Ok(number) = CString::new(tokens.text()) {
            text(ctx, name, number.as_bytes_with_nul());
        }
    }
}

fn text(ctx: *mut raw::RedisModuleInfoCtx, name: &CStr, value: &[u8]) {
    if let Ok(value) = CStr::from_bytes_with_nul(value) {
        // SAFETY: the context is that of the running callback; both texts are NUL-terminated and copied.
        unsafe { api!(RedisModule_InfoAddFieldCString)(ctx, name.as_ptr(), value.as_ptr()) };
    }
}
