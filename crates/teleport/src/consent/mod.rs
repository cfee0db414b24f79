//! A person says yes, to exactly this, once.
//!
//! What would move, where to and how is written down as [`Terms`]. Whoever wants it moved, a person
//! or an agent, asks at the [`Desk`] and gets a request. Only a [`Person`] can answer it, and there
//! are three ways to be one: at a terminal, with a one-time link that was shown at a terminal, or in
//! the [`Host`] that an agent runs in, which asks past the agent. No token and no request id makes
//! one, so an agent that has both cannot answer for itself. A yes becomes one [`Approval`], which is
//! the only thing that a bundle is made from, and which holds for the terms it was given for: the same
//! items of the same manifest, to the same Space with the same key. A no stands for a while, so that
//! asking again is not a way to a yes.

mod desk;
mod person;
mod terms;

pub use desk::{Answer, Approval, Desk, Request, Standing};
pub use person::{Host, Link, Person, Terminal};
pub use terms::{Destination, How, Terms};
