//! Encoded streams back to pictures, after what was measured.

use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use gstreamer_video::prelude::*;
use spaceport_types::Codec;

use crate::scene::BLOCK;
use crate::source::Unit;
use crate::{Result, SCREEN};

/// The brightness of one decoded picture.
pub(crate) struct Luma<'a> {
    /// Rows, `stride` bytes apart.
    pub(crate) rows: &'a [u8],
    pub(crate) stride: usize,
}

/// Decodes everything and returns the number that is in the picture of each unit; `None` for a unit
/// that brought no picture.
pub(crate) fn read_counters(codec: Codec, units: &[Unit]) -> Result<Vec<Option<u16>>> {
    let middle = BLOCK as usize / 2;
    let number = |at: &dyn Fn(usize, usize) -> Option<u8>| -> Option<u16> {
        (0..16).try_fold(0, |number, bit| {
            let luma = at(bit * BLOCK as usize + middle, middle)?;
            Some(number | u16::from(luma > 128) << bit)
        })
    };
    if codec == Codec::Bgra {
        let pixel = |unit: &Unit| {
            number(&|x, y| unit.payload.get((y * SCREEN.width as usize + x) * 4).copied())
        };
        return Ok(units.iter().map(pixel).collect());
    }
    let mut numbers = vec![None; units.len()];
    let payloads: Vec<&[u8]> = units.iter().map(|unit| unit.payload.as_slice()).collect();
    decode(codec, &payloads, |index, luma| {
        if let Some(slot) = numbers.get_mut(index) {
            *slot = number(&|x, y| luma.rows.get(y * luma.stride + x).copied());
        }
    })?;
    Ok(numbers)
}

/// Decodes `units` and shows every picture, with the index of the unit that brought it.
pub(crate) fn decode(
    codec: Codec,
    units: &[&[u8]],
    mut show: impl FnMut(usize, Luma<'_>),
) -> Result<()> {
    gst::init()?;
    let (caps, decoder) = match codec {
        Codec::H264 => {
            ("video/x-h264,stream-format=byte-stream,alignment=au", "avdec_h264 max-threads=1")
        }
        Codec::Vp8 => ("video/x-vp8", "vp8dec threads=1"),
        Codec::Vp9 => ("video/x-vp9", "vp9dec threads=1"),
        Codec::Av1 => ("video/x-av1,stream-format=obu-stream,alignment=tu", "av1dec"),
        Codec::Png => {
            ("image/png,framerate=30/1", "pngdec ! videoconvert ! video/x-raw,format=GRAY8")
        }
        other => return Err(format!("there is no decoder for {other}").into()),
    };
    let pipeline = gst::parse::launch(&format!(
        "appsrc name=source format=time max-bytes=67108864 block=true caps={caps} ! {decoder} ! \
         appsink name=sink sync=false max-buffers=4"
    ))?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().map_err(|_| "not a pipeline")?;
    let source = pipeline.by_name("source").and_downcast::<gst_app::AppSrc>().ok_or("no source")?;
    let sink = pipeline.by_name("sink").and_downcast::<gst_app::AppSink>().ok_or("no sink")?;
    pipeline.set_state(gst::State::Playing)?;
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(move || {
            for (index, unit) in units.iter().enumerate() {
                let mut buffer = gst::Buffer::from_slice(unit.to_vec());
                if let Some(buffer) = buffer.get_mut() {
                    buffer.set_pts(gst::ClockTime::from_mseconds(index as u64));
                }
                if source.push_buffer(buffer).is_err() {
                    return;
                }
            }
            // The decoder has failed if this does; the other side finds out.
            let _failed = source.end_of_stream();
        });
        let mut shown = || -> Result<()> {
            while let Ok(sample) = sink.pull_sample() {
                let buffer = sample.buffer().ok_or("no buffer")?;
                let index = buffer.pts().ok_or("no time stamp")?.mseconds() as usize;
                let info = gst_video::VideoInfo::from_caps(sample.caps().ok_or("no caps")?)?;
                let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, &info)?;
                let stride = frame.plane_stride().first().copied().unwrap_or(0) as usize;
                show(index, Luma { rows: frame.plane_data(0)?, stride });
            }
            Ok(())
        };
        let shown = shown();
        // Whatever happened, nobody waits for room any more.
        pipeline.set_state(gst::State::Null)?;
        shown
    })
}
