//! What a relay says of itself and of its machines, over plain HTTP.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use spaceport_state::ledger::millis;
use spaceport_transport::problem::problem;
use spaceport_transport::websocket::link;
use spaceport_transport::{bearer, body};
use spaceport_types::{Error, Kind, MachineId, Result};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::above::Above;
use crate::directory::Status;
use crate::server::Shared;
use crate::tunnel::{ALPN, Carrier, Side, Tunnel};
use crate::{join, metrics, proxy, wall_clock};

/// The largest body that any of these routes reads.
const MAX_BODY: usize = 16 << 10;

/// The path at which a machine joins by WebSocket.
pub(crate) const CONNECT: &str = "/relay/v1/connect";

/// The path that says how machines join.
pub(crate) const INFO: &str = "/v1/info";

pub(crate) fn routes(shared: Shared) -> Router {
    let of_operators = Router::new()
        .route("/v1/machines", get(list).post(register))
        .route("/v1/machines/{id}", get(one).delete(remove))
        .layer(middleware::from_fn_with_state(shared.clone(), operators));
    Router::new()
        .merge(of_operators)
        .route(INFO, get(info))
        .route("/healthz", get(health))
        .route("/metrics", get(render))
        .route(CONNECT, get(connect))
        .route("/m/{id}", any(proxy::forward))
        .route("/m/{id}/{*rest}", any(proxy::forward))
        .route("/m/{id}/", any(proxy::forward))
        .fallback(not_found)
        .with_state(shared)
}

/// How machines join, and what clients may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The version of the relay.
    #[serde(default)]
    pub version: String,
    /// The relay itself, in lists of hops.
    #[serde(default)]
    pub relay: String,
    /// The origin under which it wants to be reached; none, where it does not know.
    #[serde(default)]
    pub public_url: Option<String>,
    /// Machines join with a registration token, and their own tokens open them.
    #[serde(default)]
    pub static_tokens: bool,
    /// There are no accounts.
    #[serde(default)]
    pub account_auth: bool,
    /// Where machines join by QUIC.
    #[serde(default)]
    pub quic: Option<QuicPort>,
}

/// Where machines join by QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuicPort {
    /// The UDP port, on the relay's own host.
    pub port: u16,
    /// Its protocol in the TLS handshake.
    pub alpn: String,
    /// SHA-256 of the certificates that may be met there, in hexadecimal.
    pub certificates: Vec<String>,
}

async fn info(State(shared): State<Shared>) -> Json<Info> {
    let quic = QuicPort {
        port: shared.quic.local_addr().port(),
        alpn: ALPN.to_owned(),
        certificates: shared.quic.identity().hashes(),
    };
    Json(Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        relay: shared.relay_id.clone(),
        public_url: shared.public_url.clone(),
        static_tokens: true,
        account_auth: false,
        quic: Some(quic),
    })
}

/// Whether whoever asks has the registration token.
fn operator(shared: &Shared, headers: &HeaderMap) -> Result<()> {
    let message = match bearer(headers, AUTHORIZATION.as_str()) {
        Some(token) if shared.directory.lets_in(token) => return Ok(()),
        Some(_) => "the token is not this relay's registration token",
        None => "the request carries no token",
    };
    Err(Error::new(Kind::Unauthenticated, message)
        .hint("Send `Authorization: Bearer <the relay's registration token>`"))
}

/// Lets whoever has the registration token through.
async fn operators(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    match operator(&shared, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => problem(&error),
    }
}

#[derive(Serialize)]
struct Machines {
    machines: Vec<Status>,
}

async fn list(State(shared): State<Shared>) -> Response {
    let machines = shared.directory.list();
    let machines = machines.into_iter().map(|status| with_uplink(&shared, status)).collect();
    private(Json(Machines { machines }).into_response())
}

/// How a relay is that serves, but not as it should.
#[derive(Serialize)]
struct Health {
    directory: String,
    away_s: u64,
}

