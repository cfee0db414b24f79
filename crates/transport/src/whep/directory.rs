//! The WHEP resources of an endpoint: which exist, and why others do no more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use spaceport_types::{Cause, Error, Kind, Result};

use super::driver::Key;
use super::offer::MAX_CANDIDATES;
use super::peer::End;

/// Ended resources whose reason is remembered, for viewers that ask after their connection broke.
const REMEMBERED: usize = 256;

/// When a viewer that found the endpoint full may try again.
const FULL_FOR: Duration = Duration::from_secs(5);

/// All resources, by name.
#[derive(Debug)]
pub(super) struct Directory {
    max: usize,
    next: Key,
    resources: HashMap<String, Resource>,
    ended: VecDeque<(String, Ending)>,
}

/// How a resource ended.
#[derive(Debug)]
enum Ending {
    /// Its viewer hung up on the media side, and may still say so here.
    Left,
    /// Its viewer took it away.
    Removed,
    /// Something ended it.
    Because(Arc<Error>),
}

/// A resource that exists.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) key: Key,
    /// Names the ICE session (RFC 9725 §4.3.1), quotes included.
    pub(super) etag: String,
    /// The viewer's user fragment in that session.
    pub(super) ufrag: String,
    /// Why it stands still, if it does.
    pub(super) suspended: Option<Arc<Error>>,
    candidates: usize,
}

impl Resource {
    /// Takes as many of `candidates` as this viewer may still add.
    pub(super) fn admit(&mut self, candidates: &mut Vec<String>) {
        candidates.truncate(MAX_CANDIDATES - self.candidates.min(MAX_CANDIDATES));
        self.candidates += candidates.len();
    }

    /// Begins another ICE session.
    pub(super) fn restart(&mut self, etag: String, ufrag: String) {
        self.etag = etag;
        self.ufrag = ufrag;
        self.candidates = 0;
    }
}

impl Directory {
    pub(super) fn new(max: usize) -> Self {
        Self { max, next: 0, resources: HashMap::new(), ended: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.resources.len()
    }

    /// Adds a resource.
    pub(super) fn insert(&mut self, name: String, etag: String, ufrag: String) -> Result<Key> {
        if self.resources.len() >= self.max {
            return Err(Error::because(Cause::TooManyViewers, "as many viewers as can be served")
                .with("limit", self.max)
                .hint("Close another viewer first")
                .retry_after(FULL_FOR));
        }
        let key = self.next;
        self.next += 1;
        self.resources.insert(name, Resource { key, etag, ufrag, suspended: None, candidates: 0 });
        Ok(key)
    }

    /// The resource `name`, or why it is not there.
    pub(super) fn find(&mut self, name: &str) -> Result<&mut Resource> {
        if !self.resources.contains_key(name) {
            return Err(self.missing(name));
        }
        self.resources.get_mut(name).ok_or_else(|| Error::new(Kind::NotFound, UNKNOWN))
    }

    /// Takes the resource `name` away, because its viewer wants it so. `None` when there is no peer
    /// behind it any more: players close their connection first and then say so, and the connection
    /// is often the faster of the two.
    pub(super) fn remove(&mut self, name: &str) -> Result<Option<Key>> {
        if let Some(resource) = self.resources.remove(name) {
            self.remember(name.to_owned(), Ending::Removed);
            return Ok(Some(resource.key));
        }
        match self.ended.iter_mut().find(|(ended, _)| ended == name) {
            Some((_, ending @ Ending::Left)) => {
                *ending = Ending::Removed;
                Ok(None)
            }
            _ => Err(self.missing(name)),
        }
    }

    /// Takes away the resource of a peer that ended.
    pub(super) fn ended(&mut self, key: Key, end: &End) {
        let name = self.resources.iter().find(|(_, resource)| resource.key == key);
        let Some(name) = name.map(|(name, _)| name.clone()) else { return };
        self.resources.remove(&name);
        let ending = match end {
            End::Left => Ending::Left,
            End::Because(reason) => Ending::Because(Arc::clone(reason)),
        };
        self.remember(name, ending);
    }

    /// Notes why a peer's stream stands still, or that it does no more.
    pub(super) fn suspend(&mut self, key: Key, reason: Option<Arc<Error>>) {
        if let Some(resource) = self.resources.values_mut().find(|resource| resource.key == key) {
            resource.suspended = reason;
        }
    }

    fn remember(&mut self, name: String, ending: Ending) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((name, ending));
    }

