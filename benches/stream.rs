//! Reads the numbers that scenes write into the picture back from an encoded stream.

use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;

use crate::Result;
use crate::scene::BLOCK;
use crate::source::Unit;

/// Decodes everything, after the measurement, and returns the number that is in the picture of each
/// unit; `None` for a unit that brought no picture.
pub(crate) fn read_counters(units: &[Unit]) -> Result<Vec<Option<u16>>> {
    gst::init()?;
    let pipeline = gst::parse::launch(
        "appsrc name=source format=time max-bytes=67108864 block=true \
         caps=video/x-h264,stream-format=byte-stream,alignment=au ! \
         avdec_h264 max-threads=1 ! appsink name=sink sync=false max-buffers=0",
    )?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().map_err(|_| "not a pipeline")?;
    let source = pipeline.by_name("source").and_downcast::<gst_app::AppSrc>().ok_or("no source")?;
    let sink = pipeline.by_name("sink").and_downcast::<gst_app::AppSink>().ok_or("no sink")?;
    pipeline.set_state(gst::State::Playing)?;
    let mut numbers = vec![None; units.len()];
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(move || {
            for (index, unit) in units.iter().enumerate() {
                let mut buffer = gst::Buffer::from_slice(unit.payload.clone());
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
        while let Ok(sample) = sink.pull_sample() {
            let buffer = sample.buffer().ok_or("no buffer")?;
            let index = buffer.pts().ok_or("no time stamp")?.mseconds() as usize;
            let width: i32 =
                sample.caps().and_then(|caps| caps.structure(0)).ok_or("no caps")?.get("width")?;
            // Luma comes first in every format the decoder puts out, its rows four bytes aligned.
            let stride = (width as usize).next_multiple_of(4);
            let map = buffer.map_readable()?;
            let middle = BLOCK as usize / 2;
            let bits = (0..16).map(|bit| map[middle * stride + bit * BLOCK as usize + middle]);
            let number = bits.enumerate().map(|(bit, luma)| u16::from(luma > 128) << bit).sum();
            if let Some(slot) = numbers.get_mut(index) {
                *slot = Some(number);
            }
        }
        Ok(())
    })?;
    pipeline.set_state(gst::State::Null)?;
    Ok(numbers)
}
