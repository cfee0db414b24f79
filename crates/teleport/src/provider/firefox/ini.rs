//! Firefox's `.ini` files: sections of `key=value` lines, kept in order.

use std::fmt;

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ini {
    pub(super) sections: Vec<Section>,
}

/// One section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) entries: Vec<(String, String)>,
}

impl Ini {
    /// Reads what can be read of a text; Firefox passes over the rest as well.
    pub(super) fn parse(text: &str) -> Self {
        let mut ini = Self::default();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                ini.sections.push(Section { name: name.to_owned(), entries: Vec::new() });
            } else if let (Some((key, value)), Some(section)) =
                (line.split_once('='), ini.sections.last_mut())
            {
                section.entries.push((key.trim().to_owned(), value.trim().to_owned()));
            }
        }
        ini
    }

    /// A section.
    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// A value.
    pub(super) fn get(&self, section: &str, key: &str) -> Option<&str> {
        self.section(section)?.get(key)
    }
}

impl Section {
    pub(super) fn new(name: &str, entries: &[(&str, &str)]) -> Self {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self { name: name.to_owned(), entries: entries.collect() }
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.entries.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.entries.retain(|(name, _)| name != key);
    }
}

impl fmt::Display for Ini {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "[{}]", section.name)?;
            for (key, value) in &section.entries {
                writeln!(f, "{key}={value}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
