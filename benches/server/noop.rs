//! A module whose only command, `NOOP.TAKE`, does nothing with the arguments of a `TB.TAKE` and replies three integers: what
//! any module's call of that form costs, beneath the token bucket.
#![allow(unsafe_code, reason = "a module is called by C")]

use std::ffi::c_int;

use redis_module::raw;

/// The server's entry.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's own context; the texts are NUL-terminated and copied. `Init` fills the pointers that follow.
    unsafe {
        let status = raw::Export_RedisModule_Init(ctx, c"noop".as_ptr(), 1, raw::REDISMODULE_APIVER_1.cast_signed());
        match raw::RedisModule_CreateCommand {
            Some(create) if status == raw::REDISMODULE_OK as c_int => {
                create(ctx, c"noop.take".as_ptr(), Some(call), c"write fast".as_ptr(), 1, 1, 1)
            }
            _ => raw::REDISMODULE_ERR as c_int,
        }
    }
}

unsafe extern "C" fn call(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server has filled the pointers, which every version has; the context is that of the running call.
    unsafe {
        raw::RedisModule_ReplyWithArray.unwrap_unchecked()(ctx, 3);
        let integer = raw::RedisModule_ReplyWithLongLong.unwrap_unchecked();
        integer(ctx, 1);
        integer(ctx, 0);
        integer(ctx, 0)
    }
}
