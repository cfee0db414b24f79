//! No pack unfolds to more than it may, its records never reach outside it, and what is packed comes
//! out as it went in. A path that is taken leads nowhere else.

use spaceport_teleport::stream::pack::{MAX_PACK, Packer, Record, records, unpack};
use spaceport_teleport::{Digest, RelativePath};

pub(crate) fn check(data: &[u8]) {
    let split = data.first().copied().unwrap_or(0);
    let rest = data.get(1..).unwrap_or_default();
    for compressed in [false, true] {
        if let Ok(bytes) = unpack(rest, compressed) {
            assert!(bytes.len() <= MAX_PACK);
            let mut total = 0;
            for record in records(&bytes) {
                if let Ok(Record::Part { data, .. } | Record::Whole { data, .. }) = record {
                    total += data.len();
                }
            }
            assert!(total <= bytes.len(), "records overlap");
        }
    }

    // A path that is taken stays below its folder whatever it is joined to.
    if let Ok(path) = RelativePath::parse(rest) {
        assert!(path.segments().all(|name| !matches!(name, b"" | b"." | b"..")));
        assert!(!path.as_path().is_absolute());
    }

    let (one, other) = rest.split_at(rest.len() / 2);
    let digest = Digest([split; 32]);
    let (index, offset) = (u32::from(split) << 17, u64::from(split) << 55);
    let written = [
        Record::Whole { index, data: one, digest },
        Record::Part { index, offset, data: other },
        Record::Hole { index, offset, length: !offset },
        Record::End { index, digest },
    ];
    for compress in [false, true] {
        let mut packer = Packer::default();
        written.iter().for_each(|&record| packer.push(record));
        let (pack, compressed) = packer.packed(compress);
        if let Ok(bytes) = unpack(&pack, compressed) {
            let read: Vec<_> = records(&bytes).map(Result::unwrap).collect();
            assert_eq!(read, written);
        } else {
            assert!(rest.len() > MAX_PACK / 2, "what was packed does not come out");
        }
    }
}
