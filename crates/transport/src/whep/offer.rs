//! What a viewer's SDP offers, read once and kept small.
//!
//! [`inspect`] is the only code that sees the offer as it came. It is pure, never panics, and
//! keeps a bounded amount of what it reads. The WebRTC engine gets a new, minimal offer instead
//! (`Offer::reduced`) with the one video section and the one codec that will be used, and a data
//! channel if there is one; `Offer::answer` puts its answer back among the sections of the
//! viewer's offer, the others rejected (RFC 8829, RFC 9143).

use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;

use spaceport_types::{Codec, Error, Kind, Result};

/// Bytes of an offer at most. Chromium's largest is below 10 KiB.
pub const MAX_OFFER: usize = 64 << 10;

/// Sections of an offer at most; a viewer needs three (audio, video, data).
const MAX_SECTIONS: usize = 32;

/// Candidates kept from one offer or fragment; more are ignored.
///
/// Each is an address that connectivity checks go to, so this also bounds how much traffic one
/// request can send elsewhere.
pub(super) const MAX_CANDIDATES: usize = 32;

/// Payload types looked at in one section; there are only 128.
const MAX_PAYLOAD_TYPES: usize = 128;

/// Longest ICE user fragment and password (RFC 8839 §5.4).
const MAX_CREDENTIAL: usize = 256;

/// Longest value of any other attribute that is copied into the reduced offer.
const MAX_VALUE: usize = 512;

/// Longest media id. It travels in a header extension of every early RTP packet.
const MAX_MID: usize = 16;

/// The header extensions spaceport uses; the others are not negotiated.
const EXTENSIONS: [&str; 3] = [
    "urn:ietf:params:rtp-hdrext:sdes:mid",
    "http://www.webrtc.org/experiments/rtp-hdrext/playout-delay",
    TRANSPORT_CC,
];

/// The extension that numbers packets for congestion feedback.
const TRANSPORT_CC: &str =
    "http://www.ietf.org/id/draft-holmer-rmcat-transport-wide-cc-extensions-01";

/// An offer that can be answered, if a codec fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    sections: Vec<Section>,
    credentials: Credentials,
    fingerprint: String,
    setup: Option<String>,
    /// Whether the sections share a transport, and which of them it was described for first.
    bundled: bool,
    tagged: Option<usize>,
    candidates: Vec<String>,
}

/// One m-line and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    media: Media,
    mid: Option<String>,
    /// The m-line's parts around the port, of the formats only the first, and what that format
    /// is: enough to answer a section that is not used.
    name: String,
    format: String,
    mapping: Option<String>,
    /// Whether the viewer still uses the section and would receive on it.
    receives: bool,
    codecs: Vec<Choice>,
    extensions: Vec<(u8, &'static str)>,
    credentials: Option<Credentials>,
    fingerprint: Option<String>,
    setup: Option<String>,
}

/// What a section carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    Video,
    Data,
    Other,
}

/// ICE user fragment and password (RFC 8445 §5.3).
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) ufrag: String,
    pub(super) pwd: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("ufrag", &self.ufrag).finish_non_exhaustive()
    }
}

/// One way to send video to this viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    codec: Codec,
    section: usize,
    payload_type: u8,
    /// Where it stands among the section's formats, the most wanted of which is the first.
    place: usize,
    /// The payload type of its retransmissions (RFC 4588).
    rtx: Option<u8>,
    /// `profile-level-id` of H.264 (RFC 6184 §8.1), `profile-id` of VP9 (RFC 9628 §7), or `profile`
    /// of AV1; and the packetization mode that the offer names, of H.264.
    profile: Option<u32>,
    mode: Option<u8>,
    /// Whether the viewer tells when each packet came, from which its path's rate is estimated.
    feedback: bool,
}

impl Choice {
    /// The codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The payload type the viewer wants it under.
    pub fn payload_type(&self) -> u8 {
        self.payload_type
    }

    /// Which section of the offer it is in.
    pub(super) fn section(&self) -> usize {
        self.section
    }

    pub(super) fn rtx(&self) -> Option<u8> {
        self.rtx
    }

    pub(super) fn feedback(&self) -> bool {
        self.feedback
    }

    pub(super) fn profile(&self) -> u32 {
        self.profile.unwrap_or(BASELINE_LEVEL_1)
    }

    /// How well it suits among those of its codec; lower is better, `None` is unusable.
    fn rank(&self) -> Option<u32> {
        match self.codec {
            Codec::H264 => {
                // FU-A needs mode 1. GStreamer offers it without saying so; an explicit other
                // mode means what it says.
                let unsaid = match self.mode {
                    Some(1) => 0,
                    None => 10,
                    Some(_) => return None,
                };
                // Every decoder takes constrained baseline; asking for the least keeps encoders
                // that look at the profile on it.
                let profile = self.profile.unwrap_or(BASELINE_LEVEL_1);
                let distance = match (profile >> 16, profile & 0x4000) {
                    (0x42, 0x4000) => 0,
                    (0x42, _) => 1,
                    (0x4d, _) => 2,
                    (0x64, _) => 3,
                    _ => 4,
                };
                Some(unsaid + distance)
            }
            // Their first profile, with 8 bits and 4:2:0, is the one that is encoded.
            Codec::Vp9 | Codec::Av1 => (self.profile.unwrap_or(0) == 0).then_some(0),
            Codec::Vp8 => Some(0),
            _ => None,
        }
    }
}

/// Constrained baseline, level 1: what an absent `profile-level-id` means (RFC 6184 §8.1).
const BASELINE_LEVEL_1: u32 = 0x42_00_0a;

