//! The list of Spaces a user has, in files of their own.
//!
//! `spaces.json` holds what anyone may see, `credentials.json` (0600) the tokens. Every change is
//! made under a lock, to a copy that replaces the file in one step: two writers never lose each
//! other's rows, and a crash leaves the old file or the new one. A file that cannot be read is
//! never written over, so that whatever is in it can still be saved by hand.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spaceport_types::{Disposition, Error, Kind, Redacted, Result};

use crate::address::PORT;
use crate::{Address, SpaceInfo};

/// The layout of both files. A higher one is of a later spaceport, and left alone.
const VERSION: u32 = 1;

/// The most either file may have. Thousands of Spaces fit; what is larger is not ours.
const LARGEST: u64 = 16 << 20;

/// The longest name of a Space, in characters.
const LONGEST_NAME: usize = 100;

/// The Spaces a user has. Cloning it makes another handle; any number of processes may have one.
#[derive(Clone, Debug)]
pub struct Registry {
    folder: PathBuf,
}

/// One Space of the registry, and what it takes to reach it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is known of it.
    pub info: SpaceInfo,
    /// Where it is.
    pub address: Address,
    /// What opens it, where it needs anything.
    pub token: Option<Redacted<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rows {
    version: u32,
    spaces: Vec<Row>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    url: String,
    #[serde(flatten)]
    info: SpaceInfo,
}

#[derive(Serialize, Deserialize)]
struct Credentials {
    version: u32,
    tokens: BTreeMap<String, String>,
}

impl Registry {
    /// The registry in a folder, which is made when the first Space is added.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where it is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every Space, in the order in which they were added.
    ///
    /// # Errors
    ///
    /// `json` for a file that cannot be read, `io` for one that cannot be opened.
    pub fn list(&self) -> Result<Vec<SpaceInfo>> {
        Ok(self.rows()?.spaces.into_iter().map(|row| row.info).collect())
    }

    /// The same, each with where it is; without that for a row whose address nobody could have typed.
    pub(crate) fn addressed(&self) -> Result<Vec<(SpaceInfo, Option<Address>)>> {
        let rows = self.rows()?.spaces.into_iter();
        Ok(rows.map(|row| (row.info, Address::parse(&row.url).ok())).collect())
    }

    /// Adds a Space, or replaces what was known of the one with the same id. It is called `name`, or without
    /// that what it was called before, or what `info` calls it.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a name that nobody could type; otherwise as [`Registry::list`].
    pub fn add(
        &self,
        address: &Address,
        token: Option<&Redacted<String>>,
        name: Option<&str>,
        mut info: SpaceInfo,
    ) -> Result<SpaceInfo> {
        check_name(name.unwrap_or(&info.name))?;
        info.id = address.id();
        info.provider = address.route().provider().to_owned();
        let _lock = self.lock()?;
        let mut rows = self.rows()?;
        let mut credentials = self.credentials()?;
        match token {
            Some(token) => credentials.tokens.insert(info.id.clone(), token.expose().clone()),
            None => credentials.tokens.remove(&info.id),
        };
        let known = rows.spaces.iter().position(|row| row.info.id == info.id);
        match (name, known) {
            // Under any other it would not be found in a list by whoever gave it this one.
            (Some(name), _) => name.clone_into(&mut info.name),
            // Names that people gave survive a second handshake.
            (None, Some(at)) => {
                let SpaceInfo { name, display_name, .. } = rows.spaces[at].info.clone();
                info = SpaceInfo { name, display_name, ..info };
            }
            (None, None) => {}
        }
        if let Some(before) = known.map(|at| &rows.spaces[at].info) {
            info.added_at.clone_from(&before.added_at);
            info.created_at_unix = before.created_at_unix;
            if info.services.is_empty() {
                info.services.clone_from(&before.services);
            }
        }
        let row = Row { url: address.to_string(), info: info.clone() };
        match known {
            Some(at) => rows.spaces[at] = row,
            None => rows.spaces.push(row),
        }
        // The secret first: a row without one would look like a Space that needs none.
        self.save(CREDENTIALS, &credentials)?;
        self.save(SPACES, &rows)?;
        Ok(info)
    }

    /// Renews what is known of a Space. One that was taken out meanwhile stays out, and its token and
    /// the names that people gave it are not touched.
    ///
    /// # Errors
    ///
    /// As [`Registry::list`].
    pub fn renew(&self, info: SpaceInfo) -> Result<SpaceInfo> {
        let _lock = self.lock()?;
        let mut rows = self.rows()?;
        let Some(row) = rows.spaces.iter_mut().find(|row| row.info.id == info.id) else {
            return Ok(info);
        };
        let (name, display_name) = (row.info.name.clone(), row.info.display_name.clone());
        row.info = SpaceInfo { name, display_name, ..info };
        let info = row.info.clone();
        self.save(SPACES, &rows)?;
        Ok(info)
    }

