//! `spaceport stream --snapshot` and `--record`: what a Space shows, kept in a file.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, ErrorKind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spaceport_spaces::Spaces;
use spaceport_spaces::media::Viewer;
use spaceport_spaces::verbs::Watch;
use spaceport_types::{Codec, Error, Kind, Result, Size};
use tokio::time::{Instant, sleep};

use super::mp4::Recording;
use super::wait;
use crate::render;
use crate::serve::stop_signal;

/// Keeps one picture. The Space encodes it: there is no decoder here.
pub(super) fn snapshot(spaces: &Spaces, watch: Watch, file: &Path, json: bool) -> Result<ExitCode> {
    let watch = Watch { codec: Some(Codec::Png), ..watch };
    let frame = wait(watched(spaces, watch, async |viewer| viewer.next().await))?;
    if frame.codec != Codec::Png {
        return Err(Error::new(Kind::CapabilityMissing, "the Space sends no pictures as PNG")
            .with("codec", frame.codec));
    }
    fs::write(file, &frame.payload).map_err(|error| unusable(file, error))?;
    say(file, frame.size, json!({}), json);
    Ok(ExitCode::SUCCESS)
}

/// Records until the limit, a signal, or the end of the stream, which is an error then: what was
/// recorded until there is in the file whatever happens.
pub(super) fn record(
    spaces: &Spaces,
    watch: Watch,
    file: &Path,
    limit: Option<Duration>,
    json: bool,
) -> Result<ExitCode> {
    let watch = Watch { codec: Some(Codec::H264), ..watch };
    let out = OpenOptions::new().write(true).create_new(true).open(file);
    let mut recording = Recording::new(BufWriter::new(out.map_err(|error| unusable(file, error))?));
    let recorded = wait(watched(spaces, watch, async |viewer| {
        let stop = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let signal = stop_signal()?;
        let (mut stop, mut signal) = (std::pin::pin!(stop), std::pin::pin!(signal));
        let (mut size, mut last) = (Size::new(0, 0), Instant::now());
        let ended = loop {
            let frame = tokio::select! {
                () = &mut stop => break Ok(()),
                () = &mut signal => break Ok(()),
                frame = viewer.next() => frame,
            };
            let added = frame.and_then(|frame| {
                size = frame.size;
                recording.add(&frame.payload, frame.size, frame.keyframe, frame.captured_at)
            });
            if let Err(error) = added {
                break Err(error);
            }
            last = Instant::now();
        };
        Ok((ended, size, last.elapsed()))
    }));
    let (ended, size, shown) = match recorded {
        Ok(recorded) => recorded,
        Err(error) => {
            // It has not begun; nobody wants an empty file.
            drop(fs::remove_file(file));
            return Err(error);
        }
    };
    let frames = recording.finish(shown)?;
    ended?;
    say(file, size, json!({ "frames": frames }), json);
    Ok(ExitCode::SUCCESS)
}

/// Opens a stream, has it watched, and closes it.
pub(super) async fn watched<T>(
    spaces: &Spaces,
    watch: Watch,
    work: impl AsyncFnOnce(&mut Viewer) -> Result<T>,
) -> Result<T> {
    let space = watch.space.clone();
    let endpoint = spaces.stream_endpoint(watch).await?;
    let done = match Viewer::attach(&endpoint).await {
        Ok(mut viewer) => work(&mut viewer).await,
        Err(error) => Err(error),
    };
    // A session that nobody watches ends by itself; this is sooner.
    drop(spaces.close_stream(&space, &endpoint.media_session_id).await);
    done
}

fn unusable(file: &Path, error: std::io::Error) -> Error {
    let shown = file.display();
    if error.kind() == ErrorKind::AlreadyExists {
        return Error::new(Kind::InvalidArgument, format!("`{shown}` is there already"))
            .with("path", shown)
            .hint("Name a file that is not");
    }
    Error::new(Kind::Io, format!("`{shown}` cannot be written")).with("path", shown).source(error)
}

fn say(file: &Path, size: Size, mut more: serde_json::Value, json: bool) {
    let shown = file.display();
    if json {
        more["file"] = json!(shown.to_string());
        more["frame_size"] = json!([size.width, size.height]);
        render::json(&more);
    } else {
        let line = format!("Saved `{shown}` ({}x{})", size.width, size.height);
        render::line_out(&render::printable(&line));
    }
}
