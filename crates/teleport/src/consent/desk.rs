use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Result};

use super::person::Person;
use super::terms::Terms;
use crate::Digest;
use crate::id;
use crate::ledger::{Event, Ledger, millis};
use crate::private;

/// How long a question waits for a person. Long enough to come back from a meeting's next-door
/// room; short enough that nobody answers for what they no longer remember.
const WAIT: Duration = Duration::from_secs(15 * 60);

/// How long a yes can be used. What is read of the app then is what was there when it was given.
const APPROVED: Duration = Duration::from_secs(5 * 60);

/// How long a no stands before the same may be asked again.
const DENIED: Duration = Duration::from_secs(10 * 60);

/// How long a request is remembered after it is over, to say what became of it.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Questions that may wait at one time. More would be pressed through, not read.
const MAX_PENDING: usize = 16;

/// Where consent is asked for and given: a folder of one person's state directory.
#[derive(Clone, Debug)]
pub struct Desk {
    folder: PathBuf,
    ledger: Ledger,
}

/// A question for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Names it, and the import that may come of it.
    pub id: String,
    /// What is asked for.
    pub terms: Terms,
    /// When it was asked, in milliseconds since 1970.
    pub asked_ms: u64,
    /// Until when the present state holds.
    pub until_ms: u64,
    /// How it stands.
    pub standing: Standing,
}

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nobody has answered.
    Pending,
    /// A person said yes, and it was not used yet.
    Approved,
    /// A person said no.
    Denied,
    /// The yes was used.
    Used,
}

/// What the desk says to someone who asks.
#[derive(Debug)]
pub enum Answer {
    /// A person has to decide first.
    Ask(Request),
    /// A person has said yes.
    Yes(Approval),
}

/// A person's yes, to be used for what it was given for. There is no other way to make one.
#[derive(Debug)]
pub struct Approval {
    request_id: String,
    terms: Terms,
}

impl Approval {
    /// The request that was approved. The import has the same name.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// What was agreed to.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }
}

