//! Relays behind relays: a machine of the inner one is one of the outer one, too, and what holds for a machine
//! that has joined the outer one itself holds for it.

use std::time::Duration;

use serde_json::json;
use spaceport_relay::audit::Event;
use spaceport_state::Ledger;
use spaceport_tests::{Folder, Gateway, Relay, Script, Start, TOKEN, Watch, cua, wait_until};
use spaceport_transport::Received;
use spaceport_types::Cause;
use spaceport_wire::control::{LifecycleEvent, ServerMessage};
use tokio::runtime::Runtime;

const MACHINE: &str = "build-box-7";

/// How long a test waits for one thing, on a machine with more to do.
const SOON: Duration = Duration::from_secs(20);

fn machine(relay: &Relay, id: &str) -> Gateway {
    let joining = relay.joining(id);
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() })
}

fn below(outer: &Relay) -> Relay {
    let above = outer.above();
    Relay::start(&above.iter().map(String::as_str).collect::<Vec<_>>())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A machine at the inner relay, which has joined the outer one.
struct Chain {
    outer: Relay,
    inner: Relay,
    gateway: Option<Gateway>,
    runtime: Runtime,
}

impl Chain {
    fn new() -> Self {
        let outer = Relay::start(&[]);
        let inner = below(&outer);
        let gateway = machine(&inner, MACHINE);
        outer.wait(MACHINE, true, SOON);
        Self { outer, inner, gateway: Some(gateway), runtime: runtime() }
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }
}

#[test]
fn the_published_client_works_through_two_relays() {
    let chain = Chain::new();
    let home = Folder::new("cua");
    let url = chain.outer.machine_url(MACHINE);
    let mut client = Script::spawn(cua("cua_client.py", &url, TOKEN, home.path()));
    let added = client.hear();
    assert_eq!(added["step"], "added", "{added}");
    assert_eq!(client.hear()["displays"][0]["id"], "test-pattern");
    drop(client.hear()); // windows, or why there are none
    let opened = client.hear();
    assert_eq!(opened["codec"], json!("h264"), "{opened}");
    let watched = client.hear();
    assert!(watched["frames"].as_array().unwrap().len() >= 10, "{watched}");
    assert_eq!(watched["frames"][0]["keyframe"], true);
    assert_eq!(client.hear()["keyframe"], true);
    assert_eq!(client.hear()["close_code"], 4404);
}

#[test]
fn a_picture_crosses_each_line_once_however_many_watch() {
    let chain = Chain::new();
    let (outer, inner) = (chain.outer.http(), chain.inner.http());
    let opened = Watch::open(outer, MACHINE);
    let quic = opened.quic.as_ref().expect("a way in by QUIC is named");
    assert_eq!(quic.port, u32::from(chain.outer.quic().port()), "where the client came in");
    let attach = |at| Watch::attach(&chain.runtime, at, MACHINE, &opened).unwrap();
    let mut viewers: Vec<_> = (0..6).flat_map(|_| [attach(outer), attach(inner)]).collect();
    for viewer in &mut viewers {
        assert!(viewer.frames(&chain.runtime, 5), "a keyframe first");
    }
    assert_eq!(chain.gateway().metric("spaceport_viewers"), 1, "the inner relay alone");
    // One stream that holds the session and one with its pictures.
    for relay in [&chain.outer, &chain.inner] {
        assert_eq!(relay.status(MACHINE)["requests"], 2, "{}", relay.status(MACHINE));
    }
    Watch::close(outer, MACHINE, &opened.media_session_id);
    for viewer in &mut viewers {
        assert_eq!(viewer.ended(&chain.runtime).cause(), Some(Cause::SessionClosed));
    }
    let refused = Watch::attach(&chain.runtime, outer, MACHINE, &opened).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::SessionClosed), "its ticket opens nothing any more");
}

