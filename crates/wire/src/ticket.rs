//! How a browser hands over its ticket: in a WebSocket subprotocol, the one header it can set.
//!
//! Two forms are in use. Newer clients offer `rcdp.v2` and `cua.ticket.<ticket>`; older ones
//! `rcdp.v2.ticket.<ticket>` alone. Native clients offer nothing and put the ticket in the query.

use spaceport_types::Redacted;

/// The media protocol, as a WebSocket subprotocol.
pub const PROTOCOL: &str = "rcdp.v2";

/// What a client offered in `Sec-WebSocket-Protocol`, as far as it concerns media.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The ticket, when one of the subprotocols carries it.
    pub ticket: Option<Redacted<String>>,
    /// The subprotocol to answer with. `None` answers with none: a client that offered nothing
    /// fails on an answer, and one that offered only others gets to decide for itself.
    ///
    /// Redacted, because the ticket may be part of it.
    pub answer: Option<Redacted<String>>,
}

impl Offer {
    /// Reads the values of every `Sec-WebSocket-Protocol` header of a request; each value is a
    /// comma-separated list (RFC 6455 §11.3.4).
    ///
    /// The answer is `rcdp.v2` where that was offered, else the subprotocol the ticket came in.
    pub fn parse<'a>(headers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut offer = Self::default();
        let mut carrier = None;
        let mut plain = false;
        for name in headers.into_iter().flat_map(|value| value.split(',')).map(str::trim) {
            if name == PROTOCOL {
                plain = true;
            } else if offer.ticket.is_none()
                && let Some(ticket) = ticket_in(name)
            {
                offer.ticket = Some(Redacted::new(ticket.to_owned()));
                carrier = Some(name);
            }
        }
        offer.answer =
            if plain { Some(PROTOCOL) } else { carrier }.map(|name| Redacted::new(name.to_owned()));
        offer
    }
}

/// The subprotocols with which a client of this crate hands over `ticket`.
pub fn offered(ticket: &str) -> [String; 2] {
    [PROTOCOL.to_owned(), format!("{}{ticket}", PREFIXES[0])]
}

/// The ticket inside a subprotocol name, if there is one.
fn ticket_in(name: &str) -> Option<&str> {
    let ticket = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let base64url = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let plausible = (1..=MAX_TICKET).contains(&ticket.len()) && ticket.bytes().all(base64url);
    plausible.then_some(ticket)
}

/// What stands before a ticket; the first is the current form.
const PREFIXES: [&str; 2] = ["cua.ticket.", "rcdp.v2.ticket."];

/// The longest ticket that is looked up, in bytes. Ours are far shorter; whatever is longer is
/// nobody's, and is not worth hashing.
const MAX_TICKET: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(headers: &[&str]) -> (Option<String>, Option<String>) {
        let offer = Offer::parse(headers.iter().copied());
        let exposed = |secret: Option<Redacted<String>>| secret.map(|it| it.expose().clone());
        (exposed(offer.ticket), exposed(offer.answer))
    }

    fn some(ticket: &str, answer: &str) -> (Option<String>, Option<String>) {
        (Some(ticket.into()), Some(answer.into()))
    }

    #[test]
    fn both_forms_carry_a_ticket_and_the_plain_name_is_answered_first() {
        assert_eq!(parsed(&["rcdp.v2, cua.ticket.Ab-_9"]), some("Ab-_9", "rcdp.v2"));
        assert_eq!(parsed(&["cua.ticket.t", "rcdp.v2"]), some("t", "rcdp.v2"));
        assert_eq!(parsed(&["cua.ticket.t"]), some("t", "cua.ticket.t"));
        assert_eq!(parsed(&["rcdp.v2.ticket.t"]), some("t", "rcdp.v2.ticket.t"));
        assert_eq!(parsed(&["rcdp.v2.ticket.t , rcdp.v2"]), some("t", "rcdp.v2"));
        assert_eq!(parsed(&["rcdp.v2"]), (None, Some("rcdp.v2".into())));
    }

    #[test]
    fn nothing_is_answered_to_an_offer_that_is_not_ours() {
        for headers in [&[][..], &[""], &["mqtt, chat"], &["cua.ticket."], &["cua.ticket.a b"]] {
            assert_eq!(parsed(headers), (None, None), "{headers:?}");
        }
        let long = format!("cua.ticket.{}", "a".repeat(MAX_TICKET + 1));
        assert_eq!(parsed(&[&long]), (None, None));
    }

    #[test]
    fn what_a_client_offers_is_what_a_server_reads() {
        assert_eq!(parsed(&[&offered("T0").join(", ")]), some("T0", "rcdp.v2"));
    }

    #[test]
    fn a_ticket_does_not_show_in_a_log() {
        for header in ["rcdp.v2, cua.ticket.hunter2", "cua.ticket.hunter2"] {
            assert!(!format!("{:?}", Offer::parse([header])).contains("hunter2"), "{header}");
        }
    }
}
