use std::fs::Metadata;
use std::path::{Path, PathBuf};

use spaceport_types::{Error, Kind, Result};

use crate::payload::MAX_RECORDS;

/// Deepest folder that is looked into; apps nest a handful.
const MAX_DEPTH: usize = 32;

/// A regular file below a folder.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its name below the folder, `/` between the parts.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it was when it was found.
    pub(crate) metadata: Metadata,
}

/// Every regular file below `root` that `wanted` says yes to, in order of name. It is asked about
/// folders too, with a `/` at the end of the name, before they are looked into. Links, and names that
/// are not UTF-8, are passed over: apps make none that matter.
pub(crate) fn tree(root: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        // The app may remove a folder while we look.
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries.flatten() {
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata())
            else {
                continue;
            };
            let name = format!("{prefix}{name}");
            if metadata.is_dir() && depth < MAX_DEPTH && wanted(&format!("{name}/")) {
                folders.push((entry.path(), format!("{name}/"), depth + 1));
            } else if metadata.is_file() && wanted(&name) {
                found.push(Found { name, path: entry.path(), metadata });
            }
            if found.len() > MAX_RECORDS {
                let why = format!("`{}` holds more than {MAX_RECORDS} files", root.display());
                return Err(Error::new(Kind::LimitExceeded, why).with("limit", MAX_RECORDS));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// How many bytes the regular files below `root` have that `wanted` says yes to.
pub(crate) fn tree_bytes(root: &Path, wanted: &dyn Fn(&str) -> bool) -> u64 {
    tree(root, wanted).map_or(0, |found| found.iter().map(|file| file.metadata.len()).sum())
}
