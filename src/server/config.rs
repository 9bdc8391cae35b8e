//! Settings: `CONFIG GET tokenbucket.*`, `CONFIG SET`, and lines in redis.conf after `loadmodule`.

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bucket::Slack;
use redis_module::raw;

use super::load::LoadError;
use super::{Context, api};

const DEFAULT_SLACK_MILLIS: u64 = 1_000;

static SLACK_MILLIS: AtomicU64 = AtomicU64::new(DEFAULT_SLACK_MILLIS);

/// `tokenbucket.expiry-slack-ms`: how long past its use a key is kept.
#[inline(always)]
pub(crate) fn expiry_slack() -> Slack {
    Slack::from_millis(SLACK_MILLIS.load(Relaxed))
}

/// Registers the settings and takes on what redis.conf or `MODULE LOADEX` says of them.
pub(super) fn load(ctx: &Context) -> Result<(), LoadError> {
    // SAFETY: the name is NUL-terminated and copied; the callbacks live as long as the module.
    let status = unsafe {
        let registered = api!(RedisModule_RegisterNumericConfig)(
            ctx.raw(),
            c"expiry-slack-ms".as_ptr(),
            DEFAULT_SLACK_MILLIS.cast_signed(),
            raw::REDISMODULE_CONFIG_DEFAULT,
            0,
            Slack::MAX_MILLIS.cast_signed(),
            Some(get_slack),
            Some(set_slack),
            None,
            ptr::null_mut(),
        );
        if registered == raw::REDISMODULE_OK as c_int { api!(RedisModule_LoadConfigs)(ctx.raw()) } else { registered }
    };
    if status == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(LoadError(c"tokenbucket.expiry-slack-ms takes a whole number of milliseconds from 0 to 86400000"))
    }
}

unsafe extern "C" fn get_slack(_name: *const c_char, _data: *mut c_void) -> c_longlong {
    SLACK_MILLIS.load(Relaxed).cast_signed()
}

/// The server has checked the bounds.
unsafe extern "C" fn set_slack(
    _name: *const c_char,
    millis: c_longlong,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    SLACK_MILLIS.store(u64::try_from(millis).unwrap_or(0), Relaxed);
    raw::REDISMODULE_OK as c_int
}
