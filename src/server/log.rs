//! Lines in the server's log. The text is never a format.

use std::ffi::CStr;

use redis_module::raw;

use super::{Context, api};

/// Writes a line at level `warning`, which every server shows.
pub(crate) fn warning(ctx: &Context, text: &CStr) {
    // SAFETY: all three are NUL-terminated; the format takes exactly one string.
    unsafe { api!(RedisModule_Log)(ctx.raw(), c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr()) }
}

/// As [`warning`], for the moment when not even the required APIs are known to be there.
pub(crate) fn warning_if_possible(ctx: *mut raw::RedisModuleCtx, text: &CStr) {
    // SAFETY: the pointer is read by value; the arguments are as above.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ctx, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr());
        }
    }
}
