//! Every kind of error, provoked for real on every surface that can have it, and one report on all.
//!
//! [`TABLE`] says which surfaces those are, and why the others are none. Each kind has a test of its
//! own name.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spaceport_state::Digest;
use spaceport_teleport::seal::{PublicKey, Purpose, Sealer};
use spaceport_testkit::Xvfb;
use spaceport_tests::{
    Agent, Gateway, RELAY_TOKEN, Refused, Relay, Request, Start, TOKEN, binary, call_at, offer,
};
use spaceport_types::{Cause, Error, Kind, Size};
use spaceport_wire::pb::{
    BeginReceiveFilesRequest, BeginReceiveFilesResponse, ErrorInfo, GetCapabilitiesRequest,
    GetCapabilitiesResponse, ImportSessionRequest, ImportSessionResponse, MediaTarget,
    OpenMediaRequest, OpenMediaResponse, ReadFileRequest, ReadFileResponse,
    ReceiveFilesChunkRequest, ReceiveFilesChunkResponse, StatRequest, StatResponse, TransferEntry,
    media_target,
};
use spaceport_wire::status::Status;

use Shown::{No, Yes};

/// Whether a surface can have a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    Yes,
    /// And why not.
    No(&'static str),
}

/// A kind, and whether MCP, gRPC, HTTP and the command line can have it.
type Row = (Kind, [Shown; 4]);

const ONE_SPACE: Shown = No("a gateway is one Space, and has no list of them");
const NOBODY_ASKED: Shown = No("only the command line asks the one who runs it");
const NOT_ANSWERED: Shown = No("who has taken a call back gets no answer to it");
const NO_LIMIT: Shown = No("the limit of time is the caller's");
const NO_PEER: Shown =
    No("it is about what a peer or the list of Spaces says; a server has neither");
const OTHERS: Shown = No("it is what a client makes of another server's failure");
const A_BUG: Shown = No("no request is known that provokes it; a client passes on that of a Space");

const TABLE: [Row; 24] = [
    (Kind::InvalidArgument, [Yes, Yes, Yes, Yes]),
    (
        Kind::ConfirmationRequired,
        [
            No("the host of an agent asks about what is marked destructive"),
            NOBODY_ASKED,
            NOBODY_ASKED,
            Yes,
        ],
    ),
    (
        Kind::PromptBlocked,
        [
            No("consent is asked for by `consent_required`, which is no failure"),
            NOBODY_ASKED,
            NOBODY_ASKED,
            Yes,
        ],
    ),
    (Kind::Unauthenticated, [Yes, Yes, Yes, Yes]),
    (Kind::PermissionDenied, [Yes, Yes, Yes, Yes]),
    (Kind::NotFound, [Yes, Yes, Yes, Yes]),
    (Kind::AmbiguousSandbox, [Yes, ONE_SPACE, ONE_SPACE, Yes]),
    (Kind::PreconditionFailed, [Yes, Yes, Yes, Yes]),
    (Kind::CapabilityMissing, [Yes, Yes, Yes, Yes]),
    (Kind::HostCapabilityMissing, [Yes, Yes, Yes, Yes]),
    (
        Kind::WrongProvider,
        [Yes, ONE_SPACE, ONE_SPACE, No("it removes Spaces of every kind by one verb")],
    ),
    (
        Kind::SpacesdNotAvailable,
        [Yes, No("a Space that answers is there; only `/health` says that it is unwell"), Yes, Yes],
    ),
    (Kind::LimitExceeded, [Yes, Yes, Yes, Yes]),
    (Kind::Timeout, [Yes, NO_LIMIT, NO_LIMIT, Yes]),
    (Kind::Cancelled, [NOT_ANSWERED, NOT_ANSWERED, NOT_ANSWERED, Yes]),
    (Kind::Stream, [Yes, Yes, Yes, Yes]),
    (Kind::TransferFailed, [Yes, Yes, Yes, Yes]),
    (Kind::TeleportRefused, [Yes, Yes, Yes, Yes]),
    (Kind::Relay, [Yes, Yes, Yes, Yes]),
    (Kind::Env, [Yes, OTHERS, OTHERS, Yes]),
    (Kind::Mcp, [No("the peer that failed cannot be told"), OTHERS, OTHERS, Yes]),
    (Kind::Io, [Yes, Yes, Yes, Yes]),
    (Kind::Json, [Yes, NO_PEER, NO_PEER, Yes]),
    (Kind::Internal, [Yes, A_BUG, A_BUG, Yes]),
];

