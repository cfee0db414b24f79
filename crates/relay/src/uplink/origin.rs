//! Where a relay is.

use std::fmt;
use std::str::FromStr;

use spaceport_types::{Error, Kind};

/// Scheme, host and port of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    secure: bool,
    /// Lower case; an IPv6 address in brackets.
    host: String,
    port: u16,
}

impl Origin {
    /// Whether it is reached by TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The host, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, or the host alone where the port goes without saying.
    pub fn authority(&self) -> String {
        if self.port == default_port(self.secure) {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether what is sent there can be read on the way.
    pub fn is_exposed(&self) -> bool {
        let local = self.host == "localhost"
            || self.host().parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        !self.secure && !local
    }
}

impl FromStr for Origin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let shown: String = text.chars().take(80).collect();
            Error::new(
                Kind::InvalidArgument,
                format!("`{}` is not the address of a relay: {what}", shown.escape_debug()),
            )
            .hint("Give its origin, such as `https://relay.example`")
        };
        let uri: http::Uri = text.trim().parse().map_err(|_| wrong("it is no URL"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it begins with neither `https://` nor `http://`")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it holds a user name"));
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong("it has a path"));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let port = uri.port_u16().unwrap_or(default_port(secure));
        if port == 0 {
            return Err(wrong("its port is 0"));
        }
        Ok(Self { secure, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

const fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for (text, whole, host, port) in [
            ("https://Relay.example", "https://relay.example", "relay.example", 443),
            ("https://relay.example:443/", "https://relay.example", "relay.example", 443),
            ("http://10.0.0.7:3220", "http://10.0.0.7:3220", "10.0.0.7", 3220),
            ("http://[::1]:9", "http://[::1]:9", "::1", 9),
        ] {
            let origin: Origin = text.parse().unwrap();
            assert_eq!((&*origin.to_string(), origin.host(), origin.port()), (whole, host, port));
        }
        let long = format!("https://{}/x", "a".repeat(10_000));
        for text in [
            "",
            "relay",
            "wss://a",
            "https://",
            "https://a/m/x",
            "https://a@b",
            "http://a:0",
            &long,
        ] {
            let error = text.parse::<Origin>().unwrap_err();
            assert!(error.to_string().len() < 300, "{error}");
        }
    }

    #[test]
    fn what_can_be_read_on_the_way_is_known() {
        let exposed = |text: &str| text.parse::<Origin>().unwrap().is_exposed();
        assert!(exposed("http://relay.example") && exposed("http://10.0.0.7"));
        assert!(!exposed("https://relay.example"));
        assert!(!exposed("http://127.0.0.1:1") && !exposed("http://[::1]:1"));
        assert!(!exposed("http://localhost:1"));
    }
}
