//! What each tool takes. The schemas that agents get are made from these types.

use rmcp::model::JsonObject;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use spaceport_spaces::verbs::{Add, Relayed, Watch};
use spaceport_types::{Error, Issue, Kind, Redacted, Result};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct AddSpace {
    /// Where it is: `host`, `host:port`, or a URL such as `http://10.0.0.7:3211`.
    url: String,
    /// What opens it, where it needs anything.
    token: Option<String>,
    /// What to call it. Left out: its host name.
    name: Option<String>,
    /// A service it has.
    service: Option<String>,
}

impl AddSpace {
    pub(crate) fn add(self) -> Add {
        let Self { url, token, name, service } = self;
        let token = token.filter(|token| !token.is_empty()).map(Redacted::new);
        Add { url, token, name, service }
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct RelayRegister {
    /// Where the relay is, such as `https://relay.example`.
    relay: String,
    /// The machine's id at the relay, as `spaceport serve --relay` says it there.
    machine_id: String,
    /// What opens the Space. The relay does not need it.
    token: Option<String>,
    /// What to call it. Left out: its host name.
    name: Option<String>,
}

impl RelayRegister {
    pub(crate) fn relayed(self) -> Relayed {
        let Self { relay, machine_id, token, name } = self;
        let token = token.filter(|token| !token.is_empty()).map(Redacted::new);
        Relayed { relay, machine: machine_id, token, name }
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Nothing {}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct OfSpace {
    /// The Space, by name or id.
    pub(crate) space: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct RenameSpace {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// Its new name. An empty one gives it back the name it was added with.
    pub(crate) name: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ListWindows {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// Those of this app only, by its name or a part of it.
    pub(crate) app_name: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct StreamAny {
    /// The Space, by name or id.
    space: String,
    /// A window, by its `window_id` in `list_space_windows`. Wins over `app_name` and `display`.
    window_id: Option<String>,
    /// The largest window of this app. Wins over `display`.
    app_name: Option<String>,
    /// A display. Left out, with no window named: the primary one.
    display: Option<String>,
    /// Frames per second at most, up to 120. 0 is as when it is left out.
    #[schemars(extend("default" = 30))]
    max_fps: Option<u32>,
    /// How many seconds the ticket lets viewers in. More than 600 is taken as 600, and 0 is as when it is left out.
    #[schemars(extend("default" = 60))]
    ticket_ttl: Option<u32>,
}

impl StreamAny {
    pub(crate) fn watch(self) -> Watch {
        Watch {
            space: self.space,
            window_id: self.window_id,
            app_name: self.app_name,
            display: self.display,
            max_fps: self.max_fps.unwrap_or_default(),
            ticket_ttl: self.ticket_ttl.unwrap_or_default(),
            codec: None,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct StreamWindow {
    /// The Space, by name or id.
    space: String,
    /// The window, by its `window_id` in `list_space_windows`. Wins over `app_name`.
    window_id: Option<String>,
    /// The largest window of this app.
    app_name: Option<String>,
    /// Frames per second at most, up to 120. 0 is as when it is left out.
    #[schemars(extend("default" = 30))]
    max_fps: Option<u32>,
    /// How many seconds the ticket lets viewers in. More than 600 is taken as 600, and 0 is as when it is left out.
    #[schemars(extend("default" = 60))]
    ticket_ttl: Option<u32>,
}

impl StreamWindow {
    pub(crate) fn watch(self) -> Result<Watch> {
        let given = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
        if !given(&self.window_id) && !given(&self.app_name) {
            return Err(Error::new(Kind::InvalidArgument, "no window is named")
                .issue(Issue {
                    path: "window_id".to_owned(),
                    constraint: "required".into(),
                    limit: None,
                })
                .hint("Give a `window_id` from `list_space_windows`, or an `app_name`"));
        }
        Ok(Watch {
            space: self.space,
            window_id: self.window_id,
            app_name: self.app_name,
            display: None,
            max_fps: self.max_fps.unwrap_or_default(),
            ticket_ttl: self.ticket_ttl.unwrap_or_default(),
            codec: None,
        })
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TeleportManifest {
    /// The app.
    #[schemars(extend("enum" = APPS))]
    pub(crate) app: String,
    /// How much of it: what is open, what keeps a person signed in, or the whole profile.
    #[schemars(extend("enum" = SCOPES, "default" = "full"))]
    pub(crate) scope: Option<String>,
    /// Ask this Space whether it can take it in.
    pub(crate) space: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TeleportApp {
    /// The Space to move it to, by name or id.
    pub(crate) space: String,
    /// The app.
    #[schemars(extend("enum" = APPS))]
    pub(crate) app: String,
    /// How much of it: what is open, what keeps a person signed in, or the whole profile.
    #[schemars(extend("enum" = SCOPES, "default" = "full"))]
    pub(crate) scope: Option<String>,
    /// The items to move, by their `relative_path` in `teleport_manifest`. Left out: those with
    /// `is_checked_by_default`.
    pub(crate) include: Option<Vec<String>>,
    /// Let items move that can sign someone in, or tell what they did.
    #[schemars(extend("default" = false))]
    pub(crate) acknowledge_sensitive: Option<bool>,
    /// The request that was answered, as the first call named it. Left out: any that fits.
    pub(crate) request_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SendFile {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// The file or folder on this machine. `~` is the home.
    pub(crate) path: String,
    /// Where below the Space's downloads it goes, such as `reports/today`. Left out: right there.
    pub(crate) target_directory: Option<String>,
    /// Leave out what `.gitignore`, `.ignore` and `.dockerignore` do.
    #[schemars(extend("default" = true))]
    pub(crate) respect_ignorefiles: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Upload {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// The file or folder on this machine. `~` is the home.
    pub(crate) path: String,
    /// Its path in the Space. Left out: a free name in the Space's `~/Downloads`.
    pub(crate) dest: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Download {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// The file or folder in the Space.
    pub(crate) path: String,
    /// The folder on this machine that it goes to. `~` is the home.
    #[schemars(extend("default" = "~/Downloads/cua-spaces"))]
    pub(crate) dest: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SpaceWrite {
    /// The Space, by name or id.
    pub(crate) space: String,
    /// The file's path in the Space. Folders on the way there are made.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) content: String,
}

const APPS: [&str; 5] = ["firefox", "chromium", "chrome", "vscode", "claude-code"];
const SCOPES: [&str; 3] = ["tabs", "session", "full"];

/// Reads the arguments of a call. What the schema does not know is ignored.
///
/// The errors name the argument and what it must be; never its value, which may be a secret.
pub(crate) fn read<P: DeserializeOwned>(arguments: JsonObject, schema: &JsonObject) -> Result<P> {
    let wrong = |message: String, path: &str, constraint: &'static str, limit: Option<String>| {
        let issue = Issue { path: path.to_owned(), constraint: constraint.into(), limit };
        let hint = format!("Call it again with another `{path}`; its `inputSchema` says what fits");
        Error::new(Kind::InvalidArgument, message).issue(issue).hint(hint)
    };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if arguments.get(name).is_none_or(Value::is_null) {
            return Err(wrong(format!("`{name}` is missing"), name, "required", None));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let Some(value) = arguments.get(name).filter(|value| !value.is_null()) else { continue };
        let wanted = kind_of_property(property);
        let fits = match wanted {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            // Of strings, wherever there is one.
            "array" => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
            _ => true,
        };
        if !fits {
            let message =
                format!("`{name}` must be {}, and is {}", article(wanted), kind_of(value));
            return Err(wrong(message, name, "type", Some(wanted.to_owned())));
        }
        if wanted == "integer" && value.as_u64().is_none_or(|value| value > u64::from(u32::MAX)) {
            let bounds = format!("0..={}", u32::MAX);
            let message = format!("`{name}` is {value}, and must be from 0 to {}", u32::MAX);
            return Err(wrong(message, name, "range", Some(bounds)));
        }
    }
    // The schema is made from the type: what has passed it is of the type.
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        Error::new(Kind::Internal, "the arguments fit the schema and not the tool").source(error)
    })
}

/// `string` of `{"type": ["string", "null"]}`.
fn kind_of_property(property: &Value) -> &str {
    match property.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or_default()
        }
        _ => "",
    }
}

fn article(kind: &str) -> &'static str {
    match kind {
        "integer" => "an integer",
        "boolean" => "a boolean",
        "array" => "an array of strings",
        _ => "a string",
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use rmcp::handler::server::common::schema_for_input;
    use serde_json::json;
    use spaceport_teleport::manifest::{App, Scope};

    use super::*;

    fn watch(arguments: Value) -> Result<Watch> {
        let schema = schema_for_input::<StreamAny>().unwrap();
        let Value::Object(arguments) = arguments else { panic!("no object") };
        read::<StreamAny>(arguments, &schema).map(StreamAny::watch)
    }

    #[test]
    fn what_is_not_known_is_ignored_and_what_is_null_is_left_out() {
        let watch = watch(json!({ "space": "box", "window_id": null, "colour": "red" })).unwrap();
        assert_eq!((&*watch.space, watch.window_id, watch.max_fps), ("box", None, 0));
    }

    #[test]
    fn the_apps_and_scopes_of_the_schemas_are_those_there_are() {
        assert_eq!(APPS, App::ALL.map(App::as_str));
        assert_eq!(SCOPES, [Scope::Tabs, Scope::Session, Scope::Full].map(Scope::as_str));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (arguments, path, constraint) in [
            (json!({}), "space", "required"),
            (json!({ "space": null }), "space", "required"),
            (json!({ "space": 7 }), "space", "type"),
            (json!({ "space": "box", "app_name": ["x"] }), "app_name", "type"),
            (json!({ "space": "box", "max_fps": "30" }), "max_fps", "type"),
            (json!({ "space": "box", "max_fps": 1.5 }), "max_fps", "type"),
            (json!({ "space": "box", "max_fps": -1 }), "max_fps", "range"),
            (json!({ "space": "box", "ticket_ttl": 1_u64 << 40 }), "ticket_ttl", "range"),
            (json!({ "space": "box", "ticket_ttl": u64::MAX }), "ticket_ttl", "range"),
        ] {
            let report = watch(arguments.clone()).unwrap_err().report();
            assert_eq!(report.kind, Kind::InvalidArgument, "{arguments}");
            let issue = &report.issues[0];
            assert_eq!((&*issue.path, &*issue.constraint), (path, constraint), "{arguments}");
        }
    }
}
