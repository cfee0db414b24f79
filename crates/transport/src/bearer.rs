//! The secret that a request carries.

use http::HeaderMap;

/// The bearer secret of a header (RFC 6750 §2.1), if it has one.
pub fn bearer<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let (scheme, secret) = headers.get(name)?.to_str().ok()?.split_once(' ')?;
    // RFC 9110 §11.1: the scheme is the same in any case.
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim_start_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_whatever_the_case_of_its_scheme() {
        let read = |value: &str| {
            let headers =
                HeaderMap::from_iter([(http::header::AUTHORIZATION, value.parse().unwrap())]);
            bearer(&headers, "authorization").map(str::to_owned)
        };
        for value in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"] {
            assert_eq!(read(value).as_deref(), Some("s3cret"), "{value}");
        }
        for value in ["s3cret", "Bearer", "Basic s3cret", "Bearers3cret", ""] {
            assert_eq!(read(value), None, "{value}");
        }
    }
}
