//! `StreamService`: the media plane's front door.

use spaceport_media::windows::{State, Window};
use spaceport_relay::Via;
use spaceport_transport::quic::ALPN;
use spaceport_types::{Cause, Codec, Error, Kind, SessionId};
use spaceport_wire::{WIRE_VERSION, pb};
use tonic::{Request, Response, Status};

use super::generated::stream_service_server::StreamService;
use super::{Api, convert, error};
use crate::service::{Display, OpenRequest};

#[tonic::async_trait]
impl StreamService for Api {
    async fn list_targets(
        &self,
        request: Request<pb::ListTargetsRequest>,
    ) -> Result<Response<pb::ListTargetsResponse>, Status> {
        let request = request.into_inner();
        let displays = self.service.displays_and_desktop().await;
        let displays = displays.map_err(|error| error::status(&error))?;
        let mut targets: Vec<_> = displays.into_iter().map(display_target).collect();
        if request.include_windows {
            let filter = self.filter(request.window_filter).await;
            match self.windows(&filter).await {
                Ok(windows) => targets.extend(windows.into_iter().map(window_target)),
                // Without an X server there are no windows; the capabilities say why.
                Err(error)
                    if matches!(error.kind(), Kind::Stream | Kind::HostCapabilityMissing) => {}
                Err(error) => return Err(error::status(&error)),
            }
        }
        let codecs = self.service.codecs().into_iter().filter_map(convert::media_codec);
        Ok(Response::new(pb::ListTargetsResponse {
            targets,
            codecs: codecs.map(Into::into).collect(),
            audio_uplink_limitation: "this version streams pictures only".to_owned(),
            ..pb::ListTargetsResponse::default()
        }))
    }

    async fn open_media(
        &self,
        request: Request<pb::OpenMediaRequest>,
    ) -> Result<Response<pb::OpenMediaResponse>, Status> {
        let via = request.extensions().get::<Via>().cloned();
        let answer = self.open(request.into_inner(), via.as_ref()).await;
        let answer = answer.map_err(|error| error::status(&error.operation("open_stream")))?;
        Ok(Response::new(answer))
    }

    async fn set_preferences(
        &self,
        request: Request<pb::SetPreferencesRequest>,
    ) -> Result<Response<pb::SetPreferencesResponse>, Status> {
        let wanted = request.into_inner();
        let id = SessionId::new(wanted.media_session_id);
        let (fps, dimension) = (wanted.max_fps, wanted.max_dimension);
        let settings = self
            .service
            .set_preferences(&id, fps, dimension, wanted.bitrate_kbps)
            .map_err(|error| error::status(&error))?;
        Ok(Response::new(pb::SetPreferencesResponse {
            max_fps: settings.max_fps,
            max_dimension: settings.max_dimension,
            bitrate_kbps: settings.bitrate.kbps(),
            ..pb::SetPreferencesResponse::default()
        }))
    }

    async fn request_keyframe(
        &self,
        request: Request<pb::RequestKeyframeRequest>,
    ) -> Result<Response<pb::RequestKeyframeResponse>, Status> {
        let id = SessionId::new(request.into_inner().media_session_id);
        self.service.request_keyframe(&id).map_err(|error| error::status(&error))?;
        Ok(Response::new(pb::RequestKeyframeResponse {}))
    }

    async fn close_media(
        &self,
        request: Request<pb::CloseMediaRequest>,
    ) -> Result<Response<pb::CloseMediaResponse>, Status> {
        let id = SessionId::new(request.into_inner().media_session_id);
        self.service.close(&id).map_err(|error| error::status(&error))?;
        Ok(Response::new(pb::CloseMediaResponse {}))
    }
}

impl Api {
    fn quic(&self, via: Option<&Via>) -> Option<pb::QuicEndpoint> {
        let way = self.service.quic(via)?;
        Some(pb::QuicEndpoint {
            port: way.port.into(),
            certificate_sha256: way.certificates.into_iter().next()?,
            alpn: ALPN.to_owned(),
        })
    }

