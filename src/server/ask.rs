//! What the server tells when it is asked: a field of `INFO`, the text of another command's reply.

use std::ffi::{CStr, CString};

use redis_module::raw;

use super::{Context, api};

/// A field of a section of `INFO`, if the server has it.
pub(super) fn info_field(ctx: &Context, section: &CStr, field: &CStr) -> Option<CString> {
    // SAFETY: both names are NUL-terminated; the text, which belongs to the data, is copied before that is freed, once.
    unsafe {
        let info = api!(RedisModule_GetServerInfo)(ctx.raw(), section.as_ptr());
        if info.is_null() {
            return None;
        }
        let text = api!(RedisModule_ServerInfoGetFieldC)(info, field.as_ptr());
        let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_owned());
        api!(RedisModule_FreeServerInfo)(ctx.raw(), info);
        text
    }
}

/// The text of a reply, an error's as well; empty for a reply that has none.
///
/// # Safety
/// `reply` is null or a reply that is not freed yet.
pub(super) unsafe fn text(reply: *mut raw::RedisModuleCallReply) -> String {
    let mut len = 0;
    // SAFETY: the caller's promise. The text, null for a reply that has none, is copied.
    unsafe {
        if reply.is_null() {
            return String::new();
        }
        let text = api!(RedisModule_CallReplyStringPtr)(reply, &raw mut len);
        if text.is_null() {
            return String::new();
        }
        String::from_utf8_lossy(std::slice::from_raw_parts(text.cast::<u8>(), len)).into_owned()
    }
}
