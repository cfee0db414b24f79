//! What nobody watches costs nothing, and what does not change costs next to nothing.
//!
//! Processor time is the kernel's count for the gateway's process, not a guess from the clock.

use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_tests::{Cpu, Event, Gateway, Screen, Socket, Start, measured, wait_until};
use spaceport_types::Size;
use tokio::time::{Instant, sleep};

/// How long it is watched. One tick of the kernel's count is 0.1 % of this.
const WATCH: Duration = Duration::from_secs(10);

/// After this a picture that stands still has been refined, and nothing more is to do.
const SETTLE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn without_viewers_nothing_is_captured_encoded_or_computed() {
    let xvfb = Xvfb::start(Size::new(1280, 720)).unwrap();
    let screen = Screen::connect(xvfb.display());
    let gateway = Gateway::start(Start {
        display: Some(xvfb.display()),
        test_pattern: true,
        ..Start::default()
    });
    // A session that is open and watched by nobody is no reason to work either, nor is one that was
    // watched before.
    let opened = gateway.open("test-pattern");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    socket.packet().await;
    socket.leave().await;
    gateway.open("");
    let gone = || gateway.metric("spaceport_pipelines") == 0;
    wait_until("the pipeline stays open for nobody", Duration::from_secs(6), gone);

    let captured = gateway.metric("spaceport_frames_captured_total");
    let encoded = gateway.metric("spaceport_frames_encoded_total");
    let cpu = Cpu::of(gateway.pid());
    let end = Instant::now() + WATCH;
    let mut number = 0;
    while Instant::now() < end {
        screen.mark(number); // a desktop with a lot going on
        number += 1;
        sleep(Duration::from_millis(33)).await;
    }
    let percent = cpu.percent();
    measured(format_args!("nobody watches: {percent:.2} % of a core"));
    assert_eq!(gateway.metric("spaceport_frames_captured_total"), captured);
    assert_eq!(gateway.metric("spaceport_frames_encoded_total"), encoded);
    assert!(percent < 0.2, "{percent:.2} % of a core");
}

#[tokio::test]
async fn a_still_desktop_with_a_viewer_costs_next_to_nothing() {
    let xvfb = Xvfb::start(Size::new(1920, 1080)).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.paint(0x33_66_99, 7);
    let gateway = Gateway::with_display(xvfb.display());
    let opened = gateway.open("");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    assert_eq!(socket.packet().await.0["keyframe"], true);
    while socket.next_within(SETTLE).await.is_some() {}

    let cpu = Cpu::of(gateway.pid());
    let mut bytes = 0;
    let end = Instant::now() + WATCH;
    while let Some(event) = socket.next_within(end.saturating_duration_since(Instant::now())).await
    {
        bytes += match event {
            Event::Packet(header, payload) => header.to_string().len() + payload.len(),
            Event::Control(kind, payload) => kind.len() + payload.to_string().len(),
            Event::Closed(code, reason) => panic!("closed: {code} {reason}"),
        };
    }
    let percent = cpu.percent();
    measured(format_args!("a still desktop: {percent:.2} % of a core, {bytes} bytes in {WATCH:?}"));
    assert!(percent < 0.5, "{percent:.2} % of a core");
    assert!(bytes < 200 * 10, "{bytes} bytes in {WATCH:?}");

    // And it is not idle because it is dead.
    screen.mark(8);
    let (header, _) = socket.packet().await;
    assert_eq!(header["keyframe"], false, "a small change is no reason for a keyframe");
}
