//! Chromium's `Preferences`: what makes a start open the tabs of the last session.

use serde_json::{Map, Value, json};
use spaceport_types::{Cause, Error, Result};

/// `session.restore_on_startup`: continue where the person left off.
const RESTORE_LAST_SESSION: u64 = 1;

/// The settings, new or as they were, with the last session restored at the next start.
///
/// A profile copied from a running browser says that it crashed; then only a question is asked.
pub(crate) fn restore_tabs(preferences: Option<&[u8]>) -> Result<Vec<u8>> {
    let mut preferences: Value = match preferences {
        None => json!({}),
        Some(bytes) => serde_json::from_slice(bytes).map_err(|error| {
            Error::because(Cause::CorruptBundle, "`Preferences` holds no JSON").source(error)
        })?,
    };
    set(&mut preferences, "session", "restore_on_startup", json!(RESTORE_LAST_SESSION));
    set(&mut preferences, "profile", "exit_type", json!("Normal"));
    Ok(preferences.to_string().into_bytes())
}

fn set(preferences: &mut Value, group: &str, name: &str, value: Value) {
    if !preferences.is_object() {
        *preferences = json!({});
    }
    let Value::Object(root) = preferences else { return };
    let group = root.entry(group).or_insert_with(|| json!({}));
    match group {
        Value::Object(group) => drop(group.insert(name.to_owned(), value)),
        other => *other = Value::Object(Map::from_iter([(name.to_owned(), value)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_restores_tabs_is_changed() {
        let before = json!({"profile": {"name": "A", "exit_type": "Crashed"}, "bookmark_bar": {"show": true}});
        let after = restore_tabs(Some(before.to_string().as_bytes())).unwrap();
        let after: Value = serde_json::from_slice(&after).unwrap();
        assert_eq!(
            after,
            json!({
                "profile": {"name": "A", "exit_type": "Normal"},
                "bookmark_bar": {"show": true},
                "session": {"restore_on_startup": 1},
            })
        );
        assert!(restore_tabs(None).is_ok());
        assert!(restore_tabs(Some(b"[1]")).is_ok());
        assert!(restore_tabs(Some(b"{")).is_err());
    }
}
