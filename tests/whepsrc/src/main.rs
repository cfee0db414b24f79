//! Plays with GStreamer's `whepsrc`, as its authors publish it, and says in a line of JSON what came.
//!
//! The plugin is linked into this program, so that nothing has to be installed where GStreamer looks.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use gstreamer::prelude::*;
use gstreamer::{ClockTime, MessageView, State};
use serde_json::{Value, json};

/// Frames after which it counts as playing.
const ENOUGH: usize = 10;

/// Longer than any start takes, shorter than a test may.
const PATIENCE: Duration = Duration::from_secs(20);

/// What comes out at last: every pixel as three bytes.
const SINK: &str = "videoconvert ! video/x-raw,format=RGB ! fakesink name=sink signal-handoffs=true sync=false";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: spaceport-whepsrc ENDPOINT TOKEN h264|vp8");
    let (endpoint, token, codec) = (next()?, next()?, next()?);
    gstreamer::init()?;
    gstwebrtchttp::plugin_register_static()?;
    println!("{}", play(&endpoint, &token, &codec)?);
    Ok(())
}

fn play(endpoint: &str, token: &str, codec: &str) -> Result<Value, Box<dyn Error>> {
    let (decoder, name) = match codec {
        "vp8" => ("rtpvp8depay ! vp8dec", "VP8"),
        _ => ("rtph264depay ! avdec_h264", "H264"),
    };
    // No audio: one is refused what it does not get, and this asks for pictures alone.
    let caps = format!(
        "application/x-rtp,media=video,encoding-name={name},payload=103,clock-rate=90000"
    );
    let text = format!("whepsrc name=source video-caps=\"{caps}\" ! {decoder} ! {SINK}");
    let pipeline = gstreamer::parse::launch(&text)?;
    let pipeline = pipeline.downcast::<gstreamer::Pipeline>().map_err(|_| "no pipeline")?;
    let source = pipeline.by_name("source").ok_or("no source")?;
    source.set_property("whep-endpoint", endpoint);
    source.set_property("auth-token", token);
    source.set_property("audio-caps", None::<gstreamer::Caps>);

    let (seen, frames) = mpsc::sync_channel(ENOUGH);
    let sink = pipeline.by_name("sink").ok_or("no sink")?;
    sink.connect("handoff", false, move |values| {
        let buffer = values.get(1)?.get::<gstreamer::Buffer>().ok()?;
        let pad = values.get(2)?.get::<gstreamer::Pad>().ok()?;
        let caps = pad.current_caps()?;
        let size = caps.structure(0)?;
        let (width, height) = (size.get::<i32>("width").ok()?, size.get::<i32>("height").ok()?);
        let data = buffer.map_readable().ok()?;
        // The middle of each of the eight bars, half way down. Rows are padded to four bytes.
        let (columns, stride) = (width as usize, (width as usize * 3).next_multiple_of(4));
        let bars: Vec<Value> = (0..8)
            .filter_map(|bar| {
                let at = height as usize / 2 * stride + (bar * 2 + 1) * columns / 16 * 3;
                Some(json!(data.get(at..at + 3)?))
            })
            .collect();
        // A full channel has seen enough.
        drop(seen.try_send(json!({ "width": width, "height": height, "bars": bars })));
        None
    });

    let bus = pipeline.bus().ok_or("no bus")?;
    pipeline.set_state(State::Playing)?;
    let end = std::time::Instant::now() + PATIENCE;
    let (mut count, mut last, mut error) = (0, Value::Null, None);
    while count < ENOUGH && error.is_none() && std::time::Instant::now() < end {
        while let Ok(frame) = frames.try_recv() {
            (count, last) = (count + 1, frame);
        }
        let message = bus.timed_pop(ClockTime::from_mseconds(20));
        if let Some(MessageView::Error(told)) = message.as_ref().map(|it| it.view()) {
            error = Some(format!("{} {}", told.error(), told.debug().unwrap_or_default()));
        }
    }
    // What ends it deletes the resource.
    pipeline.set_state(State::Null)?;
    Ok(json!({ "frames": count, "last": last, "error": error }))
}
