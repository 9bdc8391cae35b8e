//! The server's wall clock.

use bucket::Micros;
use redis_module::raw;

/// The moment of this call. Where the server caches the time of a call (7.2 and later), that: one moment for the whole of
/// a `MULTI` or a script, and no clock read. Elsewhere the system's wall clock, which is the server's too.
#[inline(always)]
pub(crate) fn now() -> Micros {
    // SAFETY: the pointer is read by value; the function takes no arguments.
    match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: as above.
        Some(cached) => Micros::new(u64::try_from(unsafe { cached() }).unwrap_or(0)),
        None => system(),
    }
}

fn system() -> Micros {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing, and the call keeps no pointer to it. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // Before 1970 it is 1970; after the last moment that can be told, that.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0).min(Micros::MAX.get() / 1_000_000);
    // At most 2^52 and a second.
    Micros::new(seconds.wrapping_mul(1_000_000).wrapping_add(time.tv_nsec as u64 / 1_000))
}