/// Reads an offer.
///
/// # Errors
///
/// `invalid_argument` when it is not SDP, lacks ICE credentials or a fingerprint, or goes beyond
/// what any viewer needs. That no codec fits is not an error here; see [`Offer::choices`].
pub fn inspect(sdp: &str) -> Result<Offer> {
    if sdp.len() > MAX_OFFER {
        return Err(malformed("the offer is too large").with("limit", MAX_OFFER));
    }
    let mut lines = sdp.lines().map(str::trim_end).filter(|line| !line.is_empty());
    if lines.next() != Some("v=0") {
        return Err(malformed("the offer does not begin with `v=0`")
            .hint("Send the SDP of the offer itself as the request's body"));
    }

    let mut session = Common::default();
    let mut bundle: Option<&str> = None;
    let mut sections: Vec<Builder<'_>> = Vec::new();
    let mut candidates = Candidates::default();
    for line in lines {
        let Some((kind, value)) = line.split_once('=').filter(|(kind, _)| kind.len() == 1) else {
            return Err(malformed("a line of the offer is not of the form `x=value`"));
        };
        match kind {
            "m" => {
                if sections.len() == MAX_SECTIONS {
                    let error = malformed("the offer has too many sections");
                    return Err(error.with("limit", MAX_SECTIONS));
                }
                sections.push(Builder::new(value)?);
            }
            "a" => {
                let (name, value) = value.split_once(':').unwrap_or((value, ""));
                if name == "candidate" {
                    candidates.push(value);
                } else if let Some(section) = sections.last_mut() {
                    section.attribute(name, value);
                } else if name == "group" {
                    bundle = bundle.or(value.strip_prefix("BUNDLE"));
                } else {
                    session.attribute(name, value);
                }
            }
            _ => {}
        }
    }

    let group: Vec<&str> = bundle.unwrap_or_default().split_ascii_whitespace().collect();
    let sections: Vec<Section> = sections
        .into_iter()
        .enumerate()
        .map(|(at, section)| section.build(at, &session, &group))
        .collect();
    let mut mids = HashSet::new();
    for mid in sections.iter().filter_map(|section| section.mid.as_deref()) {
        if !is_token(mid, MAX_MID) {
            return Err(malformed("a media id of the offer cannot be used").with("mid", mid));
        }
        if !mids.insert(mid) {
            return Err(
                malformed("two sections of the offer have the same media id").with("mid", mid)
            );
        }
    }
    if sections.is_empty() {
        return Err(malformed("the offer has no media section"));
    }

    // Bundled sections share a transport, so any section's description of it will do; the video's
    // own comes first where a viewer describes it several times over.
    let by_preference = || {
        let video = sections.iter().filter(|section| section.media == Media::Video);
        video.chain(sections.iter().filter(|section| section.media != Media::Video))
    };
    let credentials = by_preference()
        .find_map(|section| section.credentials.clone())
        .ok_or_else(|| malformed("the offer has no usable `a=ice-ufrag` and `a=ice-pwd`"))?;
    let fingerprint = by_preference()
        .find_map(|section| section.fingerprint.clone())
        .ok_or_else(|| malformed("the offer has no usable `a=fingerprint`"))?;
    let setup = by_preference().find_map(|section| section.setup.clone());
    let tagged = group
        .first()
        .and_then(|&mid| sections.iter().position(|section| section.mid.as_deref() == Some(mid)));
    let candidates = candidates.kept;
    let bundled = bundle.is_some();
    Ok(Offer { sections, credentials, fingerprint, setup, bundled, tagged, candidates })
}

