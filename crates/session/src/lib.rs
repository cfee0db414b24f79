//! Where producers and viewers meet: media sessions, tickets, fan-out, slow-viewer policy.
//!
//! A *stream* is one encode of one target; its [`Publisher`] is held by whoever makes packets, and
//! every viewer of it holds a [`Subscriber`]. A *media session* is what a client opened: a target,
//! limits and a ticket that lets viewers attach. Sessions with the same target and limits share
//! their streams, so one encode serves them all; beside it there is a further encode for those whose
//! paths do not carry it, while there are any (`ladder`).
//!
//! Packets go one way, and beside them what a viewer asked to be told of the pointer. The only thing
//! that comes back is [`Demand`], a value the producer reads.
//! Nothing here knows what a producer or a transport is, touches a socket, or looks at a clock:
//! callers pass `now`.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod bell;
mod counters;
mod cursor;
mod demand;
mod fanout;
mod hold;
mod ladder;
mod sessions;
mod stream;
mod ticket;

pub use bell::Ringing;
pub use counters::{Counter, Counters};
pub use cursor::Cursor;
pub use demand::{Demand, Settings};
pub use fanout::ViewerStats;
pub use hold::{Closing, Hold};
pub use ladder::{Arrival, Path};
pub use sessions::{
    Adopt, Attach, Carrier, Launch, Limits, Open, Opened, Policy, Preferences, SessionInfo,
    Sessions,
};
pub use stream::{Event, PointerPublisher, Published, Publisher, Subscriber};
pub use ticket::{Ticket, Tickets};
