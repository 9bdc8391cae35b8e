//! What the module promises the server about itself.

use std::ffi::c_int;

use redis_module::raw;

use super::{Context, api};

/// Valkey's option for modules that cope with slots that move as a whole; Redis may give the bit another meaning.
const VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Sets the module's options. A bucket is a string like any other: whoever moves, loads or swaps data need not ask us.
pub(super) fn set(ctx: &Context) {
    let mut options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed()
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD.cast_signed();
    // SAFETY: the pointer is read by value; the function takes no arguments.
    let known = unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |all| all()) };
    if known & VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION != 0 && is_valkey(ctx) {
        options |= VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the module is loading, on the server's thread.
    unsafe { api!(RedisModule_SetModuleOptions)(ctx.raw(), options) };
}

fn is_valkey(ctx: &Context) -> bool {
    // SAFETY: both names are NUL-terminated; the data is freed once, after its last use.
    unsafe {
        let info = api!(RedisModule_GetServerInfo)(ctx.raw(), c"server".as_ptr());
        if info.is_null() {
            return false;
        }
        let version = api!(RedisModule_ServerInfoGetFieldC)(info, c"valkey_version".as_ptr());
        let is_valkey = !version.is_null();
        api!(RedisModule_FreeServerInfo)(ctx.raw(), info);
        is_valkey
    }
}
