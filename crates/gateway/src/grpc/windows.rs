//! `WindowsService`: the windows of this Space, and what can be done with them.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use spaceport_media::windows::{Change, Placement, Watch, Window};
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::pb;
use tokio::time::{MissedTickBehavior, interval};
use tonic::{Request, Response, Status};

use super::generated::windows_service_server::WindowsService;
use super::{Api, convert, error};
use crate::service::{Role, WindowAction};

/// How often a watcher hears from us when nothing happens and it does not say.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The shortest such interval that is granted.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);

type Events = Pin<Box<dyn Stream<Item = Result<pb::WatchWindowsResponse, Status>> + Send>>;

#[tonic::async_trait]
impl WindowsService for Api {
    async fn list_windows(
        &self,
        request: Request<pb::ListWindowsRequest>,
    ) -> Result<Response<pb::ListWindowsResponse>, Status> {
        let filter = self.filter(request.into_inner().filter).await;
        let windows = self.windows(&filter).await.map_err(|error| error::status(&error))?;
        let windows = windows.into_iter().map(convert::window).collect();
        Ok(Response::new(pb::ListWindowsResponse { windows }))
    }

    async fn watch_windows(
        &self,
        request: Request<pb::WatchWindowsRequest>,
    ) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        let keepalive = convert::duration("keepalive_interval", request.keepalive_interval)
            .map_err(|error| error::status(&error))?
            .unwrap_or(KEEPALIVE)
            .max(KEEPALIVE_MIN);
        let filter = self.filter(request.filter).await;
        let watch = self.service.watch_windows().map_err(|error| error::status(&error))?;
        Ok(Response::new(events(watch, filter, keepalive)))
    }

    async fn get_window(
        &self,
        request: Request<pb::GetWindowRequest>,
    ) -> Result<Response<pb::GetWindowResponse>, Status> {
        let (handle, epoch) = reference(request.into_inner().window)?;
        let window = self.service.window(handle, epoch).await;
        let window = Some(convert::window(window.map_err(|error| error::status(&error))?));
        Ok(Response::new(pb::GetWindowResponse { window }))
    }

    async fn activate_window(
        &self,
        request: Request<pb::ActivateWindowRequest>,
    ) -> Result<Response<pb::ActivateWindowResponse>, Status> {
        let window = self.change(request.into_inner().window, WindowAction::Activate).await?;
        Ok(Response::new(pb::ActivateWindowResponse { window }))
    }

    async fn set_window_bounds(
        &self,
        request: Request<pb::SetWindowBoundsRequest>,
    ) -> Result<Response<pb::SetWindowBoundsResponse>, Status> {
        let request = request.into_inner();
        let place = placement(&request).map_err(|error| error::status(&error))?;
        let window = self.change(request.window, WindowAction::Place(place)).await?;
        Ok(Response::new(pb::SetWindowBoundsResponse { window }))
    }

    async fn minimize_window(
        &self,
        request: Request<pb::MinimizeWindowRequest>,
    ) -> Result<Response<pb::MinimizeWindowResponse>, Status> {
        let window = self.change(request.into_inner().window, WindowAction::Minimize).await?;
        Ok(Response::new(pb::MinimizeWindowResponse { window }))
    }

    async fn maximize_window(
        &self,
        request: Request<pb::MaximizeWindowRequest>,
    ) -> Result<Response<pb::MaximizeWindowResponse>, Status> {
        let window = self.change(request.into_inner().window, WindowAction::Maximize).await?;
        Ok(Response::new(pb::MaximizeWindowResponse { window }))
    }

    async fn restore_window(
        &self,
        request: Request<pb::RestoreWindowRequest>,
    ) -> Result<Response<pb::RestoreWindowResponse>, Status> {
        let window = self.change(request.into_inner().window, WindowAction::Restore).await?;
        Ok(Response::new(pb::RestoreWindowResponse { window }))
    }

    async fn close_window(
        &self,
        request: Request<pb::CloseWindowRequest>,
    ) -> Result<Response<pb::CloseWindowResponse>, Status> {
        let request = request.into_inner();
        let action = WindowAction::Close { force: request.force };
        let window = self.change(request.window, action).await?;
        Ok(Response::new(pb::CloseWindowResponse { closed: window.is_none() }))
    }
}

impl Api {
    /// What a filter means. Windows are on a display, by the id that the list of displays has.
    pub(super) async fn filter(&self, wanted: Option<pb::WindowFilter>) -> Filter {
        let mut wanted = wanted.unwrap_or_default();
        if !wanted.display_id.is_empty() {
            match self.service.find_display(Some(wanted.display_id.clone())).await {
                // All windows are on the desktop.
                Ok(display) if display.role == Role::Desktop => wanted.display_id.clear(),
                Ok(display) => wanted.display_id = display.id,
                // No window is on a display that there is not.
                Err(_) => {}
            }
        }
        Filter(wanted)
    }

    /// The windows that pass a filter, front to back.
    pub(super) async fn windows(&self, filter: &Filter) -> Result<Vec<Window>> {
        let mut windows = self.service.windows(filter.0.include_system).await?;
        windows.retain(|window| filter.passes(window));
        Ok(windows)
    }

