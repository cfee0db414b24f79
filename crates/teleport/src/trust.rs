//! The keys of Spaces, pinned when they are first seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use spaceport_spaces::{Client, Route};
use spaceport_types::{Cause, Error, Result};
use spaceport_wire::pb;

use crate::ledger::{Event, Ledger, millis};
use crate::private;
use crate::seal::PublicKey;

/// How the keys of Spaces are judged.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The teleport folder, which has the keys that were seen before.
    pub folder: PathBuf,
    /// The fingerprint that a person has compared.
    pub named: Option<String>,
}

impl Keys {
    /// Lets a key through that is the one this Space has always had, or that a person has named.
    pub(crate) fn check(&self, space: &str, key: PublicKey, now: SystemTime) -> Result<()> {
        private::folder(&self.folder)?;
        Trust::at(&self.folder).check(space, key, self.named.as_deref(), now)
    }
}

/// What a Space can do, and the key that what crosses to it is sealed to, if it has one.
pub(crate) async fn known(
    space: &Client,
) -> Result<(pb::GetCapabilitiesResponse, Option<PublicKey>)> {
    let known: pb::GetCapabilitiesResponse =
        space.call("SystemService/GetCapabilities", pb::GetCapabilitiesRequest {}).await?;
    let key = match &known.machine_seal_public_key[..] {
        [] => None,
        key => Some(PublicKey::from_bytes(key)?),
    };
    Ok((known, key))
}

/// The error for a Space that nothing can be sealed to. Through a relay that is refused, whatever
/// else could be done.
pub(crate) fn unsealed(space: &Client, direct: impl FnOnce() -> Error) -> Error {
    match space.address().route() {
        Route::Relay { .. } => Error::because(
            Cause::RelayUnsealed,
            "a relay is between, and nothing can be sealed to the Space",
        )
        .with("space", space.address())
        .hint(
            "Use a version of spaceport there that has a seal key, or go there without the relay",
        ),
        Route::Direct => direct(),
    }
}

/// What is known of the keys of Spaces, in one file of a teleport folder.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    path: PathBuf,
    ledger: Ledger,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Pin {
    key: PublicKey,
    since_ms: u64,
}

impl Trust {
    /// The keys known to a teleport folder.
    pub(crate) fn at(folder: &Path) -> Self {
        Self { path: folder.join("known-spaces.json"), ledger: Ledger::at(folder) }
    }

    /// Lets a key through that is the one this Space has always had. `fingerprint` is what a person
    /// says it is: needed for a key that has changed, and held against any other.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `key_unavailable` for another key than expected, `io`.
    pub(crate) fn check(
        &self,
        space: &str,
        key: PublicKey,
        fingerprint: Option<&str>,
        now: SystemTime,
    ) -> Result<()> {
        let mut pins: BTreeMap<String, Pin> = private::read_json(&self.path)?.unwrap_or_default();
        let known = pins.get(space).map(|pin| pin.key);
        let offered = key.fingerprint();
        if let Some(expected) = fingerprint
            && expected != offered
        {
            return Err(Error::because(
                Cause::KeyUnavailable,
                format!("the seal key of {space} is not the one you named"),
            )
            .with("expected", expected)
            .with("offered", offered)
            .hint("Run `spaceport teleport key` on that machine and compare"));
        }
        match known {
            Some(known) if known == key => return Ok(()),
            Some(known) if fingerprint.is_none() => {
                return Err(Error::because(
                    Cause::KeyUnavailable,
                    format!("the seal key of {space} has changed"),
                )
                .with("known", known.fingerprint())
                .with("offered", &offered)
                .hint(format!(
                    "Find out why. If `spaceport teleport key` there says {offered}, run this \
                     again with `--trust-key {offered}`"
                )));
            }
            _ => {}
        }
        pins.insert(space.to_owned(), Pin { key, since_ms: millis(now) });
        self.ledger.record(Event::Trusted, space, [("fingerprint", offered)], now)?;
        private::replace_json(&self.path, &pins)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::seal::Identity;

    #[tokio::test]
    async fn where_a_relay_is_between_nothing_goes_unsealed() {
        let other = || Error::because(Cause::KeyUnavailable, "there is no key");
        for (address, cause) in [
            ("http://relay.example/m/machine-1", Cause::RelayUnsealed),
            ("https://relay.example:8443/m/machine-1", Cause::RelayUnsealed),
            ("http://10.0.0.7:3211", Cause::KeyUnavailable),
            ("http://10.0.0.7:3211/prefix", Cause::KeyUnavailable),
        ] {
            let address = spaceport_spaces::Address::parse(address).unwrap();
            let space = Client::new(&address, None).unwrap();
            assert_eq!(unsealed(&space, other).cause(), Some(cause), "{address}");
        }
    }

    #[test]
    fn a_key_is_kept_and_a_changed_one_is_refused_until_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::at(folder.path());
        let (first, second) = (*Identity::generate().public(), *Identity::generate().public());
        let check = |key, named: Option<&str>| trust.check("http://b", key, named, UNIX_EPOCH);
        check(first, None).unwrap();
        check(first, None).unwrap();
        let refused = check(second, None).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::KeyUnavailable));
        assert_eq!(refused.context("known"), Some(&*first.fingerprint()));
        assert!(check(second, Some(&first.fingerprint())).is_err());
        check(second, Some(&second.fingerprint())).unwrap();
        assert!(check(first, None).is_err());
        assert!(trust.check("http://c", first, None, UNIX_EPOCH).is_ok(), "another Space");
        assert_eq!(Ledger::at(folder.path()).verify(drop).unwrap().entries, 3);
    }
}
