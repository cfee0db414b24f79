//! What teleport says to people. Names come from others: they are shown without what could move a
//! cursor.

use std::time::SystemTime;

use prost_types::Timestamp;
use spaceport_teleport::consent::{Request, Standing, Terms};
use spaceport_teleport::ledger::Entry;
use spaceport_teleport::manifest::{Item, Manifest};
use spaceport_teleport::receipt::Receipt;

use super::millis;
use crate::progress::size;

/// Sites that are listed by name; the rest is counted.
const SITES: usize = 8;

pub(super) fn manifest(manifest: &Manifest) -> String {
    let mut text = format!(
        "{}, profile {}: {} could move\n",
        plain(&manifest.display_name),
        plain(&manifest.profile),
        size(manifest.total_estimated_bytes)
    );
    for item in &manifest.items {
        let mark = if item.is_checked_by_default { "x" } else { " " };
        text.push_str(&format!("  [{mark}] {}\n", line(item)));
        text.push_str(&format!("      {}\n", plain(&item.relative_path)));
        if !item.sites.is_empty() {
            let names = item.sites.iter().take(SITES);
            let names: Vec<_> =
                names.map(|site| format!("{} ({})", plain(&site.host), site.records)).collect();
            let more = item.sites.len().saturating_sub(SITES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text.push_str(&format!("      {}{more}\n", names.join(", ")));
        }
    }
    notes(&mut text, &manifest.notes);
    text.push_str("\n[x] moves when nothing is chosen; the rest by `--include PATH`.");
    text
}

/// What a person agrees to, in full.
pub(crate) fn terms(terms: &Terms) -> String {
    let mut text = format!(
        "\n{} (profile {}) would be copied to {} at {}\n  key {}\n\n",
        terms.app.display_name(),
        plain(&terms.profile),
        plain(&terms.destination.name),
        plain(&terms.destination.url),
        terms.destination.key.fingerprint(),
    );
    for item in &terms.items {
        text.push_str(&format!("  - {}\n", line(item)));
    }
    if let Some(sites) = &terms.sites {
        let sites: Vec<_> = sites.iter().map(|site| plain(site)).collect();
        text.push_str(&format!("  only of {}\n", sites.join(", ")));
    }
    if terms.how.replace_existing {
        text.push_str("  It replaces the profile that is there, which is kept aside.\n");
    }
    if terms.how.close_running_app {
        text.push_str("  The app is closed there when it runs.\n");
    }
    if terms.how.expires_at_ms > 0 {
        text.push_str(&format!("  It is taken back at {}.\n", time(terms.how.expires_at_ms)));
    }
    notes(&mut text, &terms.notes);
    text
}

pub(super) fn request_line(request: &Request, now: SystemTime) -> String {
    let late = request.until_ms <= millis(now);
    let standing = match (request.standing, late) {
        (Standing::Pending, false) => "waits for a person",
        (Standing::Pending, true) => "nobody answered",
        (Standing::Approved, false) => "agreed to",
        (Standing::Approved, true) => "agreed to, and not used in time",
        (Standing::Denied, _) => "refused",
        (Standing::Used, _) => "agreed to and used",
    };
    let sensitive = request.terms.items.iter().any(|item| item.is_sensitive);
    format!(
        "{}  {}  {} to {}, {}{}",
        request.id,
        standing,
        request.terms.app.display_name(),
        plain(&request.terms.destination.url),
        size(request.terms.estimated_bytes()),
        if sensitive { ", with sign-ins" } else { "" },
    )
}

pub(super) fn receipt(receipt: &Receipt) -> String {
    let mut text = format!(
        "{} is on {}, since {}\n  import {}   bundle {}, sha256 {}\n  into {}\n",
        receipt.app.display_name(),
        plain(&receipt.machine),
        time(receipt.imported_ms),
        receipt.import_id,
        size(receipt.bundle_bytes),
        receipt.bundle_sha256,
        plain(&receipt.profile),
    );
    for item in &receipt.arrived {
        let files = if item.files == 1 { "file" } else { "files" };
        text.push_str(&format!(
            "  arrived  {} ({} {files}, {}, sha256 {:.16}…)\n",
            plain(&item.item),
            item.files,
            size(item.bytes),
            item.sha256.to_string(),
        ));
    }
    for skipped in &receipt.skipped {
        text.push_str(&format!("  skipped  {}: {}\n", plain(&skipped.what), plain(&skipped.why)));
    }
    for site in receipt.readable.iter().take(SITES) {
        text.push_str(&format!("  readable {}: {} cookies\n", plain(&site.host), site.cookies));
    }
    let more = receipt.readable.len().saturating_sub(SITES);
    if more > 0 {
        text.push_str(&format!("  readable {more} more sites (all of them with --json)\n"));
    }
    if receipt.expires_at_ms > 0 {
        text.push_str(&format!("  taken back at {}\n", time(receipt.expires_at_ms)));
    }
    if receipt.launched {
        text.push_str("  the app was started\n");
    }
    text.push_str(&format!("  take it back: spaceport teleport wipe {}", receipt.import_id));
    text
}

pub(super) fn wiped(ids: &[String], paths: &[String], rows: u64, kept: &[String]) -> String {
    let mut text = match ids {
        [] => "There was nothing to take back.".to_owned(),
        ids => format!("Taken back: {}", ids.join(", ")),
    };
    for path in paths {
        text.push_str(&format!("\n  gone  {}", plain(path)));
    }
    if rows > 0 {
        text.push_str(&format!("\n  gone  {rows} rows, such as cookies"));
    }
    for kept in kept {
        text.push_str(&format!("\n  left  {}", plain(kept)));
    }
    if !ids.is_empty() {
        text.push_str(
            "\nSites do not know of this: sign out there if the session must end everywhere.",
        );
    }
    text
}

pub(super) fn entry(entry: &Entry) -> String {
    let event = serde_json::to_value(entry.event).ok();
    let event = event.as_ref().and_then(|it| it.as_str()).unwrap_or_default().to_owned();
    let facts = entry.facts.iter().filter(|(_, value)| !value.is_empty());
    let facts: Vec<_> = facts.map(|(name, value)| format!("{name}={}", plain(value))).collect();
    format!("{}  {event:<12} {}  {}", time(entry.at_ms), plain(&entry.id), facts.join(" "))
}

fn line(item: &Item) -> String {
    let warning =
        if item.is_sensitive { "   can sign someone in, or tells what they did" } else { "" };
    format!("{}, {}{warning}", plain(&item.label), size(item.estimated_bytes))
}

fn notes(text: &mut String, notes: &[String]) {
    for note in notes {
        text.push_str(&format!("  note: {}\n", plain(note)));
    }
}

/// A moment, in UTC.
fn time(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: 0 }.to_string()
}

fn plain(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .flat_map(|c| if hidden(c) { c.escape_default().collect() } else { vec![c] })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_for_people() {
        assert_eq!(time(1_796_083_199_999), "2026-11-30T23:59:59Z");
        assert!(!time(u64::MAX).is_empty());
        assert_eq!(
            [0, 999, 1000, 1_500_000].map(size),
            ["0 bytes", "999 bytes", "1.0 KB", "1.5 MB"]
        );
    }

    #[test]
    fn a_name_cannot_write_on_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}d é"), "a\\u{1b}[2Jb\\nc\\u{202e}d é");
    }
}
