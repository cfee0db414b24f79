use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::time::{Duration, SystemTime};

use rustix::termios::{LocalModes, OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Kind, Redacted, Result};

use super::desk::Desk;
use crate::ledger::millis;
use crate::{hex, id, private};

/// How long a link to the consent page works. It is opened at once or not at all.
const LINK: Duration = Duration::from_secs(10 * 60);

/// The longest answer that is read from a terminal.
const MAX_ANSWER: u64 = 1024;

/// Someone who may answer for this machine's owner. Made only where a person was really there.
#[derive(Debug)]
pub struct Person {
    how: Cow<'static, str>,
}

impl Person {
    /// How they were known to be one, for the ledger.
    pub(super) fn how(&self) -> &str {
        &self.how
    }

    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { how: "test".into() }
    }
}

/// The terminal that this process was started from: its own, and not whatever its standard input
/// happens to be. A program that was started by another without one has none.
#[derive(Debug)]
pub struct Terminal {
    device: File,
}

impl Terminal {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// `prompt_blocked` when there is none.
    pub fn open() -> Result<Self> {
        let device =
            OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|error| {
                Error::new(Kind::PromptBlocked, "this needs a person, and there is no terminal")
                    .hint("Run it yourself in a terminal")
                    .source(error)
            })?;
        Ok(Self { device })
    }

    /// Shows something, past any redirection.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn show(&mut self, text: &str) -> Result<()> {
        Ok(self.device.write_all(text.as_bytes()).and_then(|()| self.device.flush())?)
    }

    /// Asks for a secret, which is not shown while it is typed.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn secret(&mut self, question: &str) -> Result<Redacted<String>> {
        self.show(question)?;
        let before = tcgetattr(&self.device).map_err(std::io::Error::from)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&self.device, OptionalActions::Flush, &quiet).map_err(std::io::Error::from)?;
        let mut secret = String::new();
        let read = BufReader::new((&self.device).take(MAX_ANSWER)).read_line(&mut secret);
        tcsetattr(&self.device, OptionalActions::Now, &before).map_err(std::io::Error::from)?;
        self.show("\n")?;
        read?;
        Ok(Redacted::new(secret.trim().to_owned()))
    }

    /// Asks a question that is answered with a whole `yes`; anything else is a no.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn confirm(&mut self, question: &str) -> Result<(bool, Person)> {
        // What was typed before the question was there is no answer to it.
        tcflush(&self.device, QueueSelector::IFlush).map_err(std::io::Error::from)?;
        self.show(question)?;
        let mut answer = String::new();
        BufReader::new((&self.device).take(MAX_ANSWER)).read_line(&mut answer)?;
        Ok((is_yes(&answer), Person { how: "terminal".into() }))
    }
}

/// Whether a whole `yes` was typed.
fn is_yes(answer: &str) -> bool {
    answer.trim().eq_ignore_ascii_case("yes")
}

/// The program that an agent runs in, which asks the person who uses it past the agent.
///
/// The agent has no part in that: it calls tools, and what it puts into a call is no answer. That the
/// program shows the question, rather than answer it, is what whoever makes one of these vouches for:
/// of a program that has started this one, and never of one that has merely come with a token.
#[derive(Debug)]
pub struct Host {
    name: String,
}

impl Host {
    /// The longest name that the ledger has of one.
    const LONGEST_NAME: usize = 80;

    /// One, as it calls itself.
    pub fn vouched_for(name: &str) -> Self {
        let name = name.chars().filter(|it| !it.is_control()).take(Self::LONGEST_NAME);
        Self { name: name.collect() }
    }

    /// What a person typed below a question that was shown in it: a whole `yes`, or a no.
    pub fn heard(&self, answer: &str) -> (bool, Person) {
        (is_yes(answer), Person { how: format!("host {}", self.name).into() })
    }
}

/// A way to answer one request on the local consent page. Works once.
#[derive(Debug)]
pub struct Link {
    /// What opens it: to be shown at a terminal, and nowhere else.
    pub secret: Redacted<String>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    request_id: String,
    until_ms: u64,
}

impl Link {
    /// Makes a link to a request. It takes a terminal, on which the link is to be shown.
    ///
    /// # Errors
    ///
    /// `not_found` for the request, `io`.
    pub fn new(_terminal: &Terminal, desk: &Desk, id: &str, now: SystemTime) -> Result<Self> {
        let request = desk.request(id, now)?;
        let secret = id::secret()?;
        let kept = Kept { request_id: request.id, until_ms: millis(now + LINK) };
        private::replace_json(&place(desk, &secret), &kept)?;
        Ok(Self { secret: Redacted::new(secret) })
    }

    /// The request that a link is for. Looking does not use it up.
    ///
    /// # Errors
    ///
    /// `unauthenticated` for a link that was used, is too old or never was.
    pub fn look(desk: &Desk, secret: &str, now: SystemTime) -> Result<String> {
        let path = place(desk, secret);
        let kept = private::read_json::<Kept>(&path)?;
        match kept.filter(|kept| kept.until_ms > millis(now)) {
            Some(kept) => Ok(kept.request_id),
            None => {
                drop(fs::remove_file(path));
                Err(Error::new(Kind::Unauthenticated, "this link was used or is too old")
                    .hint("Run `spaceport teleport approve --page` in your terminal for another"))
            }
        }
    }

    /// Uses a link up, and takes who has it for the person it was shown to.
    ///
    /// # Errors
    ///
    /// As [`Link::look`].
    pub fn redeem(desk: &Desk, secret: &str, now: SystemTime) -> Result<(String, Person)> {
        let request_id = Self::look(desk, secret, now)?;
        // Of two at once, one removes the file.
        fs::remove_file(place(desk, secret)).map_err(|error| {
            Error::new(Kind::Unauthenticated, "this link was used already").source(error)
        })?;
        Ok((request_id, Person { how: "page".into() }))
    }
}

/// Only the hash of a secret is kept: who can read the folder has no link.
fn place(desk: &Desk, secret: &str) -> std::path::PathBuf {
    let name = hex::encode(&Sha256::digest(secret.as_bytes()));
    desk.folder().join("links").join(format!("{name}.json"))
}
