//! Loading and unloading. The crate `redis-module` gives the bindings; its own loader would register commands through a
//! slower path, and logs texts as formats.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Context, command, config, context, info, log, options, unload};

/// Why the module does not load: a line for the log.
#[derive(Debug)]
pub(crate) struct LoadError(pub(crate) &'static CStr);

/// `MODULE LIST` shows it: 0.1.0 is 100, 1.2.3 is 10203.
const VERSION: c_int = version();

const fn version() -> c_int {
    match (
        c_int::from_str_radix(env!("CARGO_PKG_VERSION_MAJOR"), 10),
        c_int::from_str_radix(env!("CARGO_PKG_VERSION_MINOR"), 10),
        c_int::from_str_radix(env!("CARGO_PKG_VERSION_PATCH"), 10),
    ) {
        (Ok(major), Ok(minor), Ok(patch)) => {
            major.wrapping_mul(10_000).wrapping_add(minor.wrapping_mul(100)).wrapping_add(patch)
        }
        _ => 0,
    }
}

/// Whether every API that is called without a check is there. The last to come were those of Redis 7.0.
fn has_required_apis() -> bool {
    macro_rules! all {
        ($($name:ident),* $(,)?) => {
            // SAFETY: the pointers are read by value.
            unsafe { [$({ let api = raw::$name; api.is_some() }),*] }.into_iter().all(|there| there)
        };
    }
    all!(
        RedisModule_Alloc,
        RedisModule_Calloc,
        RedisModule_Call,
        RedisModule_CallReplyArrayElement,
        RedisModule_CallReplyLength,
        RedisModule_CallReplyStringPtr,
        RedisModule_CallReplyType,
        RedisModule_CloseKey,
        RedisModule_CreateCommand,
        RedisModule_CreateString,
        RedisModule_Free,
        RedisModule_FreeCallReply,
        RedisModule_FreeServerInfo,
        RedisModule_FreeString,
        RedisModule_GetCommand,
        RedisModule_GetContextFlags,
        RedisModule_GetExpire,
        RedisModule_GetServerInfo,
        RedisModule_InfoAddFieldCString,
        RedisModule_InfoAddFieldULongLong,
        RedisModule_InfoAddSection,
        RedisModule_KeyType,
        RedisModule_LoadConfigs,
        RedisModule_Log,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_OpenKey,
        RedisModule_Realloc,
        RedisModule_RegisterInfoFunc,
        RedisModule_RegisterNumericConfig,
        RedisModule_Replicate,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithMap,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_ServerInfoGetFieldC,
        RedisModule_SetAbsExpire,
        RedisModule_SetCommandInfo,
        RedisModule_SetModuleOptions,
        RedisModule_SignalModifiedKey,
        RedisModule_StringDMA,
        RedisModule_StringPtrLen,
        RedisModule_StringTruncate,
        RedisModule_ValueLength,
        RedisModule_WrongArity,
    )
}

/// The server's entry. Nothing here allocates before the server has filled the API pointers.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's own context; the name is NUL-terminated.
    let status = unsafe {
        raw::Export_RedisModule_Init(ctx, c"tokenbucket".as_ptr(), VERSION, raw::REDISMODULE_APIVER_1.cast_signed())
    };
    if status != raw::REDISMODULE_OK as c_int {
        return status;
    }
    if !has_required_apis() {
        log::warning_if_possible(ctx, c"not loaded: this server is too old; Redis 7.0 or newer, or Valkey, is needed");
        return raw::REDISMODULE_ERR as c_int;
    }
    // SAFETY: the context lasts until this function returns.
    let ctx = unsafe { Context::new(ctx) };
    match load(&ctx, argc) {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(LoadError(reason)) => {
            log::warning(&ctx, c"not loaded:");
            log::warning(&ctx, reason);
            raw::REDISMODULE_ERR as c_int
        }
    }
}

fn load(ctx: &Context, argc: c_int) -> Result<(), LoadError> {
    if argc != 0 {
        return Err(LoadError(
            c"tokenbucket takes no arguments after its path; settings are lines of redis.conf such as 'tokenbucket.expiry-slack-ms 1000'",
        ));
    }
    options::set(ctx);
    // SAFETY: the module is loading, on the server's thread; `has_required_apis` has passed.
    unsafe { context::words::make() };
    log::hook_panics();
    command::add_category(ctx)?;
    crate::register(ctx)?;
    info::register(ctx)?;
    config::load(ctx)
}

/// The server's exit. There are no threads, timers or types to take down.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the context lasts until this function returns.
    let ctx = unsafe { Context::new(ctx) };
    if let Some(obstacle) = unload::obstacle(&ctx) {
        log::warning(&ctx, obstacle);
        return raw::REDISMODULE_ERR as c_int;
    }
    // SAFETY: no command of the module runs any more.
    unsafe { context::words::free() };
    log::unhook_panics();
    raw::REDISMODULE_OK as c_int
}
