//! Files and folders over one stream, whichever side they are sent from.
//!
//! The side that has them walks them once (`walk`), says what there is, hears how far an earlier
//! stream came, and packs the rest into large [`pack`]s ([`give`]): many small files in one, parts
//! of a large one, holes as holes. The other side (`take`) stages them with
//! [`receive`](crate::receive) and publishes all or nothing. Every file is read and hashed once at
//! either side: its digest comes after its bytes.
//!
//! [`send`](fn@send) and [`fetch`](fn@fetch) are the client's half of the two calls; the Space's is in the gateway.

mod client;
mod give;
pub mod pack;
mod take;
#[cfg(test)]
mod tests;
mod walk;

pub use client::{Cancel, Fetch, Fetched, Send, Sent, Step, Watch, fetch, send};
pub use give::{Giving, entries, give, standing};
pub use take::{Declaring, Taker, begin, begun, conflict_of, done};
pub use walk::{Item, LeftOut, Listing, Source};