    async fn change(
        &self,
        window: Option<pb::WindowRef>,
        action: WindowAction,
    ) -> Result<Option<pb::WindowInfo>, Status> {
        let (handle, epoch) = reference(window)?;
        let window = self.service.change_window(handle, epoch, action).await;
        Ok(window.map_err(|error| error::status(&error))?.map(convert::window))
    }
}

fn reference(window: Option<pb::WindowRef>) -> Result<(String, u64), Status> {
    window
        .filter(|window| !window.id.is_empty())
        .map(|window| (window.id, window.epoch))
        .ok_or_else(|| {
            let error = Error::new(Kind::InvalidArgument, "the request names no window")
                .hint("Set `window.id` to an id from the list of windows");
            error::status(&error)
        })
}

/// A place in whole pixels; fractions come from clients that scale and are rounded.
fn placement(request: &pb::SetWindowBoundsRequest) -> Result<Placement> {
    let whole = |path: &'static str, value: f64| {
        let rounded = value.round();
        if rounded.is_finite() && rounded.abs() <= f64::from(i32::MAX) {
            Ok(rounded as i32)
        } else {
            Err(convert::invalid(path, "range", Some("32-bit whole numbers"), value))
        }
    };
    let side = |path: &'static str, value: Option<f64>| {
        value
            .map(|value| {
                let side = whole(path, value)?;
                u32::try_from(side).map_err(|_| convert::invalid(path, "minimum", Some("1"), side))
            })
            .transpose()
    };
    let position = request.position.as_ref();
    Ok(Placement {
        x: position.map(|position| whole("position.x", position.x)).transpose()?,
        y: position.map(|position| whole("position.y", position.y)).transpose()?,
        width: side("width", request.width)?,
        height: side("height", request.height)?,
    })
}

/// Which windows a client wants to hear of.
pub(super) struct Filter(pb::WindowFilter);

impl Filter {
    fn passes(&self, window: &Window) -> bool {
        let wanted = &self.0;
        let contains = |text: &str, part: &str| {
            part.is_empty() || text.to_lowercase().contains(&part.to_lowercase())
        };
        contains(&window.title, &wanted.title_contains)
            && contains(&window.app_name, &wanted.app_name_contains)
            && (wanted.app_id.is_empty() || window.app_id == wanted.app_id)
            && (wanted.pid == 0 || window.pid == Some(wanted.pid))
            && (wanted.display_id.is_empty() || window.display_id == wanted.display_id)
            && (window.on_screen || !wanted.on_screen_only)
            && (wanted.include_system || convert::is_of_an_app(window))
    }
}

/// A watcher's stream: a snapshot, then what changes, and a sign of life when nothing does.
fn events(watch: Watch, filter: Filter, keepalive: Duration) -> Events {
    let mut ticks = interval(keepalive);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let watcher = Watcher { watch, filter, shown: BTreeSet::new(), ticks };
    let events = stream::unfold(watcher, |mut watcher| async {
        let event = watcher.next().await;
        Some((Ok(pb::WatchWindowsResponse { event: Some(event) }), watcher))
    });
    events.boxed()
}

struct Watcher {
    watch: Watch,
    filter: Filter,
    /// What this client knows of. A window may come to pass the filter, or cease to.
    shown: BTreeSet<(String, u64)>,
    ticks: tokio::time::Interval,
}

impl Watcher {
    async fn next(&mut self) -> pb::watch_windows_response::Event {
        loop {
            tokio::select! {
                change = self.watch.next() => {
                    if let Some(event) = self.translate(change) {
                        self.ticks.reset();
                        return event;
                    }
                }
                _ = self.ticks.tick() => {
                    return pb::watch_windows_response::Event::Keepalive(pb::KeepAlive {});
                }
            }
        }
    }

    fn translate(&mut self, change: Change) -> Option<pb::watch_windows_response::Event> {
        use pb::watch_windows_response::Event;
        match change {
            Change::Snapshot(mut windows) => {
                windows.retain(|window| self.filter.passes(window));
                self.shown = windows.iter().map(key).collect();
                let windows = windows.into_iter().map(convert::window).collect();
                Some(Event::Snapshot(pb::WindowSnapshot { windows }))
            }
            Change::Created(window) | Change::Updated(window) => {
                let key = key(&window);
                match (self.filter.passes(&window), self.shown.contains(&key)) {
                    (true, true) => Some(Event::Updated(convert::window(window))),
                    (true, false) => {
                        self.shown.insert(key);
                        Some(Event::Created(convert::window(window)))
                    }
                    (false, true) => Some(self.closed(key)),
                    (false, false) => None,
                }
            }
            Change::Closed { handle, epoch } => {
                let key = (handle, epoch);
                self.shown.contains(&key).then(|| self.closed(key))
            }
            _ => None,
        }
    }

    fn closed(&mut self, key: (String, u64)) -> pb::watch_windows_response::Event {
        self.shown.remove(&key);
        let (id, epoch) = key;
        let window = Some(pb::WindowRef { id, epoch });
        pb::watch_windows_response::Event::Closed(pb::WindowClosed { r#ref: window })
    }
}

fn key(window: &Window) -> (String, u64) {
    (window.handle.clone(), window.epoch)
}
