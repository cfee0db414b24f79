//! `spaceport stream`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spaceport_spaces::verbs::StreamEndpoint;
use spaceport_types::Result;

use super::args::Stream;
use super::{keep, play, wait};
use crate::render::{self, typed};

pub(crate) fn run(stream: Stream, json: bool, agent: bool) -> Result<ExitCode> {
    let spaces = stream.what.opened.spaces()?;
    let space = stream.what.space.clone();
    if let Some(id) = &stream.close {
        wait(spaces.close_stream(&space, id))?;
        if json {
            render::json(&json!({ "space": space, "closed": id }));
        } else {
            render::line_out(&format!("Closed `{}`", render::printable(id)));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &stream.snapshot {
        return keep::snapshot(&spaces, stream.what.watch(), file, json);
    }
    if let Some(file) = &stream.record {
        let limit = stream.seconds.map(Duration::from_secs);
        return keep::record(&spaces, stream.what.watch(), file, limit, json);
    }
    if stream.play {
        let title = format!("{space} – spaceport");
        return play::run(&spaces, stream.what.watch(), &title, json);
    }
    let again = stream.what.opened.again(&space);
    let endpoint = wait(spaces.stream_endpoint(stream.what.watch()))?;
    if json {
        render::json(&endpoint);
    } else {
        describe(&endpoint);
        if !agent {
            let id = typed(&endpoint.media_session_id);
            render::hint(&format!("Close it: `spaceport stream {again} --close {id}`"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(endpoint: &StreamEndpoint) {
    let [width, height] = endpoint.frame_size;
    let quic = endpoint.quic.as_ref().map_or_else(String::new, |quic| {
        let (port, alpn, hash) = (quic.port, &quic.alpn, &quic.certificate_sha256);
        format!("UDP port {port}, ALPN {alpn}, certificate SHA-256 {hash}")
    });
    render::facts(&[
        ("session", &endpoint.media_session_id),
        ("frames", &format!("{width}x{height}, {}", endpoint.codec)),
        ("viewer", &endpoint.viewer_url),
        ("socket", &endpoint.ws_url),
        ("WHEP", &endpoint.whep_url),
        ("QUIC", &quic),
        ("ticket", &endpoint.ticket),
        ("lets in until", &endpoint.ticket_expires_at),
    ]);
}
