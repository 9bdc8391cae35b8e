//! Redis in every state in which it does not answer as it should: each check ends by its deadline and by the chosen policy,
//! limiters recover by themselves, and nothing is charged twice.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "../../../client/tests/support/cluster.rs"]
mod cluster;
mod failover;
mod once;
mod one_server;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../../../client/tests/support/sentinel.rs"]
mod sentinel;
#[path = "../support/service.rs"]
mod service;
#[path = "../../../tests/support/mod.rs"]
mod support;
