//! Arguments that clap does not accept, as errors of ours.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ErrorKind};
use spaceport_types::{Error, Kind};

use crate::args::Args;
use crate::render;

/// Reads the arguments; otherwise everything is said, and the exit code is left.
pub(crate) fn parse() -> Result<Args, ExitCode> {
    Args::try_parse().map_err(|error| {
        let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        let (json, agent) = (asked_for("--json"), asked_for("--agent"));
        if help || !(json || agent) {
            // Its own words are for people, with what was nearly right and the usage in short.
            drop(error.print());
            let missing = error.get(ContextKind::InvalidArg).map(ToString::to_string);
            if missing.is_some_and(|it| it.contains("SPACE")) {
                render::hint(
                    "`spaceport spaces` lists the Spaces you have; an address will do, too",
                );
            }
            return if help { ExitCode::SUCCESS } else { ExitCode::from(exit()) };
        }
        render::failure(&translate(&error), json, agent)
    })
}

fn exit() -> u8 {
    Kind::InvalidArgument.spec().exit
}

/// Whether a global flag was given, for where what clap has read is not at hand.
pub(crate) fn asked_for(flag: &str) -> bool {
    let arguments = std::env::args_os().skip(1);
    arguments.take_while(|argument| argument != "--").any(|argument| argument == OsStr::new(flag))
}

fn translate(error: &clap::Error) -> Error {
    let context = |kind| error.get(kind).map(ToString::to_string).filter(|text| !text.is_empty());
    let message = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "a verb is missing".to_owned()
    } else {
        // The first paragraph is what happened; tips and usage follow.
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let lines: Vec<_> = first.lines().map(str::trim).collect();
        lines.join(" ").trim_start_matches("error: ").replace('\'', "`")
    };
    let suggested =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue]
            .into_iter()
            .find_map(context);
    let hint = match (suggested, context(ContextKind::Usage)) {
        (Some(near), _) => format!("Did you mean `{near}`?"),
        (None, Some(usage)) => {
            let usage = usage.trim_start_matches("Usage:").trim();
            format!("Write it as `{usage}`; `--help` says more")
        }
        (None, None) => "Run it with `--help` to see what there is".to_owned(),
    };
    let error = Error::new(Kind::InvalidArgument, message).hint(hint);
    match context(ContextKind::InvalidArg) {
        Some(argument) => error.with("argument", argument),
        None => error,
    }
}
