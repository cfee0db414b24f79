//! Sending one thing to any path of a Space, rather than to where it receives files.

use std::path::PathBuf;
use std::time::SystemTime;

use spaceport_spaces::Client;
use spaceport_types::Result;
use spaceport_wire::pb::files as pb;

use super::client::{Line, Sent, Watch, blocking, conflict, key, name};
use super::talk::Cancel;
use super::walk::{Listing, Source};
use super::{ANYWHERE, Step, Verb};
use crate::receive::Conflict;
use crate::trust::Keys;

/// What is put, and where.
#[derive(Clone, Debug)]
pub struct Put {
    /// What it is.
    pub thing: Thing,
    /// Its path in the Space, with folders on the way that come to be. A file takes the place of a
    /// file; a folder comes to where nothing is.
    pub path: String,
}

/// Something that can be put at a path.
#[derive(Clone, Debug)]
pub enum Thing {
    /// A file or a folder of this machine, whole: ignore files do not count.
    Path(PathBuf),
    /// A text.
    Text(String),
}

/// Puts something at a path of a Space. The same again after it broke off goes on where it was.
///
/// # Errors
///
/// As [`send`](fn@super::send), with the feature [`ANYWHERE`].
pub async fn put(
    space: &Client,
    wanted: Put,
    keys: &Keys,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Sent> {
    watch(Step::Looking);
    let key = key(space, ANYWHERE, keys, wall).await?;
    let Put { thing, path } = wanted;
    let last = path.rsplit('/').next().unwrap_or_default().to_owned();
    let listing = blocking(move || {
        let source = match thing {
            Thing::Path(path) => Source::at(&path)?,
            Thing::Text(text) => Source::text(&text)?,
        };
        Listing::walk(vec![source.called(last)], true)
    });
    let listing = listing.await?;
    let folder = listing.items.first().is_some_and(|whole| whole.directory);
    let policy = if folder { Conflict::Refuse } else { Conflict::Overwrite };
    let begin = pb::Begin {
        transfer_id: name("put", &listing.identity().0, &path, policy),
        destination: String::new(),
        conflict: conflict(policy).into(),
        path: Some(path),
    };
    let line = Line::new(space, &key, Verb::Send, cancel);
    line.send(begin, listing, !folder, watch).await
}
