//! The examples of `docs/wire.md`, read by the code they describe.

use bytes::Bytes;
use spaceport_wire::attach::Attach;
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{ClientMessage, ServerMessage};
use spaceport_wire::datagram::Header;
use spaceport_wire::packet;

const DOCUMENT: &str = include_str!("../../../docs/wire.md");

/// The content of the one code block with that info string.
fn block(info: &str) -> &'static str {
    let start = format!("```{info}\n");
    let (_, rest) = DOCUMENT.split_once(&start).unwrap();
    let (content, after) = rest.split_once("```\n").unwrap();
    assert!(!after.contains(&start), "there are two `{info}` blocks");
    content
}

#[test]
fn the_packet_in_the_document_is_one() {
    let hex = block("hex").split_whitespace();
    let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let (header, payload) = packet::decode(bytes.clone().into()).unwrap();
    assert_eq!((header.width_px, header.height_px, payload.len()), (640, 360, 12));

    let json = block("json").trim_end();
    assert_eq!(packet::decode_header(json.as_bytes()).unwrap(), header);
    let encoded = packet::encode_parts(header, payload).unwrap();
    assert_eq!(encoded.into_message(), Bytes::from(bytes));
}

#[test]
fn the_messages_in_the_document_are_read_and_written_as_they_stand() {
    for line in block("client").lines() {
        let message = ClientMessage::parse(line).unwrap();
        assert!(!matches!(message, ClientMessage::Unknown { .. }), "{line}");
        assert_eq!(message.to_json(), line);
    }
    for line in block("server").lines() {
        let message = ServerMessage::parse(line).unwrap().expect(line);
        assert_eq!(message.to_json(), line);
    }
}

#[test]
fn the_first_messages_in_the_document_are_read_and_written_as_they_stand() {
    for line in block("attach").lines() {
        assert_eq!(Attach::parse(line).unwrap().to_json(), line);
    }
}

#[test]
fn the_datagram_in_the_document_is_the_first_of_two_of_a_keyframe() {
    let hex = block("datagram").split_whitespace();
    let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let header = Header::parse(bytes.clone().try_into().unwrap()).unwrap();
    let wanted = Header { keyframe: true, index: 0, count: 2, packet_id: 6, total: 240 };
    assert_eq!(header, wanted);
    assert_eq!(header.to_bytes().to_vec(), bytes);
}

#[test]
fn the_document_lists_every_close_code() {
    for code in CloseCode::ALL {
        let row = format!("| {} | {:#x} |", code.code(), code.quic());
        assert!(DOCUMENT.contains(&row), "{row}");
    }
}
