#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod asked;
mod patience;
#[cfg(feature = "tower")]
mod policy;

pub use asked::retry_after;
#[cfg(feature = "tonic")]
pub use asked::retry_info;
pub use patience::Patience;
#[cfg(feature = "tower")]
pub use policy::RetryPolicy;