impl Offer {
    /// Everything this viewer can be sent, best first.
    ///
    /// Codecs come in the offer's order, but for H.264, which comes first: it costs a fraction of
    /// the others, and the VP8 at the head of every browser's own order says nothing about what its
    /// page wants. VP9 or AV1 is at the head only where someone put it there, and then the order
    /// stands.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        let codecs = self.sections.iter().filter(|section| section.receives);
        let mut choices: Vec<_> = codecs
            .flat_map(|section| &section.codecs)
            .filter_map(|choice| Some((choice.rank()?, choice)))
            .collect();
        choices.sort_by_key(|&(_, choice)| (choice.section, choice.place));
        let mut order: Vec<Codec> = Vec::new();
        for &(_, choice) in &choices {
            if !order.contains(&choice.codec) {
                order.push(choice.codec);
            }
        }
        if !matches!(order.first(), Some(Codec::Vp9 | Codec::Av1)) {
            order.sort_by_key(|&codec| codec != Codec::H264);
        }
        choices.sort_by_key(|&(rank, choice)| {
            (order.iter().position(|&codec| codec == choice.codec), rank)
        });
        choices.into_iter().map(|(_, choice)| choice)
    }

    /// How many of the viewer's candidates can be used. Most browsers tell of none, because they
    /// hide their addresses, and are found by their checks.
    pub(super) fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// The viewer's ICE user fragment.
    pub(super) fn ufrag(&self) -> &str {
        &self.credentials.ufrag
    }

    /// An offer that holds just what `choice` needs, with other credentials after an ICE restart.
    pub(super) fn reduced(&self, choice: &Choice, restart: Option<&Fragment>) -> String {
        let mut sdp = String::with_capacity(2048);
        let kept: Vec<usize> = self.kept(choice).collect();
        let (credentials, candidates) = match restart {
            Some(Fragment { credentials: Some(credentials), candidates, .. }) => {
                (credentials, candidates)
            }
            _ => (&self.credentials, &self.candidates),
        };
        line(&mut sdp, "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0");
        let mids: Vec<_> = kept.iter().map(|&index| self.mid(index)).collect();
        line(&mut sdp, format_args!("a=group:BUNDLE {}", mids.join(" ")));
        for (position, &index) in kept.iter().enumerate() {
            let section = &self.sections[index];
            if section.media == Media::Data {
                line(&mut sdp, "m=application 9 UDP/DTLS/SCTP webrtc-datachannel");
            } else {
                let rtx = choice.rtx.map(|rtx| format!(" {rtx}")).unwrap_or_default();
                let pt = choice.payload_type;
                line(&mut sdp, format_args!("m=video 9 UDP/TLS/RTP/SAVPF {pt}{rtx}"));
            }
            line(&mut sdp, "c=IN IP4 0.0.0.0");
            line(&mut sdp, format_args!("a=mid:{}", self.mid(index)));
            line(&mut sdp, format_args!("a=ice-ufrag:{}", credentials.ufrag));
            line(&mut sdp, format_args!("a=ice-pwd:{}", credentials.pwd));
            line(&mut sdp, format_args!("a=fingerprint:{}", self.fingerprint));
            let setup = self.setup.as_deref().unwrap_or("actpass");
            line(&mut sdp, format_args!("a=setup:{setup}"));
            if section.media == Media::Data {
                line(&mut sdp, "a=sctp-port:5000\r\na=max-message-size:262144");
            } else {
                choice.describe(&mut sdp);
                for (id, uri) in &section.extensions {
                    line(&mut sdp, format_args!("a=extmap:{id} {uri}"));
                }
            }
            if position == 0 {
                for candidate in candidates {
                    line(&mut sdp, format_args!("a=candidate:{candidate}"));
                }
            }
        }
        sdp
    }

    /// Puts the engine's answer to [`Offer::reduced`] back among the viewer's sections.
    ///
    /// `None` when the answer does not carry the video: then there is nothing to watch, whatever
    /// else was agreed on.
    pub(super) fn answer(&self, choice: &Choice, reduced: &str) -> Option<String> {
        let start = reduced.find("\r\nm=")? + 2;
        let (session, sections) = reduced.split_at(start);
        let sections: Vec<&str> = split_before(sections, "m=");
        let kept: Vec<usize> = self.kept(choice).collect();
        if sections.len() != kept.len() {
            return None;
        }
        // RFC 9143 §7.3.4: the section that stands for the whole bundle may not be rejected while
        // others are accepted. Browsers then have no transport left to apply the answer to.
        let idle = self.tagged.filter(|tagged| !kept.contains(tagged));
        let used = |index: usize| kept.contains(&index) || idle == Some(index);
        let mut bundle: Vec<usize> = (0..self.sections.len()).filter(|&at| used(at)).collect();
        bundle.sort_by_key(|&index| self.tagged != Some(index));
        let transport: Vec<&str> =
            sections[0].split_inclusive("\r\n").filter(|line| is_transport(line)).collect();

        let mut sdp = String::with_capacity(reduced.len() + 512);
        for part in session.split_inclusive("\r\n") {
            if !part.starts_with("a=group:") {
                sdp.push_str(part);
            } else if self.bundled {
                // RFC 5888 §9.2: no group in the answer that was not in the offer.
                let mids: Vec<_> = bundle.iter().map(|&index| self.mid(index)).collect();
                line(&mut sdp, format_args!("a=group:BUNDLE {}", mids.join(" ")));
            }
        }
        for (index, section) in self.sections.iter().enumerate() {
            if let Some(position) = kept.iter().position(|&kept| kept == index) {
                let accepted = sections[position];
                if index == choice.section && !carries(accepted, choice.payload_type) {
                    return None;
                }
                sdp.push_str(accepted);
            } else if idle == Some(index) {
                section.idle(&transport, &mut sdp);
            } else {
                section.reject(&mut sdp);
            }
        }
        Some(sdp)
    }

    /// Reads the same kind of text as an answer to an offer of ours with one section, called `mid`. `false`
    /// when it answers something else.
    pub(super) fn answers(&mut self, mid: &str) -> bool {
        // RFC 4145 §4.1: who says nothing is active. `actpass` is for offers.
        if self.setup.as_deref() != Some("passive") {
            self.setup = Some("active".to_owned());
        }
        let [section] = &mut self.sections[..] else { return false };
        section.media == Media::Video && *section.mid.get_or_insert_with(|| mid.to_owned()) == mid
    }

    /// The sections that are accepted: the chosen video and the first data channel.
    fn kept(&self, choice: &Choice) -> impl Iterator<Item = usize> {
        let data = self.sections.iter().position(|section| section.media == Media::Data);
        let video = choice.section;
        (0..self.sections.len()).filter(move |&index| index == video || Some(index) == data)
    }

    /// A section's media id. The rare section that has none gets a number: its place, unless
    /// another section is called that.
    pub(super) fn mid(&self, index: usize) -> String {
        let taken =
            |mid: &String| self.sections.iter().any(|section| section.mid.as_ref() == Some(mid));
        self.sections[index].mid.clone().unwrap_or_else(|| {
            // Steps of the most sections there are, so that two such sections never meet.
            let mut numbers = (index..).step_by(MAX_SECTIONS).map(|number| number.to_string());
            numbers.find(|number| !taken(number)).expect("there are more numbers than sections")
        })
    }
}

impl Choice {
    /// The attributes of a video section that offers nothing else.
    fn describe(&self, sdp: &mut String) {
        let pt = self.payload_type;
        let name = match self.codec {
            Codec::H264 => "H264",
            Codec::Vp9 => "VP9",
            Codec::Av1 => "AV1",
            _ => "VP8",
        };
        line(sdp, "a=recvonly\r\na=rtcp-mux");
        line(sdp, format_args!("a=rtpmap:{pt} {name}/90000"));
        for feedback in ["nack", "nack pli", "ccm fir"] {
            line(sdp, format_args!("a=rtcp-fb:{pt} {feedback}"));
        }
        if self.feedback {
            line(sdp, format_args!("a=rtcp-fb:{pt} transport-cc"));
        }
        match self.codec {
            Codec::H264 => {
                let profile = self.profile();
                line(
                    sdp,
                    format_args!(
                        "a=fmtp:{pt} level-asymmetry-allowed=1;packetization-mode=1;\
                         profile-level-id={profile:06x}"
                    ),
                );
            }
            Codec::Vp9 => line(sdp, format_args!("a=fmtp:{pt} profile-id=0")),
            _ => {}
        }
        if let Some(rtx) = self.rtx {
            line(sdp, format_args!("a=rtpmap:{rtx} rtx/90000\r\na=fmtp:{rtx} apt={pt}"));
        }
    }
}

impl Section {
    /// This section with port zero (RFC 3264 §6), without any of the transport's attributes.
    fn reject(&self, sdp: &mut String) {
        line(sdp, format_args!("m={} 0 {}\r\nc=IN IP4 0.0.0.0", self.name, self.format));
        self.describe(sdp);
    }

    /// This section with nothing sent in either direction, for the sake of its transport.
    fn idle(&self, transport: &[&str], sdp: &mut String) {
        line(sdp, format_args!("m={} 9 {}\r\nc=IN IP4 0.0.0.0", self.name, self.format));
        sdp.extend(transport.iter().copied());
        self.describe(sdp);
        if self.format.contains("RTP/") {
            line(sdp, "a=rtcp-mux");
        }
    }

    fn describe(&self, sdp: &mut String) {
        if let Some(mid) = &self.mid {
            line(sdp, format_args!("a=mid:{mid}"));
        }
        if let Some(mapping) = &self.mapping {
            line(sdp, format_args!("a=rtpmap:{mapping}"));
        }
        line(sdp, "a=inactive");
    }
}

