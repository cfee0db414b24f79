//! An offer that can be read can be reduced to any of its choices, and the reduced offer says the same.

use super::offer::{Offer, fragment, inspect, restart_answer};

pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(offer) = inspect(text) {
        hold(&offer, text);
    }
    // A fragment is the same text without a head, so every input is tried as one.
    if let Ok(fragment) = fragment(text)
        && let Some(credentials) = &fragment.credentials
    {
        let answer = restart_answer(credentials, &fragment.candidates);
        assert_eq!(answer.lines().count(), 3 + fragment.candidates.len(), "{answer}");
        let offer = inspect(WATCHED).unwrap();
        let choice = offer.choices().next().unwrap();
        let reduced = offer.reduced(choice, Some(&fragment));
        assert_eq!(inspect(&reduced).unwrap().ufrag(), credentials.ufrag);
    }
}

fn hold(offer: &Offer, text: &str) {
    for choice in offer.choices() {
        let reduced = offer.reduced(choice, None);
        let again = inspect(&reduced).unwrap();
        let only: Vec<_> = again.choices().collect();
        assert_eq!(only.len(), 1, "{reduced}");
        assert_eq!(
            (only[0].codec(), only[0].payload_type(), only[0].rtx()),
            (choice.codec(), choice.payload_type(), choice.rtx())
        );
        // RFC 3264 §6: an answer has as many sections as its offer, in the same order.
        let answer = offer.answer(choice, &reduced).unwrap();
        let sections = |sdp: &str| -> Vec<String> {
            let media = sdp.lines().filter_map(|line| line.strip_prefix("m="));
            media.map(|line| line.split_whitespace().next().unwrap_or_default().into()).collect()
        };
        assert_eq!(sections(&answer), sections(text), "{answer}");
    }
}

const WATCHED: &str = "v=0\r\n\
    m=video 9 UDP/TLS/RTP/SAVPF 96\r\n\
    a=mid:0\r\na=ice-ufrag:abcd\r\na=ice-pwd:0123456789abcdef012345\r\n\
    a=fingerprint:sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF\r\n\
    a=recvonly\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n";
