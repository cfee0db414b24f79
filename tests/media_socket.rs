//! The media socket from outside: `/media` of a real gateway and a client without any mercy.

use std::collections::BTreeSet;
use std::time::Duration;

use prost_types::Duration as ProtoDuration;
use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Event, Gateway, Screen, Socket, Via, measured};
use spaceport_types::Size;
use spaceport_wire::pb::{OpenMediaRequest, OpenMediaResponse};
use tokio::time::{Instant, timeout};

/// A picture that was still for this long is as sharp as it gets.
const REFINED: Duration = Duration::from_secs(1);

/// A quiet second and more; nothing a healthy stream leaves out.
const WATCH: Duration = Duration::from_secs(5);

#[tokio::test]
async fn hello_then_session_opened_then_a_keyframe() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    assert_eq!(opened.wire_version, 2);
    assert!(opened.ws_path.starts_with("/media?ticket="), "{}", opened.ws_path);
    let mut socket = Socket::open(gateway.http(), &opened.ws_path, Via::Query, None).await.unwrap();
    assert_eq!(socket.protocol, None, "no subprotocol was offered");
    assert_eq!(socket.extensions, None);

    let Event::Control(kind, hello) = socket.next().await else { panic!("no control message") };
    assert_eq!(kind, "hello");
    assert_eq!(hello["protocol"], "rcdp");
    assert_eq!(hello["selected_version"], 2);
    let capabilities = hello["capabilities"].as_array().unwrap();
    assert!(capabilities.contains(&json!("keyframe_on_attach.v1")));

    let Event::Control(kind, session) = socket.next().await else { panic!("no control message") };
    assert_eq!(kind, "session_opened");
    assert_eq!(session["session_id"], *opened.media_session_id);
    assert_eq!(session["codec"], "h264");
    assert_eq!(session["geometry_epoch"], session["geometry"]["geometry_epoch"]);

    let Event::Packet(header, payload) = socket.next().await else { panic!("no packet") };
    assert_eq!(header["keyframe"], true);
    assert_eq!(header["session_id"], *opened.media_session_id);
    assert_eq!(header["codec"], "h264");
    let size = opened.geometry.unwrap().frame_size.unwrap();
    assert_eq!(
        (&header["width_px"], &header["height_px"]),
        (&json!(size.width), &json!(size.height))
    );
    assert_eq!(
        nal_types(&payload).into_iter().filter(|kind| [5, 7, 8].contains(kind)).collect::<Vec<_>>(),
        [7, 8, 5]
    );

    let mut last = header["sequence"].as_u64().unwrap();
    for _ in 0..20 {
        let (header, _) = socket.packet().await;
        let sequence = header["sequence"].as_u64().unwrap();
        assert!(sequence > last, "{sequence} after {last}");
        last = sequence;
    }
}

/// The types of the NAL units of an Annex B access unit, each once and in order.
fn nal_types(unit: &[u8]) -> Vec<u8> {
    let mut types: Vec<u8> = Vec::new();
    for window in unit.windows(4).filter(|window| window.starts_with(&[0, 0, 1])) {
        if types.last() != Some(&(window[3] & 0x1f)) {
            types.push(window[3] & 0x1f);
        }
    }
    types
}

#[tokio::test]
async fn messages_are_answered_and_an_unknown_one_ends_nothing() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();

    socket.send("make_coffee", json!({ "sugar": 2 })).await;
    assert_eq!(socket.control("error").await["code"], "unsupported_operation");
    socket.send("list_windows", json!({})).await;
    assert_eq!(socket.control("error").await["code"], "unsupported_operation");

    socket.send("get_stats", json!({ "client_time_us": 42 })).await;
    let stats = socket.control("stats").await;
    assert_eq!(stats["client_time_us"], 42);
    assert!(stats["server_time_us"].as_u64().unwrap() > 0);

    socket.send("set_stream_preferences", json!({ "max_fps": 10 })).await;
    assert_eq!(socket.control("stream_preferences_applied").await["max_fps"], 10);

    // A keyframe that was asked for comes, and soon.
    socket.send("request_keyframe", json!({})).await;
    socket.control("keyframe_requested").await;
    let keyframe = async { while socket.packet().await.0["keyframe"] == false {} };
    timeout(Duration::from_secs(2), keyframe).await.expect("no keyframe came");
}

