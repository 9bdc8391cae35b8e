//! The layer in front of real servers: HTTP by axum and by hyper alone, gRPC by tonic, with clients of their own kind.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod grpc;
mod http;
mod inner;
mod replicas;
#[path = "../support/service.rs"]
mod service;
mod stack;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod web;