impl Desk {
    /// The desk of a teleport folder.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.join("consent"), ledger: Ledger::at(folder) }
    }

    /// Asks for consent to `terms`, or uses the yes that a person has given to them.
    ///
    /// Asking for the same again finds the same request. With `id`, only that request counts.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `declined` for terms that a person said no to a moment ago; with
    /// `expired`, `manifest_changed` or `not_acknowledged` for a request that does not cover them;
    /// `not_found` for an unknown `id`; `limit_exceeded` when too many wait.
    pub fn ask(&self, terms: Terms, id: Option<&str>, now: SystemTime) -> Result<Answer> {
        let lock = self.lock()?;
        let mut requests = self.read(now)?;
        if let Some(id) = id {
            let request = find(&mut requests, id)?;
            return self.answer(request, &terms, now);
        }
        let wanted = terms.digest();
        let same = requests.iter_mut().filter(|request| request.terms.digest() == wanted);
        let mut open = same
            .filter(|request| request.standing != Standing::Used && request.until_ms > millis(now));
        if let Some(request) = open.next() {
            return self.answer(request, &terms, now);
        }
        let pending = requests.iter().filter(|request| {
            request.standing == Standing::Pending && request.until_ms > millis(now)
        });
        if pending.count() >= MAX_PENDING {
            return Err(Error::new(Kind::LimitExceeded, "too many requests wait for a person")
                .with("limit", MAX_PENDING)
                .hint("Answer some with `spaceport teleport approve` or `deny`")
                .retry_after(WAIT));
        }
        let request = Request {
            id: id::new()?,
            terms,
            asked_ms: millis(now),
            until_ms: millis(now + WAIT),
            standing: Standing::Pending,
        };
        self.write(&request)?;
        self.note(Event::Asked, &request, None, now)?;
        drop(lock);
        Ok(Answer::Ask(request))
    }

    /// What became of a request: still a question, or a yes that is used with this.
    fn answer(&self, request: &mut Request, terms: &Terms, now: SystemTime) -> Result<Answer> {
        let refuse = |cause, message: &'static str, hint: &'static str| {
            Err(Error::because(cause, message).with("request_id", &request.id).hint(hint))
        };
        const AGAIN: &str = "Run the same command again without the request's name";
        let agreed = &request.terms;
        if agreed.manifest != terms.manifest {
            return refuse(
                Cause::ManifestChanged,
                "what could move is no longer what the person was shown",
                "Ask again, so that a person sees what would move now",
            );
        }
        if agreed.destination.url != terms.destination.url
            || agreed.destination.key != terms.destination.key
        {
            return refuse(
                Cause::NotAcknowledged,
                "the person was asked about another destination",
                AGAIN,
            );
        }
        if agreed.digest() != terms.digest() {
            return refuse(Cause::NotAcknowledged, "the person was asked about other items", AGAIN);
        }
        match request.standing {
            Standing::Used => refuse(Cause::Expired, "this approval was used already", AGAIN),
            Standing::Denied => refuse(
                Cause::Declined,
                "a person said no to this",
                "Talk to them, and do not ask again before they want you to",
            ),
            _ if request.until_ms <= millis(now) => {
                let message = match request.standing {
                    Standing::Approved => "the approval was not used in time",
                    _ => "nobody answered in time",
                };
                refuse(Cause::Expired, message, AGAIN)
            }
            Standing::Pending => Ok(Answer::Ask(request.clone())),
            Standing::Approved => {
                request.standing = Standing::Used;
                request.until_ms = millis(now);
                self.write(request)?;
                self.note(Event::Used, request, None, now)?;
                let (request_id, terms) = (request.id.clone(), terms.clone());
                Ok(Answer::Yes(Approval { request_id, terms }))
            }
        }
    }

    /// Lets a person answer a request.
    ///
    /// # Errors
    ///
    /// `not_found`; `precondition_failed` when it was answered before; `teleport_refused` with
    /// `expired` when it is too late.
    pub fn decide(&self, id: &str, yes: bool, person: &Person, now: SystemTime) -> Result<Request> {
        let _lock = self.lock()?;
        let mut requests = self.read(now)?;
        let request = find(&mut requests, id)?;
        if request.standing != Standing::Pending {
            return Err(Error::new(
                Kind::PreconditionFailed,
                format!("request `{id}` was answered before"),
            )
            .with("request_id", id)
            .with("standing", format!("{:?}", request.standing).to_lowercase())
            .hint("Let it be asked again"));
        }
        if request.until_ms <= millis(now) {
            return Err(Error::because(Cause::Expired, format!("request `{id}` is too old"))
                .with("request_id", id)
                .hint("Let it be asked again"));
        }
        let (standing, event, holds) = if yes {
            (Standing::Approved, Event::Approved, APPROVED)
        } else {
            (Standing::Denied, Event::Denied, DENIED)
        };
        request.standing = standing;
        request.until_ms = millis(now + holds);
        // First the ledger: no yes is good that is not in it.
        self.note(event, request, Some(person), now)?;
        self.write(request)?;
        Ok(request.clone())
    }

    /// The requests of the last day, the newest first.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn requests(&self, now: SystemTime) -> Result<Vec<Request>> {
        let _lock = self.lock()?;
        self.read(now)
    }

    /// One request.
    ///
    /// # Errors
    ///
    /// `not_found`, `io`.
    pub fn request(&self, id: &str, now: SystemTime) -> Result<Request> {
        let mut requests = self.requests(now)?;
        find(&mut requests, id).cloned()
    }

    /// The folder it keeps its files in.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn lock(&self) -> Result<File> {
        private::folder(&self.folder)?;
        let path = self.folder.join("lock");
        let file = private::append(&path)?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| private::failed(&path, error.into()))?;
        Ok(file)
    }

    /// Every request that is worth remembering; forgets the others.
    fn read(&self, now: SystemTime) -> Result<Vec<Request>> {
        let mut requests: Vec<Request> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|e| private::failed(&self.folder, e))? {
            let path = entry.map_err(|error| private::failed(&self.folder, error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Some(request) = private::read_json::<Request>(&path)? else { continue };
            if request.until_ms.saturating_add(KEPT.as_millis() as u64) < millis(now) {
                drop(fs::remove_file(&path));
            } else {
                requests.push(request);
            }
        }
        requests.sort_by(|a, b| (b.asked_ms, &b.id).cmp(&(a.asked_ms, &a.id)));
        Ok(requests)
    }

    fn write(&self, request: &Request) -> Result<()> {
        private::replace_json(&self.folder.join(format!("{}.json", request.id)), request)
    }

    fn note(
        &self,
        event: Event,
        request: &Request,
        person: Option<&Person>,
        now: SystemTime,
    ) -> Result<()> {
        let terms = &request.terms;
        let digest: Digest = terms.digest();
        let facts = [
            ("app", terms.app.to_string()),
            ("destination", terms.destination.url.clone()),
            ("fingerprint", terms.destination.key.fingerprint()),
            ("items", terms.items.len().to_string()),
            ("sensitive", terms.items.iter().filter(|it| it.is_sensitive).count().to_string()),
            ("terms", digest.to_string()),
            ("by", person.map_or_else(String::new, |person| person.how().to_owned())),
        ];
        self.ledger.record(event, &request.id, facts, now)
    }
}

