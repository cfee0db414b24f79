use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One row of a listing of Spaces, as every surface shows it.
///
/// The names are those of the public contract, and every field is always there. What is not known
/// is empty; nothing is guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceInfo {
    /// `direct:<host:port>` or `relay:<machine-id>`.
    pub id: String,
    /// The name it was added with.
    pub name: String,
    /// The name it was given later; shown instead of `name`.
    pub display_name: String,
    /// `direct` or `relay`.
    pub provider: String,
    /// The server's version, when it was last asked.
    pub spacesd_version: String,
    /// What it could do, when it was last asked.
    pub features: Vec<String>,
    /// `linux`, `macos` or `windows`.
    pub os: String,
    /// The product, such as `Debian`.
    pub os_name: String,
    /// The product with its version.
    pub os_pretty_name: String,
    /// The image it was made from.
    pub image: String,
    /// That image's digest.
    pub image_digest: String,
    /// `container`, `vm` or `microvm`.
    pub kind: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// Services it was declared to have.
    pub services: Vec<String>,
    /// When it was added, by RFC 3339.
    pub added_at: Option<String>,
    /// The machine that provides it.
    pub host: String,
    /// That machine's name.
    pub host_name: String,
    /// What can be done about its power.
    pub power: String,
    /// `running`, `suspended` or `stopped`.
    pub power_state: String,
    /// The cloud it is in.
    pub cloud: String,
    /// Where in that cloud.
    pub cloud_place: String,
    /// Whether removing it deletes it there.
    pub cloud_delete: String,
    /// Its durable name.
    pub durable: String,
    /// Why it stopped; for one behind a relay, why it cannot be reached there.
    pub stop_reason: String,
    /// Labels set when it was made.
    pub labels: BTreeMap<String, String>,
    /// When it ends, in seconds since 1970; 0 is never.
    pub expires_at_unix: i64,
    /// What happens then.
    pub on_expire: String,
    /// When it was made, in seconds since 1970; when it was added, for one that was added.
    pub created_at_unix: i64,
    /// Its network policy.
    pub egress: Value,
    /// Whether that is enforced.
    pub egress_enforced: bool,
    /// Its network.
    pub network: Value,
    /// A note on that.
    pub network_note: String,
    /// Whether somebody has yet to be told of it.
    pub network_notice_pending: bool,
    /// The Space it was made from.
    pub parent: String,
    /// The first of those.
    pub root: String,
    /// How many there are between.
    pub depth: u32,
    /// Volumes mounted in it.
    pub volumes: Vec<Value>,
    /// Who owns it and who else may reach it, for one behind a relay.
    pub sharing: Option<Value>,
}

impl SpaceInfo {
    /// The name people see.
    pub fn shown_name(&self) -> &str {
        if self.display_name.is_empty() { &self.name } else { &self.display_name }
    }
}
