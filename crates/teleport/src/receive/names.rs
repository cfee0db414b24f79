//! What a destination's file system makes of names.
//!
//! Linux's own hold every name exactly. Others (FAT, NTFS, a share of another machine, a folder
//! with case folding) do not, and none of them says so: it is tried, in the staging folder.

use std::collections::HashMap;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use unicode_normalization::UnicodeNormalization as _;

use crate::path::Flaw;
use crate::root::Root;

/// How a destination treats names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// `A` and `a` are one name.
    pub(crate) fold_case: bool,
    /// Names are as on Windows: no `a:b`, no `CON`, no trailing dot or space.
    pub(crate) windows: bool,
}

impl Names {
    /// Tries it in an empty folder of ours, and leaves nothing behind.
    pub(crate) fn probe(folder: &Root) -> Result<Self, Errno> {
        const LOWER: &[u8] = b"case";
        const UPPER: &[u8] = b"CASE";
        const WINDOWS: &[u8] = b"a:b";
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        drop(folder.open_file(LOWER, flags, mode)?);
        let fold_case = folder.look(UPPER)?.is_some();
        folder.unlink(LOWER)?;
        let windows = match folder.open_file(WINDOWS, flags, mode) {
            Ok(_) => {
                folder.unlink(WINDOWS)?;
                false
            }
            Err(Errno::INVAL | Errno::NOENT | Errno::ACCESS | Errno::ILSEQ) => true,
            Err(errno) => return Err(errno),
        };
        Ok(Self { fold_case, windows })
    }

    /// What is wrong with a path here that is fine on Linux.
    pub(crate) fn flaw(self, path: &[u8]) -> Option<Flaw> {
        if !self.windows {
            return None;
        }
        let mut segments = path.split(|&byte| byte == b'/');
        segments.any(|name| !holds_on_windows(name)).then_some(Flaw::Unholdable)
    }
}

/// A path that such a destination holds, for one that it does not: odd characters and ends become `_`.
pub(crate) fn holdable(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    let name = |name: &str| {
        let mut name: String = name.chars().map(|c| if is_odd(c) { '_' } else { c }).collect();
        if name.ends_with(['.', ' ']) {
            name.pop();
            name.push('_');
        }
        if !holds_on_windows(name.as_bytes()) {
            name.insert(0, '_');
        }
        name
    };
    path.split('/').map(name).collect::<Vec<_>>().join("/")
}

fn is_odd(character: char) -> bool {
    character < ' ' || "<>:\"\\|?*".contains(character)
}

fn holds_on_windows(name: &[u8]) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    let device = match stem.to_ascii_uppercase().as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        // Superscript digits count, by an accident of code pages.
        other => ["COM", "LPT"].iter().any(|port| {
            other.strip_prefix(port).is_some_and(|number| {
                let mut digits = number.chars();
                let one = digits
                    .next()
                    .is_some_and(|digit| "123456789\u{b9}\u{b2}\u{b3}".contains(digit));
                one && digits.next().is_none()
            })
        }),
    };
    !device && !name.ends_with(['.', ' ']) && !name.contains(is_odd)
}

/// Paths by what they are where case and composition do not count.
#[derive(Debug, Default)]
pub(crate) struct Collisions {
    known: HashMap<Vec<u8>, Vec<u8>>,
}

impl Collisions {
    /// Notes a path; returns another that is taken for the same.
    pub(crate) fn insert(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let known = self.known.entry(fold(path)).or_insert_with(|| path.to_vec());
        (*known != path).then(|| known.clone())
    }
}

/// Upper case and back takes the sharp s, ligatures and the Kelvin sign along, which lower case
/// alone does not.
fn fold(path: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(path) {
        Ok(text) => {
            let text: String = text.nfkc().collect();
            text.to_uppercase().to_lowercase().nfd().collect::<String>().into_bytes()
        }
        Err(_) => path.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_linux_file_system_holds_every_name() {
        let scratch = Scratch::new();
        let root = Root::open(scratch.path()).unwrap();
        assert_eq!(Names::probe(&root).unwrap(), Names::default());
        assert!(root.names().unwrap().is_empty());
    }

    #[test]
    fn names_that_windows_lacks_are_found() {
        let names = Names { windows: true, ..Names::default() };
        for path in ["CON", "a/nul.txt", "x.", "x /y", "a:b", "COM1.txt", "lpt\u{b2}", "a\\b", "?"]
        {
            assert_eq!(names.flaw(path.as_bytes()), Some(Flaw::Unholdable), "{path}");
            assert_eq!(Names::default().flaw(path.as_bytes()), None);
        }
        for path in ["console", "com10", "com", "a b.txt", ".profile", "\u{e9}"] {
            assert_eq!(names.flaw(path.as_bytes()), None, "{path}");
        }
        assert_eq!(names.flaw(b"\xff"), Some(Flaw::Unholdable));
        for (path, offered) in [
            (&b"CON"[..], "_CON"),
            (b"a/nul.txt", "a/_nul.txt"),
            (b"x.", "x_"),
            (b"x /y", "x_/y"),
            (b"a:b\\c?", "a_b_c_"),
            (b"con.", "con_"),
            (b"\xff\n", "\u{fffd}_"),
        ] {
            assert_eq!(holdable(path), offered);
            assert_eq!(names.flaw(offered.as_bytes()), None, "{offered}");
        }
    }
}