fn find<'a>(requests: &'a mut [Request], id: &str) -> Result<&'a mut Request> {
    requests.iter_mut().find(|request| request.id == id).ok_or_else(|| {
        Error::new(Kind::NotFound, format!("there is no request `{}`", id.escape_debug()))
            .with("request_id", id.escape_debug())
            .hint("`spaceport approvals` lists them")
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::consent::{Destination, How};
    use crate::manifest::{App, Choice, Item, Manifest, Scope};
    use crate::seal::Identity;

    const T0: SystemTime = UNIX_EPOCH;

    fn after(seconds: u64) -> SystemTime {
        T0 + Duration::from_secs(1_000_000 + seconds)
    }

    fn manifest(items: &[&str]) -> Manifest {
        let item = |name: &&str| Item {
            relative_path: (*name).to_owned(),
            label: format!("the {name}"),
            estimated_bytes: 10,
            is_sensitive: *name == "Cookies",
            is_checked_by_default: true,
            sites: Vec::new(),
        };
        let items = items.iter().map(item).collect();
        Manifest::new(App::Firefox, Scope::Full, "default", None, items)
    }

    fn destination(url: &str) -> Destination {
        Destination {
            url: url.to_owned(),
            name: "box".to_owned(),
            key: *Identity::generate().public(),
        }
    }

    fn terms(items: &[&str], destination: Destination) -> Terms {
        let manifest = manifest(items);
        let choice = Choice { acknowledge_sensitive: true, ..Choice::default() };
        Terms::new(&manifest, &manifest.select(&choice).unwrap(), destination, How::default())
    }

    fn question(answer: Answer) -> Request {
        match answer {
            Answer::Ask(request) => request,
            Answer::Yes(approval) => panic!("{approval:?} without a person"),
        }
    }

    struct Asked {
        folder: tempfile::TempDir,
        desk: Desk,
        terms: Terms,
        id: String,
    }

    impl Asked {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let desk = Desk::at(folder.path());
            let terms = terms(&["Cookies", "Sessions"], destination("http://b:3211"));
            let id = question(desk.ask(terms.clone(), None, after(0)).unwrap()).id;
            Self { folder, desk, terms, id }
        }

        fn cause(&self, terms: &Terms, seconds: u64) -> Option<Cause> {
            let answer = self.desk.ask(terms.clone(), Some(&self.id), after(seconds));
            answer.unwrap_err().cause()
        }
    }

    #[test]
    fn a_yes_is_good_once_and_for_the_same_terms() {
        let asked = Asked::new();
        let Asked { desk, terms, id, .. } = &asked;
        // Asking again is not another question, and not a yes.
        assert_eq!(question(desk.ask(terms.clone(), None, after(1)).unwrap()).id, *id);
        desk.decide(id, true, &Person::for_test(), after(2)).unwrap();
        let Answer::Yes(approval) = desk.ask(terms.clone(), None, after(3)).unwrap() else {
            panic!("a person said yes");
        };
        assert_eq!((approval.request_id(), approval.terms()), (id.as_str(), terms));
        assert_eq!(asked.cause(terms, 4), Some(Cause::Expired));
        assert_ne!(question(desk.ask(terms.clone(), None, after(5)).unwrap()).id, *id);
        let mut events = Vec::new();
        Ledger::at(asked.folder.path()).verify(|entry| events.push(entry.event)).unwrap();
        assert_eq!(events, [Event::Asked, Event::Approved, Event::Used, Event::Asked]);
    }

    #[test]
    fn of_several_agents_with_one_request_one_gets_the_yes() {
        let asked = Asked::new();
        asked.desk.decide(&asked.id, true, &Person::for_test(), after(1)).unwrap();
        let answers: Vec<_> = std::thread::scope(|scope| {
            // Each as a process of its own would: by the folder.
            let ask = || {
                Desk::at(asked.folder.path()).ask(asked.terms.clone(), Some(&asked.id), after(2))
            };
            let agents: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            agents.into_iter().map(|agent| agent.join().unwrap()).collect()
        });
        let (yes, no): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert!(matches!(&yes[..], [Ok(Answer::Yes(_))]), "{yes:?}");
        assert!(no.iter().all(|no| no.as_ref().unwrap_err().cause() == Some(Cause::Expired)));
    }

    #[test]
    fn a_yes_covers_nothing_else() {
        let asked = Asked::new();
        asked.desk.decide(&asked.id, true, &Person::for_test(), after(1)).unwrap();
        let with = |change: &dyn Fn(&mut Terms)| {
            let mut other = asked.terms.clone();
            change(&mut other);
            asked.cause(&other, 2)
        };
        let refused = Some(Cause::NotAcknowledged);
        assert_eq!(with(&|terms| terms.destination.url = "http://c:3211".into()), refused);
        let other_key = *Identity::generate().public();
        assert_eq!(with(&|terms| terms.destination.key = other_key), refused);
        assert_eq!(with(&|terms| drop(terms.items.pop())), refused);
        assert_eq!(with(&|terms| terms.sites = Some(vec!["a.example".into()])), refused);
        assert_eq!(with(&|terms| terms.how.replace_existing = true), refused);
        let changed =
            terms(&["Cookies", "Sessions", "Login Data"], asked.terms.destination.clone());
        assert_eq!(asked.cause(&changed, 2), Some(Cause::ManifestChanged));
        // Sizes change all the time, and the yes is still there.
        let mut grown = asked.terms.clone();
        grown.items[0].estimated_bytes += 1;
        assert!(matches!(asked.desk.ask(grown, None, after(3)), Ok(Answer::Yes(_))));
    }

    #[test]
    fn a_no_stands_and_is_not_asked_away() {
        let asked = Asked::new();
        let Asked { desk, terms, id, .. } = &asked;
        desk.decide(id, false, &Person::for_test(), after(1)).unwrap();
        for seconds in [2, 500] {
            let refused = desk.ask(terms.clone(), None, after(seconds)).unwrap_err();
            assert_eq!(refused.cause(), Some(Cause::Declined));
        }
        let refused = desk.decide(id, true, &Person::for_test(), after(3)).unwrap_err();
        assert_eq!(refused.kind(), Kind::PreconditionFailed);
        assert_ne!(question(desk.ask(terms.clone(), None, after(700)).unwrap()).id, *id);
    }

    #[test]
    fn neither_a_question_nor_a_yes_waits_for_ever() {
        let asked = Asked::new();
        let late = asked.desk.decide(&asked.id, true, &Person::for_test(), after(901)).unwrap_err();
        assert_eq!(late.cause(), Some(Cause::Expired));
        assert_eq!(asked.cause(&asked.terms, 901), Some(Cause::Expired));

        let asked = Asked::new();
        asked.desk.decide(&asked.id, true, &Person::for_test(), after(1)).unwrap();
        assert_eq!(asked.cause(&asked.terms, 302), Some(Cause::Expired));
        let again = asked.desk.ask(asked.terms.clone(), None, after(302)).unwrap();
        assert_ne!(question(again).id, asked.id);
    }

    #[test]
    fn questions_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let desk = Desk::at(folder.path());
        let ask = |number: usize| {
            desk.ask(
                terms(&["Sessions"], destination(&format!("http://b{number}"))),
                None,
                after(0),
            )
        };
        for number in 0..MAX_PENDING {
            question(ask(number).unwrap());
        }
        assert_eq!(ask(MAX_PENDING).unwrap_err().kind(), Kind::LimitExceeded);
        // A day later they are forgotten.
        assert_eq!(desk.requests(after(100_000)).unwrap(), []);
    }

    #[test]
    fn an_unknown_request_is_named() {
        let asked = Asked::new();
        for id in ["tp-nothing", "../../etc/passwd", ""] {
            let answer = asked.desk.ask(asked.terms.clone(), Some(id), after(1));
            assert_eq!(answer.unwrap_err().kind(), Kind::NotFound, "{id}");
        }
    }
}
