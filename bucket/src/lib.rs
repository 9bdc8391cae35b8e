//! The arithmetic of a token bucket: exact, without a clock, without a float, without an allocation.
//!
//! A bucket holds tokens; a [`Quota`] says how many at most and how fast they come back; a take is granted if its cost is
//! there. Balances are fixed point, in steps of 1e-12 token, and rates are ratios of whole numbers, so for any sequence of
//! calls under one quota
//!
//! > tokens granted ≤ capacity + rate × elapsed time
//!
//! holds exactly, and nothing is lost but what rounding down to a step takes. Time is an argument of every function.
//!
//! ```
//! use redis_token_bucket_core::{Amount, Bucket, Micros, Quota, Rate, Retry};
//!
//! let quota = Quota { capacity: Amount::parse(b"2")?, rate: Rate::parse(b"100/60")? };
//! let noon = Micros::new(1_767_225_600_000_000);
//!
//! let bucket = Bucket::full(&quota, noon);
//! let (bucket, decision) = bucket.take(&quota, Amount::parse(b"2")?, noon);
//! assert!(decision.allowed);
//!
//! let (unchanged, decision) = bucket.expect("a grant is stored").take(&quota, Amount::ONE, noon);
//! assert_eq!(unchanged, None);
//! assert_eq!(decision.retry, Retry::After(600));
//! # Ok::<(), redis_token_bucket_core::NumberError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod amount;
mod bucket;
mod decision;
mod fast;
mod number;
mod quota;
mod record;
mod time;
mod wide;

pub use amount::{Amount, Balance};
pub use bucket::{Bucket, DebtLimit};
pub use decision::{Decision, Lease, Retry};
pub use fast::{FastTake, FastTaken};
pub use number::NumberError;
pub use quota::{Quota, Rate};
pub use record::{Deadline, Record, Slack};
pub use time::Micros;
