//! `spaceport errors`.

use std::process::ExitCode;

use serde::Serialize;
use spaceport_types::{Disposition, Error, Kind, Result, Retry};

use crate::args::Errors;
use crate::render::{self, code_of, word};

/// One kind, as every surface has it.
#[derive(Serialize)]
struct Row {
    kind: Kind,
    code: String,
    meaning: &'static str,
    exit: u8,
    http: u16,
    grpc: i32,
    retry: Retry,
    disposition: Disposition,
}

impl Row {
    fn of(kind: Kind) -> Self {
        let spec = kind.spec();
        Self {
            kind,
            code: code_of(kind),
            meaning: spec.title,
            exit: spec.exit,
            http: spec.http,
            grpc: spec.grpc,
            retry: spec.retry,
            disposition: spec.disposition,
        }
    }
}

pub(crate) fn run(errors: &Errors, json: bool) -> Result<ExitCode> {
    match &errors.kind {
        None => {
            let rows: Vec<_> = Kind::ALL.into_iter().map(Row::of).collect();
            if json {
                render::json(&rows);
            } else {
                let headings = ["KIND", "EXIT", "HTTP", "GRPC", "RETRY", "MEANING"];
                render::table(headings, rows.iter().map(cells));
            }
        }
        Some(name) => {
            let row = Row::of(named(name)?);
            if json {
                render::json(&row);
            } else {
                render::facts(&[
                    ("kind", &word(row.kind)),
                    ("code", &row.code),
                    ("meaning", row.meaning),
                    ("exit code", &row.exit.to_string()),
                    ("HTTP status", &row.http.to_string()),
                    ("gRPC status", &row.grpc.to_string()),
                    ("retry", retry_in_words(row.retry)),
                    ("effect", effect_in_words(row.disposition)),
                ]);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn named(name: &str) -> Result<Kind> {
    let wanted = name.to_ascii_lowercase();
    Kind::ALL.into_iter().find(|&kind| word(kind) == wanted).ok_or_else(|| {
        let shown: String = name.chars().take(40).collect();
        Error::new(Kind::NotFound, format!("no kind of error is called `{}`", shown.escape_debug()))
            .hint("Run `spaceport errors` to see all of them")
    })
}

fn cells(row: &Row) -> [String; 6] {
    [
        word(row.kind),
        row.exit.to_string(),
        row.http.to_string(),
        row.grpc.to_string(),
        word(row.retry),
        row.meaning.to_owned(),
    ]
}

fn retry_in_words(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "never: the same request fails the same way",
        Retry::Backoff => "backoff: the same request may succeed, a little later",
        Retry::AfterDelay => "after_delay: after the time in `retry_after_ms`",
        Retry::AfterRead => "after_read: read the state again first",
        Retry::AfterAction => "after_action: do what the hint says first",
        Retry::ByCause => "by_cause: the error's `cause` decides; its `retry` has the answer",
    }
}

fn effect_in_words(disposition: Disposition) -> &'static str {
    match disposition {
        Disposition::NotDispatched => "not_dispatched: nothing happened",
        Disposition::ProviderReported => "provider_reported: the other side was asked and said no",
        Disposition::UnknownAfterDispatch => {
            "unknown_after_dispatch: it may have happened; read the state before trying again"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_name_and_by_its_code() {
        for kind in Kind::ALL {
            assert_eq!(named(&word(kind)).unwrap(), kind);
            assert_eq!(named(&code_of(kind)).unwrap(), kind);
        }
        assert_eq!(named("sunspots").unwrap_err().kind(), Kind::NotFound);
    }
}
