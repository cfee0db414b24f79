//! `spaceport serve`.

use std::process::ExitCode;

use serde::Serialize;
use spaceport_gateway::{Endpoints, Gateway};
use spaceport_spaces::Address;
use spaceport_types::{Error, Kind, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Serve;
use crate::{mcp, render};

/// What `--json` prints once the gateway serves.
#[derive(Serialize)]
struct Started<'a> {
    #[serde(flatten)]
    endpoints: &'a Endpoints,
    viewer_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay_viewer_url: Option<&'a str>,
    token_file: Option<String>,
}

pub(crate) fn run(serve: &Serve, json: bool) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = serve.config()?;
        let token_file = config.token.is_none().then(|| config.token_path().display().to_string());
        let demo = config.demo;
        // Before anything is started, so that a signal ends it in order.
        let stop = stop_signal()?;
        let gateway = Gateway::load(config).await?;
        let own = Address::parse(&gateway.url())?;
        let tools = mcp::of_space(own, gateway.token().clone());
        let gateway = gateway.with_tools(tools);
        let viewer_url = gateway.viewer_url()?;
        let by_relay = gateway.relay_viewer_url()?;
        let started = Started {
            endpoints: gateway.endpoints(),
            viewer_url: viewer_url.expose(),
            relay_viewer_url: by_relay.as_ref().map(|url| url.expose().as_str()),
            token_file,
        };
        if json {
            render::json(&started);
        } else {
            announce(&started, demo);
        }
        gateway.run(stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn announce(started: &Started<'_>, demo: bool) {
    let Started { endpoints, viewer_url, relay_viewer_url, token_file } = started;
    let what = if demo { "A demo desktop" } else { "This desktop" };
    let token = token_file
        .as_deref()
        .map_or_else(|| "the one you gave".to_owned(), |file| format!("kept in {file}"));
    let from_elsewhere = relay_viewer_url.map_or_else(String::new, |url| {
        let url = render::printable(url);
        format!("  From elsewhere, by the relay, which cannot see the picture:\n\n    {url}\n\n")
    });
    let relay = endpoints.relay.as_deref().map_or_else(String::new, |url| {
        format!("  Through the relay    {}\n", render::printable(url))
    });
    render::line_out(&format!(
        "\n  {what} is on the air. Open it in a browser:\n\n    {viewer_url}\n\n\
         {from_elsewhere}  \
         gRPC, media socket   http://{http}\n  \
         MCP                  http://{http}/mcp\n  \
         QUIC, WebTransport   udp {quic}\n  \
         WebRTC (WHEP)        http://{http}/whep   udp {webrtc}\n\
         {relay}  \
         Space token          {token}\n\n  \
         Ctrl-C ends it.\n",
        http = endpoints.http,
        quic = endpoints.quic,
        webrtc = endpoints.webrtc,
    ));
}

/// Completes at the first SIGINT or SIGTERM.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>> {
    let on = |kind| {
        signal(kind)
            .map_err(|error| Error::new(Kind::Io, "signals cannot be waited for").source(error))
    };
    let (mut interrupt, mut terminate) =
        (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
