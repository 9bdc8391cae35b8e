//! Whether the module can be unloaded without harm to the server.
//!
//! Servers keep pointers to a command after `MODULE UNLOAD` has freed it: for what a transaction has queued, for what was
//! read ahead or is held by a pause, and since Redis 8 for the last command of every connection. The next use ends the
//! server, or carries out another command. So the module does not go while a connection could hold such a pointer.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Context, api, ask};

/// Why the module must stay: a line for the log.
pub(super) fn obstacle(ctx: &Context) -> Option<&'static CStr> {
    // SAFETY: the pointers are read by value; the function takes no arguments. Valkey tells a version of its own, from 8 on.
    let (version, has_categories) = unsafe {
        let version = raw::RedisModule_GetServerVersion.map_or(0, |version| version());
        (version, raw::RedisModule_SetCommandACLCategories)
    };
    let keeps_last_commands = version >= 0x08_00_00;
    if list(ctx, c"CLIENT").lines().any(|client| is_in_the_way(client, keeps_last_commands)) {
        return Some(
            c"not unloaded: a connection has used or queued a command of the module, and the server would crash at its next; do it in one transaction: MULTI, CLIENT KILL TYPE normal, MODULE UNLOAD, MODULE LOAD, EXEC",
        );
    }
    // The servers that let modules have categories work rules out anew, and fail to find a command that a rule names.
    if has_categories.is_some() && list(ctx, c"ACL").lines().any(names_a_command) {
        return Some(
            c"not unloaded: an ACL rule names a command of the module (+tb...), and the server would crash; give the category instead (+@ratelimit), or take the rule away meanwhile (ACL SETUSER name nocommands)",
        );
    }
    None
}

/// Whether a line of `ACL LIST`, `user NAME RULE...`, has a rule for one of the module's commands.
fn names_a_command(user: &str) -> bool {
    let names = |rule: &str| rule.trim_start_matches(['(', '+', '-']).to_ascii_lowercase().starts_with("tb.");
    user.split_whitespace().skip(2).any(names)
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

/// The lines of a command's `LIST`; none if the server does not answer.
fn list(ctx: &Context, command: &CStr) -> String {
    // SAFETY: the format matches: one C string. The reply is read before it is freed, once; its elements go with it.
    unsafe {
        let reply = api!(RedisModule_Call)(ctx.raw(), command.as_ptr(), c"c".as_ptr(), c"LIST".as_ptr());
        if reply.is_null() {
            return String::new();
        }
        let lines = if api!(RedisModule_CallReplyType)(reply) == raw::REDISMODULE_REPLY_ARRAY as c_int {
            let elements = 0..api!(RedisModule_CallReplyLength)(reply);
            elements.map(|at| ask::text(api!(RedisModule_CallReplyArrayElement)(reply, at)) + "\n").collect()
        } else {
            ask::text(reply)
        };
        api!(RedisModule_FreeCallReply)(reply);
        lines
    }
}
