//! Replies on the wire.

use std::ffi::{CStr, c_char, c_int, c_long};

use redis_module::raw;

use super::{Context, api};
use crate::error::Error;
use crate::reply::Reply;

/// Sends an answer: the only place where a command replies, once and whole.
#[inline(always)]
pub(super) fn send(ctx: &Context, reply: &Reply) {
    match reply {
        Reply::Integers(integers) => send_integers(ctx, *integers),
        other => send_rare(ctx, other),
    }
}

fn send_rare(ctx: &Context, reply: &Reply) {
    match reply {
        Reply::Integers(integers) => send_integers(ctx, *integers),
        Reply::Verdict([allowed, remaining, retry], each) => {
            array(ctx, 4);
            integer(ctx, *allowed);
            integer(ctx, *remaining);
            integer(ctx, *retry);
            array(ctx, each.len());
            for integers in each {
                send_integers(ctx, *integers);
            }
        }
        Reply::State(record, ttl) => {
            // SAFETY: the context is that of the running call.
            unsafe { api!(RedisModule_ReplyWithMap)(ctx.raw(), 3) };
            string(ctx, "tokens");
            string(ctx, &record.bucket.balance.to_string());
            string(ctx, "last_refill_us");
            integer(ctx, record.bucket.stamp.get().cast_signed());
            string(ctx, "ttl_ms");
            integer(ctx, *ttl);
        }
        // SAFETY: the context is that of the running call.
        Reply::Nil => drop(unsafe { api!(RedisModule_ReplyWithNull)(ctx.raw()) }),
    }
}

/// Sends an error. A wrong number of arguments is worded by the server.
#[cold]
pub(super) fn send_error(ctx: &Context, error: Error) -> c_int {
    // SAFETY: the context is that of the running call; the text is NUL-terminated and not a format.
    unsafe {
        match error {
            Error::Arity => api!(RedisModule_WrongArity)(ctx.raw()),
            other => reply_with_error(ctx.raw(), other.text()),
        }
    }
}

unsafe fn reply_with_error(ctx: *mut raw::RedisModuleCtx, text: &CStr) -> c_int {
    // SAFETY: the caller's context; the text is copied.
    unsafe { api!(RedisModule_ReplyWithError)(ctx, text.as_ptr()) }
}

#[inline(always)]
fn send_integers(ctx: &Context, [a, b, c]: [i64; 3]) {
    array(ctx, 3);
    integer(ctx, a);
    integer(ctx, b);
    integer(ctx, c);
}

#[inline(always)]
fn array(ctx: &Context, len: usize) {
    // SAFETY: the context is that of the running call; as many elements follow.
    unsafe { api!(RedisModule_ReplyWithArray)(ctx.raw(), c_long::try_from(len).unwrap_or(0)) };
}

#[inline(always)]
fn integer(ctx: &Context, number: i64) {
    // SAFETY: the context is that of the running call.
    unsafe { api!(RedisModule_ReplyWithLongLong)(ctx.raw(), number) };
}

fn string(ctx: &Context, text: &str) {
    // SAFETY: the context is that of the running call; the bytes are copied.
    unsafe { api!(RedisModule_ReplyWithStringBuffer)(ctx.raw(), text.as_ptr().cast::<c_char>(), text.len()) };
}
