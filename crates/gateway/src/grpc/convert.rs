//! Between the contract's messages and our nouns.

use std::time::{Duration, SystemTime};

use spaceport_media::windows::{State, Window, WindowKind};
use spaceport_session::Policy;
use spaceport_types::{Bounds, Codec, Error, Geometry, Issue, Kind, Result, Size};
use spaceport_wire::pb;

use crate::service::Display;

pub(super) fn display(display: Display) -> pb::Display {
    pb::Display {
        id: display.id,
        name: display.name,
        primary: display.primary,
        native_size: Some(size(Size::new(display.bounds.width, display.bounds.height))),
        bounds: Some(rect(display.bounds)),
        scale_factor: 1.0, // X11 has no logical units: its desktop is laid out in pixels
        refresh_rate_hz: display.refresh_hz.round() as u32,
        rotation_degrees: 0,
    }
}

pub(super) fn window(window: Window) -> pb::WindowInfo {
    pb::WindowInfo {
        state: match window.state {
            State::Normal => pb::WindowState::Normal,
            State::Minimized => pb::WindowState::Minimized,
            State::Maximized => pb::WindowState::Maximized,
            State::Fullscreen => pb::WindowState::Fullscreen,
            State::Hidden => pb::WindowState::Hidden,
            _ => pb::WindowState::Unspecified,
        }
        .into(),
        kind: match window.kind {
            WindowKind::Standard => pb::WindowKind::Standard,
            WindowKind::Dialog => pb::WindowKind::Dialog,
            WindowKind::Panel => pb::WindowKind::Panel,
            WindowKind::Menu => pb::WindowKind::Menu,
            WindowKind::Tooltip => pb::WindowKind::Tooltip,
            WindowKind::System => pb::WindowKind::System,
            _ => pb::WindowKind::Unspecified,
        }
        .into(),
        r#ref: Some(pb::WindowRef { id: window.handle, epoch: window.epoch }),
        title: window.title,
        app: Some(pb::AppInfo {
            name: window.app_name,
            app_id: window.app_id,
            pid: window.pid.unwrap_or_default(),
        }),
        bounds: Some(rect(window.bounds)),
        display_id: window.display_id,
        focused: window.focused,
        on_screen: window.on_screen,
        z_order: window.z_order,
    }
}

/// Whether a window is an app's, and not the desktop's own.
pub(super) fn is_of_an_app(window: &Window) -> bool {
    window.kind != WindowKind::System
}

pub(super) fn geometry(geometry: Geometry) -> pb::MediaGeometry {
    pb::MediaGeometry {
        frame_size: Some(size(geometry.frame_size)),
        scale: geometry.scale,
        logical_bounds: Some(rect(geometry.logical_bounds)),
        geometry_epoch: geometry.geometry_epoch,
    }
}

fn size(size: Size) -> pb::PixelSize {
    pb::PixelSize { width: size.width, height: size.height }
}

fn rect(bounds: impl Into<Bounds>) -> pb::Rect {
    let Bounds { x, y, width, height } = bounds.into();
    pb::Rect { x: x.into(), y: y.into(), width: width.into(), height: height.into() }
}

/// The contract's number for a codec; `None` for one it has no number for.
pub(super) fn media_codec(codec: Codec) -> Option<pb::MediaCodec> {
    match codec {
        Codec::H264 => Some(pb::MediaCodec::H264),
        Codec::Bgra => Some(pb::MediaCodec::Bgra),
        Codec::Png => Some(pb::MediaCodec::Png),
        _ => None,
    }
}

/// The codec a client names; `None` for one this version does not know, and for "unspecified".
pub(super) fn codec(number: i32) -> Option<Codec> {
    match pb::MediaCodec::try_from(number) {
        Ok(pb::MediaCodec::H264) => Some(Codec::H264),
        Ok(pb::MediaCodec::Bgra) => Some(Codec::Bgra),
        Ok(pb::MediaCodec::Png) => Some(Codec::Png),
        Ok(pb::MediaCodec::Unspecified) | Err(_) => None,
    }
}

/// The policy a client asks for. One this version does not know is refused: it might be narrower
/// than any that would be granted in its place.
pub(super) fn policy(number: i32) -> Result<Policy> {
    match pb::SessionPolicy::try_from(number) {
        Ok(pb::SessionPolicy::Unspecified | pb::SessionPolicy::ViewOnly) => Ok(Policy::ViewOnly),
        Ok(pb::SessionPolicy::BackgroundOnly) => Ok(Policy::BackgroundOnly),
        Ok(pb::SessionPolicy::AllowActivation) => Ok(Policy::AllowActivation),
        Err(_) => Err(invalid("policy", "one_of", Some("0, 1, 2, 3"), number)),
    }
}

pub(super) fn session_policy(policy: Policy) -> pb::SessionPolicy {
    match policy {
        Policy::ViewOnly => pb::SessionPolicy::ViewOnly,
        Policy::BackgroundOnly => pb::SessionPolicy::BackgroundOnly,
        Policy::AllowActivation => pb::SessionPolicy::AllowActivation,
    }
}

/// A duration a client gives; zero is as good as none.
///
/// By hand, because the conversion of `prost_types` overflows on the lowest numbers.
pub(super) fn duration(
    path: &'static str,
    duration: Option<prost_types::Duration>,
) -> Result<Option<Duration>> {
    let Some(prost_types::Duration { seconds, nanos }) = duration else { return Ok(None) };
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            let duration = Duration::new(seconds, nanos);
            Ok((!duration.is_zero()).then_some(duration))
        }
        _ => Err(invalid(path, "minimum", Some("0"), format!("{seconds} s and {nanos} ns"))),
    }
}

pub(super) fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}

pub(super) fn invalid(
    path: &'static str,
    constraint: &'static str,
    limit: Option<&str>,
    given: impl std::fmt::Display,
) -> Error {
    Error::new(Kind::InvalidArgument, format!("`{path}` cannot be {given}")).issue(Issue {
        path: path.to_owned(),
        constraint: constraint.into(),
        limit: limit.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_and_policies_map_both_ways() {
        for known in [Codec::H264, Codec::Bgra, Codec::Png] {
            assert_eq!(codec(media_codec(known).unwrap().into()), Some(known));
        }
        assert_eq!(media_codec(Codec::Vp8), None);
        assert_eq!((codec(0), codec(9)), (None, None));
        for known in [Policy::ViewOnly, Policy::BackgroundOnly, Policy::AllowActivation] {
            assert_eq!(policy(session_policy(known).into()).unwrap(), known);
        }
        assert_eq!(policy(0).unwrap(), Policy::ViewOnly);
        assert_eq!(policy(4).unwrap_err().kind(), Kind::InvalidArgument);
    }

    #[test]
    fn a_duration_is_positive_or_none() {
        let of = |seconds, nanos| duration("ttl", Some(prost_types::Duration { seconds, nanos }));
        assert_eq!(of(1, 500_000_000).unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(of(0, 0).unwrap(), None);
        assert_eq!(duration("ttl", None).unwrap(), None);
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, i32::MAX), (i64::MIN, i32::MIN)] {
            let error = of(seconds, nanos).unwrap_err();
            assert_eq!(error.report().issues[0].path, "ttl");
        }
        assert!(of(i64::MAX, 999_999_999).is_ok());
    }
}
