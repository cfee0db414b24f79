//! Where a Space is, in every form that people type.

use std::fmt;

use http::Uri;
use spaceport_types::{Error, Kind, Result};

/// The TCP port of a Space, where none is given.
pub(crate) const PORT: u16 = 3211;

/// The longest address that is looked at.
const LONGEST: usize = 2048;

/// Where a Space is: an origin, and the path under which it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    secure: bool,
    /// Lower case; an IPv6 address in brackets.
    host: String,
    port: u16,
    /// Empty, or a path without a slash at its end.
    prefix: String,
}

/// How a Space is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// At its own address.
    Direct,
    /// Through a relay, as the machine of this id.
    Relay {
        /// The id.
        machine: String,
    },
}

impl Address {
    /// Reads `host`, `host:port`, `direct:host:port` and URLs with `http`, `https`, `grpc`, `grpcs`
    /// or `h2c`. A path is kept as a prefix of every request; a query and a fragment are dropped.
    ///
    /// # Errors
    ///
    /// `invalid_argument` saying what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let typed = text.trim();
        let wrong = |what: &str| {
            Error::new(
                Kind::InvalidArgument,
                format!("`{}` is not the address of a Space: {what}", shown(typed)),
            )
            .hint("Give a host, `host:port`, or a URL such as `http://10.0.0.7:3211`")
        };
        if typed.is_empty() {
            return Err(wrong("it is empty"));
        }
        if typed.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let (scheme, rest) = match typed.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, typed.strip_prefix("direct:").unwrap_or(typed)),
        };
        let secure = match scheme.as_deref() {
            None | Some("http" | "grpc" | "h2c") => false,
            Some("https" | "grpcs") => true,
            Some("ws" | "wss") => {
                return Err(wrong("it is that of a media socket").hint(
                    "Give the `http` or `https` address; the media socket is found from there",
                ));
            }
            Some(other) => return Err(wrong(&format!("`{}` is not a scheme here", shown(other)))),
        };
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let uri: Uri = format!("http://{rest}")
            .parse()
            .map_err(|error| wrong("its host or path cannot be read").source(error))?;
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it holds a user name").hint(
                "Give the token by `--token-file` or `SPACEPORT_TOKEN`, where nobody else sees it",
            ));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let port = match authority.as_str().rsplit_once(':') {
            // What follows the last colon of `[::1]` is part of the host.
            Some((before, port)) if before.ends_with(']') || !port.ends_with(']') => port
                .parse()
                .ok()
                .filter(|&port| port != 0)
                .ok_or_else(|| wrong("its port is not a number from 1 to 65535"))?,
            _ => match scheme.as_deref() {
                Some("http") => 80,
                Some("https" | "grpcs") => 443,
                _ => PORT,
            },
        };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { secure, host, port, prefix })
    }

    /// Whether a text that names a Space means where it is: people write that with a scheme or a port,
    /// and a name without.
    pub fn is_meant(text: &str) -> bool {
        let text = text.trim();
        !text.starts_with("relay:")
            && (text.contains(':') || text.parse::<std::net::IpAddr>().is_ok())
    }

    /// `http://host:port`, or with `https`; without the prefix.
    pub fn origin(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    /// What comes before the path of every request: empty, or a path without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether it is reached by TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The host alone, an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `host:port`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// How it is reached: a prefix of the exact shape `/m/<id>` is a relay's.
    pub fn route(&self) -> Route {
        match self.prefix.strip_prefix("/m/") {
            Some(machine) if !machine.is_empty() && !machine.contains('/') => {
                Route::Relay { machine: machine.to_owned() }
            }
            _ => Route::Direct,
        }
    }

    /// What a Space at this address is called: `direct:host:port`, or `relay:<machine-id>`.
    pub fn id(&self) -> String {
        match self.route() {
            Route::Direct => format!("direct:{}", self.authority()),
            Route::Relay { machine } => format!("relay:{machine}"),
        }
    }
}

impl Route {
    /// What [`SpaceInfo::provider`](crate::SpaceInfo::provider) calls it.
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay { .. } => "relay",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.prefix)
    }
}

/// What was typed, safe for a terminal and not longer than a line.
fn shown(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_people_type() {
        for (typed, whole, id) in [
            ("box", "http://box:3211", "direct:box:3211"),
            (" box:80 ", "http://box:80", "direct:box:80"),
            ("direct:box:3300", "http://box:3300", "direct:box:3300"),
            ("http://10.0.0.7:3211", "http://10.0.0.7:3211", "direct:10.0.0.7:3211"),
            ("HTTP://Box", "http://box:80", "direct:box:80"),
            ("https://box", "https://box:443", "direct:box:443"),
            ("grpc://box", "http://box:3211", "direct:box:3211"),
            ("h2c://box:1", "http://box:1", "direct:box:1"),
            ("grpcs://box", "https://box:443", "direct:box:443"),
            ("[::1]", "http://[::1]:3211", "direct:[::1]:3211"),
            ("http://[::1]:9/", "http://[::1]:9", "direct:[::1]:9"),
            ("http://box:1/a/b/?q=1#f", "http://box:1/a/b", "direct:box:1"),
            ("https://relay:1/m/box-17", "https://relay:1/m/box-17", "relay:box-17"),
            ("https://relay:1/m/box-17/x", "https://relay:1/m/box-17/x", "direct:relay:1"),
        ] {
            let address = Address::parse(typed).unwrap();
            assert_eq!((&*address.to_string(), &*address.id()), (whole, id), "{typed}");
        }
    }

    #[test]
    fn a_name_is_told_from_an_address() {
        for address in ["box:3211", "http://box", "10.0.0.7", "::1", "[::1]:1", "direct:box:3211"] {
            assert!(Address::is_meant(address), "{address}");
        }
        for name in ["box", "My machine", "relay:box-17", "10.0.0", ""] {
            assert!(!Address::is_meant(name), "{name}");
        }
    }

    #[test]
    fn what_is_none_says_so() {
        for typed in [
            "",
            "   ",
            "ws://box",
            "wss://box:1/media",
            "ftp://box",
            "http://",
            "http://:80",
            "box:0",
            "box:65536",
            "box:x",
            "box:",
            "http://me:secret@box",
            "a b",
            "http://bo\nx",
            &"x".repeat(3000),
        ] {
            let error = Address::parse(typed).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument, "{typed}");
            assert!(!error.to_string().contains('\n'), "{error}");
            assert!(!error.to_string().contains(&"x".repeat(100)), "{error}");
        }
    }
}
