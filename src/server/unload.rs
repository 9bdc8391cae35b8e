//! Whether the module can be unloaded without harm to the server.
//!
//! Servers keep pointers to a command after `MODULE UNLOAD` has freed it: for what a transaction has queued, for what was
//! read ahead or is held by a pause, and since Redis 8 for the last command of every connection. The next use ends the
//! server, or carries out another command. So the module does not go while a connection could hold such a pointer.

use std::ffi::c_int;

use redis_module::raw;

use super::{Context, api};

/// Whether no connection is in the way. If the server does not tell, none is known to be.
pub(super) fn is_safe(ctx: &Context) -> bool {
    // SAFETY: the pointer is read by value; the function takes no arguments. Valkey tells a version of its own, from 8 on.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    let keeps_last_commands = version >= 0x08_00_00;
    clients(ctx).is_none_or(|clients| !clients.lines().any(|client| is_in_the_way(client, keeps_last_commands)))
}

/// Whether a line of `CLIENT LIST` is a connection that may hold a pointer to one of the module's commands.
fn is_in_the_way(client: &str, keeps_last_commands: bool) -> bool {
    let field = |name: &str| client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let command = field("cmd").unwrap_or_default();
    let is_closing = field("flags").is_some_and(|flags| flags.contains('A'));
    let is_asking = matches!(command, "exec" | "module|unload" | "module|load" | "module|loadex");
    if is_closing || is_asking {
        return false;
    }
    let has_queued = field("multi").and_then(|queued| queued.parse::<i64>().ok()).is_some_and(|queued| queued > 0);
    has_queued || keeps_last_commands && command.starts_with("tb.")
}

/// `CLIENT LIST`.
fn clients(ctx: &Context) -> Option<String> {
    // SAFETY: the format matches: one C string. The reply's text is copied before the reply is freed, once.
    unsafe {
        let reply = api!(RedisModule_Call)(ctx.raw(), c"CLIENT".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr());
        if reply.is_null() {
            return None;
        }
        let is_text = api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_STRING as c_int;
        let mut len = 0;
        let text = api!(RedisModule_CallReplyStringPtr)(reply, &raw mut len);
        let list = (is_text && !text.is_null())
            .then(|| String::from_utf8_lossy(std::slice::from_raw_parts(text.cast::<u8>(), len)).into_owned());
        api!(RedisModule_FreeCallReply)(reply);
        list
    }
}
