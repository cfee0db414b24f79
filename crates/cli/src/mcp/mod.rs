//! `spaceport mcp`: the Spaces of this user as MCP tools, on stdin and stdout or over HTTP; and those
//! that a Space has of its own, which `spaceport serve` mounts.
//!
//! The server only carries: [`tools`] says which there are, and `spaceport-spaces` does what they do.
//! A tool that fails is a result that says so; an error of the protocol is for calls that are none.

mod consent;
mod files;
mod http;
mod leaving;
mod parameters;
mod serve;
mod teleport;
mod tools;

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, Implementation, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::json;
use spaceport_spaces::{Address, Spaces};
use spaceport_types::{Error, Kind, Redacted, Result};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::args::{Consent, Mcp as Args};
use crate::client;
use crate::render;
use crate::serve::stop_signal;
use crate::teleport::args::Kept;
use consent::Asker;
use files::Call;
use leaving::UntilItLeaves;
use tools::{Answer, Tools};

/// The longest message that is read. The longest text that `space_write` takes is six times as long in JSON, if all of
/// it is escaped; and one that is too long has to be read to be refused: a longer line on stdin is never answered.
const LONGEST_MESSAGE: usize = 16 << 20;

/// How many calls run at a time. More wait: an agent that asks for a thousand things at once gets
/// them all, and does not get a thousand connections.
const CALLS: u32 = 32;

/// How long calls get to end, once nobody waits for them.
const FAREWELL: Duration = Duration::from_secs(5);

