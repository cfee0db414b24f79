//! Media at a relay: a subscriber at the machine, a publisher here.
//!
//! ```text
//! machine                                relay                                   viewers
//! Guest ── judges, holds ◄──── admit ──── Edge ── machine's Sessions ◄── /m/<id>/{media,whep}, QUIC, WebTransport
//! sessions ── relayed::serve ── watch ──► follow ── Publisher ──► fan-out, keyframe cache, ladder
//! ```
//!
//! Each machine has [`Sessions`](spaceport_session::Sessions) of its own here, under the names that they have
//! there, so that no machine can name another's. Whoever comes shows a secret, and the machine judges it each
//! time. What the machine sends once for each sort of pictures and each rung, the session crate hands to all
//! who watch here; what they want goes up as one demand.

mod edge;
mod follow;
mod guest;
mod machine;
mod pointer;
#[cfg(test)]
mod tests;

pub(crate) use edge::Carried;
pub use edge::{Attached, Edge, Machines};
pub use guest::{Admission, Guest, Host};
