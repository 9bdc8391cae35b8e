//! What the commands answer, read from replies: three integers, or a list or a map of some. A reply that is none of
//! these is an error, and never a refusal.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, ParsingError, Value};

/// When the same call would pass, if nobody else takes from the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It passed.
    Now,
    /// After this time on the server's clock, at least a millisecond: then it passes, a millisecond earlier it does
    /// not.
    After(Duration),
    /// Never under this quota: the cost is above the capacity, or the rate is 0.
    Never,
}

impl Retry {
    /// How long to wait, or `None` if waiting does not help.
    #[must_use]
    pub const fn delay(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::After(delay) => Some(delay),
            Self::Never => None,
        }
    }
}

/// The answer to a take or a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a refused call has to be stopped by the caller"]
#[non_exhaustive]
pub struct Decision {
    /// Whether the cost was there. Only then has it been taken.
    pub allowed: bool,
    /// Whole tokens in the bucket after the call, or before it for a peek.
    pub remaining: u64,
    /// When the call would pass; [`Retry::Now`] where it did.
    pub retry: Retry,
}

/// The answer to a take from several buckets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a refused call has to be stopped by the caller"]
#[non_exhaustive]
pub struct MultiDecision {
    /// Over all buckets: whether all had their cost, the smallest remainder, the longest wait.
    pub verdict: Decision,
    /// For each bucket, in the order of the call. Where the verdict is a refusal nothing was taken anywhere, and these
    /// say what each bucket would have answered alone.
    pub each: Vec<Decision>,
}

/// The answer to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "leased tokens are gone from the bucket whether they are used or not"]
#[non_exhaustive]
pub struct Lease {
    /// Whole tokens granted; 0 is a refusal.
    pub granted: u64,
    /// Whole tokens left in the bucket.
    pub remaining: u64,
    /// When the least that was asked for would be there; [`Retry::Now`] where tokens were granted.
    pub retry: Retry,
}

/// The answer to a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Refund {
    /// Whole tokens in the bucket afterwards.
    pub remaining: u64,
}

/// The answer to a debit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Debit {
    /// Whether the bucket held the cost. If not, it is in debt now, and grants nothing until that is paid.
    pub covered: bool,
    /// Whole tokens left in the bucket; 0 in debt.
    pub remaining: u64,
    /// When the debt will be paid; [`Retry::Now`] if there is none.
    pub retry: Retry,
}

/// What is stored of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BucketState {
    /// The exact balance as of `last_refill`, a decimal, below zero in debt. What has come back since is not counted.
    pub tokens: String,
    /// When the balance was true, on the server's clock.
    pub last_refill: SystemTime,
    /// How long until the server forgets the bucket; `None` for never.
    pub time_to_live: Option<Duration>,
}

/// The integers of a reply. They are of three kinds, and each is checked against what its kind can be.
struct Answer {
    granted: u64,
    remaining: u64,
    retry: Retry,
}

impl Answer {
    fn read(items: [Value; 3]) -> Result<Self, ParsingError> {
        let [granted, remaining, retry] = items.map(i64::from_redis_value);
        let count = |number: i64| u64::try_from(number).map_err(|_| ParsingError::from("a negative number of tokens"));
        let retry = match retry? {
            -1 => Retry::Never,
            0 => Retry::Now,
            ms => Retry::After(Duration::from_millis(ms.try_into().map_err(|_| "a negative wait")?)),
        };
        let answer = Self { granted: count(granted?)?, remaining: count(remaining?)?, retry };
        if (answer.granted > 0) == (answer.retry == Retry::Now) {
            Ok(answer)
        } else {
            Err("a wait in a grant, or none in a refusal".into())
        }
    }

    fn from_value(value: Value) -> Result<Self, ParsingError> {
        Self::read(array(value)?)
    }

    /// The same where the first integer is 1 or 0.
    fn verdict(self) -> Result<(bool, u64, Retry), ParsingError> {
        match self.granted {
            0 => Ok((false, self.remaining, self.retry)),
            1 => Ok((true, self.remaining, self.retry)),
            _ => Err("neither a grant nor a refusal".into()),
        }
    }
}

