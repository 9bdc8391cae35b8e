//! What the module promises the server about itself, and what it must know of the server's faults.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::{Context, api, now};

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

/// When the module was loaded, on the server's clock.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// Remembers the call that loads the module.
pub(super) fn mark_loaded() {
    LOADED.store(now().get(), Relaxed);
}

/// Whether the module can go without harm. Redis 8.0 and 8.2 keep, for each connection, a pointer to its last command, and
/// follow it after `MODULE UNLOAD` has freed the command: the next call ends the server. 8.6 does not.
///
/// Within the call that loads it the module may always go: that is a server taking back a load that failed.
pub(super) fn can_go(ctx: &Context) -> bool {
    const FIRST_WITH_THE_FAULT: c_int = 0x08_00_00;
    const FIRST_WITHOUT: c_int = 0x08_06_00;
    // SAFETY: the pointer is read by value; the function takes no arguments.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    let has_the_fault = (FIRST_WITH_THE_FAULT..FIRST_WITHOUT).contains(&version) && !is_valkey(ctx);
    !has_the_fault || now().get() == LOADED.load(Relaxed)
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