/// 204 when everything works. A node without a directory serves what it has, and says what it lacks: who asks
/// whether to send clients here is not to be told no.
async fn health(State(shared): State<Shared>) -> Response {
    match shared.nodes.as_ref().and_then(|nodes| nodes.away()) {
        Some((away, directory)) => {
            private(Json(Health { directory, away_s: away.as_secs() }).into_response())
        }
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

fn with_uplink(shared: &Shared, mut status: Status) -> Status {
    status.uplink = shared.above.as_ref().and_then(|above| above.status(&status.id));
    if status.node.is_some()
        && let Some((away, _)) = shared.nodes.as_ref().and_then(|nodes| nodes.away())
    {
        status.as_of = Some((millis(wall_clock()) / 1000).saturating_sub(away.as_secs()));
    }
    status
}

async fn one(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let status = id.parse().and_then(|id: MachineId| shared.directory.status(&id));
    match status {
        Ok(status) => private(Json(with_uplink(&shared, status)).into_response()),
        Err(error) => problem(&error),
    }
}

/// A machine that is to come.
#[derive(Deserialize)]
struct Wanted {
    id: String,
    #[serde(default)]
    name: String,
}

/// A machine that was let in, and the token that it has to show.
#[derive(Serialize)]
struct LetIn {
    machine: Status,
    machine_token: String,
}

async fn register(State(shared): State<Shared>, body: Body) -> Response {
    let body = match body::read(body, MAX_BODY).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let runtime = Handle::current();
    let let_in = spawn_blocking(move || {
        let wanted: Wanted = serde_json::from_slice(&body).map_err(|error| {
            Error::new(Kind::InvalidArgument, "the request is not the JSON it should be")
                .hint("Send `{\"id\": \"…\", \"name\": \"…\"}`")
                .source(error)
        })?;
        let id = wanted.id.parse()?;
        if let Some(nodes) = &shared.nodes {
            runtime.block_on(nodes.consult(&id))?;
        }
        let token = shared.directory.let_in(&id, &wanted.name, wall_clock())?;
        if let Some(nodes) = &shared.nodes {
            runtime.block_on(nodes.claim(&id))?;
        }
        let machine = shared.directory.status(&id)?;
        Ok(LetIn { machine, machine_token: token.expose().clone() })
    });
    match done(let_in.await) {
        Ok(let_in) => private((StatusCode::CREATED, Json(let_in)).into_response()),
        Err(error) => problem(&error),
    }
}

async fn remove(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let runtime = Handle::current();
    let removed = spawn_blocking(move || {
        let id = id.parse()?;
        // First where the others learn of it: it is not removed by halves.
        if let Some(nodes) = &shared.nodes {
            shared.directory.status(&id)?;
            runtime.block_on(nodes.remove(&id))?;
        }
        shared.directory.remove(&id, wall_clock())
    });
    match done(removed.await) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => problem(&error),
    }
}

fn done<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| Err(Error::new(Kind::Internal, "the request failed").source(error)))
}

async fn render(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    // Others than this machine have to show that they may.
    if shared.guarded
        && let Err(error) = operator(&shared, &headers)
    {
        return problem(&error);
    }
    let counts = shared.connections();
    let above = shared.above.as_ref().map(Above::online);
    let text = metrics::render(
        &shared.counters,
        shared.directory.count(),
        above,
        shared.nodes.as_deref(),
        counts,
        shared.edge.carried(),
    );
    let mut response = text.into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A machine joins by WebSocket.
async fn connect(State(shared): State<Shared>, mut request: Request) -> Response {
    match link::accept(&mut request) {
        Ok((response, linked)) => {
            tokio::spawn(async move {
                let Some(link) = linked.await else { return };
                let limits = shared.limits.tunnel();
                let tunnel = Tunnel::over(link, Carrier::WebSocket, Side::Relay, limits);
                join::serve(shared, tunnel).await;
            });
            response
        }
        Err(error) => problem(&error),
    }
}

async fn not_found(request: Request) -> Response {
    let error = Error::new(Kind::NotFound, "there is nothing at this path of the relay")
        .hint("Machines are at `/m/<id>/`");
    proxy::refuse(request.headers(), &error)
}

/// Who is there is for who asked, and old a moment later.
fn private(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
