//! How much a bucket holds and how fast it refills: named so that nobody can read it the other way round, and exact.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bucket::{Amount, NumberError};
use redis::{RedisWrite, ToRedisArgs};

use crate::tokens::{Tokens, write_fraction};

const SECOND: u64 = 1;
const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

/// A sustained rate: so many tokens in such a time. A ratio of two exact numbers, and sent as one: `100/60`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: Tokens,
    every: Duration,
}

impl Rate {
    /// Nothing ever comes back.
    pub const ZERO: Self = Self::new(Tokens::ZERO, Duration::from_secs(SECOND));

    /// `tokens` come back every `every`, spread evenly over it. The server refuses a time of zero, and rates above 1e12
    /// or below 1e-18 tokens a second.
    #[must_use]
    pub const fn new(tokens: Tokens, every: Duration) -> Self {
        Self { tokens, every }
    }

    /// What comes back in [`Rate::every`].
    #[must_use]
    pub const fn tokens(self) -> Tokens {
        self.tokens
    }

    /// The time in which [`Rate::tokens`] come back.
    #[must_use]
    pub const fn every(self) -> Duration {
        self.every
    }
}

/// As sent: `50`, or `100/60` for one hundred in sixty seconds.
struct OnTheWire(Rate);

impl fmt::Display for OnTheWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate { tokens, every } = self.0;
        tokens.fmt(f)?;
        if every == Duration::from_secs(SECOND) || tokens == Tokens::ZERO {
            return Ok(());
        }
        write!(f, "/{}", every.as_secs())?;
        write_fraction(f, every.subsec_nanos())
    }
}

/// A bucket's capacity, which is its largest burst, and the rate at which it refills.
///
/// A quota travels with every call and is stored nowhere, so a changed one holds from the call that brings it.
///
/// ```
/// use std::time::Duration;
/// use redis_token_bucket_client::{Quota, Tokens};
///
/// // Fifty requests a second, and up to a hundred at once after a pause.
/// const API: Quota = Quota::per_second(50).burst(100);
/// // A hundred a minute: exactly that, not 1.6666666666666667 a second.
/// const EXPORTS: Quota = Quota::per_minute(100);
/// const MAILS: Quota = Quota::per(10, Duration::from_secs(15 * 60));
///
/// assert_eq!("100/minute, burst 20".parse::<Quota>()?, Quota::per_minute(100).burst(20));
/// assert_eq!(MAILS.to_string(), "10/900s, burst 10");
/// assert_eq!("0.5/second, burst 2.5".parse::<Quota>()?.capacity(), "2.5".parse::<Tokens>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    capacity: Tokens,
    rate: Rate,
}

impl Quota {
    /// Any capacity with any rate, fractions included.
    #[must_use]
    pub const fn new(capacity: Tokens, rate: Rate) -> Self {
        Self { capacity, rate }
    }

    /// `tokens` come back every `every`; a full bucket holds as many, unless [`Quota::burst`] says otherwise.
    #[must_use]
    pub const fn per(tokens: u64, every: Duration) -> Self {
        let tokens = Tokens::new(tokens);
        Self::new(tokens, Rate::new(tokens, every))
    }

    /// `tokens` come back every second: `per_second(50)` is fifty requests a second.
    #[must_use]
    pub const fn per_second(tokens: u64) -> Self {
        Self::per(tokens, Duration::from_secs(SECOND))
    }

    /// `tokens` come back every minute.
    #[must_use]
    pub const fn per_minute(tokens: u64) -> Self {
        Self::per(tokens, Duration::from_secs(MINUTE))
    }

    /// `tokens` come back every hour.
    #[must_use]
    pub const fn per_hour(tokens: u64) -> Self {
        Self::per(tokens, Duration::from_secs(HOUR))
    }

    /// `tokens` come back every day, of 86400 seconds.
    #[must_use]
    pub const fn per_day(tokens: u64) -> Self {
        Self::per(tokens, Duration::from_secs(DAY))
    }

    /// `tokens`, and no more once they are spent. Such a bucket never expires.
    #[must_use]
    pub const fn once(tokens: u64) -> Self {
        Self::new(Tokens::new(tokens), Rate::ZERO)
    }

    /// The same rate with room for `capacity` tokens: what may pass at once after a pause.
    #[must_use]
    pub const fn burst(self, capacity: u64) -> Self {
        Self::new(Tokens::new(capacity), self.rate)
    }

    /// What a full bucket holds.
    #[must_use]
    pub const fn capacity(self) -> Tokens {
        self.capacity
    }

