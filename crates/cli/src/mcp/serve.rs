//! `spaceport mcp --http`: the tools of this user for agents that cannot start a program.

use std::net::SocketAddr;
use std::process::ExitCode;

use serde_json::json;
use spaceport_gateway::config::read_secret;
use spaceport_gateway::{Config, guarded};
use spaceport_types::{Error, Kind, Result};
use tokio::net::TcpListener;

use super::{Server, http};
use crate::args::{Environment, Mcp};
use crate::render;
use crate::serve::stop_signal;

pub(super) fn run(server: Server, listen: SocketAddr, args: &Mcp, json: bool) -> Result<ExitCode> {
    let state_dir = args.kept.state_dir.clone();
    // Beside the Space token that a gateway keeps here, which is another secret.
    let folder = state_dir.unwrap_or_else(|| Environment::read().state_dir).join("mcp");
    let mut config = Config::new(folder);
    config.listen = listen;
    config.token = args.token_file.as_deref().map(read_secret).transpose()?;
    let kept = config.token.is_none().then(|| config.token_path());
    let token = config.resolve_token()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            Error::new(Kind::Io, format!("`{listen}` cannot be listened on"))
                .source(error)
                .hint("Choose another port, or 0 for a free one")
        })?;
        let url = format!("http://{}/mcp", listener.local_addr()?);
        if json {
            render::json(&json!({ "url": url, "token_file": kept }));
        } else {
            render::line_out(&url);
            render::hint(&match kept {
                Some(kept) => format!("Its token is kept in {}", kept.display()),
                None => "Its token is the one you gave".to_owned(),
            });
        }
        let routes = guarded(http::routes(server), &token);
        tokio::select! {
            ended = async { axum::serve(listener, routes).await } => ended?,
            // Whatever is open ends with it: an event stream may be open for hours.
            () = stop => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