#[test]
fn what_is_said_of_a_machine_is_true_at_every_relay() {
    let mut chain = Chain::new();
    let (outer, runtime) = (chain.outer.http(), &chain.runtime);
    let opened = Watch::open(outer, MACHINE);
    let mut viewer = Watch::attach(runtime, outer, MACHINE, &opened).unwrap();
    viewer.frames(runtime, 3);
    assert_eq!(chain.inner.status(MACHINE)["uplink"]["state"], "online");
    assert_eq!(chain.inner.metric("spaceport_relay_machines_online_above"), 1);
    // The relay between goes away and comes back: the picture goes on.
    chain.inner.kill();
    chain.outer.wait(MACHINE, false, SOON);
    chain.inner.start_again();
    chain.outer.wait(MACHINE, true, SOON);
    loop {
        match viewer.next(runtime) {
            // Who did not look meanwhile may be told of the end of it alone.
            Received::Control(ServerMessage::Lifecycle(it))
                if matches!(
                    it.event,
                    LifecycleEvent::Suspended { .. } | LifecycleEvent::Resumed
                ) =>
            {
                break;
            }
            Received::Closed(error) => panic!("{error}"),
            _ => {}
        }
    }
    viewer.keyframe(runtime);
    // The machine dies, of which nobody tells.
    chain.gateway = None;
    chain.outer.wait(MACHINE, false, SOON);
    chain.inner.wait(MACHINE, false, SOON);
}

#[test]
fn a_machine_that_is_removed_at_the_outer_relay_stays_removed() {
    let chain = Chain::new();
    let path = format!("/v1/machines/{MACHINE}");
    assert_eq!(chain.outer.ask("DELETE", &path).status, 204);
    wait_until("the inner relay knows", SOON, || {
        chain.inner.status(MACHINE)["uplink"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("removed"))
    });
    assert_eq!(chain.outer.ask("GET", &path).status, 404);
    assert_eq!(chain.inner.status(MACHINE)["online"], true, "that is another matter");
    // And what is removed at the inner one is gone from the outer one.
    let other = machine(&chain.inner, "other-box-9");
    chain.outer.wait("other-box-9", true, SOON);
    assert_eq!(chain.inner.ask("DELETE", "/v1/machines/other-box-9").status, 204);
    chain.outer.wait("other-box-9", false, SOON);
    drop(other);
}

#[test]
fn an_id_is_not_stolen_through_a_relay_between() {
    let outer = Relay::start(&[]);
    let owner = machine(&outer, MACHINE);
    outer.wait(MACHINE, true, SOON);
    let inner = below(&outer);
    let _thief = machine(&inner, MACHINE);
    inner.wait(MACHINE, true, SOON);
    wait_until("it is refused", SOON, || {
        inner.status(MACHINE)["uplink"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("another machine's"))
    });
    let of_owner = owner.endpoints()["http"].clone();
    assert!(of_owner.is_string());
    // It is the owner's picture that the outer relay has.
    drop(owner);
    outer.wait(MACHINE, false, SOON);
}

#[test]
fn relays_that_lead_in_a_circle_are_told_so_and_serve_on() {
    let mut one = Relay::start(&[]);
    let two = below(&one);
    one.kill();
    let above = two.above();
    one.set_arguments(&above.iter().map(String::as_str).collect::<Vec<_>>());
    one.start_again();
    let _machine = machine(&one, MACHINE);
    two.wait(MACHINE, true, SOON);
    let named = |relay: &Relay| relay.http().to_string();
    let circle = || {
        let reason = two.status(MACHINE)["uplink"]["reason"].as_str().unwrap_or("").to_owned();
        reason.contains("in a circle")
            && reason.matches(&named(&one)).count() == 2
            && reason.contains(&named(&two))
    };
    wait_until("the circle is named", SOON, circle);
    let opened = Watch::open(two.http(), MACHINE);
    let runtime = runtime();
    let mut viewer = Watch::attach(&runtime, two.http(), MACHINE, &opened).unwrap();
    assert!(viewer.frames(&runtime, 3));
    let refusals = Ledger::<Event>::at(&one.state()).verify(|_| {});
    assert!(refusals.is_ok());
}
