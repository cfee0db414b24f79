//! Names that a sender chose.
//!
//! Bytes, as Linux has them: a name need not be UTF-8, and lands exactly as it was sent. What is
//! checked here is what holds for every destination. That a name does not lead through a link is
//! [`Root`](crate::Root)'s business, which is where a path is opened.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use spaceport_types::{Cause, Error, Issue};

/// The longest name a Linux file system holds (`NAME_MAX`).
pub const MAX_NAME: usize = 255;

/// The longest path that a program can open in one piece (`PATH_MAX`, less its terminator).
pub const MAX_PATH: usize = 4095;

/// Folders within folders. No tree that people make is deeper, and tools that recurse survive it.
pub const MAX_DEPTH: usize = 256;

/// A path below a folder that cannot lead out of it: `/`-separated, no empty segment, no `.` or
/// `..`, no NUL, and short enough to be used.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(Box<[u8]>);

impl RelativePath {
    /// Checks what a sender declared.
    ///
    /// # Errors
    ///
    /// What is wrong with it; see [`Flaw::error`] for the words.
    pub fn parse(path: impl Into<Vec<u8>>) -> Result<Self, Flaw> {
        let path = path.into();
        check(&path)?;
        Ok(Self(path.into_boxed_slice()))
    }

    /// The bytes, `/`-separated.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same as the standard library has it; still relative.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The names on the way, outermost first.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/')
    }

    /// The last name.
    pub fn name(&self) -> &[u8] {
        split(&self.0).1
    }

    /// The path to the folder that it is in; `None` for one that is in no other.
    pub fn parent(&self) -> Option<Self> {
        split(&self.0).0.map(|parent| Self(parent.into()))
    }

    /// A name in the folder that this is.
    ///
    /// # Errors
    ///
    /// As [`RelativePath::parse`], for what comes out.
    pub fn join(&self, other: &Self) -> Result<Self, Flaw> {
        Self::parse([&self.0, &b"/"[..], &other.0].concat())
    }

    /// For people: nothing in it reaches a terminal as a command.
    pub fn shown(&self) -> Shown<'_> {
        Shown(&self.0)
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelativePath({})", self.shown())
    }
}

/// The parent, if any, and the last name of a checked path.
pub(crate) fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (path.get(..at), path.get(at + 1..).unwrap_or_default()),
        None => (None, path),
    }
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flaw {
    /// It starts at the root of the file system.
    Absolute,
    /// It has a `..`.
    Parent,
    /// It is empty.
    Empty,
    /// It has an empty segment, or ends with a `/`.
    EmptySegment,
    /// It has a `.` segment.
    Dot,
    /// It has a NUL byte.
    Nul,
    /// A name is longer than [`MAX_NAME`].
    NameTooLong,
    /// It is longer than [`MAX_PATH`].
    PathTooLong,
    /// It is deeper than [`MAX_DEPTH`].
    TooDeep,
    /// The destination's file system has no such name.
    Unholdable,
    /// The destination's file system takes it for another entry's name.
    SameName,
}

impl Flaw {
    /// `path_escape` for what leads out of the folder, `name_unusable` for the rest.
    pub const fn cause(self) -> Cause {
        match self {
            Self::Absolute | Self::Parent => Cause::PathEscape,
            _ => Cause::NameUnusable,
        }
    }

    /// What must hold, and does not.
    pub const fn constraint(self) -> &'static str {
        match self {
            Self::Absolute => "relative path",
            Self::Parent => "no `..`",
            Self::Empty => "not empty",
            Self::EmptySegment => "no empty segment",
            Self::Dot => "no `.` segment",
            Self::Nul => "no NUL",
            Self::NameTooLong => "bytes in a name at most",
            Self::PathTooLong => "bytes in a path at most",
            Self::TooDeep => "folders deep at most",
            Self::Unholdable => "a name the destination's file system has",
            Self::SameName => "a name of its own where case does not count",
        }
    }

    /// The bound, where there is one.
    pub const fn limit(self) -> Option<usize> {
        match self {
            Self::NameTooLong => Some(MAX_NAME),
            Self::PathTooLong => Some(MAX_PATH),
            Self::TooDeep => Some(MAX_DEPTH),
            _ => None,
        }
    }

    /// The error for one path.
    pub fn error(self, path: &[u8]) -> Error {
        let reason = match self {
            Self::Absolute => "is an absolute path",
            Self::Parent => "leads out of its folder",
            Self::Empty => "is no name",
            Self::EmptySegment => "has an empty name in it",
            Self::Dot => "has a `.` in it",
            Self::Nul => "has a NUL byte in it",
            Self::NameTooLong => "has a name in it that is too long",
            Self::PathTooLong => "is too long",
            Self::TooDeep => "is too deep",
            Self::Unholdable => "has a name that the destination's file system cannot hold",
            Self::SameName => "has the name of another entry where case does not count",
        };
        Error::because(self.cause(), format!("`{}` {reason}", Shown(path)))
            .with("entry", raw(path))
            .issue(self.issue(path))
            .hint(match self.cause() {
                Cause::PathEscape => "Send paths below the folder that is sent",
                _ => "Rename it, and send it again",
            })
    }

    /// The same as one of several things that are wrong with a request.
    pub fn issue(self, path: &[u8]) -> Issue {
        Issue {
            path: raw(path),
            constraint: self.constraint().into(),
            limit: self.limit().map(|limit| limit.to_string()),
        }
    }
}

