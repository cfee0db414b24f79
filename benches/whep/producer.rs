//! Frames as an encoder makes them, without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use spaceport_session::{Published, Publisher};
use spaceport_types::Bounds;

use crate::{Stamps, now};

/// Frames a second.
const RATE: u32 = 30;

/// A keyframe has the bytes of this many other frames.
const KEYFRAME: u64 = 6;

/// Makes frames until it is dropped.
pub(crate) struct Producer {
    stamps: Stamps,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Producer {
    /// Starts to make `rate` bits a second, or as much as the stream's limits allow.
    pub(crate) fn start(publisher: Publisher, rate: u64) -> Self {
        let stamps = Stamps::default();
        // Viewers find them by this, one producer to a process.
        *lock(&MADE) = Some(Arc::clone(&stamps));
        let stop = Arc::new(AtomicBool::new(false));
        let (made, stopped) = (Arc::clone(&stamps), Arc::clone(&stop));
        let thread = std::thread::spawn(move || run(&publisher, rate, &made, &stopped));
        Self { stamps, stop, thread: Some(thread) }
    }

    /// How many frames it has made.
    pub(crate) fn made(&self) -> usize {
        lock(&self.stamps).len()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// When each frame was made, by its number.
pub(crate) static MADE: std::sync::Mutex<Option<Stamps>> = std::sync::Mutex::new(None);

pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run(publisher: &Publisher, rate: u64, stamps: &Stamps, stop: &AtomicBool) {
    let start = now();
    let interval = Duration::from_secs(1) / RATE;
    let mut next = start;
    while !stop.load(Ordering::Relaxed) {
        let now = now();
        if now < next {
            std::thread::sleep((next - now).min(Duration::from_millis(2)));
            continue;
        }
        let demand = publisher.demand(now);
        if demand.viewers == 0 || !demand.ready {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        // A frame that had to wait begins a new rhythm.
        next = (next + interval).max(now + interval / 2);
        let keyframe = demand.keyframe.is_some_and(|due| due <= now);
        let limit = rate.min(demand.settings.bitrate.bps());
        let plain = limit / u64::from(RATE) / 8;
        let bytes = if keyframe { plain * KEYFRAME } else { plain };
        let number = {
            let mut stamps = lock(stamps);
            stamps.push(now);
            stamps.len() - 1
        };
        let frame = Published {
            keyframe,
            codec_epoch: 1,
            geometry: publisher.geometry(Bounds::new(0, 0, 1280, 720), 0),
            captured_at: now - start,
            encode_duration: Duration::ZERO,
            payload: access_unit(number as u32, keyframe, bytes as usize),
        };
        publisher.publish(frame, now);
    }
}

/// Annex B with the frame's number at the front of its one slice.
fn access_unit(number: u32, keyframe: bool, bytes: usize) -> Bytes {
    let mut unit = Vec::with_capacity(bytes + 64);
    if keyframe {
        unit.extend_from_slice(&[0, 0, 0, 1, 0x67]);
        unit.extend_from_slice(&[0xaa; 12]);
        unit.extend_from_slice(&[0, 0, 0, 1, 0x68, 0xaa, 0xaa, 0xaa]);
    }
    unit.extend_from_slice(&[0, 0, 0, 1, if keyframe { 0x65 } else { 0x41 }]);
    // Seven bits to a byte, so that no start code comes about.
    unit.extend((0..4).map(|at| 0x80 | (number >> (7 * at)) as u8));
    unit.resize(unit.len() + bytes, 0xaa);
    unit.into()
}

/// The number in the first packet of a frame's slice; `None` for any other packet.
pub(crate) fn number(payload: &[u8]) -> Option<u32> {
    let bytes = match payload {
        [28 | 60 | 92 | 124, header, rest @ ..] if header & 0x80 != 0 => rest,
        [0x41 | 0x65, rest @ ..] => rest,
        _ => return None,
    };
    let bytes = bytes.first_chunk::<4>()?;
    let bits = bytes.iter().enumerate();
    Some(bits.fold(0, |number, (at, byte)| number | u32::from(byte & 0x7f) << (7 * at)))
}