    async fn open(
        &self,
        wanted: pb::OpenMediaRequest,
        via: Option<&Via>,
    ) -> spaceport_types::Result<pb::OpenMediaResponse> {
        let opened = self.service.open(open_request(wanted)?).await?;
        Ok(pb::OpenMediaResponse {
            media_session_id: opened.session_id.to_string(),
            ticket: opened.ticket.expose().clone(),
            ticket_expires_at: Some(convert::timestamp(opened.expires_at)),
            ws_path: opened.ws_path.expose().clone(),
            quic: self.quic(via),
            codec: convert::media_codec(opened.codec).unwrap_or_default().into(),
            max_fps: opened.settings.max_fps,
            max_dimension: opened.settings.max_dimension,
            bitrate_kbps: opened.settings.bitrate.kbps(),
            policy: convert::session_policy(opened.policy).into(),
            geometry_control: pb::GeometryControl::ObserveOnly.into(),
            geometry: Some(convert::geometry(opened.geometry)),
            wire_version: WIRE_VERSION,
            audio: None,
        })
    }
}

fn display_target(display: Display) -> pb::StreamTarget {
    pb::StreamTarget {
        available: true,
        target: Some(pb::stream_target::Target::Display(convert::display(display))),
        ..pb::StreamTarget::default()
    }
}

fn window_target(window: Window) -> pb::StreamTarget {
    let limitation = match window.state {
        State::Minimized => "the window is minimized; restore it first",
        State::Hidden => "the window is not shown",
        _ => "",
    };
    pb::StreamTarget {
        available: limitation.is_empty(),
        limitation: limitation.to_owned(),
        target: Some(pb::stream_target::Target::Window(convert::window(window))),
        ..pb::StreamTarget::default()
    }
}

fn open_request(wanted: pb::OpenMediaRequest) -> spaceport_types::Result<OpenRequest> {
    if wanted.disable_video {
        return Err(Error::new(
            Kind::CapabilityMissing,
            "this version has no streams without video",
        )
        .with("feature", "audio.desktop"));
    }
    let (display, window) = match wanted.target.and_then(|target| target.target) {
        None => (None, None),
        Some(pb::media_target::Target::DisplayId(id)) => (Some(id), None),
        Some(pb::media_target::Target::Window(window)) if window.id.is_empty() => {
            return Err(Error::new(Kind::InvalidArgument, "the request names no window")
                .hint("Set `target.window.id` to an id from the list of windows"));
        }
        Some(pb::media_target::Target::Window(window)) => (None, Some((window.id, window.epoch))),
    };
    let codecs: Vec<Codec> = wanted.codecs.iter().copied().filter_map(convert::codec).collect();
    // An empty list means any; a list of none but unknown codecs must not come to mean that.
    if codecs.is_empty() && wanted.codecs.iter().any(|&number| number != 0) {
        return Err(Error::because(
            Cause::CodecUnavailable,
            "none of the wanted codecs is known here",
        )
        .hint("Ask for h264"));
    }
    Ok(OpenRequest {
        display,
        window,
        codecs,
        max_fps: wanted.max_fps,
        max_dimension: wanted.max_dimension,
        bitrate_kbps: wanted.bitrate_kbps,
        ticket_ttl: convert::duration("ticket_ttl", wanted.ticket_ttl)?,
        bidirectional: wanted.geometry_control == i32::from(pb::GeometryControl::Bidirectional),
        policy: convert::policy(wanted.policy)?,
        key: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_request_is_the_primary_display_with_every_default() {
        let request = open_request(pb::OpenMediaRequest::default()).unwrap();
        assert_eq!((request.display, request.window), (None, None));
        assert!(request.codecs.is_empty() && request.ticket_ttl.is_none());
    }

    #[test]
    fn what_the_published_client_sends_is_understood() {
        let request = open_request(pb::OpenMediaRequest {
            target: Some(pb::MediaTarget {
                target: Some(pb::media_target::Target::Window(pb::WindowRef {
                    id: "0x1c00007".into(),
                    epoch: 0,
                })),
            }),
            codecs: vec![2, 0, 9, 1],
            max_fps: 30,
            ticket_ttl: Some(prost_types::Duration { seconds: 600, nanos: 0 }),
            ..pb::OpenMediaRequest::default()
        })
        .unwrap();
        assert_eq!(request.window, Some(("0x1c00007".into(), 0)));
        assert_eq!(request.codecs, [Codec::Bgra, Codec::H264]);
        assert_eq!(request.ticket_ttl.unwrap().as_secs(), 600);
    }

    #[test]
    fn only_unknown_codecs_are_not_any_codec() {
        let open = |codecs: Vec<i32>| {
            open_request(pb::OpenMediaRequest { codecs, ..pb::OpenMediaRequest::default() })
        };
        assert_eq!(open(vec![9]).unwrap_err().cause(), Some(Cause::CodecUnavailable));
        assert!(open(vec![0]).unwrap().codecs.is_empty());
    }
}
