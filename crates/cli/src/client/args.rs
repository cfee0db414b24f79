//! The grammar of the verbs that work with Spaces.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use spaceport_spaces::Spaces;
use spaceport_spaces::verbs::Watch;
use spaceport_types::Result;

use super::reached;
use crate::render::typed;

/// List the Spaces you have; add, remove, rename or examine one.
#[derive(Debug, Args)]
pub(crate) struct Registered {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List them, without asking any; but of those behind a relay, whether they are connected.
    List,
    /// Add the Space at an address, or ask one anew that is there already.
    Add(Add),
    /// Forget a Space, and its token. The Space itself goes on.
    Remove(Remove),
    /// Give a Space another name.
    Rename(Rename),
    /// Ask a Space how it is, and what it cannot do.
    Status(Status),
}

/// Its token is never an argument, which every process could read.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Where it is: `host`, `host:port`, or a URL.
    pub(crate) url: String,
    /// What to call it. Without it: its host name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A service it has.
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// Read its token from this file, which only you may be able to read. Without it:
    /// `SPACEPORT_TOKEN`.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Read its token from stdin.
    #[arg(long, conflicts_with = "token_file")]
    pub(crate) token_stdin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The Space, by name or id.
    pub(crate) name: String,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Rename {
    /// The Space, by name or id.
    pub(crate) name: String,
    /// Its new name; an empty one gives it back the first.
    pub(crate) new: String,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The Space, by name, id or address.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) opened: Opened,
}

/// What opens a Space.
#[derive(Debug, Args)]
pub(crate) struct Opened {
    /// Read the Space's token from this file, which only you may be able to read. Without it: the
    /// one it was added with, or `SPACEPORT_TOKEN` for an address.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

impl Opened {
    /// The Spaces that can be named.
    pub(crate) fn spaces(&self) -> Result<Spaces> {
        reached(self.token_file.as_deref())
    }

    /// What names a Space in another command, as it can be typed.
    pub(crate) fn again(&self, space: &str) -> String {
        let file = self.token_file.as_ref().map(|file| typed(&file.display().to_string()));
        let file = file.map_or_else(String::new, |file| format!(" --token-file {file}"));
        format!("{}{file}", typed(space))
    }
}

/// List the windows of a Space.
#[derive(Debug, Args)]
pub(crate) struct Windows {
    /// The Space, by name, id or address.
    pub(crate) space: String,
    /// Those of this app only.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) opened: Opened,
}

/// Open a stream of a Space and say every way in; or play it, keep a picture or a recording of it, or
/// close one.
#[derive(Debug, Args)]
pub(crate) struct Stream {
    #[command(flatten)]
    pub(crate) what: What,
    /// Close this one instead.
    #[arg(long, value_name = "ID", conflicts_with_all = ["target", "fps", "ttl"])]
    pub(crate) close: Option<String>,
    /// Keep one picture of it in this file, as PNG.
    #[arg(long, value_name = "PNG", conflicts_with_all = ["close", "record", "ttl"])]
    pub(crate) snapshot: Option<PathBuf>,
    /// Play it in a window of this desktop, until that is closed.
    #[arg(long, conflicts_with_all = ["close", "snapshot", "record", "ttl"])]
    pub(crate) play: bool,
    /// Record it into this file, as fragmented MP4, until Ctrl-C. The file must not be there yet.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["close", "ttl"])]
    pub(crate) record: Option<PathBuf>,
    /// End the recording after so many seconds.
    #[arg(long = "for", value_name = "S", requires = "record", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
}

/// Look at a Space in a browser.
#[derive(Debug, Args)]
pub(crate) struct Open {
    #[command(flatten)]
    pub(crate) what: What,
}

/// Send files and folders to a Space. The same command again goes on where it broke off.
#[derive(Debug, Args)]
pub(crate) struct Send {
    /// Files and folders of this machine.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// The Space, by name, id or address.
    #[arg(long, value_name = "SPACE")]
    pub(crate) to: String,
    /// The folder below the Space's downloads folder. Without it: that folder itself.
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<String>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Download files and folders from a Space. The same command again goes on where it broke off.
#[derive(Debug, Args)]
pub(crate) struct Download {
    /// Files and folders of one Space, as `SPACE:PATH`, and last the folder of this machine that they
    /// go to. Without that: the current one.
    #[arg(required = true, value_name = "SPACE:PATH")]
    pub(crate) what: Vec<String>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// How files are moved.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// What to do with names that are taken.
    #[arg(long, value_enum, default_value_t = Policy::Rename)]
    pub(crate) conflict: Policy,
    /// Move what `.gitignore`, `.ignore` and `.dockerignore` leave out, too.
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Replace files without asking, with `--conflict overwrite`.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) opened: Opened,
    /// The fingerprint of the Space's key, once you have compared it with `spaceport teleport key`
    /// there. Needed where the key has changed.
    #[arg(long, value_name = "FINGERPRINT")]
    pub(crate) trust_key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// What arrives is called `name (1).ext`.
    Rename,
    /// Files take the place of files; folders are merged.
    Overwrite,
    /// What is there stays; folders are merged.
    Skip,
}

/// What to stream, and how.
#[derive(Debug, Args)]
pub(crate) struct What {
    /// The Space, by name, id or address.
    pub(crate) space: String,
    /// Stream this window, as `spaceport windows` names it.
    // Empty, as from a variable that is not set, it would be the whole desktop.
    #[arg(long, value_name = "ID", group = "target", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) window: Option<String>,
    /// Stream the largest window of this app.
    #[arg(long, value_name = "NAME", group = "target", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) app: Option<String>,
    /// Stream this display. Without it: the primary one.
    #[arg(long, value_name = "ID", group = "target", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) display: Option<String>,
    /// Frames per second at most. Without it: 30.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=120))]
    pub(crate) fps: Option<u32>,
    /// How many seconds its ticket lets viewers in, 600 at most. Without it: 60.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) ttl: Option<u32>,
    #[command(flatten)]
    pub(crate) opened: Opened,
}

impl What {
    pub(crate) fn watch(self) -> Watch {
        Watch {
            space: self.space,
            window_id: self.window,
            app_name: self.app,
            display: self.display,
            max_fps: self.fps.unwrap_or_default(),
            ticket_ttl: self.ttl.unwrap_or_default(),
            codec: None,
        }
    }
}
