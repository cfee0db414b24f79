//! `SystemService`: what this Space is, how it is, and tickets for its viewer page.

use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;
use spaceport_relay::Via;
use spaceport_types::{Error, Kind, Target};
use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::generated::system_service_server::SystemService;
use super::{Api, MAX_MESSAGE, convert, error};
use crate::service::{Capabilities, Component};

/// The contract's version and revision that `proto/` is written to.
const PROTOCOL: (u32, u32) = (1, 13);

/// Bytes of a file in one message, and how many are best.
const CHUNK: (u32, u32) = (4 << 20, 1 << 20);

#[tonic::async_trait]
impl SystemService for Api {
    async fn get_capabilities(
        &self,
        request: Request<pb::GetCapabilitiesRequest>,
    ) -> Result<Response<pb::GetCapabilitiesResponse>, Status> {
        let via = request.extensions().get::<Via>();
        let quic_port = self.service.quic(via).map_or(0, |way| way.port);
        let mut known = self.service.capabilities().await;
        known.quic_port = quic_port;
        Ok(Response::new(capabilities(known, self.service.seal_key())))
    }

    async fn health(
        &self,
        _: Request<pb::HealthRequest>,
    ) -> Result<Response<pb::HealthResponse>, Status> {
        let (components, uptime) = self.service.health().await;
        let components: Vec<_> = components.into_iter().map(component).collect();
        let serving = i32::from(pb::HealthStatus::Serving);
        let faults = components.iter().filter(|component| component.status != serving).count();
        let status = match faults {
            0 => pb::HealthStatus::Serving,
            some if some < components.len() => pb::HealthStatus::Degraded,
            _ => pb::HealthStatus::NotServing,
        };
        Ok(Response::new(pb::HealthResponse {
            status: status.into(),
            components,
            uptime: prost_types::Duration::try_from(uptime).ok(),
        }))
    }

    async fn metrics(
        &self,
        request: Request<pb::MetricsRequest>,
    ) -> Result<Response<pb::MetricsResponse>, Status> {
        let disk = match request.into_inner().disk_path {
            path if path.is_empty() => PathBuf::from("/"),
            path => PathBuf::from(path),
        };
        let service = self.service.clone();
        // The file system may be one that hangs.
        let load = tokio::task::spawn_blocking(move || service.load(&disk)).await;
        let load = load.map_err(|error| {
            error::status(&Error::new(Kind::Internal, "a background task failed").source(error))
        })?;
        #[expect(clippy::disallowed_methods, reason = "the contract wants the time of day")]
        let now = SystemTime::now();
        Ok(Response::new(pb::MetricsResponse {
            sampled_at: Some(convert::timestamp(now)),
            cpu_count: load.cpus,
            cpu_percent: load.cpu_percent,
            load_average_1m: load.load_average,
            memory_total_bytes: load.memory_total,
            memory_used_bytes: load.memory_used,
            disk_total_bytes: load.disk_total,
            disk_used_bytes: load.disk_used,
            managed_process_count: 0,
            media_session_count: self.service.sessions().len() as u32,
            network_rx_bytes: load.network_rx,
            network_tx_bytes: load.network_tx,
            memory_limited: false,
            disk_limited: false,
        }))
    }

    /// Grants watching. What else the request asks for (clipboard, files, microphone) the page
    /// does not have yet; an empty `files_root` in the answer says so.
    async fn create_viewer_ticket(
        &self,
        request: Request<pb::CreateViewerTicketRequest>,
    ) -> Result<Response<pb::CreateViewerTicketResponse>, Status> {
        let wanted = request.into_inner();
        let ticket = convert::duration("ttl", wanted.ttl)
            .and_then(|ttl| self.service.viewer_ticket(ttl, convert::policy(wanted.policy)?, None))
            .map_err(|error| error::status(&error))?;
        Ok(Response::new(pb::CreateViewerTicketResponse {
            ticket: ticket.ticket.expose().clone(),
            expires_at: Some(convert::timestamp(ticket.expires_at)),
            viewer_path: ticket.viewer_path.expose().clone(),
            files_root: String::new(),
        }))
    }
}

fn capabilities(known: Capabilities, seal_key: Bytes) -> pb::GetCapabilitiesResponse {
    let desktop = |target: &Target| matches!(target, Target::Display { .. });
    let display_server = if known.displays.iter().any(|display| desktop(&display.target)) {
        pb::DisplayServer::X11
    } else {
        pb::DisplayServer::None
    };
    let facts = known.facts;
    let features = known.features.into_iter().map(|feature| pb::Feature {
        name: feature.name.to_owned(),
        supported: feature.supported,
        limitation: feature.limitation,
        attributes: Default::default(),
    });
    pb::GetCapabilitiesResponse {
        version: known.version.to_owned(),
        protocol_version: PROTOCOL.0,
        protocol_revision: PROTOCOL.1,
        os: Some(pb::OperatingSystem {
            family: pb::OsFamily::Linux.into(),
            name: facts.os_id,
            version: facts.os_version,
            kernel: facts.kernel,
            pretty_name: facts.os_pretty_name,
        }),
        runtime: if facts.container { pb::Runtime::Container } else { pb::Runtime::Bare }.into(),
        runtime_detail: String::new(),
        arch: match facts.arch {
            "x86_64" => pb::Architecture::X8664,
            "aarch64" => pb::Architecture::Arm64,
            _ => pb::Architecture::Unspecified,
        }
        .into(),
        display_server: display_server.into(),
        displays: known.displays.into_iter().map(convert::display).collect(),
        features: features.collect(),
        hostname: facts.hostname,
        initialized: true, // its token came with its configuration
        boot_time: facts.boot_time.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 }),
        side_channels: Some(pb::SideChannels {
            media_ws_path: "/media".to_owned(),
            media_quic_port: known.quic_port.into(),
            ..pb::SideChannels::default()
        }),
        limits: Some(pb::Limits {
            max_chunk_bytes: CHUNK.0,
            max_message_bytes: MAX_MESSAGE as u32,
            preferred_chunk_bytes: CHUNK.1,
            default_scrollback_bytes: 0,
        }),
        machine_seal_public_key: seal_key,
        bulk: None,
    }
}

fn component(component: Component) -> pb::ComponentHealth {
    let status = match component.fault {
        None => pb::HealthStatus::Serving,
        Some(_) => pb::HealthStatus::NotServing,
    };
    pb::ComponentHealth {
        name: component.name.to_owned(),
        status: status.into(),
        detail: component.fault.unwrap_or_default(),
    }
}
