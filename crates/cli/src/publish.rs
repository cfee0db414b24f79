//! `spaceport publish`: a session of this machine, sent to where others are served.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spaceport_gateway::Config;
use spaceport_gateway::config::read_secret;
use spaceport_gateway::publish::{self, Source, Wanted, What};
use spaceport_transport::whep::publisher::{self, News, Remote};
use spaceport_types::{Bitrate, Error, Kind, Result};

use crate::args::Environment;
use crate::render;
use crate::serve::stop_signal;

/// Send this machine's desktop, or one window, to an SFU over WHIP, until Ctrl-C.
///
/// The token of the endpoint is never an argument: it comes from `SPACEPORT_WHIP_TOKEN` or `--token-file`.
#[derive(Debug, clap::Args)]
pub(crate) struct Publish {
    /// The WHIP endpoint, such as `https://sfu.example/whip/my-stream`. One with a secret in its path belongs
    /// in the environment, which other users cannot read.
    #[arg(long, value_name = "URL", env = "SPACEPORT_WHIP_URL", hide_env_values = true)]
    pub(crate) whip: String,
    /// Read the endpoint's bearer token from this file, which only you may be able to read. Without it:
    /// `SPACEPORT_WHIP_TOKEN`, or none.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send the display of this id, or all of them together as `desktop`. Without it: the primary one.
    #[arg(long, value_name = "ID", group = "target")]
    pub(crate) display: Option<String>,
    /// Send the largest window of this app.
    #[arg(long, value_name = "NAME", group = "target")]
    pub(crate) app: Option<String>,
    /// Send the largest window with this in its title.
    #[arg(long, value_name = "TITLE", group = "target")]
    pub(crate) window: Option<String>,
    /// Send a generated test pattern.
    #[arg(long, group = "target")]
    pub(crate) test_pattern: bool,
    /// Start a virtual desktop with something moving on it, and send that.
    #[arg(long, group = "target")]
    pub(crate) demo: bool,
    /// The X display that all of that is on.
    #[arg(long, value_name = ":N", env = "DISPLAY")]
    pub(crate) x_display: Option<String>,
    /// Frames per second at most. Without it: 30.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=120))]
    pub(crate) fps: Option<u32>,
    /// The longer side of a frame at most, in pixels.
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(16..=16384))]
    pub(crate) max_dimension: Option<u32>,
    /// The rate at most, in kilobits per second. Without it: what the path carries.
    #[arg(long, value_name = "KBPS", value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(crate) bitrate: Option<u32>,
    /// Use this encoder only, by the name `spaceport doctor` shows.
    #[arg(long, value_name = "NAME")]
    pub(crate) encoder: Option<String>,
    /// Go on trying for so many seconds while the endpoint cannot be reached, or the stream is lost; 0 to
    /// try once.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub(crate) retry_for: u64,
}

impl Publish {
    fn remote(&self, environment: &Environment) -> Result<Remote> {
        let mut remote = Remote::new(&self.whip)?;
        remote.token = match &self.token_file {
            Some(file) => Some(read_secret(file)?),
            None => environment.whip_token.clone(),
        };
        remote.retry_for = Duration::from_secs(self.retry_for);
        Ok(remote)
    }

    fn config(&self, environment: &Environment) -> Config {
        let mut config = Config::new(&environment.state_dir);
        config.display = self.x_display.clone().filter(|display| !display.is_empty());
        config.demo = self.demo;
        config.test_pattern = self.test_pattern;
        config.encoder = self.encoder.clone();
        config
    }

    fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        wanted.what = if self.test_pattern {
            What::Display(spaceport_gateway::service::TEST_PATTERN.to_owned())
        } else if let Some(id) = self.display.clone() {
            What::Display(id)
        } else if let Some(app) = self.app.clone() {
            What::App(app)
        } else if let Some(title) = self.window.clone() {
            What::Title(title)
        } else {
            What::Primary
        };
        wanted.max_fps = self.fps.unwrap_or_default();
        wanted.max_dimension = self.max_dimension.unwrap_or_default();
        wanted.bitrate = self.bitrate.map(Bitrate::from_kbps);
        wanted
    }
}

pub(crate) fn run(publish: &Publish, json: bool) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let environment = Environment::read();
        let remote = publish.remote(&environment)?;
        // Before anything is started, so that a signal ends it in order.
        let stop = stop_signal()?;
        let source = publish::open(&publish.config(&environment), publish.wanted()).await?;
        send(remote, source, stop, json).await
    })
}

/// Sends until a signal, which is no error, or until it cannot go on, which is one.
async fn send(
    remote: Remote,
    source: Source,
    stop: impl Future<Output = ()>,
    json: bool,
) -> Result<ExitCode> {
    let (mut publisher, driver) = publisher::publish(remote, source.stream.clone())?;
    let driver = std::thread::Builder::new().name("whip".into()).spawn(|| driver.run())?;
    let mut stop = std::pin::pin!(stop);
    let outcome = loop {
        tokio::select! {
            () = &mut stop => break Ok(()),
            news = publisher.next() => match news {
                Ok(news) => tell(&news, &source, json),
                Err(error) => break Err(error),
            },
        }
    };
    let sent = publisher.leave().await;
    source.stream.sessions.close_all();
    // It ends with the publisher, which had the last handle.
    let ended = driver.join();
    outcome?;
    if json {
        let (frames, packets, bytes) = (sent.frames, sent.packets, sent.bytes);
        render::json(&json!({
            "state": "ended", "frames": frames, "packets": packets, "bytes": bytes,
        }));
    } else {
        render::line_out(&format!(
            "Ended. {} frames, {} bytes were sent.",
            sent.frames, sent.bytes
        ));
    }
    match ended {
        Ok(ended) => ended.map(|()| ExitCode::SUCCESS),
        Err(_) => Err(Error::new(Kind::Internal, "the WebRTC driver panicked")),
    }
}

/// One line for each thing that came about.
fn tell(news: &News, source: &Source, json: bool) {
    let shows = render::printable(&source.shows);
    match news {
        News::Connected { codec } if json => render::json(&json!({
            "state": "connected", "codec": codec.name(), "shows": source.shows,
        })),
        News::Connected { codec } => {
            render::line_out(&format!("Sending {shows} as {codec}. Ctrl-C ends it."));
        }
        News::Lost if json => render::json(&json!({ "state": "lost" })),
        News::Lost => render::line_out("The connection is lost; looking for another path."),
        News::Retrying { after, error } if json => render::json(&json!({
            "state": "retrying", "after_ms": after.as_millis() as u64, "error": error.report(),
        })),
        News::Retrying { after, error } => {
            let error = render::printable(&error.to_string());
            let after = after.as_secs_f64();
            render::line_out(&format!("Not sending: {error}. Trying again in {after:.1} s."));
        }
    }
}
