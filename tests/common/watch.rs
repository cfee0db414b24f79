use std::net::SocketAddr;
use std::time::Duration;

use spaceport_transport::{Received, websocket};
use spaceport_types::{Redacted, Result};
use spaceport_wire::pb::{
    CloseMediaRequest, CloseMediaResponse, MediaTarget, OpenMediaRequest, OpenMediaResponse,
    media_target,
};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{TOKEN, call_at};

/// A machine's test pattern, watched at some relay by WebSocket.
#[derive(Debug)]
pub struct Watch {
    socket: websocket::client::Connection,
    patience: Duration,
    last: u64,
}

impl Watch {
    /// Opens a session of `machine` through the relay at `relay`.
    pub fn open(relay: SocketAddr, machine: &str) -> OpenMediaResponse {
        let display_id = "test-pattern".to_owned();
        let target = MediaTarget { target: Some(media_target::Target::DisplayId(display_id)) };
        let request = OpenMediaRequest { target: Some(target), ..OpenMediaRequest::default() };
        let prefix = format!("/m/{machine}");
        call_at(relay, &prefix, TOKEN, "StreamService/OpenMedia", &request).unwrap()
    }

    /// Closes it.
    pub fn close(relay: SocketAddr, machine: &str, session: &str) {
        let request = CloseMediaRequest { media_session_id: session.to_owned() };
        let prefix = format!("/m/{machine}");
        let method = "StreamService/CloseMedia";
        let _: CloseMediaResponse = call_at(relay, &prefix, TOKEN, method, &request).unwrap();
    }

    /// Attaches to a session at the relay at `relay`, which need not be the one where it was opened.
    ///
    /// # Errors
    ///
    /// What the viewer is refused with.
    pub fn attach(
        runtime: &Runtime,
        relay: SocketAddr,
        machine: &str,
        opened: &OpenMediaResponse,
    ) -> Result<Self> {
        let url = Redacted::new(format!("ws://{relay}/m/{machine}{}", opened.ws_path));
        let socket = runtime.block_on(websocket::client::connect(&url))?;
        Ok(Self { socket, patience: Duration::from_secs(20), last: 0 })
    }

    /// The next thing that comes.
    pub fn next(&mut self, runtime: &Runtime) -> Received {
        let next = async { timeout(self.patience, self.socket.recv()).await };
        runtime.block_on(next).expect("nothing came")
    }

    /// Waits for so many frames, of which each is later than the one before; whether the first is a keyframe.
    pub fn frames(&mut self, runtime: &Runtime, frames: usize) -> bool {
        let (mut seen, mut first) = (0, None);
        while seen < frames {
            match self.next(runtime) {
                Received::Packet(header, payload) => {
                    assert!(header.sequence > self.last && !payload.is_empty());
                    self.last = header.sequence;
                    first = first.or(Some(header.keyframe));
                    seen += 1;
                }
                Received::Control(_) => {}
                Received::Closed(error) => panic!("closed instead: {error}"),
            }
        }
        first.unwrap_or_default()
    }

    /// Waits for the next keyframe: the picture after an interruption begins with one. What was queued before
    /// may still come first.
    pub fn keyframe(&mut self, runtime: &Runtime) {
        while !self.frames(runtime, 1) {}
    }

    /// Waits until it is over, and says why.
    pub fn ended(&mut self, runtime: &Runtime) -> spaceport_types::Error {
        loop {
            if let Received::Closed(error) = self.next(runtime) {
                return error;
            }
        }
    }
}