const VERSIONS: &[ProtocolVersion] =
    &[ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

const INSTRUCTIONS: &str = "\
Spaces are desktops of virtual machines and containers. `list_spaces` says which there are and \
`add_space` adds one. To see one, call `stream_endpoint` and connect to what it answers while its \
ticket lets you in, or give a person the address that `open_space_viewer` answers. `send_file`, \
`upload` and `download` move files between this machine and a Space. `teleport_app` moves an app's \
session to a Space, once a person has agreed, whom it asks itself where it can; you cannot agree for \
them. A failed call carries `structuredContent.error`: `kind` says what went wrong, `hint` what to do next, and `retry` \
whether trying again can help.";

const INSTRUCTIONS_WITHIN: &str = "\
These tools are of the one Space that serves them: a desktop. To see it, call `stream_endpoint` and \
connect to what it answers while its ticket lets you in, or give a person the address that \
`open_space_viewer` answers. A failed call carries `structuredContent.error`: `kind` says what went \
wrong, `hint` what to do next, and `retry` whether trying again can help.";

pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode> {
    let user = User { spaces: client::mine(), kept: args.kept.clone(), call: Call::default() };
    // Whoever started this has the other end of its pipes. Of who has a token, nothing is known.
    let usual = if args.http.is_some() { Consent::Terminal } else { Consent::Client };
    let server = Server::beside(user, args.consent.unwrap_or(usual));
    match args.http {
        Some(listen) => serve::run(server, listen, args, json),
        None => converse(server),
    }
}

/// The endpoint that a Space has, once somebody asks for its token around it.
pub(crate) fn of_space(own: Address, token: Redacted<String>) -> Router {
    let spaces = Spaces::itself(own, Some(token));
    let kept = Kept { state_dir: None };
    http::routes(Server::within(User { spaces, kept, call: Call::default() }))
}

/// Speaks with one agent's host, which started this.
fn converse(server: Server) -> Result<ExitCode> {
    if std::io::stdin().is_terminal() {
        render::hint("This is for an agent's host, which starts it and speaks on stdin");
    }
    client::wait(async {
        let stop = stop_signal()?;
        let (input, output) = stdio_pipes();
        let input = UntilItLeaves { input, left: server.left.clone() };
        let transport =
            AsyncRwTransport::new_server(input, output).with_max_line_length(LONGEST_MESSAGE);
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            Error::new(Kind::Mcp, "the conversation with the agent failed").source(source)
        };
        let running = match server.clone().serve(transport).await {
            Ok(running) => running,
            // A host that looked whether it starts, and said nothing.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(failed(error.into())),
        };
        let ended = tokio::select! {
            ended = running.waiting() => ended.map(drop),
            () = stop => Ok(()),
        };
        server.left.cancel();
        // Calls that were cut off take back what they have staged.
        drop(timeout(FAREWELL, server.calls.acquire_many(CALLS)).await);
        ended.map_err(|error| failed(error.into()))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Whom the agent works for.
#[derive(Clone)]
struct User {
    spaces: Spaces,
    /// Where the consent is that they gave.
    kept: Kept,
    /// What they are asking for.
    call: Call,
}

/// Answers one client. Cloning it makes another of the same user, under the same limits.
#[derive(Clone)]
struct Server {
    user: User,
    tools: Arc<Tools>,
    instructions: &'static str,
    /// Where the person is that a teleport needs.
    consent: Consent,
    calls: Arc<Semaphore>,
    /// The client has left, and no call has anybody to answer.
    left: CancellationToken,
}

impl Server {
    /// The one beside an agent: it knows the Spaces of its user, and the files of this machine.
    fn beside(user: User, consent: Consent) -> Self {
        Self { consent, ..Self::new(user, Tools::beside(), INSTRUCTIONS) }
    }

    /// The one in a Space, which knows that Space.
    fn within(user: User) -> Self {
        Self::new(user, Tools::within(), INSTRUCTIONS_WITHIN)
    }

    fn new(user: User, tools: Tools, instructions: &'static str) -> Self {
        Self {
            user,
            tools: Arc::new(tools),
            instructions,
            consent: Consent::Terminal,
            calls: Arc::new(Semaphore::new(CALLS as usize)),
            left: CancellationToken::new(),
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new("spaceport", env!("CARGO_PKG_VERSION")).with_title("Spaceport"),
            )
            .with_instructions(self.instructions)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(VERSIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.list()))
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools.named(&request.name) else {
            let name: String = request.name.chars().take(80).collect();
            let message = format!("no tool is called `{}`", name.escape_debug());
            return Err(ErrorData::invalid_params(message, None));
        };
        // Never closed while there is a server.
        let _turn = self.calls.acquire().await;
        let mut user = self.user.clone();
        // Over HTTP to a Space, what is answered leads where the client came from.
        if tool.is_within()
            && let Some(at) = context.extensions.get().and_then(http::seen_at)
        {
            user.spaces = user.spaces.seen_at(at);
        }
        let progress = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        let asks = self.consent == Consent::Client;
        let asker = asks.then(|| Asker::of(&context, &mut request)).flatten();
        let stop = self.left.child_token();
        user.call = Call { progress, stop: stop.clone(), asker };
        let mut call = pin!(tool.call(user, request.arguments.unwrap_or_default()));
        let answer = tokio::select! {
            answer = &mut call => answer,
            () = context.ct.cancelled() => {
                stop.cancel();
                call.await
            }
        };
        Ok(match answer {
            Ok(Answer::Value(text)) => {
                CallToolResult::success(vec![ContentBlock::text(text)]).into()
            }
            Ok(Answer::Question(question)) => (*question).into(),
            Err(error) => failure(&error).into(),
        })
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // A known method gets here when its parameters are not of the shape it has.
        if request.method == "tools/call" {
            let message = "`tools/call` takes `name`, a string, and `arguments`, an object";
            return Err(ErrorData::invalid_params(message, None));
        }
        let method = rmcp::model::ErrorCode::METHOD_NOT_FOUND;
        Err(ErrorData::new(method, request.method, None))
    }
}

fn failure(error: &Error) -> CallToolResult {
    let report = error.report();
    let mut result =
        CallToolResult::error(vec![ContentBlock::text(format!("error: {}", report.message))]);
    result.structured_content = Some(json!({ "error": report }));
    result
}
