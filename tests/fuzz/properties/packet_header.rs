//! A packet that can be read can be written, and is the same when it is read again.

use bytes::Bytes;
use spaceport_wire::packet;

pub(crate) fn check(data: &[u8]) {
    // Alone as well, because a fuzzer seldom gets two lengths right and never needs to.
    if let Ok(header) = packet::decode_header(data) {
        let encoded = packet::encode_parts(header.clone(), Bytes::new()).unwrap();
        assert_eq!(packet::decode(encoded.into_message()), Ok((header, Bytes::new())));
    }
    if let Ok((header, payload)) = packet::decode(Bytes::copy_from_slice(data)) {
        let encoded = packet::encode_parts(header.clone(), payload.clone()).unwrap();
        assert_eq!(packet::decode(encoded.into_message()), Ok((header, payload)));
    }
}
