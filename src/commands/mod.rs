//! One file per command: its documentation is its manual entry, its handler is short.

pub mod debit;
pub mod lease;
pub mod mtake;
#[cfg(debug_assertions)]
pub(crate) mod panic;
pub mod peek;
pub mod refund;
pub mod state;
pub mod take;
