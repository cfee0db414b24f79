use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use spaceport_wire::pb::GetCapabilitiesResponse;
use tokio::net::TcpStream;

/// A server in front of another one that knows less than it: what it hides is not among the capabilities,
/// and is not there. Ends with the test's process.
#[derive(Debug)]
pub struct Older {
    address: SocketAddr,
}

/// What is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// A key, and everything that is sealed to it: a server of somebody else's.
    Key,
    /// Files over a line.
    Line,
    /// Files over a line to any path.
    Anywhere,
}

#[derive(Clone, Copy, Debug)]
struct Hidden {
    behind: SocketAddr,
    lacks: Lacks,
}

impl Older {
    /// Puts one in front of `server`.
    pub fn before(server: SocketAddr, lacks: Lacks) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let hidden = Hidden { behind: server, lacks };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let router = Router::new().fallback(forward).with_state(hidden);
                axum::serve(listener, router).await.unwrap();
            });
        });
        Self { address }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn forward(State(hidden): State<Hidden>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path.contains("/files/") && hidden.lacks != Lacks::Anywhere {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let mut server = connect(hidden.behind).await;
    let (parts, body) = server.send_request(request).await.unwrap().into_parts();
    if !path.ends_with("/GetCapabilities") {
        return Response::from_parts(parts, Body::new(body));
    }
    let answer = body.collect().await.unwrap();
    let trailers = answer.trailers().cloned().map(Frame::trailers);
    let known = without(&answer.to_bytes(), hidden.lacks);
    let frames = [Some(Frame::data(known)), trailers].into_iter().flatten();
    let frames = futures_util::stream::iter(frames.map(Ok::<_, Infallible>));
    Response::from_parts(parts, Body::new(StreamBody::new(frames)))
}

async fn connect(server: SocketAddr) -> SendRequest<Body> {
    let socket = TcpStream::connect(server).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The answer, as one gRPC message, without what is lacking.
fn without(answer: &[u8], lacks: Lacks) -> Bytes {
    let Some(message) = answer.get(5..) else { return Bytes::copy_from_slice(answer) };
    let mut known = GetCapabilitiesResponse::decode(message).unwrap();
    let hidden: &[&str] = match lacks {
        Lacks::Anywhere => &["files_anywhere"],
        Lacks::Key | Lacks::Line => &["files_stream", "files_anywhere"],
    };
    let before = known.features.len();
    known.features.retain(|feature| !hidden.contains(&&*feature.name));
    assert_eq!(known.features.len() + hidden.len(), before, "they were there to hide");
    if lacks == Lacks::Key {
        known.machine_seal_public_key.clear();
    }
    let mut answer = BytesMut::from(&[0][..]);
    let length = u32::try_from(known.encoded_len()).unwrap();
    answer.extend(length.to_be_bytes());
    answer.extend(known.encode_to_vec());
    answer.freeze()
}
