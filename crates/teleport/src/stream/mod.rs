//! Files and folders over one sealed line, whichever side they are sent from.
//!
//! The side that has them walks them once (`walk`), says what there is, hears how far an earlier
//! stream came, and packs the rest into large [`pack`]s (`give`): many small files in one, parts
//! of a large one, holes as holes. The other side (`take`) stages them with
//! [`receive`](mod@crate::receive) and publishes all or nothing. Every file is read and hashed once at
//! either side: its digest comes after its bytes.
//!
//! What they say to each other is sealed to the Space's key (`talk`), whatever carries it. [`send`](fn@send)
//! and [`fetch`](fn@fetch) are the client's half of the two calls, [`receive`](fn@receive) and [`offer`] the
//! Space's; the gateway connects those to its port.

mod client;
mod give;
pub mod pack;
mod put;
mod serve;
mod slab;
mod take;
mod talk;
#[cfg(test)]
mod tests;
mod walk;

pub use client::{Fetch, Fetched, Listed, Send, Sent, Step, Watch, fetch, send};
pub use put::{Put, Thing, put};
pub use serve::{offer, receive};
pub use take::{Declaring, Taker, begin};
pub use talk::{Came, Cancel, Cutter, QUEUE, Queues, Said, Sealed, Talk, listen};
pub use walk::{Item, LeftOut, Listing, Source};

/// What a line is for, and where it is: the path after the Space's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The client sends.
    Send,
    /// The client receives.
    Fetch,
}

impl Verb {
    /// The path of the request that the line goes over.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Send => "/files/send",
            Self::Fetch => "/files/fetch",
        }
    }

    /// What the line is sealed for.
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Send => "send files",
            Self::Fetch => "fetch files",
        }
    }
}

/// The feature of a Space that takes such lines.
pub const FEATURE: &str = "files_stream";

/// The feature of a Space that takes what goes to any path of it, not only to where it receives files.
pub const ANYWHERE: &str = "files_anywhere";

/// The media type of both directions.
pub const MEDIA_TYPE: &str = "application/vnd.spaceport.sealed";