#[tokio::test]
async fn the_pointer_is_told_to_who_asks_and_moves_without_frames() {
    let xvfb = Xvfb::start(Size::new(640, 480)).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.shape_pointer(Some(0xff_80_00), 20, (3, 4));
    screen.point(100, 200);
    let gateway = Gateway::with_display(xvfb.display());
    let halved = OpenMediaRequest { max_dimension: 320, ..OpenMediaRequest::default() };
    let opened: OpenMediaResponse = gateway.call("StreamService/OpenMedia", &halved).unwrap();
    let mut plain = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let mut drawing = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let hello = drawing.control("hello").await;
    assert!(hello["capabilities"].as_array().unwrap().contains(&json!("cursor.v1")));
    // A still picture is made sharper, and then nothing comes.
    for socket in [&mut plain, &mut drawing] {
        while socket.next_within(REFINED).await.is_some() {}
    }

    drawing.send("set_cursor", json!({ "mode": "out_of_band" })).await;
    let Event::Control(kind, image) = drawing.next().await else { panic!("no control message") };
    assert_eq!(kind, "cursor_image");
    assert_eq!((&image["width"], &image["height"]), (&json!(20), &json!(20)));
    assert_eq!((&image["hotspot_x"], &image["hotspot_y"]), (&json!(3), &json!(4)));
    assert!(image["png"].as_str().unwrap().starts_with("iVBORw0KGgo"), "{image}");
    let mut at = async |wanted: Value| loop {
        match drawing.next().await {
            Event::Control(kind, place) if kind == "cursor" => {
                if place == wanted {
                    break;
                }
            }
            other => panic!("{other:?} instead of {wanted}"),
        }
    };
    // In pixels of the frame, which is half as large.
    let serial = &image["serial"];
    at(json!({ "visible": true, "x": 50.0, "y": 100.0, "serial": serial })).await;
    for step in 0..20 {
        screen.point(300 + step, 7);
    }
    at(json!({ "visible": true, "x": 159.5, "y": 3.5, "serial": serial })).await;
    screen.shape_pointer(None, 20, (0, 0));
    at(json!({ "visible": false, "x": 0.0, "y": 0.0, "serial": serial })).await;
    // No frames for anyone, and no word of it to who did not ask.
    assert!(plain.next_within(REFINED).await.is_none());

    drawing.send("set_cursor", json!({ "mode": "none" })).await;
    screen.shape_pointer(Some(0), 20, (0, 0));
    screen.point(10, 10);
    assert!(drawing.next_within(REFINED).await.is_none());
    screen.paint(0x20_60_a0, 1);
    plain.packet().await;
    drawing.packet().await;
}

#[tokio::test]
async fn garbage_closes_the_socket_with_4400() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    for garbage in ["", "hello", "{", "[1]", "{\"payload\":{}}", "{\"type\":7}"] {
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        socket.send_text(garbage).await;
        assert_eq!(socket.closed().await.0, 4400, "after `{garbage}`");
    }
    // The session has survived them all.
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    assert_eq!(socket.packet().await.0["keyframe"], true);
}

#[tokio::test]
async fn a_wrong_ticket_is_401_and_a_closed_session_410() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    let refused = |path: String| {
        let http = gateway.http();
        async move { Socket::open(http, &path, Via::Query, None).await.unwrap_err() }
    };
    for path in ["/media", "/media?ticket=", "/media?ticket=AAAAAAAAAAAAAAAAAAAAAA"] {
        let refusal = refused(path.to_owned()).await;
        assert_eq!(refusal.status, 401, "{path}");
        let problem: Value = serde_json::from_str(&refusal.body).unwrap();
        assert_eq!(problem["kind"], "unauthenticated", "{path}");
    }

    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    socket.packet().await;
    gateway.close(&opened.media_session_id);
    assert_eq!(socket.closed().await.0, 4404);
    let refusal = refused(opened.ws_path.clone()).await;
    assert_eq!(refusal.status, 410);
    let problem: Value = serde_json::from_str(&refusal.body).unwrap();
    assert_eq!(problem["cause"], "session_closed");
}

#[tokio::test]
async fn an_expired_ticket_opens_nothing_and_ends_nothing() {
    let gateway = Gateway::with_test_pattern();
    let request = OpenMediaRequest {
        ticket_ttl: Some(ProtoDuration { seconds: 1, nanos: 0 }),
        ..OpenMediaRequest::default()
    };
    let opened: OpenMediaResponse = gateway.call("StreamService/OpenMedia", &request).unwrap();
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let refusal = timeout(Duration::from_secs(5), async {
        loop {
            match Socket::attach(gateway.http(), &opened.ticket).await {
                Ok(early) => early.leave().await,
                Err(refusal) => return refusal,
            }
        }
    });
    let refusal = refusal.await.expect("the ticket never expired");
    assert_eq!(refusal.status, 401);
    let problem: Value = serde_json::from_str(&refusal.body).unwrap();
    assert_eq!(problem["cause"], "ticket_expired");
    // Who is in, stays in.
    let before = socket.packet().await.0["sequence"].as_u64().unwrap();
    while socket.packet().await.0["sequence"].as_u64().unwrap() < before + 60 {}
}

