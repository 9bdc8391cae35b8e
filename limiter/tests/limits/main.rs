//! What a limiter decides when all is well: against a model, over several classes, for reservations, pre-checks and leases, and
//! what is seen of it.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod decisions;
mod leases;
mod model;
mod pre_check;
mod reserve;
mod seen;
#[path = "../support/service.rs"]
mod service;
#[path = "../../../tests/support/mod.rs"]
mod support;
