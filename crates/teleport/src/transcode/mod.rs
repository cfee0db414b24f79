//! Between an app's own formats and what can be carried: encryption at rest, session files, settings.
//!
//! Every function here takes bytes or values and returns them; none touches a disk.

pub(crate) mod mozlz4;
pub(crate) mod os_crypt;
pub(crate) mod preferences;
pub(crate) mod secret;
pub(crate) mod session_store;