    /// Takes a Space out, and its token.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`].
    pub fn remove(&self, name: &str) -> Result<SpaceInfo> {
        let _lock = self.lock()?;
        let mut rows = self.rows()?;
        // Both are read before either is written: one that is damaged leaves the other as it is.
        let mut credentials = self.credentials()?;
        let at = position(&rows.spaces, name)?;
        let row = rows.spaces.remove(at);
        self.save(SPACES, &rows)?;
        credentials.tokens.remove(&row.info.id);
        self.save(CREDENTIALS, &credentials)?;
        Ok(row.info)
    }

    /// Gives a Space another name to be shown by; an empty one takes that back.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`], and `invalid_argument` for a name that nobody could type.
    pub fn rename(&self, name: &str, display_name: &str) -> Result<SpaceInfo> {
        if !display_name.is_empty() {
            check_name(display_name)?;
        }
        let _lock = self.lock()?;
        let mut rows = self.rows()?;
        let at = position(&rows.spaces, name)?;
        let row = &mut rows.spaces[at];
        display_name.clone_into(&mut row.info.display_name);
        let info = row.info.clone();
        self.save(SPACES, &rows)?;
        Ok(info)
    }

    /// Finds a Space by its id, or by a name that fits it alone.
    ///
    /// # Errors
    ///
    /// `not_found`, and `ambiguous_sandbox` naming the ids of all that fit; otherwise as
    /// [`Registry::list`].
    pub fn resolve(&self, name: &str) -> Result<Entry> {
        let mut rows = self.rows()?;
        let row = rows.spaces.swap_remove(position(&rows.spaces, name)?);
        let token = self.credentials()?.tokens.remove(&row.info.id).map(Redacted::new);
        Ok(Entry { address: Address::parse(&row.url)?, info: row.info, token })
    }

    fn rows(&self) -> Result<Rows> {
        let rows = self.load(SPACES)?.unwrap_or(Rows { version: VERSION, spaces: Vec::new() });
        self.check(SPACES, rows.version)?;
        Ok(rows)
    }

    fn credentials(&self) -> Result<Credentials> {
        let none = Credentials { version: VERSION, tokens: BTreeMap::new() };
        let credentials = self.load(CREDENTIALS)?.unwrap_or(none);
        self.check(CREDENTIALS, credentials.version)?;
        Ok(credentials)
    }

    fn check(&self, file: &str, version: u32) -> Result<()> {
        if version == VERSION {
            return Ok(());
        }
        let path = self.folder.join(file);
        Err(Error::new(
            Kind::PreconditionFailed,
            format!(
                "`{}` has layout {version}, and this spaceport knows {VERSION}",
                path.display()
            ),
        )
        .hint("Use the version of spaceport that wrote it"))
    }

    fn load<T: DeserializeOwned>(&self, file: &str) -> Result<Option<T>> {
        let path = self.folder.join(file);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&path, error)),
        };
        let mut text = String::new();
        file.take(LARGEST).read_to_string(&mut text).map_err(|error| unusable(&path, error))?;
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Error::new(Kind::Json, format!("`{}` cannot be read", path.display()))
                .with("path", path.display())
                .source(error)
                .disposition(Disposition::NotDispatched)
                .hint("Mend it, or move it away and add your Spaces again; nothing was changed")
        })
    }

    /// Replaces a file, whole or not at all.
    fn save(&self, file: &str, content: &impl Serialize) -> Result<()> {
        let path = self.folder.join(file);
        let partial = self.folder.join(format!("{file}.partial"));
        let text = serde_json::to_vec_pretty(content).map_err(|error| {
            Error::new(Kind::Internal, "the registry is not JSON").source(error)
        })?;
        let written = || {
            // Nobody else writes it: the caller has the lock. What a crash left is cut off.
            let options =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
            let mut to = options.open(&partial)?;
            to.write_all(&text)?;
            to.write_all(b"\n")?;
            to.sync_all()?;
            fs::rename(&partial, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        written().map_err(|error| {
            // What was written of it is of no use, and takes room where there may be none.
            drop(fs::remove_file(&partial));
            unusable(&path, error)
        })
    }

    /// Held while the files are changed. Goes when dropped, and with its process.
    fn lock(&self) -> Result<File> {
        let path = self.folder.join("lock");
        let mut folders = fs::DirBuilder::new();
        folders.recursive(true).mode(0o700);
        folders.create(&self.folder).map_err(|error| unusable(&self.folder, error))?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|error| unusable(&path, error))?;
        // Changes take milliseconds; whoever waits here does not wait long.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| unusable(&path, error.into()))?;
        Ok(file)
    }
}

