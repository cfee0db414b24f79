//! Firefox's session file, reduced to its tabs.
//!
//! The file also holds session cookies, what pages stored and what was typed into forms. So not what is
//! known to be secret is taken out; what is known to be a tab is kept.

use serde_json::{Map, Value, json};
use spaceport_types::{Cause, Error, Result};

/// What is kept of a window, a tab, and a page in a tab's history.
const WINDOW: [&str; 9] =
    ["selected", "width", "height", "screenX", "screenY", "sizemode", "zIndex", "groups", "title"];
const TAB: [&str; 8] = [
    "index",
    "pinned",
    "hidden",
    "lastAccessed",
    "userContextId",
    "attributes",
    "image",
    "groupId",
];
const PAGE: [&str; 6] =
    ["url", "title", "ID", "persist", "triggeringPrincipal_base64", "hasUserInteraction"];

/// The same session with nothing but windows, tabs and their pages.
pub(crate) fn only_tabs(session: &[u8]) -> Result<Vec<u8>> {
    let session: Value = serde_json::from_slice(session).map_err(|error| {
        Error::because(Cause::CorruptBundle, "a session file of Firefox holds no JSON")
            .source(error)
    })?;
    let windows: Vec<Value> = list(&session, "windows").map(window).collect();
    let selected = session.get("selectedWindow").cloned().unwrap_or(json!(1));
    // The version that Firefox has written since 2012.
    let session = json!({
        "version": ["sessionrestore", 1],
        "windows": windows,
        "selectedWindow": selected,
        "_closedWindows": [],
    });
    Ok(session.to_string().into_bytes())
}

/// One session with the windows of another, which is in front.
pub(crate) fn joined(own: &[u8], added: &[u8]) -> Result<Vec<u8>> {
    let damaged = |error| {
        Error::because(Cause::CorruptBundle, "a session file of Firefox holds no JSON")
            .source(error)
    };
    let mut own: Value = serde_json::from_slice(own).map_err(damaged)?;
    let added: Value = serde_json::from_slice(added).map_err(damaged)?;
    let Some(windows) = own.get_mut("windows").and_then(Value::as_array_mut) else {
        return Ok(added.to_string().into_bytes());
    };
    windows.extend(list(&added, "windows").cloned());
    let front = windows.len();
    own["selectedWindow"] = json!(front);
    Ok(own.to_string().into_bytes())
}

/// The addresses that the tabs of a session show.
#[cfg(test)]
pub(crate) fn tabs(session: &[u8]) -> Option<Vec<String>> {
    let session: Value = serde_json::from_slice(session).ok()?;
    let tabs = list(&session, "windows").flat_map(|window| list(window, "tabs"));
    let shown = tabs.map(|tab| {
        let index = tab.get("index").and_then(Value::as_u64).unwrap_or(1).max(1) as usize;
        let page = list(tab, "entries").nth(index - 1).or_else(|| list(tab, "entries").last());
        let url = page.and_then(|page| page.get("url")?.as_str());
        url.unwrap_or_default().to_owned()
    });
    Some(shown.collect())
}

fn window(window: &Value) -> Value {
    let mut kept = keep(window, &WINDOW);
    let tabs: Vec<Value> = list(window, "tabs").map(tab).collect();
    kept.insert("tabs".to_owned(), tabs.into());
    kept.into()
}

fn tab(tab: &Value) -> Value {
    let mut kept = keep(tab, &TAB);
    let pages: Vec<Value> = list(tab, "entries").map(|page| keep(page, &PAGE).into()).collect();
    kept.insert("entries".to_owned(), pages.into());
    kept.into()
}

fn keep(from: &Value, names: &[&str]) -> Map<String, Value> {
    let kept = names.iter().filter_map(|name| Some(((*name).to_owned(), from.get(name)?.clone())));
    kept.collect()
}

fn list<'a>(of: &'a Value, name: &str) -> impl DoubleEndedIterator<Item = &'a Value> + use<'a> {
    of.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_stay_and_everything_else_goes() {
        let session = json!({
            "version": ["sessionrestore", 1],
            "windows": [{
                "tabs": [{
                    "entries": [
                        {"url": "https://a.example/", "title": "A"},
                        {"url": "https://a.example/2", "title": "A2", "structuredCloneState": "SECRET",
                         "postdata_b64": "SECRET", "children": [{"url": "SECRET"}]},
                    ],
                    "index": 2, "pinned": true,
                    "storage": {"https://a.example": {"token": "SECRET"}},
                    "formdata": {"id": {"password": "SECRET"}},
                    "extData": {"x": "SECRET"},
                }],
                "_closedTabs": [{"state": {"entries": [{"url": "SECRET"}]}}],
                "cookies": ["SECRET"], "selected": 1,
            }],
            "cookies": [{"host": "a.example", "value": "SECRET"}],
            "_closedWindows": [{"tabs": ["SECRET"]}],
            "selectedWindow": 1,
        });
        let kept = only_tabs(session.to_string().as_bytes()).unwrap();
        let text = String::from_utf8(kept.clone()).unwrap();
        assert!(!text.contains("SECRET"), "{text}");
        assert_eq!(tabs(&kept).unwrap(), ["https://a.example/2"]);
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        assert_eq!(kept["windows"][0]["tabs"][0]["pinned"], true);
        assert_eq!(kept["windows"][0]["tabs"][0]["entries"][0]["title"], "A");
    }

    #[test]
    fn windows_are_added_to_those_that_are_there() {
        let session = |url: &str| {
            let session = json!({"windows": [{"tabs": [{"entries": [{"url": url}], "index": 1}]}]});
            session.to_string().into_bytes()
        };
        let both =
            joined(&session("https://own.example/"), &session("https://new.example/")).unwrap();
        assert_eq!(tabs(&both).unwrap(), ["https://own.example/", "https://new.example/"]);
        assert_eq!(tabs(&joined(b"{}", &session("x")).unwrap()).unwrap(), ["x"]);
    }

    #[test]
    fn what_is_no_session_is_an_empty_one_or_an_error() {
        assert!(only_tabs(b"{").is_err());
        for odd in ["[]", "{}", r#"{"windows": 3}"#, r#"{"windows": [null, {"tabs": {}}]}"#] {
            assert_eq!(tabs(&only_tabs(odd.as_bytes()).unwrap()).unwrap(), [""; 0], "{odd}");
        }
    }
}
