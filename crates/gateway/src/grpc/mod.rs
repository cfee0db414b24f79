//! The gRPC surface: `cua.env.v1` over HTTP/2, and as gRPC-Web (binary) over either HTTP version.
//!
//! The services only translate to and from [`Service`]. What they all share is here: the Space
//! token, one size limit, reflection, and that every failure leaves with the typed detail of
//! [`error`], whether a service, the framework or nobody answered.

mod computer;
mod convert;
mod error;
mod filesystem;
mod process;
mod receive;
mod sessions;
mod stream;
mod system;
mod teleport;
mod windows;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::post;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use spaceport_types::{Error, Kind};
use spaceport_wire::pb;
use tonic::{Code, Status};
use tonic_web::GrpcWebLayer;

pub(crate) use error::{error_response, is_grpc, status};

use crate::service::Service;
use crate::{auth, http as surface};
use generated::computer_service_server::{ComputerServiceServer, SERVICE_NAME as COMPUTER};
use generated::filesystem_service_server::{FilesystemServiceServer, SERVICE_NAME as FILESYSTEM};
use generated::process_service_server::{ProcessServiceServer, SERVICE_NAME as PROCESS};
use generated::stream_service_server::{SERVICE_NAME as STREAM, StreamServiceServer};
use generated::system_service_server::{SERVICE_NAME as SYSTEM, SystemServiceServer};
use generated::teleport_service_server::{SERVICE_NAME as TELEPORT, TeleportServiceServer};
use generated::windows_service_server::{SERVICE_NAME as WINDOWS, WindowsServiceServer};

/// The largest message either way. The deployed clients allow as much, and a transfer manifest of
/// 200,000 entries is one message.
const MAX_MESSAGE: usize = 64 << 20;

/// Every gRPC route, behind the Space token.
pub(crate) fn routes(service: Service) -> Router {
    let auth = service.auth().clone();
    let api = Api { service };
    macro_rules! server {
        ($server:ident) => {
            $server::new(api.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        };
    }
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .with_service_name(SYSTEM)
            .with_service_name(STREAM)
            .with_service_name(COMPUTER)
            .with_service_name(WINDOWS)
            .with_service_name(TELEPORT)
            .with_service_name(FILESYSTEM)
            .with_service_name(PROCESS)
            .with_service_name("grpc.reflection.v1.ServerReflection")
    };
    const VALID: &str = "the descriptor set comes from the compiler that made the types";
    let reflection = described().build_v1().expect(VALID);
    // What Python's reflection client and older tools ask for, and they ask for nothing else.
    let reflection_alpha = described().build_v1alpha().expect(VALID);

    Router::new()
        .route_service("/cua.env.v1.SystemService/{method}", server!(SystemServiceServer))
        .route_service("/cua.env.v1.StreamService/{method}", server!(StreamServiceServer))
        .route_service("/cua.env.v1.ComputerService/{method}", server!(ComputerServiceServer))
        .route_service("/cua.env.v1.WindowsService/{method}", server!(WindowsServiceServer))
        .route_service("/cua.env.v1.TeleportService/{method}", server!(TeleportServiceServer))
        .route_service("/cua.env.v1.FilesystemService/{method}", server!(FilesystemServiceServer))
        .route_service("/cua.env.v1.ProcessService/{method}", server!(ProcessServiceServer))
        .route_service("/grpc.reflection.v1.ServerReflection/{method}", reflection)
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", reflection_alpha)
        .layer(GrpcWebLayer::new())
        .layer(middleware::from_fn_with_state(auth.clone(), auth::require_token))
        .layer(middleware::from_fn(explain))
        .route("/{service}/{method}", post(unserved).fallback(surface::not_found).with_state(auth))
}

/// Implements the services. Each is in the module of its name.
#[derive(Clone, Debug)]
struct Api {
    service: Service,
}

/// Gives the framework's own refusals (an unknown method, a message that is none) the detail that
/// a service's errors have, and a gRPC-Web client's errors the form that it expects.
async fn explain(request: Request, next: Next) -> Response {
    let form = error::Form::of(request.headers());
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    // The framework's answer to what is no gRPC at all has no words.
    if response.status() == StatusCode::BAD_REQUEST
        && !response.headers().contains_key(CONTENT_TYPE)
    {
        return surface::problem(
            &Error::new(Kind::InvalidArgument, format!("`{path}` is a gRPC method"))
                .hint("Call it as gRPC over HTTP/2, or as gRPC-Web"),
        );
    }
    let Some(status) = Status::from_header_map(response.headers()) else { return response };
    if !status.details().is_empty() {
        return form.respond(status, response);
    }
    // The gRPC compression rules have an answer of their own to an encoding nobody knows, and
    // name it in this header.
    let negotiating = response.headers().contains_key("grpc-accept-encoding");
    let explained = match status.code() {
        Code::Unimplemented if !negotiating => error::status(&unsupported(&path)),
        Code::Internal => error::status(&Error::new(
            Kind::InvalidArgument,
            "the request is not a message of this method",
        )),
        Code::OutOfRange => error::status(
            &Error::new(Kind::LimitExceeded, "the message is too large").with("limit", MAX_MESSAGE),
        ),
        _ => status,
    };
    form.respond(explained, response)
}

/// A call to a service that is not here.
async fn unserved(State(auth): State<std::sync::Arc<auth::Auth>>, request: Request) -> Response {
    if !is_grpc(request.headers()) {
        return surface::not_found(request).await;
    }
    let error = match auth.check(request.headers()) {
        Ok(()) => unsupported(request.uri().path()),
        Err(error) => error,
    };
    error_response(request.headers(), &error)
}

/// Says that nobody serves `path`, and which feature would.
fn unsupported(path: &str) -> Error {
    let method = path.trim_start_matches('/');
    let (service, name) = method.split_once('/').unwrap_or((method, ""));
    let feature = match (service.strip_prefix("cua.env.v1.").unwrap_or(service), name) {
        ("SystemService", "AttachRelay" | "DetachRelay") => "relay_attach",
        ("SystemService", _) => "system",
        ("ComputerService", "Screenshot") => "screenshot",
        ("ComputerService", "GetClipboard" | "SetClipboard") => "clipboard.text",
        ("ComputerService", _) => "input",
        ("WindowsService", "LaunchApp" | "Open") => "launch_app",
        ("WindowsService", _) => "windows",
        ("TeleportService", _) => "teleport",
        ("FilesystemService", "WatchDir" | "CreateWatcher") => "fs_watch",
        ("FilesystemService", _) => "filesystem",
        ("ProcessService", _) => "process",
        ("PresenceService", _) => "presence",
        ("AccessibilityService", _) => "a11y",
        ("DriverService", _) => "driver",
        ("TunnelService", "StartHotspot" | "StopHotspot" | "GetHotspotStatus") => "hotspot",
        ("TunnelService", _) => "tunnel.forward",
        ("VolumeService", _) => "volume.mount",
        ("HostSpacesService", _) => "host_spaces",
        (other, _) => other,
    };
    Error::new(Kind::CapabilityMissing, format!("this Space does not serve `{method}`"))
        .with("feature", feature)
        .with("method", method)
        .hint("`GetCapabilities` lists what it serves")
}

/// Server traits of the services in `proto/`.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
mod generated {
    tonic::include_proto!("cua.env.v1");
}