const SPACES: &str = "spaces.json";
const CREDENTIALS: &str = "credentials.json";

/// Where the Space of this id, or the only one of this name, stands.
fn position(rows: &[Row], name: &str) -> Result<usize> {
    // It would fit every Space that lacks one of its names.
    if name.trim().is_empty() {
        return Err(Error::new(Kind::InvalidArgument, "the name of the Space is empty")
            .hint("Name a Space: `spaceport spaces` lists them"));
    }
    if let Some(at) = rows.iter().position(|row| row.info.id == name) {
        return Ok(at);
    }
    let fits = |row: &Row| {
        let short = row.info.id.split_once(':').map(|(_, short)| short);
        // As it may have been typed when it was added.
        let host = short.and_then(|short| short.strip_suffix(&format!(":{PORT}")));
        let names = [Some(&*row.info.name), Some(&*row.info.display_name), short, host];
        names.contains(&Some(name))
    };
    let found: Vec<usize> = (0..rows.len()).filter(|&at| fits(&rows[at])).collect();
    match *found {
        [at] => Ok(at),
        [] => {
            let hint = match rows {
                [] => "Add one: `spaceport spaces add URL`".to_owned(),
                _ => {
                    let names: Vec<_> = rows.iter().map(|row| row.info.shown_name()).collect();
                    format!("There is: {}", names.join(", "))
                }
            };
            let name: String = name.chars().take(LONGEST_NAME).collect();
            Err(Error::new(Kind::NotFound, format!("no Space is called `{}`", name.escape_debug()))
                .hint(hint))
        }
        _ => {
            let ids: Vec<_> = found.iter().map(|&at| &*rows[at].info.id).collect();
            let ids = ids.join(", ");
            Err(Error::new(
                Kind::AmbiguousSandbox,
                format!("`{name}` fits more than one Space: {ids}"),
            )
            .with("ids", ids)
            .hint("Use the full id"))
        }
    }
}

/// A name can be typed, and printed to a terminal.
fn check_name(name: &str) -> Result<()> {
    let wrong = |what: &str| {
        Err(Error::new(Kind::InvalidArgument, format!("the name {what}"))
            .hint(format!("Use 1 to {LONGEST_NAME} characters, none of them a control character")))
    };
    match name {
        _ if name.trim().is_empty() => wrong("is empty"),
        _ if name.chars().count() > LONGEST_NAME => wrong("is too long"),
        _ if name.chars().any(char::is_control) => wrong("holds a control character"),
        _ => Ok(()),
    }
}

