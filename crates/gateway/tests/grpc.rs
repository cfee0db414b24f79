//! The gRPC surface of a running gateway, over real sockets: HTTP/2 with prior knowledge, and gRPC-Web
//! over HTTP/1.1.
//!
//! The client is written out, because what is under test is bytes: which header, which frame,
//! which trailer.

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use spaceport_gateway::{Config, Gateway};
use spaceport_types::Redacted;
use spaceport_wire::pb::{self, ErrorInfo, ErrorReason};
use spaceport_wire::status::Status;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic_reflection::pb::v1 as reflection;

const TOKEN: &str = "a-token-for-tests";

/// A gateway that shows the test pattern.
struct Running {
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    gateway: JoinHandle<()>,
}

impl Running {
    async fn start(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut config = Config::new(folder);
        config.listen = ([127, 0, 0, 1], 0).into();
        config.quic_port = 0;
        config.webrtc_port = 0;
        config.display = Some(":59999".to_owned()); // nobody's, so the pattern is the only display
        config.test_pattern = true;
        config.token = Some(Redacted::new(TOKEN.to_owned()));
        let gateway = Gateway::load(config).await.unwrap();
        let address = gateway.endpoints().http;
        let (shutdown, stopped) = oneshot::channel();
        let gateway = tokio::spawn(async move {
            gateway.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self { address, shutdown, gateway }
    }

    async fn stop(self) {
        self.shutdown.send(()).unwrap();
        self.gateway.await.unwrap();
    }

    async fn request(
        &self,
        form: Form,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Response<Incoming> {
        let mut request = Request::post(format!("http://{}{path}", self.address));
        *request.headers_mut().unwrap() = headers;
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        match form {
            Form::Native => {
                let request = request
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .body(Full::new(body))
                    .unwrap();
                let (mut sender, connection) =
                    http2::handshake(TokioExecutor::new(), stream).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
            Form::Web => {
                // As the published client sends it: no `x-grpc-web`, no length.
                let request = request
                    .header("host", self.address.to_string())
                    .header("content-type", "application/grpc-web")
                    .header("te", "trailers")
                    .header("transfer-encoding", "chunked")
                    .body(Full::new(body))
                    .unwrap();
                let (mut sender, connection) = http1::handshake(stream).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
        }
    }

    /// Calls a method with a message that may be none.
    async fn raw(&self, form: Form, path: &str, headers: HeaderMap, body: Bytes) -> Reply {
        let response = self.request(form, path, headers, body).await;
        assert_eq!(response.status(), 200);
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        let mut body = collected.to_bytes();
        match form {
            Form::Native => {
                assert_eq!(parts.headers["content-type"], "application/grpc");
                let message = (!body.is_empty()).then(|| frame(&mut body));
                assert!(body.is_empty());
                let trailers_only = trailers.is_none();
                let status = trailers.unwrap_or(parts.headers);
                Reply::new(&status, message.map(|(_, message)| message), trailers_only)
            }
            Form::Web => {
                assert_eq!(parts.headers["content-type"], "application/grpc-web+proto");
                assert_eq!(parts.headers.get("grpc-status"), None, "the status is in the body");
                let (mut flag, mut content) = frame(&mut body);
                let mut message = None;
                if flag == 0 {
                    message = Some(content);
                    (flag, content) = frame(&mut body);
                }
                assert_eq!(flag, 0x80, "the last frame holds the trailers");
                assert!(body.is_empty());
                let mut trailers = HeaderMap::new();
                for line in std::str::from_utf8(&content).unwrap().split_terminator("\r\n") {
                    let (name, value) = line.split_once(':').unwrap();
                    let name: http::HeaderName = name.parse().unwrap();
                    trailers.insert(name, value.parse().unwrap());
                }
                let trailers_only = message.is_none();
                Reply::new(&trailers, message, trailers_only)
            }
        }
    }

    async fn call(&self, form: Form, path: &str, message: &impl Message) -> Reply {
        self.raw(form, path, bearer(TOKEN), framed(&message.encode_to_vec())).await
    }

    /// Calls a method that is to succeed.
    async fn ok<T: Message + Default>(&self, form: Form, path: &str, message: &impl Message) -> T {
        let reply = self.call(form, path, message).await;
        assert_eq!(reply.code, 0, "{reply:?}");
        T::decode(reply.message.unwrap()).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Native,
    Web,
}

const FORMS: [Form; 2] = [Form::Native, Form::Web];

#[derive(Debug)]
struct Reply {
    code: i32,
    info: Option<ErrorInfo>,
    message: Option<Bytes>,
    trailers_only: bool,
}

impl Reply {
    fn new(trailers: &HeaderMap, message: Option<Bytes>, trailers_only: bool) -> Self {
        let code = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
        let info = trailers.get("grpc-status-details-bin").map(|details| {
            let either = GeneralPurposeConfig::new()
                .with_decode_padding_mode(DecodePaddingMode::Indifferent);
            let details = GeneralPurpose::new(&alphabet::STANDARD, either).decode(details).unwrap();
            let status = Status::decode(details.as_slice()).unwrap();
            assert_eq!(status.code, code);
            status.info().unwrap()
        });
        Self { code, info, message, trailers_only }
    }

    /// The code, reason and feature of a failure.
    fn failure(&self) -> (i32, ErrorReason, &str) {
        assert!(self.trailers_only && self.message.is_none(), "{self:?}");
        let info = self.info.as_ref().unwrap_or_else(|| panic!("no detail: {self:?}"));
        (self.code, info.reason(), &info.feature)
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.freeze()
}

fn frame(body: &mut Bytes) -> (u8, Bytes) {
    let flag = body.get_u8();
    let length = body.get_u32() as usize;
    (flag, body.split_to(length))
}

fn bearer(token: &str) -> HeaderMap {
    let value = format!("Bearer {token}").parse().unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

const CAPABILITIES: &str = "/cua.env.v1.SystemService/GetCapabilities";

#[tokio::test]
async fn both_forms_answer_with_what_this_space_is() {
    let gateway = Running::start("capabilities").await;
    for form in FORMS {
        let capabilities: pb::GetCapabilitiesResponse =
            gateway.ok(form, CAPABILITIES, &pb::GetCapabilitiesRequest {}).await;
        assert_eq!((capabilities.protocol_version, capabilities.protocol_revision), (1, 13));
        assert_eq!(capabilities.os.unwrap().family(), pb::OsFamily::Linux);
        assert!(capabilities.initialized && !capabilities.hostname.is_empty());
        let desktop = capabilities.features.iter().find(|known| known.name == "desktop_stream");
        assert!(desktop.unwrap().supported, "{desktop:?}");
        for feature in capabilities.features.iter().filter(|feature| !feature.supported) {
            assert!(!feature.limitation.is_empty(), "{feature:?}");
        }
        assert_eq!(capabilities.side_channels.unwrap().media_ws_path, "/media");

        let health: pb::HealthResponse =
            gateway.ok(form, "/cua.env.v1.SystemService/Health", &pb::HealthRequest {}).await;
        assert_eq!(health.status(), pb::HealthStatus::Serving, "{health:?}");
        let request = pb::MetricsRequest::default();
        let metrics: pb::MetricsResponse =
            gateway.ok(form, "/cua.env.v1.SystemService/Metrics", &request).await;
        assert!(metrics.memory_total_bytes > 0 && metrics.disk_total_bytes > 0);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn without_the_token_every_route_says_unauthenticated() {
    let gateway = Running::start("unauthenticated").await;
    let routes = [
        CAPABILITIES,
        "/cua.env.v1.StreamService/OpenMedia",
        "/cua.env.v1.ProcessService/StartProcess",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ];
    for form in FORMS {
        for path in routes {
            for headers in [HeaderMap::new(), bearer("another-token")] {
                let reply = gateway.raw(form, path, headers, framed(&[])).await;
                let expected = (16, ErrorReason::Unauthenticated, "");
                assert_eq!(reply.failure(), expected, "{form:?} {path}");
            }
        }
        let mut headers = bearer("of-an-outer-hop");
        let value = format!("Bearer {TOKEN}").parse().unwrap();
        headers.insert("x-cua-env-authorization", value);
        assert_eq!(gateway.raw(form, CAPABILITIES, headers, framed(&[])).await.code, 0);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_served_names_the_feature() {
    let gateway = Running::start("unserved").await;
    let unserved = [
        ("SystemService/Init", "system"),
        ("SystemService/NoSuchMethod", "system"),
        ("SystemService/AttachRelay", "relay_attach"),
        ("ComputerService/Screenshot", "screenshot"),
        ("WindowsService/LaunchApp", "launch_app"),
        ("AccessibilityService/Snapshot", "a11y"),
        ("ProcessService/StartProcess", "process"),
        ("NoSuchService/Method", "NoSuchService"),
    ];
    for form in FORMS {
        for (method, feature) in unserved {
            let reply = gateway.call(form, &format!("/cua.env.v1.{method}"), &()).await;
            let expected = (12, ErrorReason::FeatureUnsupported, feature);
            assert_eq!(reply.failure(), expected, "{form:?} {method}");
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_media_session_is_opened_changed_and_closed() {
    let gateway = Running::start("media").await;
    for form in FORMS {
        let list = pb::ListTargetsRequest { include_windows: true, ..Default::default() };
        let listed: pb::ListTargetsResponse =
            gateway.ok(form, "/cua.env.v1.StreamService/ListTargets", &list).await;
        let Some(pb::stream_target::Target::Display(display)) = &listed.targets[0].target else {
            panic!("{listed:?}")
        };
        assert!(display.primary && listed.targets[0].available);
        let codecs = [pb::MediaCodec::H264, pb::MediaCodec::Png, pb::MediaCodec::Bgra];
        assert_eq!(listed.codecs, codecs.map(i32::from));
        let displays: pb::ListDisplaysResponse = gateway
            .ok(form, "/cua.env.v1.ComputerService/ListDisplays", &pb::ListDisplaysRequest {})
            .await;
        assert_eq!(displays.displays[0], *display);

        let open = pb::OpenMediaRequest { max_fps: 30, ..Default::default() };
        let opened: pb::OpenMediaResponse =
            gateway.ok(form, "/cua.env.v1.StreamService/OpenMedia", &open).await;
        assert_eq!(opened.ws_path, format!("/media?ticket={}", opened.ticket));
        assert!(opened.ticket.len() >= 22, "128 bits in base64url");
        assert_eq!((opened.wire_version, opened.codec()), (2, pb::MediaCodec::H264));
        assert_eq!(opened.policy(), pb::SessionPolicy::ViewOnly);
        let frame = opened.geometry.unwrap().frame_size.unwrap();
        assert_eq!(frame, display.native_size.unwrap());

        let id = opened.media_session_id;
        let wanted = pb::SetPreferencesRequest {
            media_session_id: id.clone(),
            max_fps: 10,
            ..Default::default()
        };
        let applied: pb::SetPreferencesResponse =
            gateway.ok(form, "/cua.env.v1.StreamService/SetPreferences", &wanted).await;
        assert_eq!((applied.max_fps, applied.bitrate_kbps), (10, opened.bitrate_kbps));

        let keyframe = pb::RequestKeyframeRequest { media_session_id: id.clone() };
        let path = "/cua.env.v1.StreamService/RequestKeyframe";
        let _: pb::RequestKeyframeResponse = gateway.ok(form, path, &keyframe).await;

        let close = pb::CloseMediaRequest { media_session_id: id.clone() };
        let path = "/cua.env.v1.StreamService/CloseMedia";
        let _: pb::CloseMediaResponse = gateway.ok(form, path, &close).await;
        let again = gateway.call(form, path, &close).await;
        assert_eq!(again.failure(), (5, ErrorReason::SessionNotFound, ""));
        assert_eq!(again.info.unwrap().metadata["session"], id);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_that_cannot_be_met_says_why() {
    let gateway = Running::start("refusals").await;
    let open = "/cua.env.v1.StreamService/OpenMedia";
    let target = |target| pb::OpenMediaRequest {
        target: Some(pb::MediaTarget { target: Some(target) }),
        ..Default::default()
    };
    for form in FORMS {
        let unknown = target(pb::media_target::Target::DisplayId(":404".into()));
        let reply = gateway.call(form, open, &unknown).await;
        assert_eq!(reply.failure(), (5, ErrorReason::TargetUnavailable, ""));
        assert_eq!(reply.info.as_ref().unwrap().metadata["kind"], "not_found");
        assert!(reply.info.unwrap().metadata.contains_key("hint"));

        let window = target(pb::media_target::Target::Window(pb::WindowRef::default()));
        assert_eq!(gateway.call(form, open, &window).await.failure().0, 3);
        let window = pb::WindowRef { id: "w1".into(), epoch: 0 };
        let window = target(pb::media_target::Target::Window(window));
        assert_eq!(gateway.call(form, open, &window).await.code, 12, "no X server, no windows");

        let codec = pb::OpenMediaRequest { codecs: vec![4], ..Default::default() };
        let reply = gateway.call(form, open, &codec).await;
        assert_eq!(reply.failure(), (14, ErrorReason::FeatureUnsupported, "desktop_stream"));
        // The client's order counts, and what is not known here is passed over.
        for (codecs, chosen) in [(vec![3, 1], 3), (vec![2], 2), (vec![9, 1, 2], 1), (vec![0], 1)] {
            let codec = pb::OpenMediaRequest { codecs, ..Default::default() };
            let opened: pb::OpenMediaResponse = gateway.ok(form, open, &codec).await;
            assert_eq!(opened.codec, chosen);
        }

        let rate = pb::OpenMediaRequest { bitrate_kbps: 1, ..Default::default() };
        let reply = gateway.call(form, open, &rate).await;
        assert_eq!(reply.failure().0, 3);
        assert!(reply.info.unwrap().metadata.contains_key("issue.bitrate_kbps"));

        // Longer than the clock goes on: shortened, and no reason to fall over.
        let ever = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        let ever = pb::OpenMediaRequest { ticket_ttl: Some(ever), ..Default::default() };
        assert_eq!(gateway.call(form, open, &ever).await.code, 0);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn hostile_messages_are_refused_and_large_ones_are_not() {
    let gateway = Running::start("messages").await;
    for form in FORMS {
        let metrics = "/cua.env.v1.SystemService/Metrics";
        // A field of length 100 with one byte in it.
        let reply = gateway.raw(form, metrics, bearer(TOKEN), framed(&[0x0a, 100, b'/'])).await;
        assert_eq!(reply.failure().0, 3, "{form:?}");

        // The length alone: what it announces is never sent, and must not be waited for.
        let mut announced = vec![0];
        announced.put_u32((64 << 20) + 1);
        let reply = gateway.raw(form, metrics, bearer(TOKEN), announced.into()).await;
        assert_eq!(reply.failure(), (8, ErrorReason::LimitExceeded, ""), "{form:?}");

        // Beyond the framework's default of 4 MiB. No file system has this path, and nobody minds.
        let large = pb::MetricsRequest { disk_path: "x".repeat(5 << 20) };
        assert_eq!(gateway.call(form, metrics, &large).await.code, 0, "{form:?}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_viewer_ticket_stands_in_the_fragment() {
    let gateway = Running::start("viewer-ticket").await;
    let path = "/cua.env.v1.SystemService/CreateViewerTicket";
    let request = pb::CreateViewerTicketRequest::default();
    let ticket: pb::CreateViewerTicketResponse = gateway.ok(Form::Native, path, &request).await;
    assert_eq!(ticket.viewer_path, format!("/viewer/#ticket={}", ticket.ticket));
    assert!(ticket.expires_at.is_some());
    let negative = prost_types::Duration { seconds: -1, nanos: 0 };
    let request = pb::CreateViewerTicketRequest { ttl: Some(negative), ..request };
    assert_eq!(gateway.call(Form::Native, path, &request).await.failure().0, 3);
    gateway.stop().await;
}

#[tokio::test]
async fn reflection_lists_what_is_served() {
    use reflection::server_reflection_request::MessageRequest;
    use reflection::server_reflection_response::MessageResponse;

    let gateway = Running::start("reflection").await;
    let ask = |what| reflection::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(what),
    };
    // The messages are the same in both versions; many clients know the older name only.
    let list = ask(MessageRequest::ListServices(String::new()));
    let path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    let alpha: reflection::ServerReflectionResponse = gateway.ok(Form::Native, path, &list).await;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let answer: reflection::ServerReflectionResponse = gateway.ok(Form::Native, path, &list).await;
    assert_eq!(alpha, answer);
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "cua.env.v1.ComputerService",
            "cua.env.v1.FilesystemService",
            "cua.env.v1.ProcessService",
            "cua.env.v1.StreamService",
            "cua.env.v1.SystemService",
            "cua.env.v1.TeleportService",
            "cua.env.v1.WindowsService",
            "grpc.reflection.v1.ServerReflection",
        ]
    );
    let symbol = MessageRequest::FileContainingSymbol("cua.env.v1.StreamService".into());
    let answer: reflection::ServerReflectionResponse =
        gateway.ok(Form::Native, path, &ask(symbol)).await;
    assert!(matches!(answer.message_response, Some(MessageResponse::FileDescriptorResponse(_))));
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_served_is_a_problem_that_says_so() {
    let gateway = Running::start("not-grpc").await;
    let stream = TokioIo::new(TcpStream::connect(gateway.address).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for (method, path, status) in [
        ("GET", "/no.such.Service/Method", 404),
        ("POST", "/no.such.Service/Method", 404),
        ("POST", "/health", 405),
        ("GET", "/viewer/open", 405),
        ("POST", "/media", 405),
        ("POST", "/cua.env.v1.SystemService/GetCapabilities", 400),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", gateway.address.to_string())
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(Full::new(Bytes::new()))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{method} {path}");
        assert!(status != 405 || response.headers().contains_key("allow"), "{method} {path}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        drop(response.into_body().collect().await.unwrap());
    }
    drop(sender);
    gateway.stop().await;
}