#[tokio::test]
async fn the_subprotocol_is_echoed_when_there_is_one() {
    let gateway = Gateway::with_test_pattern();
    let ticket = gateway.open("").ticket;
    let open = |names: String| {
        let http = gateway.http();
        async move { Socket::open(http, "/media", Via::Subprotocols(&names), None).await }
    };
    let both = open(format!("rcdp.v2, cua.ticket.{ticket}")).await.unwrap();
    assert_eq!(both.protocol.as_deref(), Some("rcdp.v2"));
    let old = open(format!("rcdp.v2.ticket.{ticket}")).await.unwrap();
    assert_eq!(old.protocol, Some(format!("rcdp.v2.ticket.{ticket}")));
    assert_eq!(open("rcdp.v2, cua.ticket.wrong".to_owned()).await.unwrap_err().status, 401);
    assert_eq!(open("rcdp.v2".to_owned()).await.unwrap_err().status, 401);
}

#[tokio::test]
async fn a_viewer_that_comes_back_starts_with_a_keyframe() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    for _ in 0..3 {
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        // It may be an older one and what followed it, so that a join costs no encode.
        let (header, _) = socket.packet().await;
        assert_eq!(header["keyframe"], true);
        let mut last = header["sequence"].as_u64().unwrap();
        for _ in 0..5 {
            let (header, _) = socket.packet().await;
            assert!(
                header["keyframe"] == true || header["sequence"] == last + 1,
                "a hole: {header}"
            );
            last = header["sequence"].as_u64().unwrap();
        }
        socket.leave().await;
    }
}

#[tokio::test]
async fn eight_viewers_cost_one_encode_and_a_ninth_is_turned_away() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.push(Socket::attach(gateway.http(), &opened.ticket).await.unwrap());
    }
    for socket in &mut sockets {
        assert_eq!(socket.packet().await.0["keyframe"], true);
    }
    let mut ninth = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    assert_eq!(ninth.closed().await.0, 4429);

    let encoded = gateway.metric("spaceport_frames_encoded_total");
    let captured = gateway.metric("spaceport_frames_captured_total");
    let received = futures_util::future::join_all(sockets.iter_mut().map(count(WATCH))).await;
    let encoded = gateway.metric("spaceport_frames_encoded_total") - encoded;
    let captured = gateway.metric("spaceport_frames_captured_total") - captured;
    let most = received.iter().map(|seen| seen.len() as u64).max().unwrap();
    measured(format_args!(
        "{encoded} encodes, {captured} captures, received {:?}",
        received.iter().map(BTreeSet::len).collect::<Vec<_>>()
    ));
    assert!(most > 100, "30 pictures a second, and {most} came in {WATCH:?}");
    // A few more while the counters were read.
    assert!(encoded <= most + 10, "{encoded} encodes for {most} pictures");
    assert!(captured <= most + 10, "{captured} captures for {most} pictures");
    for seen in &received {
        assert!(seen.len() as u64 + 10 > most, "{} of {most} pictures", seen.len());
    }
}

#[tokio::test]
async fn one_viewer_that_stops_reading_costs_itself_and_nobody_else() {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    // The stopped one first: its kernel buffer is small, so that its not reading soon shows.
    let path = &opened.ws_path;
    let mut stopped = Socket::open(gateway.http(), path, Via::Query, Some(4096)).await.unwrap();
    stopped.packet().await;
    let mut others = Vec::new();
    for _ in 0..7 {
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        socket.packet().await;
        others.push(socket);
    }
    let received = futures_util::future::join_all(others.iter_mut().map(count(WATCH))).await;
    for seen in &received {
        let span = seen.last().unwrap() - seen.first().unwrap() + 1;
        let lost = span - seen.len() as u64;
        assert!(span > 100, "only {span} pictures in {WATCH:?}");
        assert!(lost * 50 < span, "lost {lost} of {span} pictures");
    }
    // It reads again: what it gets first is old, then there may be a gap, and after it a keyframe.
    let newest = *received[0].last().unwrap();
    let mut last = 0;
    let catch_up = async {
        loop {
            let (header, _) = stopped.packet().await;
            let sequence = header["sequence"].as_u64().unwrap();
            assert!(sequence > last, "{sequence} after {last}");
            assert!(
                last == 0 || sequence == last + 1 || header["keyframe"] == true,
                "{last} then {header}"
            );
            last = sequence;
            if sequence > newest {
                break;
            }
        }
    };
    timeout(Duration::from_secs(5), catch_up).await.expect("it never caught up");
}

/// Collects the sequence numbers that come in a span of time.
fn count(
    span: Duration,
) -> impl Fn(&mut Socket) -> futures_util::future::LocalBoxFuture<'_, BTreeSet<u64>> {
    move |socket| {
        let end = Instant::now() + span;
        Box::pin(async move {
            let mut seen = BTreeSet::new();
            loop {
                match socket.next_within(end.saturating_duration_since(Instant::now())).await {
                    Some(Event::Packet(header, _)) => {
                        assert!(
                            seen.insert(header["sequence"].as_u64().unwrap()),
                            "{header} twice"
                        );
                    }
                    Some(Event::Control(..)) => {}
                    Some(Event::Closed(code, reason)) => panic!("closed: {code} {reason}"),
                    None => return seen,
                }
            }
        })
    }
}
