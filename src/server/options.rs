//! What the module promises the server about itself.

use std::ffi::c_int;

use redis_module::raw;

use super::{Context, api, ask};

/// Valkey's option for modules that cope with slots that move as a whole; Redis may give the bit another meaning.
const VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Sets the module's options. A bucket is a string like any other: whoever moves, loads or swaps data need not ask us.
pub(super) fn set(ctx: &Context) {
    let mut options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed()
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD.cast_signed();
    // SAFETY: the pointer is read by value; the function takes no arguments.
    let known = unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |all| all()) };
    if known & VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION != 0 && ask::info_field(ctx, c"server", c"valkey_version").is_some()
    {
        options |= VALKEY_HANDLES_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the module is loading, on the server's thread.
    unsafe { api!(RedisModule_SetModuleOptions)(ctx.raw(), options) };
}
