//! The one unit of time: whole microseconds since the Unix epoch, on the server's wall clock.

/// A moment, in microseconds since the Unix epoch, below 2^52 (the year 2112): what the stored form holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The last moment that can be told.
    pub const MAX: Self = Self((1 << 52) - 1);

    /// The moment `micros` after the epoch; a moment beyond [`Micros::MAX`] becomes that.
    #[inline(always)]
    #[must_use]
    pub const fn new(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Microseconds since the epoch.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Microseconds from `earlier` to `self`; 0 where `earlier` is in fact later.
    #[inline(always)]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