const SURFACES: [&str; 4] = ["MCP", "gRPC", "HTTP", "CLI"];

/// What each surface said, in that order.
type Said = [Option<Report>; 4];

/// What every surface says of an error.
#[derive(Clone, Debug, PartialEq)]
struct Report {
    kind: Kind,
    cause: Option<Cause>,
    retryable: bool,
    message: String,
    hint: Option<String>,
}

impl Report {
    fn of(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        Self {
            kind: serde_json::from_value(value["kind"].clone()).unwrap(),
            cause: value.get("cause").map(|cause| serde_json::from_value(cause.clone()).unwrap()),
            retryable: value["retryable"].as_bool().unwrap(),
            message: text("message").unwrap(),
            hint: text("hint"),
        }
    }
}

/// A user with one Space, `box`, and an agent that works for them.
struct World {
    gateway: Gateway,
    agent: Agent,
}

impl World {
    fn new() -> Self {
        Self::with(Gateway::with_test_pattern())
    }

    fn with(gateway: Gateway) -> Self {
        let mut world = Self { gateway, agent: Agent::new("initialize") };
        let url = world.gateway.http().to_string();
        world.agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
        world
    }

    fn mcp(&mut self, tool: &str, arguments: Value) -> Option<Report> {
        Some(Report::of(&self.agent.fail(tool, arguments)))
    }

    fn cli(&self, arguments: &[&str]) -> Option<Report> {
        self.cli_with(arguments, "", &[])
    }

    /// As an agent runs it: the exit code, the code and the kind are those of the table.
    fn cli_with(
        &self,
        arguments: &[&str],
        stdin: &str,
        environment: &[(&str, &str)],
    ) -> Option<Report> {
        let home = self.agent.home();
        let mut command = Command::new(binary());
        command.args(arguments).arg("--agent");
        command.env_remove("SPACEPORT_TOKEN").env_remove("SPACEPORT_STATE_DIR");
        command.env_remove("XDG_STATE_HOME").env("HOME", home).env("SPACEPORT_CONFIG_DIR", home);
        command.env("SPACEPORT_LOG", "off").envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdin.take().unwrap().write_all(stdin.as_bytes()));
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let last = said.lines().last().unwrap_or_default();
        let envelope: Value =
            serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in `{said}`"));
        let report = Report::of(&envelope["error"]);
        let code = envelope["error"]["kind"].as_str().unwrap().to_ascii_uppercase();
        assert_eq!(envelope["error"]["code"], code);
        assert_eq!(output.status.code().unwrap(), i32::from(report.kind.spec().exit), "{report:?}");
        Some(report)
    }

    fn http(&self, method: &str, path: &str, more: &[(&str, &str)], body: &str) -> Option<Report> {
        self.http_at(self.gateway.http(), method, path, more, body)
    }

    fn http_at(
        &self,
        at: SocketAddr,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> Option<Report> {
        let authorization = format!("Bearer {TOKEN}");
        let mut headers = vec![("authorization", &*authorization)];
        for &(name, value) in more {
            headers.retain(|header| header.0 != name);
            headers.push((name, value));
        }
        let request = Request { method, path, headers: &headers, body: body.as_bytes() };
        let answer = request.send(at).unwrap();
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{}", answer.text());
        let problem = answer.json();
        let report = Report::of(&problem);
        let name = problem["kind"].as_str().unwrap();
        assert_eq!(problem["type"], format!("urn:spaceport:error:{name}"));
        assert_eq!(problem["status"], answer.status);
        // What is unwell is unavailable to whoever asks after its health.
        let status = if path == "/health" { 503 } else { status_of(&report) };
        assert_eq!(answer.status, status, "{report:?}");
        Some(report)
    }

    /// Asks as the viewer page does, with its ticket.
    fn page(&self, body: &Value) -> Option<Report> {
        let authorization = format!("Bearer {}", ticket(&self.gateway));
        self.http("POST", "/viewer/open", &[("authorization", &authorization)], &body.to_string())
    }

    fn open(&self, target: media_target::Target) -> Option<Report> {
        let request = OpenMediaRequest {
            target: Some(MediaTarget { target: Some(target) }),
            ..OpenMediaRequest::default()
        };
        grpc(self.gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request))
    }

    /// The same stream, asked for on every surface.
    fn stream(&mut self, display: &str) -> Said {
        [
            self.mcp("stream_endpoint", json!({ "space": "box", "display": display })),
            self.open(media_target::Target::DisplayId(display.to_owned())),
            self.page(&json!({ "display_id": display })),
            self.cli(&["stream", "box", "--display", display]),
        ]
    }

    /// Makes the user one of an app.
    fn use_claude(&self) {
        fs::create_dir(self.agent.home().join(".claude")).unwrap();
        self.spoil(".claude/settings.json", r#"{"model":"x"}"#);
    }

    fn spoil(&self, file: &str, content: &str) {
        fs::write(self.agent.home().join(file), content).unwrap();
    }
}

