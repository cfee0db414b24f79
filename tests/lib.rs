//! What the cross-crate tests share: a real gateway, a real screen, raw clients, real browsers.
//!
//! Every guard here owns what it started and ends it by its process id when dropped. Tests run
//! side by side, so nothing has a fixed port, display or folder.

mod common;

pub use common::*;
