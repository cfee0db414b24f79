//! The program: configuration, assembly, and what clients can ask of it.
//!
//! [`Gateway::load`] builds everything in order and binds its ports; [`Gateway::run`] serves until
//! told to stop. Every verb is implemented once, in [`service`]; `grpc` and `http` only translate.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod assemble;
mod auth;
pub mod config;
mod consent;
pub mod doctor;
mod files;
mod gate;
mod grpc;
mod http;
mod launcher;
mod load;
mod machine;
mod metrics;
mod producer;
pub mod publish;
pub mod service;
pub mod storage;
mod targets;
pub mod teleport;

pub use assemble::{Endpoints, Gateway, guarded};
pub use config::Config;
pub use spaceport_transport::problem::{problem, with_status};
