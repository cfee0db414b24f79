//! What nodes read of each other: what is read is written as it would be read again, and is no longer than it
//! should be.

use spaceport_wire::relay_nodes::{Held, LONGEST, MAX_SERIAL, Registered, is_name};

pub(crate) fn check(data: &[u8]) {
    if let Some(registered) = Registered::parse(data) {
        assert!(data.len() <= LONGEST);
        assert!(registered.token.as_ref().is_none_or(|token| token.len() == 64));
        // Characters that JSON escapes may take more room than they had.
        let text = registered.to_json();
        if text.len() <= LONGEST {
            assert_eq!(Registered::parse(text.as_bytes()).as_ref(), Some(&registered));
        }
    }
    if let Some(held) = Held::parse(data) {
        assert!(is_name(&held.node) && held.serial <= MAX_SERIAL);
        assert_eq!(Held::parse(held.to_json().as_bytes()).as_ref(), Some(&held));
    }
}
