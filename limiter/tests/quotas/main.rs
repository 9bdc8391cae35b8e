//! Quotas from real databases and from files, and what becomes of a limiter when they change or go away.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod files;
#[path = "../support/postgres.rs"]
mod postgres;
mod postgresql;
#[path = "../support/service.rs"]
mod service;
mod sqlite;
#[path = "../../../tests/support/mod.rs"]
mod support;
