//! What is sealed opens to the same; anything else is refused, whatever it is.

use spaceport_types::{Codec, MediaKey};
use spaceport_wire::packet::Header;
use spaceport_wire::sealed::{Opener, Sealer};

pub(crate) fn check(data: &[u8]) {
    let key = MediaKey::new([7; MediaKey::SIZE]);
    let header = Header {
        session_id: "media-1".into(),
        sequence: 9,
        geometry_epoch: 1,
        codec_epoch: 1,
        width_px: 640,
        height_px: 480,
        capture_timestamp_us: 0,
        encode_duration_us: None,
        codec: Codec::H264,
        keyframe: false,
    };
    let mut opener = Opener::new(key.clone());
    assert!(opener.open(&header, data).is_err(), "nobody sealed it");
    let id = data.iter().take(8).fold(0, |id, &byte| id << 8 | u64::from(byte));
    let sealed = Sealer::new(&key, id).unwrap().seal(&header, data).unwrap();
    let mut altered = sealed.to_vec();
    let at = data.len().wrapping_mul(31) % altered.len();
    altered[at] ^= 1 << (data.len() % 8);
    assert!(opener.open(&header, &altered).is_err(), "altered at {at}");
    assert_eq!(opener.open(&header, &sealed).unwrap(), data);
}
