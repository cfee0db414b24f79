//! By which nodes know each other: both show that they have the secret, and neither says it.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use spaceport_state::Digest;
use spaceport_types::{MachineId, Redacted};

/// What both sides have said before either proves anything.
#[derive(Clone, Copy)]
pub(super) struct Talk<'a> {
    pub(super) machine: &'a MachineId,
    /// Who dialled.
    pub(super) node: &'a str,
    /// What the one who dialled made up.
    pub(super) asked: &'a str,
    /// What the other one did.
    pub(super) answered: &'a str,
}

impl Talk<'_> {
    /// What the one who dialled shows.
    pub(super) fn asks(&self, secret: &Redacted<String>) -> String {
        Digest(self.mac("asks", secret).finalize().into_bytes().into()).to_string()
    }

    /// What the one who was dialled shows.
    pub(super) fn answers(&self, secret: &Redacted<String>) -> String {
        Digest(self.mac("answers", secret).finalize().into_bytes().into()).to_string()
    }

    pub(super) fn is_asked(&self, secret: &Redacted<String>, proof: &str) -> bool {
        let proof = proof.parse::<Digest>();
        proof.is_ok_and(|proof| self.mac("asks", secret).verify_slice(&proof.0).is_ok())
    }

    pub(super) fn is_answered(&self, secret: &Redacted<String>, proof: &str) -> bool {
        let proof = proof.parse::<Digest>();
        proof.is_ok_and(|proof| self.mac("answers", secret).verify_slice(&proof.0).is_ok())
    }

    fn mac(&self, role: &str, secret: &Redacted<String>) -> Hmac<Sha256> {
        let mut mac =
            Hmac::new_from_slice(secret.expose().as_bytes()).expect("a key of any length will do");
        let Self { machine, node, asked, answered } = self;
        // None of them has a space.
        mac.update(format!("node {role} {machine} {node} {asked} {answered}").as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_for_one_talk_and_one_side() {
        let (secret, wrong) = (Redacted::new("s".repeat(40)), Redacted::new("t".repeat(40)));
        let (machine, other) = ("machine-1".parse().unwrap(), "machine-2".parse().unwrap());
        let talk = Talk { machine: &machine, node: "n", asked: "a", answered: "b" };
        let (asks, answers) = (talk.asks(&secret), talk.answers(&secret));
        assert!(talk.is_asked(&secret, &asks) && talk.is_answered(&secret, &answers));
        assert!(!talk.is_asked(&wrong, &asks) && !talk.is_asked(&secret, &answers));
        assert!(!talk.is_answered(&secret, &asks) && !talk.is_answered(&secret, "garbage"));
        for changed in [
            Talk { machine: &other, ..talk },
            Talk { node: "m", ..talk },
            Talk { asked: "c", ..talk },
            Talk { answered: "c", ..talk },
        ] {
            assert!(!changed.is_asked(&secret, &asks));
        }
    }
}
