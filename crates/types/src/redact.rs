//! A wrapper for values that must not reach a log.

use std::fmt;

/// A secret: a token, a ticket, an SDP body, an address.
///
/// Prints as `[redacted]` with both formatters, so a span or an error that carries one cannot leak
/// it. [`Redacted::expose`] is the only way in, and easy to grep for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a secret.
    pub const fn new(secret: T) -> Self {
        Self(secret)
    }

    /// Reads the secret.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_formatter_shows_the_secret() {
        let secret = Redacted::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "[redacted] [redacted]");
        assert_eq!(*secret.expose(), "hunter2");
    }
}
