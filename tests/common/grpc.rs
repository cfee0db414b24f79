use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message;
use spaceport_wire::pb::ErrorInfo;
use spaceport_wire::status::Status;

use super::Request;

/// A call that the server refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The gRPC status code.
    pub code: i32,
    /// The status message.
    pub message: String,
    /// The typed detail, where there is one.
    pub info: Option<ErrorInfo>,
}

pub(super) fn call<A: Message + Default>(
    to: SocketAddr,
    token: &str,
    method: &str,
    request: &impl Message,
) -> Result<A, Refused> {
    call_at(to, "", token, method, request)
}

/// One unary call as gRPC-Web over HTTP/1.1, which is gRPC without HTTP/2: the messages are the same. `prefix`
/// comes before the path.
pub fn call_at<A: Message + Default>(
    to: SocketAddr,
    prefix: &str,
    token: &str,
    method: &str,
    request: &impl Message,
) -> Result<A, Refused> {
    let message = request.encode_to_vec();
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    let answer = Request {
        method: "POST",
        path: &format!("{prefix}/cua.env.v1.{method}"),
        headers: &[
            ("content-type", "application/grpc-web+proto"),
            ("authorization", &format!("Bearer {token}")),
        ],
        body: &body,
    }
    .send(to)
    .unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());

    // Either the status is in the headers, or the body ends with a frame of trailers.
    let mut trailers = answer.headers.clone();
    let mut result = None;
    let mut rest = &answer.body[..];
    while let [flags, a, b, c, d, tail @ ..] = rest {
        let (frame, next) = tail.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        rest = next;
        if flags & TRAILERS == 0 {
            result = Some(A::decode(frame).unwrap());
        } else {
            let text = String::from_utf8_lossy(frame);
            for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
                trailers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
        }
    }
    let code = trailers.get("grpc-status").map_or(0, |status| status.parse().unwrap());
    if code != 0 {
        let message = trailers.get("grpc-message").cloned().unwrap_or_default();
        let details = trailers.get("grpc-status-details-bin").map(|details| {
            let details = STANDARD_NO_PAD.decode(details.trim_end_matches('=')).unwrap();
            Status::decode(&details[..]).unwrap()
        });
        let info = details.and_then(|status| status.info());
        return Err(Refused { code, message, info });
    }
    Ok(result.expect("a call that succeeds has an answer"))
}

/// The flag of a frame that holds trailers.
const TRAILERS: u8 = 0x80;