/// The ticket of the viewer page.
fn ticket(gateway: &Gateway) -> String {
    let url = gateway.viewer_url("");
    url.split("ticket=").nth(1).unwrap().split('&').next().unwrap().to_owned()
}

/// The HTTP status of an error, as the crate of errors has it.
fn status_of(report: &Report) -> u16 {
    match report.cause {
        Some(cause) => Error::because(cause, "").http_status(),
        None => report.kind.spec().http,
    }
}

fn grpc<A: std::fmt::Debug>(refused: Result<A, Refused>) -> Option<Report> {
    let refused = refused.unwrap_err();
    let info = refused.info.expect("a final error has its detail");
    let word = |key: &str| info.metadata.get(key).cloned();
    let report = Report {
        kind: serde_json::from_value(json!(info.metadata["kind"])).unwrap(),
        cause: word("cause").map(|cause| serde_json::from_value(json!(cause)).unwrap()),
        retryable: info.metadata["retryable"] == "true",
        message: info.message.clone(),
        hint: word("hint"),
    };
    assert_eq!(refused.code, report.kind.spec().grpc, "{report:?}");
    Some(report)
}

/// Whether trying again can help, as the crate of errors has it.
fn retryable(report: &Report) -> bool {
    let error = match report.cause {
        Some(cause) => Error::because(cause, ""),
        None => Error::new(report.kind, ""),
    };
    assert_eq!(error.kind(), report.kind, "{report:?}");
    error.report().retryable
}

/// What was said is of that kind, on the surfaces of the table and no others, and means the same on all.
fn check(kind: Kind, said: Said) {
    let (_, shown) = TABLE.iter().find(|row| row.0 == kind).unwrap();
    for ((report, shown), surface) in said.iter().zip(shown).zip(SURFACES) {
        let Some(report) = report else {
            assert_ne!(*shown, Yes, "{surface} can have {kind:?}, and was not asked");
            continue;
        };
        assert_eq!(*shown, Yes, "{surface} has {kind:?}, and the table says it cannot");
        assert_eq!(report.kind, kind, "{surface}: {report:?}");
        assert!(!report.message.is_empty() && !report.message.ends_with('.'), "{report:?}");
        assert_eq!(report.retryable, retryable(report), "{surface}: {report:?}");
    }
}

/// The same request, and so the very same report.
fn check_alike(kind: Kind, said: Said) {
    let mut reports = said.iter().flatten();
    let first = reports.next().unwrap().clone();
    for report in reports {
        assert_eq!(&first, report);
    }
    check(kind, said);
}