/// An `application/trickle-ice-sdpfrag` (RFC 8840): more candidates, or an ICE restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) credentials: Option<Credentials>,
    pub(super) candidates: Vec<String>,
}

/// Reads a fragment. Lines it does not know are ignored; candidates that cannot be used (mDNS
/// names, TCP) are left out.
pub(super) fn fragment(text: &str) -> Result<Fragment> {
    let mut common = Common::default();
    let mut candidates = Candidates::default();
    for part in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((kind, value)) = part.split_once('=').filter(|(kind, _)| kind.len() == 1) else {
            return Err(malformed("a line of the fragment is not of the form `x=value`"));
        };
        if kind == "a" {
            let (name, value) = value.split_once(':').unwrap_or((value, ""));
            match name {
                "candidate" => candidates.push(value),
                _ => common.attribute(name, value),
            }
        }
    }
    Ok(Fragment { credentials: common.credentials(), candidates: candidates.kept })
}

/// The fragment that answers an ICE restart.
pub(super) fn restart_answer(credentials: &Credentials, candidates: &[String]) -> String {
    let mut sdp = String::with_capacity(512);
    line(&mut sdp, format_args!("a=ice-ufrag:{}", credentials.ufrag));
    line(&mut sdp, format_args!("a=ice-pwd:{}", credentials.pwd));
    for candidate in candidates {
        line(&mut sdp, format_args!("a={candidate}"));
    }
    line(&mut sdp, "a=end-of-candidates");
    sdp
}

/// Attributes that stand at session level or in a section.
#[derive(Default)]
struct Common {
    ufrag: Option<String>,
    pwd: Option<String>,
    fingerprint: Option<String>,
    setup: Option<String>,
}

impl Common {
    fn attribute(&mut self, name: &str, value: &str) {
        let value = value.trim();
        match name {
            "ice-ufrag" if self.ufrag.is_none() && is_token(value, MAX_CREDENTIAL) => {
                self.ufrag = Some(value.to_owned());
            }
            "ice-pwd" if self.pwd.is_none() && is_token(value, MAX_CREDENTIAL) => {
                self.pwd = Some(value.to_owned());
            }
            "fingerprint" if is_fingerprint(value) => {
                // Of several hashes, the one every peer can compute (RFC 8122 §5).
                let sha256 = value.to_ascii_lowercase().starts_with("sha-256 ");
                if self.fingerprint.is_none() || sha256 {
                    self.fingerprint = Some(value.to_owned());
                }
            }
            "setup" if ["actpass", "active", "passive"].contains(&value) => {
                self.setup = Some(value.to_owned());
            }
            _ => {}
        }
    }

    /// These attributes, and those of `other` where there are none.
    fn or(self, other: &Self) -> Self {
        Self {
            ufrag: self.ufrag.or_else(|| other.ufrag.clone()),
            pwd: self.pwd.or_else(|| other.pwd.clone()),
            fingerprint: self.fingerprint.or_else(|| other.fingerprint.clone()),
            setup: self.setup.or_else(|| other.setup.clone()),
        }
    }

    fn credentials(&self) -> Option<Credentials> {
        Some(Credentials { ufrag: self.ufrag.clone()?, pwd: self.pwd.clone()? })
    }
}

