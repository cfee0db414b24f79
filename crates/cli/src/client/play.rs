//! `spaceport stream --play`: what a Space shows, in a window of this desktop.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spaceport_media::play::{self, Options, Window};
use spaceport_spaces::Spaces;
use spaceport_spaces::verbs::Watch;
use spaceport_types::{Cause, Codec, Error, Kind, Result, Size};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::keep::watched;
use super::wait;
use crate::args::Environment;
use crate::render;
use crate::serve::stop_signal;

/// Plays until the window is closed, a signal, or the end of the stream, which is an error then.
pub(super) fn run(spaces: &Spaces, watch: Watch, title: &str, json: bool) -> Result<ExitCode> {
    let wayland = Environment::read().wayland;
    let options = Options { title: title.to_owned(), display: None, wayland };
    // Without a decoder there are still pixels, many of them.
    let codec = if play::decodes(Codec::H264) { Codec::H264 } else { Codec::Bgra };
    let (told, ended) = oneshot::channel();
    let ended_by = move |error| drop(told.send(error));
    // Before the Space is asked for anything.
    let mut window = Window::open(codec, &options, ended_by)?;
    let watch = Watch { codec: Some(codec), ..watch };
    let (frames, size) = wait(watched(spaces, watch, async |viewer| {
        let signal = stop_signal()?;
        let (mut signal, mut ended) = (std::pin::pin!(signal), ended);
        let (mut frames, mut size) = (0_u64, Size::new(0, 0));
        let end = loop {
            let frame = tokio::select! {
                end = &mut ended => break end.unwrap_or_else(|_| closed()),
                () = &mut signal => return Ok((frames, size)),
                frame = viewer.next() => frame?,
            };
            if frame.codec != codec {
                return Err(Error::new(Kind::CapabilityMissing, "the Space sends another codec")
                    .with("codec", frame.codec)
                    .with("wanted", codec));
            }
            size = frame.size;
            if !window.show(frame.payload, frame.size) {
                // Either it has ended, or it is stuck.
                break timeout(SAID, ended)
                    .await
                    .map_or_else(|_| too_slow(), |end| end.unwrap_or_else(|_| closed()));
            }
            frames += 1;
        };
        match end.kind() {
            Kind::Cancelled => Ok((frames, size)),
            _ => Err(end),
        }
    }))?;
    if json {
        render::json(&json!({ "frames": frames, "frame_size": [size.width, size.height] }));
    }
    Ok(ExitCode::SUCCESS)
}

/// How soon a window that has ended says why.
const SAID: Duration = Duration::from_secs(1);

fn too_slow() -> Error {
    Error::because(Cause::ViewerTooSlow, "this machine cannot decode the stream in time")
        .hint("Ask for less with `--fps`, or for a window with `--window` or `--app`")
}

fn closed() -> Error {
    Error::new(Kind::Cancelled, "the window was closed")
}