    /// How fast it refills.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.rate
    }
}

/// The two arguments that every command takes after the key.
impl ToRedisArgs for Quota {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        self.capacity.write_redis_args(out);
        out.write_arg_fmt(OnTheWire(self.rate));
    }

    fn num_of_args(&self) -> usize {
        2
    }
}

/// Fails where the server would refuse the quota.
impl TryFrom<Quota> for bucket::Quota {
    type Error = QuotaError;

    fn try_from(quota: Quota) -> Result<Self, QuotaError> {
        let capacity = Amount::try_from(quota.capacity).map_err(QuotaError::Burst)?;
        let rate = bucket::Rate::parse(OnTheWire(quota.rate).to_string().as_bytes()).map_err(QuotaError::Rate)?;
        Ok(Self { capacity, rate })
    }
}

/// Why a text is not a quota, or a quota not one that the server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// Not of the form `100/minute` or `100/minute, burst 20`.
    Shape,
    /// Not a time such as `second`, `hour`, `90s` or `250ms`.
    Time,
    /// The tokens in that time, or the rate that the two make.
    Rate(NumberError),
    /// The capacity.
    Burst(NumberError),
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape => f.write_str("a quota reads like `100/minute` or `100/minute, burst 20`"),
            Self::Time => {
                f.write_str("invalid time: one reads like `second`, `minute`, `hour`, `day`, `90s` or `250ms`")
            }
            Self::Rate(error) => write!(f, "invalid rate: {error}"),
            Self::Burst(error) => write!(f, "invalid burst: {error}"),
        }
    }
}

impl std::error::Error for QuotaError {}

/// Reads `100/minute`, whose burst is 100, or `100/minute, burst 20`; and fails where the server would refuse the
/// quota.
///
/// The time is `second`, `minute`, `hour` or `day`, or a whole number of `d`, `h`, `m`, `s`, `ms`, `us` or `ns`. Both
/// numbers may be decimals.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let (rate, burst) = match text.split_once(',') {
            Some((rate, burst)) => (rate, Some(burst.trim().strip_prefix("burst ").ok_or(QuotaError::Shape)?)),
            None => (text, None),
        };
        let (tokens, every) = rate.split_once('/').ok_or(QuotaError::Shape)?;
        let tokens = tokens.trim().parse().map_err(QuotaError::Rate)?;
        let rate = Rate::new(tokens, parse_time(every.trim()).ok_or(QuotaError::Time)?);
        let capacity = burst.map_or(Ok(tokens), |burst| burst.trim().parse().map_err(QuotaError::Burst))?;
        let quota = Self::new(capacity, rate);
        bucket::Quota::try_from(quota).map(|_| quota)
    }
}

fn parse_time(text: &str) -> Option<Duration> {
    match text {
        "second" => return Some(Duration::from_secs(SECOND)),
        "minute" => return Some(Duration::from_secs(MINUTE)),
        "hour" => return Some(Duration::from_secs(HOUR)),
        "day" => return Some(Duration::from_secs(DAY)),
        _ => {}
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let seconds = |unit| number.checked_mul(unit).map(Duration::from_secs);
    match unit.trim_start() {
        "d" => seconds(DAY),
        "h" => seconds(HOUR),
        "m" => seconds(MINUTE),
        "s" => seconds(SECOND),
        "ms" => Some(Duration::from_millis(number)),
        "us" => Some(Duration::from_micros(number)),
        "ns" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// As [`Quota::from_str`] reads it.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.rate.tokens)?;
        write_time(f, self.rate.every)?;
        write!(f, ", burst {}", self.capacity)
    }
}

fn write_time(f: &mut fmt::Formatter<'_>, time: Duration) -> fmt::Result {
    match (time.as_secs(), time.subsec_nanos()) {
        (SECOND, 0) => f.write_str("second"),
        (MINUTE, 0) => f.write_str("minute"),
        (HOUR, 0) => f.write_str("hour"),
        (DAY, 0) => f.write_str("day"),
        (seconds, 0) => write!(f, "{seconds}s"),
        (_, nanos) if nanos.is_multiple_of(1_000_000) => write!(f, "{}ms", time.as_millis()),
        (_, nanos) if nanos.is_multiple_of(1_000) => write!(f, "{}us", time.as_micros()),
        _ => write!(f, "{}ns", time.as_nanos()),
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Quota {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Quota {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde::de::Visitor<'_> for Text {
            type Value = Quota;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quota such as `100/minute, burst 20`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quota, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}