fn unusable(path: &Path, error: std::io::Error) -> Error {
    Error::new(Kind::Io, format!("`{}` cannot be used", path.display()))
        .with("path", path.display())
        .source(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("spaceport-{}-{name}", std::process::id()));
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn named(name: &str) -> SpaceInfo {
        SpaceInfo { name: name.to_owned(), ..SpaceInfo::default() }
    }

    fn add(registry: &Registry, url: &str, name: &str) -> SpaceInfo {
        let token = Redacted::new(format!("token of {name}"));
        registry
            .add(&Address::parse(url).unwrap(), Some(&token), Some(name), named("host"))
            .unwrap()
    }

    #[test]
    fn spaces_are_added_found_renamed_and_removed() {
        let folder = Folder::new("registry");
        let registry = Registry::new(&folder.0);
        assert_eq!(registry.list().unwrap(), []);
        assert_eq!(registry.resolve("box").unwrap_err().kind(), Kind::NotFound);
        add(&registry, "10.0.0.7", "box");
        let relayed = add(&registry, "https://relay/m/other", "far");
        assert_eq!((&*relayed.id, &*relayed.provider), ("relay:other", "relay"));
        for name in ["box", "direct:10.0.0.7:3211", "10.0.0.7:3211", "10.0.0.7"] {
            let entry = registry.resolve(name).unwrap();
            assert_eq!(entry.token.unwrap().expose(), "token of box");
            assert_eq!(entry.address.to_string(), "http://10.0.0.7:3211");
        }
        registry.rename("box", "Build machine").unwrap();
        // A second handshake, and one with a name of its own: the last that a person said holds.
        let address = Address::parse("10.0.0.7").unwrap();
        let token = Redacted::new("token of box".to_owned());
        let again = registry.add(&address, Some(&token), None, named("host")).unwrap();
        assert_eq!((&*again.name, again.shown_name()), ("box", "Build machine"));
        assert_eq!(registry.resolve("Build machine").unwrap().info.name, "box");
        add(&registry, "10.0.0.7", "builder");
        assert_eq!(registry.list().unwrap()[0].shown_name(), "builder");
        assert_eq!(registry.resolve("Build machine").unwrap_err().kind(), Kind::NotFound);
        registry.remove("builder").unwrap();
        assert_eq!(registry.resolve("box").unwrap_err().kind(), Kind::NotFound);
        assert!(!fs::read_to_string(folder.0.join(CREDENTIALS)).unwrap().contains("token of box"));
    }

    #[test]
    fn an_empty_name_fits_nothing() {
        let folder = Folder::new("empty");
        let registry = Registry::new(&folder.0);
        for spaces in 0..2 {
            for name in ["", " ", "\t\n"] {
                for error in [
                    registry.resolve(name).unwrap_err(),
                    registry.remove(name).unwrap_err(),
                    registry.rename(name, "other").unwrap_err(),
                ] {
                    assert_eq!(error.kind(), Kind::InvalidArgument, "of {spaces}");
                }
            }
            add(&registry, "one", "box");
        }
        assert_eq!(registry.list().unwrap()[0].shown_name(), "box");
    }

    #[test]
    fn a_name_that_fits_two_names_both() {
        let folder = Folder::new("ambiguous");
        let registry = Registry::new(&folder.0);
        add(&registry, "one", "box");
        add(&registry, "two", "box");
        let error = registry.resolve("box").unwrap_err();
        assert_eq!(error.kind(), Kind::AmbiguousSandbox);
        assert_eq!(
            error.to_string(),
            "`box` fits more than one Space: direct:one:3211, direct:two:3211"
        );
        assert_eq!(registry.remove("box").unwrap_err().kind(), Kind::AmbiguousSandbox);
    }

    #[test]
    fn only_the_owner_can_read_tokens_and_rows_hold_none() {
        let folder = Folder::new("private");
        let registry = Registry::new(&folder.0);
        add(&registry, "one", "box");
        let mode = fs::metadata(folder.0.join(CREDENTIALS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!fs::read_to_string(folder.0.join(SPACES)).unwrap().contains("token of"));
    }

    #[test]
    fn a_file_that_was_cut_is_reported_and_not_written_over() {
        let folder = Folder::new("cut");
        let registry = Registry::new(&folder.0);
        add(&registry, "one", "box");
        for file in [SPACES, CREDENTIALS] {
            let path = folder.0.join(file);
            let whole = fs::read(&path).unwrap();
            let half = &whole[..whole.len() / 2];
            fs::write(&path, half).unwrap();
            let address = Address::parse("two").unwrap();
            let error = registry.add(&address, None, None, named("second")).unwrap_err();
            assert_eq!(error.kind(), Kind::Json, "{error}");
            assert!(error.to_string().contains(file), "{error}");
            assert_eq!(fs::read(&path).unwrap(), half, "what is there can still be saved");
            let other = if file == SPACES { CREDENTIALS } else { SPACES };
            let other = (folder.0.join(other), fs::read(folder.0.join(other)).unwrap());
            assert_eq!(registry.remove("box").unwrap_err().kind(), Kind::Json);
            assert_eq!(fs::read(&other.0).unwrap(), other.1, "a row without its file stays");
            fs::write(&path, whole).unwrap();
        }
        assert_eq!(registry.list().unwrap().len(), 1);
    }

    #[test]
    fn what_is_learned_changes_neither_names_nor_token_and_brings_nothing_back() {
        let folder = Folder::new("renewed");
        let registry = Registry::new(&folder.0);
        let mut info = add(&registry, "one", "box");
        registry.rename("box", "desk").unwrap();
        "2.0".clone_into(&mut info.spacesd_version);
        let renewed = registry.renew(info.clone()).unwrap();
        assert_eq!((renewed.shown_name(), &*renewed.spacesd_version), ("desk", "2.0"));
        assert_eq!(registry.resolve("desk").unwrap().token.unwrap().expose(), "token of box");
        registry.remove("desk").unwrap();
        registry.renew(info).unwrap();
        assert_eq!(registry.list().unwrap(), []);
    }

    #[test]
    fn writers_do_not_lose_each_others_rows() {
        let folder = Folder::new("writers");
        let registry = Registry::new(&folder.0);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let registry = registry.clone();
                scope.spawn(move || {
                    for row in 0..8 {
                        add(&registry, &format!("h{writer}x{row}"), "box");
                        assert!(!registry.list().unwrap().is_empty(), "readers never see half");
                    }
                });
            }
        });
        assert_eq!(registry.list().unwrap().len(), 64);
    }

    #[test]
    fn names_that_nobody_could_type_are_refused() {
        let registry = Registry::new("/nonexistent");
        let address = Address::parse("one").unwrap();
        for name in ["", " ", "a\u{1b}[2J", &"x".repeat(101)] {
            let error = registry.add(&address, None, None, named(name)).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
        }
    }
}
