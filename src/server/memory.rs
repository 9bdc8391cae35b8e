//! Whether there is memory for another key.

use std::ffi::c_int;

use redis_module::raw;

use super::{Context, KeyName, api, ask};

/// Whether storing a bucket under a key that does not exist must be refused.
#[inline(always)]
pub(crate) fn is_out_of_memory(ctx: &Context, name: KeyName<'_>) -> bool {
    // SAFETY: the context is that of the running call.
    let flags = unsafe { api!(RedisModule_GetContextFlags)(ctx.raw()) };
    flags & raw::REDISMODULE_CTX_FLAGS_OOM.cast_signed() != 0 && refuses_writes(ctx, name)
}

/// Whether the server refuses to create keys for want of memory.
///
/// The context's flag says that memory is above `maxmemory`; whether that refuses a write depends on what eviction could
/// free before this call, and the server tells by refusing a command that would write nothing here: a `SETRANGE` of no
/// bytes on a key that does not exist.
#[cold]
fn refuses_writes(ctx: &Context, name: KeyName<'_>) -> bool {
    // SAFETY: the format matches: M (honour maxmemory), E (errors as replies), s, l, b. The reply is freed once.
    let (is_error, text) = unsafe {
        let (empty, none) = (c"".as_ptr(), 0_usize);
        let reply =
            api!(RedisModule_Call)(ctx.raw(), c"SETRANGE".as_ptr(), c"MEslb".as_ptr(), name.raw(), 0_i64, empty, none);
        if reply.is_null() {
            return true;
        }
        let is_error = api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_ERROR as c_int;
        let text = if is_error { ask::text(reply) } else { String::new() };
        api!(RedisModule_FreeCallReply)(reply);
        (is_error, text)
    };
    // Another error: the command was renamed away, so what remains is the policy.
    is_error && (text.starts_with("OOM") || !evicts(ctx))
}

/// Whether the server makes room by evicting keys.
fn evicts(ctx: &Context) -> bool {
    ask::info_field(ctx, c"memory", c"maxmemory_policy").is_some_and(|policy| policy.as_c_str() != c"noeviction")
}
