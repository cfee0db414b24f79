//! The keyring's password for an app's encryption, from the Secret Service.
//!
//! Asked by way of `secret-tool`, libsecret's own program: the password comes through a pipe and is
//! never in a list of processes. A library that speaks D-Bus would be fifty more for this one question.

use std::path::PathBuf;

use spaceport_types::{Cause, Error};

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
    let password = program(machine)
        .filter(|_| has_bus(machine))
        .and_then(|program| process::answer(machine, &program, &arguments))
        .filter(|password| !password.is_empty());
    Keys::new(password.as_ref().map(|password| password.as_slice()))
}

/// Says what a person can do so that the keyring can be asked, where that is what is missing.
pub(super) fn explain(error: Error, machine: &Machine) -> Error {
    if error.cause() != Some(Cause::KeyUnavailable) {
        return error;
    }
    error.hint(if !has_bus(machine) {
        "Run this in the desktop session of the person who uses the app: there is no session bus here"
    } else if program(machine).is_none() {
        "Install `secret-tool` (libsecret-tools in Debian), which asks the keyring"
    } else {
        "Unlock the keyring of the person who uses the app, or leave out what it protects"
    })
}

fn has_bus(machine: &Machine) -> bool {
    machine.variable("DBUS_SESSION_BUS_ADDRESS").is_some()
}

fn program(machine: &Machine) -> Option<PathBuf> {
    machine.program(&["secret-tool"])
}
