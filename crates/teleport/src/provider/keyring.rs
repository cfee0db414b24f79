//! The keyring's password for an app's encryption, from the Secret Service.
//!
//! Asked by way of `secret-tool`, libsecret's own program: the password comes through a pipe and is
//! never in a list of processes. A library that speaks D-Bus would be fifty more for this one question.

use crate::machine::Machine;
use crate::provider::process;
use crate::transcode::os_crypt::Keys;

/// The schema under which Chromium and Electron file their password.
const SCHEMA: &str = "chrome_libsecret_os_crypt_password_v2";

/// The keys that this machine has for an app, under the name that the app has in the keyring.
///
/// Without a keyring, a session bus, or a person to unlock it, only the key that everyone knows.
pub(super) fn keys(machine: &Machine, application: &str) -> Keys {
    let arguments = ["lookup", "xdg:schema", SCHEMA, "application", application];
    let has_bus = machine.variable("DBUS_SESSION_BUS_ADDRESS").is_some();
    let password = machine
        .program(&["secret-tool"])
        .filter(|_| has_bus)
        .and_then(|program| process::answer(machine, &program, &arguments))
        .filter(|password| !password.is_empty());
    Keys::new(password.as_ref().map(|password| password.as_slice()))
}