/// Checks a path. What leads out of the folder comes before what is merely unusable.
pub(crate) fn check(path: &[u8]) -> Result<(), Flaw> {
    if path.is_empty() {
        return Err(Flaw::Empty);
    }
    if path.first() == Some(&b'/') {
        return Err(Flaw::Absolute);
    }
    let (mut depth, mut flaw) = (0, None);
    for segment in path.split(|&byte| byte == b'/') {
        depth += 1;
        let found = match segment {
            b".." => return Err(Flaw::Parent),
            b"" => Flaw::EmptySegment,
            b"." => Flaw::Dot,
            name if name.contains(&0) => Flaw::Nul,
            name if name.len() > MAX_NAME => Flaw::NameTooLong,
            _ => continue,
        };
        flaw = flaw.or(Some(found));
    }
    match flaw {
        Some(flaw) => Err(flaw),
        None if path.len() > MAX_PATH => Err(Flaw::PathTooLong),
        None if depth > MAX_DEPTH => Err(Flaw::TooDeep),
        None => Ok(()),
    }
}

/// A path as data: what is UTF-8 as it is, other bytes as `\xNN`.
pub fn raw(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Shows a path or name to people. Control characters, what changes the direction or is not seen,
/// and bytes that are no text come out as escapes; so does the backslash, so that no name can look
/// like an escaped one.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    _ if is_hidden(character) => write!(f, "{}", character.escape_unicode())?,
                    _ => f.write_char(character)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Control characters, and those of Unicode's format category that hide, join or turn text.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{180b}'..='\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(path: &[u8]) -> Option<Flaw> {
        RelativePath::parse(path).err()
    }

    #[test]
    fn what_leads_out_of_the_folder_is_an_escape() {
        for path in [&b"../../.ssh/authorized_keys"[..], b"a/../../x", b"./../x", b"..", b"a/.."] {
            assert_eq!(flaw(path), Some(Flaw::Parent), "{}", Shown(path));
            assert_eq!(flaw(path).unwrap().error(path).cause(), Some(Cause::PathEscape));
        }
        for path in [&b"/etc/passwd"[..], b"//x", b"/", b"/.."] {
            assert_eq!(flaw(path), Some(Flaw::Absolute), "{}", Shown(path));
            assert_eq!(flaw(path).unwrap().error(path).cause(), Some(Cause::PathEscape));
        }
    }

    #[test]
    fn what_is_no_name_is_unusable() {
        let deep = vec!["d"; MAX_DEPTH + 44].join("/").into_bytes();
        let long = vec!["n".repeat(200); 25].join("/").into_bytes();
        assert!(long.len() > 5000 && deep.len() < MAX_PATH);
        for (path, wanted) in [
            (&b""[..], Flaw::Empty),
            (b"a//b", Flaw::EmptySegment),
            (b"a/", Flaw::EmptySegment),
            (b".", Flaw::Dot),
            (b"a/./b", Flaw::Dot),
            (b"a\0b", Flaw::Nul),
            (&[b'n'; 256], Flaw::NameTooLong),
            (&long, Flaw::PathTooLong),
            (&deep, Flaw::TooDeep),
        ] {
            assert_eq!(flaw(path), Some(wanted), "{}", Shown(path));
            assert_eq!(flaw(path).unwrap().error(path).cause(), Some(Cause::NameUnusable));
        }
    }

    #[test]
    fn names_that_only_look_odd_are_exact() {
        for path in [
            &b"C:\\x"[..],
            b"\\\\host\\share\\x",
            b"...",
            b"..a",
            b"CON",
            b"nul.txt",
            b"x.",
            b"x ",
            b"a:b",
            b"\x1b[2J",
            b"a\r\nb",
            b"\xff\xfe",
            "\u{202e}gpj.exe".as_bytes(),
            "e\u{301}/\u{e9}".as_bytes(),
            &[b'n'; 255],
        ] {
            assert_eq!(RelativePath::parse(path).unwrap().as_bytes(), path);
        }
    }

    #[test]
    fn a_terminal_sees_escapes_and_data_stays_raw() {
        let path = b"a\x1b[31m\r\n\x07\xe2\x80\xaeb\\\xff\xc3\xa9";
        assert_eq!(
            Shown(path).to_string(),
            "a\\u{1b}[31m\\u{d}\\u{a}\\u{7}\\u{202e}b\\\\\\xff\u{e9}"
        );
        assert_eq!(raw(path), "a\x1b[31m\r\n\x07\u{202e}b\\\\xff\u{e9}");
        let error = Flaw::Parent.error(b"../\x1b]0;x\x07");
        assert!(!error.to_string().contains('\x1b'), "{error}");
        assert_eq!(error.context("entry"), Some("../\x1b]0;x\x07"));
    }

    #[test]
    fn a_path_comes_apart_and_together() {
        let path = RelativePath::parse("a/b/c").unwrap();
        assert_eq!(path.name(), b"c");
        assert_eq!(path.parent().unwrap().as_bytes(), b"a/b");
        assert_eq!(path.segments().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        let one = RelativePath::parse("x").unwrap();
        assert_eq!(one.parent(), None);
        assert_eq!(path.join(&one).unwrap().as_bytes(), b"a/b/c/x");
    }
}