/// A section while its lines come in.
struct Builder<'a> {
    media: Media,
    name: &'a str,
    disabled: bool,
    bundle_only: bool,
    direction: &'a str,
    mid: Option<&'a str>,
    protocol: &'a str,
    formats: Vec<&'a str>,
    mappings: Vec<(u8, &'a str)>,
    parameters: Vec<(u8, &'a str)>,
    /// The formats with congestion feedback, or all of them.
    feedback: Vec<u8>,
    feedback_for_all: bool,
    extensions: Vec<(u8, &'static str)>,
    common: Common,
}

impl<'a> Builder<'a> {
    /// Reads `video 9 UDP/TLS/RTP/SAVPF 96 97`.
    fn new(line: &'a str) -> Result<Self> {
        let mut words = line.split_ascii_whitespace();
        let (Some(media), Some(port), Some(protocol)) = (words.next(), words.next(), words.next())
        else {
            return Err(malformed("an `m=` line of the offer is too short"));
        };
        let formats: Vec<_> = words.take(MAX_PAYLOAD_TYPES).collect();
        let port: Option<u16> = port.split('/').next().and_then(|port| port.parse().ok());
        let words = [media, protocol, formats.first().copied().unwrap_or_default()];
        let Some(port) = port.filter(|_| words.iter().all(|word| is_token(word, 64))) else {
            return Err(malformed("an `m=` line of the offer cannot be read"));
        };
        let data = formats.contains(&"webrtc-datachannel") && protocol.contains("DTLS/SCTP");
        Ok(Self {
            media: match media {
                "video" => Media::Video,
                "application" if data => Media::Data,
                _ => Media::Other,
            },
            name: media,
            disabled: port == 0,
            bundle_only: false,
            direction: "sendrecv",
            mid: None,
            protocol,
            formats,
            mappings: Vec::new(),
            parameters: Vec::new(),
            feedback: Vec::new(),
            feedback_for_all: false,
            extensions: Vec::new(),
            common: Common::default(),
        })
    }

    fn attribute(&mut self, name: &'a str, value: &'a str) {
        match name {
            "sendrecv" | "sendonly" | "recvonly" | "inactive" => self.direction = name,
            "bundle-only" => self.bundle_only = true,
            "mid" => self.mid = Some(value.trim()),
            "rtpmap" if self.mappings.len() < MAX_PAYLOAD_TYPES => {
                self.mappings.extend(numbered(value));
            }
            "fmtp" if self.parameters.len() < MAX_PAYLOAD_TYPES => {
                self.parameters.extend(numbered(value));
            }
            "rtcp-fb" => self.feedback(value),
            "extmap" => self.extension(value),
            _ => self.common.attribute(name, value),
        }
    }

    /// Reads `96 transport-cc` or `* transport-cc`.
    fn feedback(&mut self, value: &str) {
        let Some((format, kind)) = value.split_once(' ') else { return };
        if kind.trim() != "transport-cc" {
            return;
        }
        self.feedback_for_all |= format == "*";
        if let Ok(format) = format.parse()
            && self.feedback.len() < MAX_PAYLOAD_TYPES
        {
            self.feedback.push(format);
        }
    }

    /// Reads `4 urn:…` or `4/recvonly urn:…`; only one-byte ids (RFC 8285 §4.2) are used.
    fn extension(&mut self, value: &str) {
        let Some((id, rest)) = value.split_once(' ') else { return };
        let Ok(id @ 1..=14) = id.split('/').next().unwrap_or_default().parse::<u8>() else {
            return;
        };
        let uri = rest.split_ascii_whitespace().next().unwrap_or_default();
        let known = EXTENSIONS.iter().find(|&&known| known == uri);
        if let Some(&uri) = known
            && !self.extensions.iter().any(|&(other, same)| other == id || same == uri)
        {
            self.extensions.push((id, uri));
        }
    }

    /// The whole section; what it does not say itself, the session says for it.
    fn build(self, section: usize, session: &Common, bundle: &[&str]) -> Section {
        let counted = self.extensions.iter().any(|&(_, uri)| uri == TRANSPORT_CC);
        let mut codecs: Vec<Choice> = Vec::new();
        for &(payload_type, mapping) in &self.mappings {
            let (name, rest) = mapping.split_once('/').unwrap_or((mapping, ""));
            let clock = rest.split('/').next().unwrap_or_default();
            let codec = match name {
                _ if clock.trim() != "90000" => continue,
                name if name.eq_ignore_ascii_case("H264") => Codec::H264,
                name if name.eq_ignore_ascii_case("VP8") => Codec::Vp8,
                name if name.eq_ignore_ascii_case("VP9") => Codec::Vp9,
                name if name.eq_ignore_ascii_case("AV1") => Codec::Av1,
                _ => continue,
            };
            let known = codecs.iter().any(|choice| choice.payload_type == payload_type);
            let Some(place) = self.place(payload_type) else { continue };
            if known || !is_usable(payload_type) {
                continue;
            }
            let parameters = self.parameters(payload_type);
            // An unreadable number of a profile is none that is known.
            let number =
                |name| parameter(parameters, name).map(|it| it.parse().unwrap_or(u32::MAX));
            codecs.push(Choice {
                codec,
                section,
                payload_type,
                place,
                rtx: self.retransmission(payload_type).filter(|&rtx| self.place(rtx).is_some()),
                profile: match codec {
                    Codec::Vp9 => number("profile-id"),
                    Codec::Av1 => number("profile"),
                    _ => parameter(parameters, "profile-level-id")
                        .and_then(|profile| u32::from_str_radix(profile, 16).ok())
                        .filter(|&profile| profile <= 0xff_ff_ff),
                },
                mode: parameter(parameters, "packetization-mode")
                    .map(|mode| mode.parse().unwrap_or(u8::MAX)),
                feedback: counted
                    && (self.feedback_for_all || self.feedback.contains(&payload_type)),
            });
        }
        let mapping = self.formats.first().and_then(|format| {
            let pt: u8 = format.parse().ok()?;
            let (_, mapping) = self.mappings.iter().find(|&&(mapped, _)| mapped == pt)?;
            is_value(mapping).then(|| format!("{pt} {mapping}"))
        });
        let common = self.common.or(session);
        // RFC 9143 §6: port zero with `bundle-only` is a section in use. Some players leave the
        // attribute out, and say so by the group alone.
        let grouped = self.mid.is_some_and(|mid| bundle.contains(&mid));
        let used = !self.disabled || self.bundle_only || grouped;
        let receiving = matches!(self.direction, "sendrecv" | "recvonly");
        Section {
            media: self.media,
            mid: self.mid.map(str::to_owned),
            name: self.name.to_owned(),
            format: format!("{} {}", self.protocol, self.formats[0]),
            mapping,
            receives: self.media == Media::Video && used && receiving,
            codecs: if self.media == Media::Video { codecs } else { Vec::new() },
            extensions: self.extensions,
            credentials: common.credentials(),
            fingerprint: common.fingerprint,
            setup: common.setup,
        }
    }

    /// Where a payload type stands among the section's formats, if it does.
    fn place(&self, payload_type: u8) -> Option<usize> {
        self.formats.iter().position(|format| format.parse() == Ok(payload_type))
    }

    fn parameters(&self, payload_type: u8) -> &'a str {
        let found = self.parameters.iter().find(|&&(pt, _)| pt == payload_type);
        found.map_or("", |&(_, parameters)| parameters)
    }

    /// The payload type that retransmits `payload_type`.
    fn retransmission(&self, payload_type: u8) -> Option<u8> {
        let rtx = self.mappings.iter().filter(|(_, mapping)| {
            mapping.split('/').next().is_some_and(|name| name.eq_ignore_ascii_case("rtx"))
        });
        rtx.map(|&(pt, _)| pt).find(|&pt| {
            let apt = parameter(self.parameters(pt), "apt").and_then(|apt| apt.parse().ok());
            pt != payload_type && is_usable(pt) && apt == Some(payload_type)
        })
    }
}

/// Candidates that can be used, in the order they came.
#[derive(Default)]
struct Candidates {
    kept: Vec<String>,
}

impl Candidates {
    /// Keeps UDP candidates with a literal address that checks may be sent to.
    ///
    /// Names (`….local`) would have to be resolved on the viewer's network; such a viewer is found
    /// by its own checks instead.
    fn push(&mut self, value: &str) {
        let value = value.trim();
        let words: Vec<&str> = value.split_ascii_whitespace().take(6).collect();
        let [_, component, protocol, _, address, port] = words[..] else { return };
        let sendable = address.parse().is_ok_and(|address: IpAddr| match address {
            IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
            IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
        });
        let port = port.parse().is_ok_and(|port: u16| port > 0);
        let udp = protocol.eq_ignore_ascii_case("udp");
        let fits = self.kept.len() < MAX_CANDIDATES && is_value(value);
        if component == "1" && udp && sendable && port && fits {
            self.kept.push(value.to_owned());
        }
    }
}

fn malformed(message: &'static str) -> Error {
    Error::new(Kind::InvalidArgument, message)
}

fn line(sdp: &mut String, line: impl std::fmt::Display) {
    write!(sdp, "{line}\r\n").expect("a string can always grow");
}

/// Splits so that each part begins a line with `mark`.
fn split_before<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for part in text.split_inclusive('\n') {
        if at > start && part.starts_with(mark) {
            parts.push(&text[start..at]);
            start = at;
        }
        at += part.len();
    }
    if start < text.len() {
        parts.push(&text[start..]);
    }
    parts
}