#[test]
fn every_kind_has_its_row_and_its_test() {
    assert_eq!(TABLE.map(|row| row.0), Kind::ALL);
    let tests = include_str!("every_kind.rs");
    for (kind, shown) in TABLE {
        let name = serde_json::to_value(kind).unwrap();
        let test = format!("fn {}()", name.as_str().unwrap());
        assert_eq!(tests.contains(&test), shown.contains(&Yes), "{test}");
        for shown in shown {
            assert_ne!(shown, No(""), "{kind:?}");
        }
    }
}

#[test]
fn invalid_argument() {
    let mut world = World::new();
    let begin = BeginReceiveFilesRequest { conflict_policy: 9, ..Default::default() };
    let said = [
        world.mcp("stream_endpoint", json!({ "space": "box", "max_fps": "many" })),
        grpc(world.gateway.call::<BeginReceiveFilesResponse>(BEGIN, &begin)),
        world.page(&json!("no object")),
        world.cli(&["spaces", "add", "ws://box"]),
    ];
    check(Kind::InvalidArgument, said);
}

#[test]
fn confirmation_required() {
    let world = World::new();
    check(Kind::ConfirmationRequired, [None, None, None, world.cli(&["spaces", "remove", "box"])]);
}

#[test]
fn prompt_blocked() {
    let mut world = World::new();
    world.use_claude();
    let asked = world.agent.get("teleport_app", json!({ "space": "box", "app": "claude-code" }));
    let id = asked["request_id"].as_str().unwrap();
    let said = [None, None, None, world.cli(&["teleport", "approve", id])];
    check(Kind::PromptBlocked, said);
}

#[test]
fn unauthenticated() {
    let mut world = World::new();
    let url = world.gateway.http().to_string();
    let method = "SystemService/GetCapabilities";
    let request = GetCapabilitiesRequest::default();
    let refused: Result<GetCapabilitiesResponse, _> =
        world.gateway.call_as("wrong", method, &request);
    let said = [
        world.mcp("add_space", json!({ "url": url, "token": "wrong" })),
        grpc(refused),
        world.http("POST", "/mcp", &[("authorization", "Bearer wrong")], "{}"),
        world.cli_with(&["spaces", "add", &url, "--token-stdin"], "wrong", &[]),
    ];
    check_alike(Kind::Unauthenticated, said);
}

#[test]
fn permission_denied() {
    let mut world = World::new();
    let request = StatRequest { path: "/etc".to_owned(), ..StatRequest::default() };
    let file = world.agent.home().join("token");
    fs::write(&file, "everybody's").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let said = [
        world.mcp("space_write", json!({ "space": "box", "path": "/etc/motd", "content": "" })),
        grpc(world.gateway.call::<StatResponse>("FilesystemService/Stat", &request)),
        world.http("POST", "/mcp", &[("origin", "https://evil.example")], "{}"),
        world.cli(&["spaces", "add", "box", "--token-file", file.to_str().unwrap()]),
    ];
    check(Kind::PermissionDenied, said);
}

#[test]
fn not_found() {
    let mut world = World::new();
    let said = world.stream("nowhere");
    check_alike(Kind::NotFound, said);
}

#[test]
fn ambiguous_sandbox() {
    let mut world = World::new();
    let other = Gateway::with_test_pattern();
    let url = other.http().to_string();
    world.agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    let windows = world.mcp("list_space_windows", json!({ "space": "box" }));
    check_alike(Kind::AmbiguousSandbox, [windows, None, None, world.cli(&["windows", "box"])]);
}

