//! How many tokens: costs, capacities, amounts given back. Exact, like everything that counts.

use std::fmt;
use std::str::FromStr;

use bucket::{Amount, Bucket, Micros, NumberError, Rate};
use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// A number of tokens, in steps of a billionth; the server takes up to 1e15.
///
/// Made from whole numbers and from decimal text. There is no way from a float: `0.1 + 0.2` tokens are not `0.3`.
///
/// ```
/// use redis_token_bucket_client::Tokens;
///
/// assert_eq!(Tokens::from(3), Tokens::new(3));
/// assert_eq!("0.30".parse::<Tokens>()?.to_string(), "0.3");
/// # Ok::<(), redis_token_bucket_client::NumberError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens {
    whole: u64,
    billionths: u32,
}

impl Tokens {
    /// No token. Taking none asks whether the bucket is in debt.
    pub const ZERO: Self = Self::new(0);
    /// One token, what most calls cost.
    pub const ONE: Self = Self::new(1);

    /// Whole tokens.
    #[must_use]
    pub const fn new(whole: u64) -> Self {
        Self { whole, billionths: 0 }
    }

    /// `self - other`, exactly; `None` where `other` is more.
    ///
    /// ```
    /// use redis_token_bucket_client::Tokens;
    ///
    /// let (estimate, used): (Tokens, Tokens) = ("500".parse()?, "120.25".parse()?);
    /// assert_eq!(estimate.checked_sub(used), Some("379.75".parse()?));
    /// assert_eq!(used.checked_sub(estimate), None);
    /// # Ok::<(), redis_token_bucket_client::NumberError>(())
    /// ```
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        let Some(whole) = self.whole.checked_sub(other.whole) else { return None };
        if let Some(billionths) = self.billionths.checked_sub(other.billionths) {
            return Some(Self { whole, billionths });
        }
        match (whole.checked_sub(1), (self.billionths.saturating_add(1_000_000_000)).checked_sub(other.billionths)) {
            (Some(whole), Some(billionths)) => Some(Self { whole, billionths }),
            _ => None,
        }
    }
}

// The only integer: with a second one the literal in `tb_take(&key, quota, 1)` would be an `i32`.
impl From<u64> for Tokens {
    fn from(whole: u64) -> Self {
        Self::new(whole)
    }
}

impl From<Amount> for Tokens {
    fn from(amount: Amount) -> Self {
        let whole = amount.tokens();
        // The core tells an amount's fraction only as the balance of a bucket.
        let quota = bucket::Quota { capacity: amount, rate: Rate::ZERO };
        let units = Bucket::full(&quota, Micros::default()).balance.units().unsigned_abs();
        let billionths = units / 1_000 % 1_000_000_000;
        Self { whole, billionths: u32::try_from(billionths).unwrap_or_default() }
    }
}

/// Fails above 1e15 tokens, as the server would.
impl TryFrom<Tokens> for Amount {
    type Error = NumberError;

    fn try_from(tokens: Tokens) -> Result<Self, NumberError> {
        // Nearly every number is a whole one, and text is a detour for that.
        if tokens.billionths == 0 {
            return Amount::from_tokens(tokens.whole);
        }
        Amount::parse(tokens.to_string().as_bytes())
    }
}

/// Reads a decimal by the server's own rules: `100`, `2.5`, `1e-05`; rounded to a billionth, ties to even.
impl FromStr for Tokens {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        Amount::parse(text.as_bytes()).map(Self::from)
    }
}

/// The shortest exact decimal.
impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.whole)?;
        write_fraction(f, self.billionths)
    }
}

/// Writes so many billionths as the digits behind a decimal point, if there are any.
pub(crate) fn write_fraction(f: &mut fmt::Formatter<'_>, billionths: u32) -> fmt::Result {
    if billionths == 0 {
        return Ok(());
    }
    let digits = format!("{billionths:09}");
    write!(f, ".{}", digits.trim_end_matches('0'))
}

impl ToRedisArgs for Tokens {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        if self.billionths == 0 { self.whole.write_redis_args(out) } else { out.write_arg_fmt(self) }
    }
}

impl ToSingleRedisArg for Tokens {}
