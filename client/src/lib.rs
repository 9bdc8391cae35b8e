//! Typed token bucket commands on any redis-rs connection, and the same answers from servers without the module. No
//! policy: what to do with an answer, or without one, is the caller's.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod buckets;
mod commands;
mod fault;
mod key;
mod quota;
pub mod recommended;
mod reply;
mod route;
mod script;
mod tokens;

pub use bucket::NumberError;
pub use redis;

pub use buckets::TokenBuckets;
#[cfg(feature = "aio")]
pub use commands::AsyncTokenBucketCommands;
pub use commands::{Queue, Take, TokenBucketCommands, TokenBucketPipeline, Want, cmd};
pub use fault::Fault;
pub use key::Key;
pub use quota::{Quota, QuotaError, Rate};
pub use reply::{BucketState, Debit, Decision, Lease, MultiDecision, Refund, Retry};
pub use route::Implementation;
pub use tokens::Tokens;