#[test]
fn precondition_failed() {
    let mut world = World::new();
    let offer = world.whep();
    world.spoil("spaces.json", r#"{"version":99,"spaces":[]}"#);
    let entry = TransferEntry {
        relative_path: "a".to_owned(),
        size: 5,
        sha256: "0".repeat(64),
        ..TransferEntry::default()
    };
    let begin = BeginReceiveFilesRequest {
        transfer_id: "t".to_owned(),
        entries: vec![entry],
        ..BeginReceiveFilesRequest::default()
    };
    let _begun: BeginReceiveFilesResponse = world.gateway.call(BEGIN, &begin).unwrap();
    let chunk = ReceiveFilesChunkRequest {
        transfer_id: "t".to_owned(),
        index: 0,
        offset: 3,
        data: (&b"x"[..]).into(),
    };
    let method = "TeleportService/ReceiveFilesChunk";
    let patch = [("content-type", "application/trickle-ice-sdpfrag"), ("if-match", "\"another\"")];
    let fragment = "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuv\r\n";
    let said = [
        world.mcp("list_spaces", json!({})),
        grpc(world.gateway.call::<ReceiveFilesChunkResponse>(method, &chunk)),
        world.http("PATCH", &offer, &patch, fragment),
        world.cli(&["spaces"]),
    ];
    check(Kind::PreconditionFailed, said);
}

#[test]
fn capability_missing() {
    let mut world = World::new();
    let (path, run_as) = ("/".to_owned(), "root".to_owned());
    let request = StatRequest { path, run_as, ..StatRequest::default() };
    // What is sealed from end to end is nothing for a player of WebRTC.
    let arguments = &["--sealed"];
    let sealed = Gateway::start(Start { test_pattern: true, arguments, ..Start::default() });
    let authorization = format!("Bearer {}", ticket(&sealed));
    let offered = [("authorization", &*authorization), ("content-type", "application/sdp")];
    let said = [
        world.mcp("teleport_manifest", json!({ "app": "claude-code", "scope": "tabs" })),
        grpc(world.gateway.call::<StatResponse>("FilesystemService/Stat", &request)),
        world.http_at(sealed.http(), "POST", "/whep", &offered, &offer("H264")),
        world.cli(&["teleport", "manifest", "claude-code", "--scope", "tabs"]),
    ];
    check(Kind::CapabilityMissing, said);
}

#[test]
fn host_capability_missing() {
    let mut world = World::with(Gateway::start(Start::default()));
    let said = world.stream("primary");
    check_alike(Kind::HostCapabilityMissing, said);
}

#[test]
fn wrong_provider() {
    let mut world = World::new();
    let said = world.mcp("relay_unregister_space", json!({ "space": "box" }));
    check(Kind::WrongProvider, [said, None, None, None]);
    // It is there still.
    world.agent.get("stream_status", json!({ "space": "box" }));
}

#[test]
fn spacesd_not_available() {
    let mut world = World::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let server = Xvfb::start(Size::new(320, 200)).unwrap();
    let unwell = Gateway::with_display(server.display());
    drop(server);
    let mcp = world.mcp("add_space", json!({ "url": nobody }));
    let cli = world.cli(&["spaces", "add", &nobody]);
    assert_eq!(mcp, cli);
    let unwell = World { gateway: unwell, agent: world.agent };
    check(Kind::SpacesdNotAvailable, [mcp, None, unwell.http("GET", "/health", &[], ""), cli]);
}

#[test]
fn limit_exceeded() {
    let mut world = World::new();
    for _ in 0..64 {
        world.gateway.open("");
    }
    let said = world.stream("primary");
    check_alike(Kind::LimitExceeded, said);
}

#[test]
fn timeout() {
    let mut world = World::new();
    // It takes a connection, as a stopped process does, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = silent.local_addr().unwrap().to_string();
    let agent = &mut world.agent;
    let (mcp, cli) = std::thread::scope(|scope| {
        let mcp = scope.spawn(|| Report::of(&agent.fail("add_space", json!({ "url": url }))));
        let home = Agent::new("initialize");
        let other = World { gateway: Gateway::with_test_pattern(), agent: home };
        let cli = other.cli(&["spaces", "add", &url]);
        (mcp.join().unwrap(), cli)
    });
    check_alike(Kind::Timeout, [Some(mcp), None, None, cli]);
}

#[test]
fn cancelled() {
    let world = World::new();
    let (code, said) = world.at_terminal("spaces remove box", "n\n");
    assert!(said.contains("`box` was not removed"), "{said}");
    assert_eq!(code, i32::from(Kind::Cancelled.spec().exit), "{said}");
    let report = Report {
        kind: Kind::Cancelled,
        cause: None,
        retryable: false,
        message: "`box` was not removed".to_owned(),
        hint: None,
    };
    check(Kind::Cancelled, [None, None, None, Some(report)]);
}

#[test]
fn stream() {
    let server = Xvfb::start(Size::new(320, 200)).unwrap();
    let mut world = World::with(Gateway::with_display(server.display()));
    drop(server);
    let said = world.stream("primary");
    check_alike(Kind::Stream, said);
}

#[test]
fn transfer_failed() {
    let mut world = World::new();
    world.spoil("report", "x");
    let report = world.agent.home().join("report");
    let begin =
        BeginReceiveFilesRequest { destination_subdir: "../up".to_owned(), ..Default::default() };
    let arguments = json!({ "space": "box", "path": "~/report", "target_directory": "../up" });
    let said = [
        world.mcp("send_file", arguments),
        grpc(world.gateway.call::<BeginReceiveFilesResponse>(BEGIN, &begin)),
        // A line that ends before it has said who it seals to.
        world.http("POST", "/files/send", &[], "short"),
        world.cli(&["send", report.to_str().unwrap(), "--to", "box", "--into", "../up"]),
    ];
    check(Kind::TransferFailed, said);
}

#[test]
fn teleport_refused() {
    let mut agent = Agent::new("initialize");
    let state = agent.home().join(".local/state/spaceport");
    let start = Start { test_pattern: true, state: Some(&state), ..Start::default() };
    let gateway = Gateway::start(start);
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    let mut world = World { gateway, agent };
    world.use_claude();
    let space = format!("http://{}", world.gateway.http());
    world.spoil(".claude/.credentials.json", r#"{"claudeAiOauth":{}}"#);
    let secret = ".credentials.json";
    let push = ["teleport", "push", "claude-code", "--to", &space, "--include", secret];
    let asked = json!({ "space": "box", "app": "claude-code", "include": [secret] });
    let said = [
        world.mcp("teleport_app", asked),
        world.import_of_another_version(),
        world.answer_too_late(),
        world.cli_with(&push, "", &[("SPACEPORT_TOKEN", TOKEN)]),
    ];
    check(Kind::TeleportRefused, said);
}

#[test]
fn env() {
    let mut world = World::new();
    let url = failing_server(None).to_string();
    let said = [
        world.mcp("add_space", json!({ "url": url })),
        None,
        None,
        world.cli(&["spaces", "add", &url]),
    ];
    check_alike(Kind::Env, said);
}

#[test]
fn mcp() {
    let world = World::new();
    let early = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#; // an answer, before any question
    let said = [None, None, None, world.cli_with(&["mcp"], &format!("{early}\n"), &[])];
    check(Kind::Mcp, said);
}

#[test]
fn io() {
    let mut world = World::new();
    fs::remove_file(world.agent.home().join("spaces.json")).unwrap();
    fs::create_dir(world.agent.home().join("spaces.json")).unwrap();
    let mcp = world.mcp("list_spaces", json!({}));
    let cli = world.cli(&["spaces"]);
    assert_eq!(mcp, cli);
    // A file that is there and cannot be read, whoever asks: page 0 of a process.
    let arguments = &["--files-root", "/proc"];
    let memory = Gateway::start(Start { test_pattern: true, arguments, ..Start::default() });
    let path = format!("/proc/{}/mem", memory.pid());
    let read = ReadFileRequest { path, length: 1, ..ReadFileRequest::default() };
    let read = grpc(memory.call::<ReadFileResponse>("FilesystemService/ReadFile", &read));
    // A relay that cannot write down whom it lets in.
    let relay = Relay::start(&[]);
    fs::create_dir(relay.state().join("machines.json")).unwrap();
    let authorization = format!("Bearer {RELAY_TOKEN}");
    let headers = [("authorization", &*authorization)];
    let body = r#"{"id":"build-box"}"#;
    let http = world.http_at(relay.http(), "POST", "/v1/machines", &headers, body);
    check(Kind::Io, [mcp, read, http, cli]);
}

#[test]
fn json() {
    let mut world = World::new();
    world.spoil("spaces.json", "{\"version\":");
    let said = [world.mcp("list_spaces", json!({})), None, None, world.cli(&["spaces"])];
    check_alike(Kind::Json, said);
}

/// A machine that was let in at a relay, and is not there.
#[test]
fn relay() {
    let mut world = World::new();
    let relay = Relay::start(&[]);
    let authorization = format!("Bearer {RELAY_TOKEN}");
    let headers = [("authorization", &*authorization)];
    let body = br#"{"id":"build-box","name":"Build box"}"#;
    let let_in = Request { method: "POST", path: "/v1/machines", headers: &headers, body };
    let let_in = let_in.send(relay.http()).unwrap();
    assert_eq!(let_in.status, 201, "{}", let_in.text());
    let url = relay.machine_url("build-box");
    let at = relay.http();
    let call = GetCapabilitiesRequest::default();
    let said = [
        world.mcp(
            "relay_register_space",
            json!({ "relay": relay.url(), "machine_id": "build-box" }),
        ),
        grpc(call_at::<GetCapabilitiesResponse>(at, "/m/build-box", TOKEN, CAPABILITIES, &call)),
        world.http_at(at, "GET", "/m/build-box/health", &[], ""),
        world.cli(&["spaces", "add", &url]),
    ];
    check_alike(Kind::Relay, said);
}

const CAPABILITIES: &str = "SystemService/GetCapabilities";

/// A spaceport with a bug in it says so, and whoever asked it passes that on as it was said.
#[test]
fn internal() {
    let mut world = World::new();
    let url = failing_server(Some(Kind::Internal)).to_string();
    let said = [
        world.mcp("add_space", json!({ "url": url })),
        None,
        None,
        world.cli(&["spaces", "add", &url]),
    ];
    check_alike(Kind::Internal, said);
}

const BEGIN: &str = "TeleportService/BeginReceiveFiles";

impl World {
    /// Runs a command as a person at a terminal does: its exit code, and what it said.
    fn at_terminal(&self, arguments: &str, typed: &str) -> (i32, String) {
        let line = format!("{} {arguments}", binary().display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        command.env_remove("SPACEPORT_STATE_DIR").env_remove("XDG_STATE_HOME");
        command.env("SPACEPORT_CONFIG_DIR", self.agent.home()).env("HOME", self.agent.home());
        command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends an app's session as a spaceport of another version packs it, sealed as it should be.
    fn import_of_another_version(&self) -> Option<Report> {
        let request = GetCapabilitiesRequest::default();
        let said: GetCapabilitiesResponse = self.gateway.call(CAPABILITIES, &request).unwrap();
        let key = PublicKey::from_bytes(&said.machine_seal_public_key).unwrap();
        let purpose = Purpose { import_id: "of-another-version", app: "claude-code" };
        let mut sealer = Sealer::new(Vec::new(), &key, &purpose).unwrap();
        sealer.write_all(b"SPBUNDLE\0\0\0\x01\0\0\0\0").unwrap();
        let data = sealer.finish().unwrap();
        let import = ImportSessionRequest {
            import_id: purpose.import_id.to_owned(),
            app: purpose.app.to_owned(),
            sha256: Digest(Sha256::digest(&data).into()).to_string(),
            data: data.into(),
            commit: true,
            ..ImportSessionRequest::default()
        };
        let method = "TeleportService/ImportSession";
        grpc(self.gateway.call::<ImportSessionResponse>(method, &import))
    }

    /// Asks for consent, and answers on the page after the time for that.
    fn answer_too_late(&mut self) -> Option<Report> {
        let push = json!({ "space": "box", "app": "claude-code" });
        let asked = self.agent.get("teleport_app", push);
        let id = asked["request_id"].as_str().unwrap();
        let (_, screen) = self.at_terminal(&format!("teleport approve --page {id}"), "");
        let link = screen.split("#link=").nth(1).unwrap_or_else(|| panic!("no link: {screen}"));
        let link = link.split_whitespace().next().unwrap();
        let file = format!("teleport/consent/{id}.json");
        let file = self.agent.home().join(".local/state/spaceport").join(file);
        let mut kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        kept["until_ms"] = json!(kept["asked_ms"].as_u64().unwrap() - 1);
        fs::write(&file, kept.to_string()).unwrap();
        let authorization = format!("Bearer {link}");
        let headers = [("authorization", &*authorization)];
        self.http("POST", "/consent/answer", &headers, r#"{"approve":true}"#)
    }

    /// Opens a WHEP session, and answers its path.
    fn whep(&self) -> String {
        let opened = self.gateway.open("");
        let authorization = format!("Bearer {}", opened.ticket);
        let headers = [("authorization", &*authorization), ("content-type", "application/sdp")];
        let body = offer("H264");
        let body = body.as_bytes();
        let request = Request { method: "POST", path: "/whep", headers: &headers, body };
        let answer = request.send(self.gateway.http()).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.headers["location"].clone()
    }
}

/// A server of the contract that fails at everything: gRPC's INTERNAL, with the detail that a
/// spaceport has, or with none, as others.
fn failing_server(kind: Option<Kind>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut fields = BTreeMap::from([
        ("content-type", "application/grpc".to_owned()),
        ("grpc-message", "out of order".to_owned()),
        ("grpc-status", "13".to_owned()),
    ]);
    if let Some(kind) = kind {
        let word = serde_json::to_value(kind).unwrap().as_str().unwrap().to_owned();
        let metadata = [("kind".to_owned(), word), ("retryable".to_owned(), "false".to_owned())];
        let message = "a background task failed".to_owned();
        let info = ErrorInfo { message, metadata: metadata.into(), ..ErrorInfo::default() };
        let status = Status::with_info(13, &info).encode_to_vec();
        fields.insert("grpc-status-details-bin", STANDARD_NO_PAD.encode(status));
    }
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let fields = fields.clone();
            std::thread::spawn(move || drop(fail_everything(stream, &fields)));
        }
    });
    address
}

/// A string of a header block (RFC 7541 §5.2), as it is.
fn literal(text: &str) -> Vec<u8> {
    const INLINE: usize = 127;
    let mut out = vec![text.len().min(INLINE) as u8];
    if let Some(mut rest) = text.len().checked_sub(INLINE) {
        while rest >= 128 {
            out.push(rest as u8 | 128);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.extend(text.as_bytes());
    out
}

/// HTTP/2 as far as it takes to answer with headers alone (RFC 9113 §6, RFC 7541 §6.2.2).
fn fail_everything(mut stream: TcpStream, fields: &BTreeMap<&str, String>) -> std::io::Result<()> {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    stream.read_exact(&mut [0; 24])?;
    let frame = |kind: u8, flags: u8, id: [u8; 4], payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &id, payload].concat()
    };
    stream.write_all(&frame(SETTINGS, 0, [0; 4], &[]))?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; length])?;
        match (head[3], head[4] & 1) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, [0; 4], &[]))?,
            (HEADERS, _) => {
                let mut block = vec![0x88]; // `:status: 200`, from the static table
                for (name, value) in fields {
                    block.push(0); // a literal that is not kept
                    block.extend(literal(name));
                    block.extend(literal(value));
                }
                let id = [head[5], head[6], head[7], head[8]];
                stream.write_all(&frame(HEADERS, 5, id, &block))?;
            }
            _ => {}
        }
    }
}