/// Whether an answered section is in use and names `payload_type`.
fn carries(section: &str, payload_type: u8) -> bool {
    let mut words = section.lines().next().unwrap_or_default().split_ascii_whitespace();
    let active = words.nth(1).is_some_and(|port| port != "0");
    active && words.any(|word| word.parse() == Ok(payload_type))
}

/// Whether a line of the answer describes the transport, and not what it carries.
fn is_transport(line: &str) -> bool {
    let names = ["a=candidate:", "a=ice-", "a=fingerprint:", "a=setup:", "a=end-of-candidates"];
    names.iter().any(|name| line.starts_with(name))
}

/// Reads `96 value`.
fn numbered(text: &str) -> Option<(u8, &str)> {
    let (number, value) = text.trim().split_once(' ')?;
    Some((number.parse().ok()?, value.trim()))
}

/// The value of `name` in `a=1;b=2`.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    parameters.split(';').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Payload types that cannot be taken for RTCP on the same port (RFC 5761 §4).
fn is_usable(payload_type: u8) -> bool {
    matches!(payload_type, 0..=63 | 96..=127)
}

/// A short printable word.
fn is_token(text: &str, max: usize) -> bool {
    !text.is_empty() && text.len() <= max && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Printable text that may have spaces.
fn is_value(text: &str) -> bool {
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    !text.is_empty() && text.len() <= MAX_VALUE && text.bytes().all(printable)
}

/// `sha-256 AB:CD:…`.
fn is_fingerprint(text: &str) -> bool {
    let Some((hash, digest)) = text.split_once(' ') else { return false };
    let pairs = || digest.trim().split(':');
    let hex = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_token(hash, 16) && (16..=64).contains(&pairs().count()) && pairs().all(hex)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const FINGERPRINT: &str = "sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:\
                               00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF";

    /// An offer of `sections`, as a browser makes it: all in one bundle, transport in each.
    pub(in super::super) fn browser(sections: &[&str]) -> String {
        let mids: Vec<_> = (0..sections.len()).map(|mid| mid.to_string()).collect();
        let mut sdp = format!(
            "v=0\r\no=- 42 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {}\r\n\
             a=extmap-allow-mixed\r\na=msid-semantic: WMS\r\n",
            mids.join(" ")
        );
        for (mid, section) in sections.iter().enumerate() {
            let (first, rest) = section.split_once('\n').unwrap_or((section, ""));
            line(&mut sdp, first);
            line(&mut sdp, "c=IN IP4 0.0.0.0\r\na=rtcp:9 IN IP4 0.0.0.0");
            line(&mut sdp, "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901");
            line(&mut sdp, format_args!("a=ice-options:trickle\r\na=fingerprint:{FINGERPRINT}"));
            line(&mut sdp, format_args!("a=setup:actpass\r\na=mid:{mid}"));
            for attribute in rest.lines() {
                line(&mut sdp, attribute.trim());
            }
        }
        sdp
    }

    pub(in super::super) const AUDIO: &str = "m=audio 9 UDP/TLS/RTP/SAVPF 111
        a=recvonly
        a=rtcp-mux
        a=rtpmap:111 opus/48000/2";

    /// GStreamer writes Opus without its channels.
    const GSTREAMER_AUDIO: &str = "m=audio 9 UDP/TLS/RTP/SAVPF 96
        a=recvonly
        a=rtcp-mux
        a=rtpmap:96 OPUS/48000";

    pub(in super::super) const DATA: &str = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel
        a=sctp-port:5000";

    pub(in super::super) const CHROMIUM: &str =
        "m=video 9 UDP/TLS/RTP/SAVPF 96 97 103 104 107 108 109 114 39 40 49
        a=extmap:1 urn:ietf:params:rtp-hdrext:toffset
        a=extmap:3 urn:3gpp:video-orientation
        a=extmap:4 http://www.ietf.org/id/draft-holmer-rmcat-transport-wide-cc-extensions-01
        a=extmap:5 http://www.webrtc.org/experiments/rtp-hdrext/playout-delay
        a=extmap:9 urn:ietf:params:rtp-hdrext:sdes:mid
        a=recvonly
        a=rtcp-mux
        a=rtcp-rsize
        a=rtpmap:96 VP8/90000
        a=rtcp-fb:96 goog-remb
        a=rtcp-fb:96 transport-cc
        a=rtcp-fb:96 nack
        a=rtpmap:97 rtx/90000
        a=fmtp:97 apt=96
        a=rtpmap:103 H264/90000
        a=fmtp:103 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=42001f
        a=rtpmap:104 rtx/90000
        a=fmtp:104 apt=103
        a=rtpmap:107 H264/90000
        a=fmtp:107 level-asymmetry-allowed=1;packetization-mode=0;profile-level-id=42e01f
        a=rtpmap:108 rtx/90000
        a=fmtp:108 apt=107
        a=rtpmap:109 H264/90000
        a=fmtp:109 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=42e01f
        a=rtpmap:114 rtx/90000
        a=fmtp:114 apt=109
        a=rtpmap:39 H264/90000
        a=fmtp:39 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=4d001f
        a=rtpmap:40 rtx/90000
        a=fmtp:40 apt=39
        a=rtpmap:49 flexfec-03/90000
        a=fmtp:49 repair-window=10000000";

    pub(in super::super) const FIREFOX: &str = "m=video 9 UDP/TLS/RTP/SAVPF 120 124 121 99
        a=extmap:3 urn:ietf:params:rtp-hdrext:sdes:mid
        a=recvonly
        a=rtcp-mux
        a=fmtp:124 apt=120
        a=fmtp:99 apt=100
        a=rtpmap:120 VP8/90000
        a=rtpmap:124 rtx/90000
        a=rtpmap:121 VP9/90000
        a=rtpmap:99 AV1/90000";

    pub(in super::super) fn best(sdp: &str) -> Option<Choice> {
        inspect(sdp).unwrap().choices().next().cloned()
    }

    /// What is left of a section once the transport is taken away.
    fn video(attributes: &[&str]) -> String {
        let payload_types = "m=video 9 UDP/TLS/RTP/SAVPF 100 101 102 103";
        browser(&[&[&[payload_types][..], attributes].concat().join("\n")])
    }

    #[test]
    fn chromium_gets_constrained_baseline_in_mode_1_and_then_others() {
        let offer = inspect(&browser(&[AUDIO, CHROMIUM, DATA])).unwrap();
        let choices: Vec<_> = offer
            .choices()
            .map(|choice| (choice.codec(), choice.payload_type, choice.rtx))
            .collect();
        let expected = [
            (Codec::H264, 109, Some(114)),
            (Codec::H264, 103, Some(104)),
            (Codec::H264, 39, Some(40)),
            (Codec::Vp8, 96, Some(97)),
        ];
        assert_eq!(choices, expected);
    }

    #[test]
    fn firefox_without_its_plug_in_gets_vp8() {
        let choice = best(&browser(&[FIREFOX])).unwrap();
        assert_eq!((choice.codec, choice.payload_type, choice.rtx), (Codec::Vp8, 120, Some(124)));
    }

    #[test]
    fn an_order_that_someone_chose_stands() {
        let order = |formats: &str| {
            let attributes = "a=rtpmap:100 VP8/90000
                a=rtpmap:101 VP9/90000
                a=fmtp:101 profile-id=0
                a=rtpmap:102 VP9/90000
                a=fmtp:102 profile-id=2
                a=rtpmap:103 H264/90000
                a=fmtp:103 packetization-mode=1;profile-level-id=64001f
                a=rtpmap:104 AV1/90000
                a=fmtp:104 level-idx=5;profile=0;tier=0
                a=rtpmap:105 AV1/90000
                a=fmtp:105 level-idx=5;profile=1;tier=0
                a=rtpmap:106 H264/90000
                a=fmtp:106 packetization-mode=1;profile-level-id=42e01f";
            let sdp = browser(&[&format!("m=video 9 UDP/TLS/RTP/SAVPF {formats}\n{attributes}")]);
            let choices = inspect(&sdp).unwrap();
            choices.choices().map(|choice| choice.payload_type).collect::<Vec<_>>()
        };
        // As browsers have it on their own: H.264 costs least, then as they like it.
        assert_eq!(order("100 101 102 103 104 105 106"), [106, 103, 100, 101, 104]);
        assert_eq!(order("100 104 101"), [100, 104, 101]);
        assert_eq!(order("103 101 100 106"), [106, 103, 101, 100]);
        // As a page has it that asked for it.
        assert_eq!(order("104 101 100 103 106"), [104, 101, 100, 106, 103]);
        assert_eq!(order("101 106 103 100"), [101, 106, 103, 100]);
        // What cannot be encoded is no preference.
        assert_eq!(order("102 105 100 103"), [103, 100]);
    }

    #[test]
    fn h264_without_a_stated_mode_is_the_last_resort() {
        let choice = best(&video(&["a=rtpmap:100 h264/90000", "a=rtpmap:101 VP8/90000"])).unwrap();
        assert_eq!((choice.codec, choice.profile()), (Codec::H264, BASELINE_LEVEL_1));
        let stated = [
            "a=rtpmap:100 H264/90000",
            "a=rtpmap:101 H264/90000",
            "a=fmtp:101 packetization-mode=1;profile-level-id=640028",
        ];
        assert_eq!(best(&video(&stated)).unwrap().payload_type, 101);
        assert_eq!(
            best(&video(&["a=rtpmap:100 H264/90000", "a=fmtp:100 packetization-mode=0"])),
            None
        );
    }

    #[test]
    fn only_sections_that_receive_are_sent_to() {
        let h264 = ["a=rtpmap:100 VP8/90000"];
        for (direction, wanted) in [
            ("a=recvonly", true),
            ("a=sendrecv", true),
            ("", true),
            ("a=sendonly", false),
            ("a=inactive", false),
        ] {
            let attributes: Vec<_> =
                h264.into_iter().chain([direction]).filter(|line| !line.is_empty()).collect();
            assert_eq!(best(&video(&attributes)).is_some(), wanted, "{direction}");
        }
        let bundled = browser(&["m=video 0 UDP/TLS/RTP/SAVPF 100\na=rtpmap:100 VP8/90000"]);
        assert!(best(&bundled).is_some());
        let rejected = bundled.replace("BUNDLE 0", "BUNDLE 1");
        assert_eq!(best(&rejected), None);
        assert!(best(&rejected.replace("a=mid:0", "a=mid:0\r\na=bundle-only")).is_some());
    }

    #[test]
    fn payload_types_that_look_like_rtcp_or_are_not_offered_are_left_out() {
        let sdp = |pt: &str| {
            browser(&[&format!("m=video 9 UDP/TLS/RTP/SAVPF {pt}\na=rtpmap:{pt} VP8/90000")])
        };
        for (pt, usable) in [
            ("0", true),
            ("63", true),
            ("64", false),
            ("95", false),
            ("96", true),
            ("127", true),
            ("128", false),
            ("256", false),
        ] {
            assert_eq!(best(&sdp(pt)).is_some(), usable, "{pt}");
        }
        assert_eq!(
            best(&browser(&["m=video 9 UDP/TLS/RTP/SAVPF 98\na=rtpmap:99 VP8/90000"])),
            None
        );
        let wrong =
            ["a=rtpmap:100 VP8/48000", "a=rtpmap:101 VP8", "a=rtpmap:102", "a=rtpmap:x VP8/90000"];
        assert_eq!(best(&video(&wrong)), None);
    }

    #[test]
    fn the_reduced_offer_has_one_codec_and_no_candidates_that_cannot_be_used() {
        let candidates = "a=candidate:1 1 udp 2122260223 192.0.2.7 50000 typ host generation 0
            a=candidate:2 1 udp 2122260223 5b1f7c52-0000-4000-8000-1c2f3a4b5c6d.local 50001 typ host
            a=candidate:3 1 tcp 1518280447 192.0.2.7 9 typ host tcptype active
            a=candidate:4 2 udp 2122260222 192.0.2.7 50002 typ host
            a=candidate:5 1 UDP 1 0.0.0.0 50003 typ host
            a=candidate:6 1 udp 1 224.0.0.1 50003 typ host
            a=candidate:7 1 udp 1 192.0.2.7 0 typ host
            a=candidate:8 1 udp 1686052607 2001:db8::7 50004 typ srflx raddr :: rport 0
            a=candidate:9 1 udp";
        let sdp = browser(&[AUDIO, &format!("{CHROMIUM}\n{candidates}"), DATA]);
        let offer = inspect(&sdp).unwrap();
        let choice = offer.choices().next().unwrap();
        let reduced = offer.reduced(choice, None);
        assert!(reduced.contains("a=group:BUNDLE 1 2\r\n"));
        assert!(reduced.contains("m=video 9 UDP/TLS/RTP/SAVPF 109 114\r\n"));
        let kept: Vec<_> = reduced.lines().filter(|line| line.contains("candidate")).collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        assert!(kept[0].contains("192.0.2.7 50000") && kept[1].contains("2001:db8::7"));
        for absent in ["VP8", "audio", "flexfec", "goog-remb", "toffset"] {
            assert!(!reduced.contains(absent), "{absent}");
        }
        // It is a whole offer itself, and means the same.
        let again = inspect(&reduced).unwrap();
        let same = again.choices().next().unwrap();
        assert_eq!((same.payload_type, same.rtx), (choice.payload_type, choice.rtx));
        assert_eq!(again.candidates, offer.candidates);
    }

    #[test]
    fn congestion_feedback_is_used_where_the_viewer_gives_it() {
        let feedback = |section: &str| best(&browser(&[section])).unwrap().feedback();
        // Of Chromium's formats here, only VP8 has it.
        let vp8 = CHROMIUM.replace("H264", "H263");
        assert!(feedback(&vp8));
        assert!(!feedback(CHROMIUM));
        assert!(feedback(&CHROMIUM.replace("rtcp-fb:96 transport-cc", "rtcp-fb:* transport-cc")));
        assert!(!feedback(&vp8.replace("extmap:4 ", "extmap:0 ")), "packets have no number");
        let sdp = browser(&[&vp8]);
        let offer = inspect(&sdp).unwrap();
        let reduced = offer.reduced(offer.choices().next().unwrap(), None);
        assert!(reduced.contains("a=rtcp-fb:96 transport-cc\r\n"), "{reduced}");
        assert!(reduced.contains("a=extmap:4 http://www.ietf.org/id/draft-holmer"), "{reduced}");
    }

    #[test]
    fn what_every_offer_must_have_is_missed_by_name() {
        let whole = browser(&[CHROMIUM]);
        for (without, missing) in [
            ("a=ice-ufrag:abcd\r\n", "ice-ufrag"),
            ("a=ice-pwd:0123456789012345678901\r\n", "ice-pwd"),
            (&format!("a=fingerprint:{FINGERPRINT}\r\n"), "fingerprint"),
        ] {
            let error = inspect(&whole.replace(without, "")).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert!(error.to_string().contains(missing), "{error}");
            // Standing at session level is as good.
            let moved = whole.replace(without, "").replace("s=-\r\n", &format!("s=-\r\n{without}"));
            assert!(inspect(&moved).is_ok(), "{missing}");
        }
        assert!(inspect(whole.split("m=").next().unwrap()).is_err());
    }

    #[test]
    fn what_is_no_offer_is_refused() {
        for text in [
            "",
            "{\"sdp\": \"v=0\"}",
            "v=1\r\n",
            "v=0\r\nhello\r\n",
            "v=0\r\nm=\r\n",
            "v=0\r\nm=video\r\n",
        ] {
            assert_eq!(inspect(text).unwrap_err().kind(), Kind::InvalidArgument, "{text:?}");
        }
        let twice = browser(&[CHROMIUM, FIREFOX]).replace("a=mid:1", "a=mid:0");
        assert!(inspect(&twice).is_err());
        let long = browser(&[CHROMIUM]).replace("a=mid:0", "a=mid:01234567890123456");
        assert!(inspect(&long).is_err());
        assert!(inspect(&browser(&[DATA; MAX_SECTIONS])).is_ok());
        assert!(inspect(&browser(&[DATA; MAX_SECTIONS + 1])).is_err());
        let large = browser(&[CHROMIUM]) + &"a=x\r\n".repeat(MAX_OFFER / 5);
        assert!(inspect(&large).is_err());
    }

    #[test]
    fn only_so_many_candidates_are_kept() {
        let candidate = "a=candidate:1 1 udp 1 192.0.2.7 50000 typ host\n";
        let offer =
            inspect(&browser(&[&format!("{CHROMIUM}\n{}", candidate.repeat(200))])).unwrap();
        assert_eq!(offer.candidates.len(), MAX_CANDIDATES);
        let fragment = fragment(&candidate.repeat(200)).unwrap();
        assert_eq!(fragment.candidates.len(), MAX_CANDIDATES);
    }

    #[test]
    fn no_prefix_and_no_flipped_byte_of_an_offer_panics() {
        let whole = browser(&[GSTREAMER_AUDIO, CHROMIUM, FIREFOX, DATA]);
        let check = |text: &str| {
            if let Ok(offer) = inspect(text) {
                for choice in offer.choices() {
                    let reduced = offer.reduced(choice, None);
                    assert!(inspect(&reduced).is_ok(), "{reduced}");
                }
            }
        };
        for end in (0..whole.len()).step_by(3) {
            check(&whole[..end]);
        }
        for at in (0..whole.len()).step_by(7) {
            for byte in [b' ', b'\n', b'=', b':', b'0', b'9', 0x7f] {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] = byte;
                check(std::str::from_utf8(&bytes).unwrap());
            }
        }
    }

    #[test]
    fn a_fragment_holds_candidates_and_perhaps_new_credentials() {
        let text = "a=ice-ufrag:EsAw\r\na=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1\r\nm=video 9 RTP/AVP 0\r\n\
                    a=mid:0\r\na=candidate:1 1 UDP 2130706431 192.0.2.1 5000 typ host ufrag EsAw\r\n\
                    a=end-of-candidates\r\n";
        let read = fragment(text).unwrap();
        assert_eq!(read.credentials.unwrap().ufrag, "EsAw");
        assert_eq!(read.candidates, ["1 1 UDP 2130706431 192.0.2.1 5000 typ host ufrag EsAw"]);
        assert_eq!(fragment("").unwrap(), Fragment::default());
        assert_eq!(fragment("a=ice-ufrag:only\r\n").unwrap().credentials, None);
        assert!(fragment("[]").is_err());
    }
}