fn array<const N: usize>(value: Value) -> Result<[Value; N], ParsingError> {
    match value {
        Value::Array(items) => items.try_into().map_err(|_| ParsingError::from("an array of another length")),
        _ => Err("not an array".into()),
    }
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (allowed, remaining, retry) = Answer::from_value(value)?.verdict()?;
        Ok(Self { allowed, remaining, retry })
    }
}

impl FromRedisValue for MultiDecision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let [allowed, remaining, retry, each] = array(value)?;
        let (allowed, remaining, retry) = Answer::read([allowed, remaining, retry])?.verdict()?;
        Ok(Self { verdict: Decision { allowed, remaining, retry }, each: Vec::from_redis_value(each)? })
    }
}

impl FromRedisValue for Lease {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Answer { granted, remaining, retry } = Answer::from_value(value)?;
        Ok(Self { granted, remaining, retry })
    }
}

impl FromRedisValue for Refund {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match Answer::from_value(value)?.verdict()? {
            (true, remaining, _) => Ok(Self { remaining }),
            _ => Err("a refund is never refused".into()),
        }
    }
}

impl FromRedisValue for Debit {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (covered, remaining, retry) = Answer::from_value(value)?.verdict()?;
        Ok(Self { covered, remaining, retry })
    }
}

impl FromRedisValue for BucketState {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields: HashMap<String, Value> = HashMap::from_redis_value(value)?;
        let mut field = |name| fields.remove(name).ok_or("a field of the state is missing");
        let micros = u64::from_redis_value(field("last_refill_us")?)?;
        let last_refill = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
        Ok(Self {
            tokens: String::from_redis_value(field("tokens")?)?,
            last_refill: last_refill.ok_or("a moment beyond what this system can tell")?,
            // -1 for never.
            time_to_live: u64::try_from(i64::from_redis_value(field("ttl_ms")?)?).ok().map(Duration::from_millis),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integers(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn reads_grants_refusals_and_never() {
        let read = |numbers: &[i64]| Decision::from_redis_value(integers(numbers)).unwrap();
        assert_eq!(read(&[1, 9, 0]), Decision { allowed: true, remaining: 9, retry: Retry::Now });
        let wait = Retry::After(Duration::from_millis(600));
        assert_eq!(read(&[0, 0, 600]), Decision { allowed: false, remaining: 0, retry: wait });
        assert_eq!(read(&[0, 5, -1]).retry, Retry::Never);
        assert_eq!(read(&[0, 0, i64::MAX]).retry.delay(), Some(Duration::from_millis(i64::MAX as u64)));
    }

    #[test]
    fn takes_integers_for_which_a_script_sends_digits() {
        let digits = Value::BulkString(b"9223372036854775807".to_vec());
        let reply = Value::Array(vec![Value::Int(0), Value::Int(0), digits]);
        let decision = Decision::from_redis_value(reply).unwrap();
        assert_eq!(decision.retry, Retry::After(Duration::from_millis(i64::MAX as u64)));
    }

    #[test]
    fn takes_nothing_else_for_a_decision() {
        let strange = [
            Value::Nil,
            Value::Int(0),
            Value::Okay,
            integers(&[]),
            integers(&[0, 0]),
            integers(&[0, 0, 5, 0]),
            integers(&[2, 0, 0]),
            integers(&[-1, 0, 5]),
            integers(&[1, -1, 0]),
            integers(&[1, 0, 5]),
            integers(&[0, 0, 0]),
            integers(&[0, 0, -2]),
            Value::Array(vec![Value::Int(1), Value::Nil, Value::Int(0)]),
            Value::Array(vec![Value::Int(1), Value::BulkString(b"many".to_vec()), Value::Int(0)]),
        ];
        for value in strange {
            assert!(Decision::from_redis_value(value.clone()).is_err(), "{value:?}");
            assert!(Debit::from_redis_value(value.clone()).is_err(), "{value:?}");
            assert!(Refund::from_redis_value(value.clone()).is_err(), "{value:?}");
            assert!(MultiDecision::from_redis_value(value).is_err());
        }
        assert!(Refund::from_redis_value(integers(&[0, 0, 5])).is_err());
        assert!(Lease::from_redis_value(integers(&[7, 0, 0])).is_ok());
        assert!(Lease::from_redis_value(integers(&[7, 0, 3])).is_err());
    }
}
