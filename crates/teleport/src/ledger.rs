//! What was asked, agreed, moved and refused, in the order it happened.

use serde::{Deserialize, Serialize};
pub use spaceport_state::ledger::Verified;
pub(crate) use spaceport_state::ledger::millis;

/// The audit trail of one state directory.
pub type Ledger = spaceport_state::Ledger<Event>;

/// One line of it: the destination, items, digests and who are its facts.
pub type Entry = spaceport_state::ledger::Entry<Event>;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Consent was asked for.
    Asked,
    /// A person said yes.
    Approved,
    /// A person said no.
    Denied,
    /// A yes was used for what it was given for.
    Used,
    /// A bundle was made and sealed.
    Sealed,
    /// The destination has imported it.
    Sent,
    /// A transfer was given up.
    Abandoned,
    /// An import began here.
    Importing,
    /// An import was completed here.
    Imported,
    /// An import failed here, and nothing of it is left.
    RolledBack,
    /// An import was taken back here.
    Wiped,
    /// A Space's key was seen for the first time, or trusted anew.
    Trusted,
}
