//! Lines in the server's log. The text is never a format.

use std::ffi::{CStr, CString};
use std::panic::{self, PanicHookInfo};
use std::ptr;

use redis_module::raw;

use super::Context;

/// Writes a line at level `warning`, which every server shows.
pub(crate) fn warning(ctx: &Context, text: &CStr) {
    warning_if_possible(ctx.raw(), text);
}

/// As [`warning`], for the moment when not even the required APIs are known to be there.
pub(crate) fn warning_if_possible(ctx: *mut raw::RedisModuleCtx, text: &CStr) {
    // SAFETY: the pointer is read by value; all three texts are NUL-terminated, and the format takes exactly one.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ctx, c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr());
        }
    }
}

/// Has panics written to the server's log, where an operator looks.
///
/// The default is standard error, which a daemon does not have, and with `RUST_BACKTRACE` set a walk of the stack: that frees
/// what the C library allocated, which ends the process where a server loads modules with symbols of their own (Valkey 8.1).
pub(super) fn hook_panics() {
    panic::set_hook(Box::new(write_panic));
}

/// Undoes [`hook_panics`]: the hook's code is about to be gone.
pub(super) fn unhook_panics() {
    drop(panic::take_hook());
}

fn write_panic(info: &PanicHookInfo<'_>) {
    let text = format!("a fault of the module, please report it: {info}").replace(['\0', '\r', '\n'], " ");
    if let Ok(text) = CString::new(text) {
        warning_if_possible(ptr::null_mut(), &text);
    }
}
