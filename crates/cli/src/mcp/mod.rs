//! `spaceport mcp`: the Spaces of this user as MCP tools, on stdin and stdout.
//!
//! The server only carries: [`tools`] says which there are, and `spaceport-spaces` does what they do.
//! A tool that fails is a result that says so; an error of the protocol is for calls that are none.

mod parameters;
mod teleport;
mod tools;

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

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
use spaceport_spaces::Spaces;
use spaceport_types::{Error, Kind, Result};
use tokio::sync::Semaphore;

use crate::client;
use crate::render;
use crate::teleport::args::Kept;
use tools::Tools;

/// The longest message that is read. A call has some names in it; what is longer is none.
const LONGEST_MESSAGE: usize = 1 << 20;

/// How many calls run at a time. More wait: an agent that asks for a thousand things at once gets
/// them all, and does not get a thousand connections.
const CALLS: usize = 32;

const VERSIONS: &[ProtocolVersion] =
    &[ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

const INSTRUCTIONS: &str = "\
Spaces are desktops of virtual machines and containers. `list_spaces` says which there are and \
`add_space` adds one. To see one, call `stream_endpoint` and connect to what it answers while its \
ticket lets you in, or give a person the address that `open_space_viewer` answers. \
`teleport_app` moves an app's session to a Space, once a person has agreed in their own terminal; \
you cannot agree for them. A failed call \
carries `structuredContent.error`: `kind` says what went wrong, `hint` what to do next, and `retry` \
whether trying again can help.";

pub(crate) fn run(kept: Kept) -> Result<ExitCode> {
    if std::io::stdin().is_terminal() {
        render::hint("This is for an agent's host, which starts it and speaks on stdin");
    }
    client::wait(async {
        let (input, output) = stdio_pipes();
        let transport =
            AsyncRwTransport::new_server(input, output).with_max_line_length(LONGEST_MESSAGE);
        let server = Server::new(User { spaces: client::mine(), kept });
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            Error::new(Kind::Mcp, "the conversation with the agent failed").source(source)
        };
        let running = match server.serve(transport).await {
            Ok(running) => running,
            // A host that looked whether it starts, and said nothing.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(failed(error.into())),
        };
        running.waiting().await.map_err(|error| failed(error.into()))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Whom the agent works for.
#[derive(Clone)]
struct User {
    spaces: Spaces,
    /// Where the consent is that they gave.
    kept: Kept,
}

struct Server {
    user: User,
    tools: Tools,
    calls: Arc<Semaphore>,
}

impl Server {
    fn new(user: User) -> Self {
        Self { user, tools: Tools::all(), calls: Arc::new(Semaphore::new(CALLS)) }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new("spaceport", env!("CARGO_PKG_VERSION")).with_title("Spaceport"),
            )
            .with_instructions(INSTRUCTIONS)
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
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools.named(&request.name) else {
            let name: String = request.name.chars().take(80).collect();
            let message = format!("no tool is called `{}`", name.escape_debug());
            return Err(ErrorData::invalid_params(message, None));
        };
        // Never closed while there is a server.
        let _turn = self.calls.acquire().await;
        let done = tool.call(self.user.clone(), request.arguments.unwrap_or_default()).await;
        let success = |text| CallToolResult::success(vec![ContentBlock::text(text)]);
        Ok(done.map_or_else(|error| failure(&error), success).into())
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
