//! A session file that can be read is reduced to its tabs, and reducing those changes nothing.

use spaceport_teleport::outside;

pub(crate) fn check(data: &[u8]) {
    if let Ok(tabs) = outside::session_tabs(data) {
        assert_eq!(outside::session_tabs(&tabs).unwrap(), tabs);
    }
}