    fn missing(&self, name: &str) -> Error {
        match self.ended.iter().find(|(ended, _)| ended == name) {
            Some((_, Ending::Because(reason))) => again(reason),
            Some((_, Ending::Left | Ending::Removed)) => {
                Error::because(Cause::SessionClosed, "this stream was ended")
                    .hint("Start another with a new offer")
            }
            None => Error::new(Kind::NotFound, UNKNOWN)
                .hint("Start a stream by posting an offer to the WHEP endpoint"),
        }
    }
}

/// An error once more, for another reader.
pub(super) fn again(error: &Error) -> Error {
    let report = error.report();
    let mut copy = match report.cause {
        Some(cause) => Error::because(cause, report.message),
        None => Error::new(report.kind, report.message),
    };
    for (key, value) in report.context {
        copy = copy.with(key, value);
    }
    match report.hint {
        Some(hint) => copy.hint(hint),
        None => copy,
    }
}

/// What is said of a name that names nothing.
pub(super) const UNKNOWN: &str = "no stream has that name";

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        let mut directory = Directory::new(2);
        directory.insert("a".to_owned(), "\"1\"".to_owned(), "ufrag".to_owned()).unwrap();
        directory
    }

    #[test]
    fn a_full_directory_says_when_to_come_back() {
        let mut directory = directory();
        directory.insert("b".to_owned(), String::new(), String::new()).unwrap();
        let error = directory.insert("c".to_owned(), String::new(), String::new()).unwrap_err();
        assert_eq!((error.cause(), error.http_status()), (Some(Cause::TooManyViewers), 429));
        assert_eq!(error.report().retry_after_ms, Some(5_000));
    }

    #[test]
    fn an_ended_resource_tells_its_reason_and_an_unknown_one_is_not_found() {
        let mut directory = directory();
        let key = directory.find("a").unwrap().key;
        let gone = Error::because(Cause::TargetGone, "the display is gone").with("display", ":1");
        directory.ended(key, &End::because(gone));
        let error = directory.find("a").unwrap_err();
        assert_eq!((error.cause(), error.http_status()), (Some(Cause::TargetGone), 410));
        assert_eq!(error.context("display"), Some(":1"));
        assert_eq!(directory.find("b").unwrap_err().http_status(), 404);
        assert_eq!(directory.len(), 0);
    }

    #[test]
    fn what_was_removed_is_gone_and_only_so_many_are_remembered() {
        let mut directory = directory();
        directory.remove("a").unwrap();
        assert_eq!(directory.remove("a").unwrap_err().cause(), Some(Cause::SessionClosed));
        for index in 0..REMEMBERED {
            let name = format!("n{index}");
            directory.insert(name.clone(), String::new(), String::new()).unwrap();
            directory.remove(&name).unwrap();
        }
        assert_eq!(directory.ended.len(), REMEMBERED);
        assert_eq!(directory.find("a").unwrap_err().http_status(), 404);
    }

    #[test]
    fn a_viewer_that_hung_up_may_still_take_its_resource_away_once() {
        let mut directory = directory();
        let key = directory.find("a").unwrap().key;
        directory.ended(key, &End::Left);
        assert_eq!(directory.find("a").unwrap_err().http_status(), 410);
        assert_eq!(directory.remove("a").unwrap(), None);
        assert_eq!(directory.remove("a").unwrap_err().http_status(), 410);
    }

    #[test]
    fn candidates_are_counted_over_all_fragments_of_an_ice_session() {
        let mut directory = directory();
        let resource = directory.find("a").unwrap();
        let mut admitted = 0;
        for _ in 0..MAX_CANDIDATES {
            let mut three = vec![String::new(); 3];
            resource.admit(&mut three);
            admitted += three.len();
        }
        assert_eq!(admitted, MAX_CANDIDATES);
        resource.restart("\"2\"".to_owned(), "other".to_owned());
        let mut one = vec![String::new()];
        resource.admit(&mut one);
        assert_eq!(one.len(), 1);
    }
}
