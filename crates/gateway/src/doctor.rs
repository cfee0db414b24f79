//! Looks at a machine and says what works here, what does not, and what to do about it.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use serde::Serialize;
use spaceport_media::capture::x11;
use spaceport_media::encode;
use spaceport_types::Error;

use crate::config::Config;

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Which part of the machine: `display`, `encoder` (of video), `lossless` (encoders of single
    /// pictures), `port`.
    pub area: &'static str,
    /// Which one.
    pub name: String,
    /// Whether it works.
    pub works: bool,
    /// Whether spaceport can do without it.
    pub optional: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it, when it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Looks at everything that `config` would use. Blocks for a second or so.
pub fn examine(config: &Config) -> Vec<Check> {
    let mut checks = vec![display(config)];
    checks.extend(encode::probe().iter().map(|result| {
        let took = format!("a test frame took {:.1?}", result.took);
        Check {
            area: if encode::lossy(result.codec) { "encoder" } else { "lossless" },
            name: format!("{} ({})", result.name, result.codec),
            works: result.works,
            // One that works is enough; `healthy` looks at them together.
            optional: true,
            detail: match &result.limitation {
                Some(limitation) if result.works => format!("{took}; {limitation}"),
                Some(limitation) => limitation.clone(),
                None => took,
            },
            hint: None,
        }
    }));
    checks.push(port("tcp", config.listen, TcpListener::bind(config.listen).map(drop)));
    for number in [config.quic_port, config.webrtc_port] {
        let udp = SocketAddr::new(config.listen.ip(), number);
        checks.push(port("udp", udp, UdpSocket::bind(udp).map(drop)));
    }
    checks
}

/// Whether a desktop could be streamed from here: everything needed works, and one encoder does.
pub fn healthy(checks: &[Check]) -> bool {
    let needed = checks.iter().all(|check| check.works || check.optional);
    needed && checks.iter().any(|check| check.area == "encoder" && check.works)
}

fn display(config: &Config) -> Check {
    let name = config.display.clone().unwrap_or_else(|| "the default display".to_owned());
    match x11::check(config.display.as_deref(), &x11::Options::default()) {
        Ok(facts) => {
            let mut detail = format!(
                "{}x{} pixels of depth {}, read by {}",
                facts.size.width,
                facts.size.height,
                facts.depth,
                facts.method.name()
            );
            if !facts.damage {
                detail.push_str(", compared by time (no DAMAGE extension)");
            }
            for (method, reason) in &facts.unusable {
                detail.push_str(&format!("; {} cannot be used: {reason}", method.name()));
            }
            Check {
                area: "display",
                name: facts.display,
                works: true,
                optional: false,
                detail,
                hint: None,
            }
        }
        Err(error) => failed("display", name, &error),
    }
}

fn port(protocol: &str, address: SocketAddr, bound: std::io::Result<()>) -> Check {
    let name = format!("{protocol} {address}");
    match bound {
        Ok(()) => Check {
            area: "port",
            name,
            works: true,
            optional: false,
            detail: "free".to_owned(),
            hint: None,
        },
        Err(error) => Check {
            area: "port",
            name,
            works: false,
            optional: false,
            detail: error.to_string(),
            hint: Some(match error.kind() {
                ErrorKind::PermissionDenied => "Choose a port above 1023".to_owned(),
                ErrorKind::AddrNotAvailable => "Choose an address of this machine".to_owned(),
                _ => "Stop what uses it (perhaps a running `spaceport serve`), or choose another \
                      port"
                    .to_owned(),
            }),
        },
    }
}

fn failed(area: &'static str, name: String, error: &Error) -> Check {
    let report = error.report();
    Check { area, name, works: false, optional: false, detail: report.message, hint: report.hint }
}
