//! Datagrams in any order and of any content: memory stays bounded, a packet that comes out is as long as
//! it says, and a header that can be read is written the same.
//!
//! The input is a list of datagrams, each behind a byte of time that passes and two of length.

use std::time::{Duration, Instant};

use bytes::Bytes;
use spaceport_wire::datagram::{Assembler, Header};

#[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
fn origin() -> Instant {
    Instant::now()
}

pub(crate) fn check(data: &[u8]) {
    // Alone as well, because a fuzzer seldom gets a length right.
    if let Some(bytes) = data.first_chunk()
        && let Ok(header) = Header::parse(*bytes)
    {
        assert_eq!(Header::parse(header.to_bytes()), Ok(header));
    }
    let mut assembler = Assembler::default();
    let mut now = origin();
    let mut rest = data;
    let mut newest = None;
    while let [wait, high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        let (datagram, after) = after.split_at(length);
        rest = after;
        now += Duration::from_millis(u64::from(*wait));
        if let Ok(Some((header, packet))) = assembler.push(&Bytes::copy_from_slice(datagram), now) {
            assert_eq!(packet.len(), header.total as usize);
            assert!(newest < Some(header.packet_id), "packets come out once, in order");
            newest = Some(header.packet_id);
        }
        if let Some(deadline) = assembler.deadline() {
            assert!(deadline > now);
        }
        assembler.take_lost();
    }
}
