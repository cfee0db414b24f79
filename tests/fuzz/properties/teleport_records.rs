//! What can be read of a bundle's records and manifest can be written, and is the same when read again.

use spaceport_teleport::payload::{ItemPath, Record};
use spaceport_teleport::{Choice, Manifest, outside};

pub(crate) fn check(data: &[u8]) {
    if let Ok(written) = outside::cookies(data) {
        assert_eq!(outside::cookies(&written).unwrap(), written);
    }
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(data) {
        let again: Manifest =
            serde_json::from_slice(&serde_json::to_vec(&manifest).unwrap()).unwrap();
        assert_eq!(again, manifest);
        assert_eq!(again.digest(), manifest.digest());
        if let Ok(selection) = manifest.select(&Choice::default()) {
            assert!(!selection.is_sensitive(), "what is sensitive moves unasked");
        }
    }
    if let Ok(record) = serde_json::from_slice::<Record>(data) {
        let again: Record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(again, record);
    }
    if let Ok(path) =
        std::str::from_utf8(data).map_err(drop).and_then(|s| ItemPath::new(s).map_err(drop))
    {
        assert!(path.as_str().split('/').all(|part| !matches!(part, "" | "." | "..")));
    }
}
