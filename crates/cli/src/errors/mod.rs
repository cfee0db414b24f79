//! `spaceport errors`.

mod page;
mod words;

use std::process::ExitCode;

use serde::Serialize;
use spaceport_types::{Cause, Disposition, Error, Kind, Result, Retry};

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

/// One cause, where it has been asked for.
#[derive(Serialize)]
struct Exact {
    cause: Cause,
    meaning: &'static str,
    remedy: &'static str,
    retry: Retry,
    verbs: &'static str,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Kind(Kind),
    Cause(Cause),
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
    if errors.markdown {
        render::text_out(&page::page());
        return Ok(ExitCode::SUCCESS);
    }
    match errors.kind.as_deref().map(named).transpose()? {
        None => {
            let rows: Vec<_> = Kind::ALL.into_iter().map(Row::of).collect();
            if json {
                render::json(&rows);
            } else {
                let headings = ["KIND", "EXIT", "HTTP", "GRPC", "RETRY", "MEANING"];
                render::table(headings, rows.iter().map(cells));
            }
        }
        Some(Named::Kind(kind)) => describe(&Row::of(kind), json),
        Some(Named::Cause(cause)) => describe_cause(cause, json),
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(row: &Row, json: bool) {
    if json {
        return render::json(row);
    }
    let words = words::of_kind(row.kind);
    render::facts(&[
        ("kind", &word(row.kind)),
        ("code", &row.code),
        ("meaning", words.meaning),
        ("what to do", words.remedy),
        ("exit code", &row.exit.to_string()),
        ("HTTP status", &row.http.to_string()),
        ("gRPC status", &row.grpc.to_string()),
        ("retry", retry_in_words(row.retry)),
        ("effect", effect_in_words(row.disposition)),
        ("returned by", words.verbs),
    ]);
    let causes = Cause::ALL.into_iter().filter(|cause| cause.kind() == row.kind);
    let causes: Vec<_> =
        causes.map(|cause| [word(cause), words::of_cause(cause).meaning.to_owned()]).collect();
    if !causes.is_empty() {
        render::line_out("");
        render::table(["CAUSE", "MEANING"], causes);
    }
}

fn describe_cause(cause: Cause, json: bool) {
    let words = words::of_cause(cause);
    let exact = Exact {
        cause,
        meaning: words.meaning,
        remedy: words.remedy,
        retry: cause.retry(),
        verbs: words.verbs,
    };
    if json {
        return render::json(&exact);
    }
    render::facts(&[
        ("cause", &word(cause)),
        ("kind", &word(cause.kind())),
        ("meaning", exact.meaning),
        ("what to do", exact.remedy),
        ("retry", retry_in_words(exact.retry)),
        ("returned by", exact.verbs),
    ]);
}

fn named(name: &str) -> Result<Named> {
    let wanted = name.to_ascii_lowercase();
    let kind = Kind::ALL.into_iter().find(|&kind| word(kind) == wanted).map(Named::Kind);
    let cause = || Cause::ALL.into_iter().find(|&cause| word(cause) == wanted).map(Named::Cause);
    kind.or_else(cause).ok_or_else(|| {
        let shown: String = name.chars().take(40).collect();
        let shown = shown.escape_debug();
        Error::new(Kind::NotFound, format!("no kind or cause of an error is called `{shown}`"))
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
    fn kinds_and_causes_are_found_by_their_names() {
        for kind in Kind::ALL {
            assert_eq!(named(&word(kind)).unwrap(), Named::Kind(kind));
            assert_eq!(named(&code_of(kind)).unwrap(), Named::Kind(kind));
        }
        for cause in Cause::ALL {
            assert_eq!(named(&word(cause)).unwrap(), Named::Cause(cause));
        }
        assert_eq!(named("sunspots").unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn every_kind_and_cause_has_words() {
        let kinds = Kind::ALL.map(words::of_kind);
        for words in kinds.into_iter().chain(Cause::ALL.map(words::of_cause)) {
            assert!(!words.meaning.contains("a later spaceport"), "{}", words.meaning);
            for sentence in [words.meaning, words.remedy] {
                assert!(sentence.ends_with('.'), "{sentence}");
            }
        }
    }

    #[test]
    fn the_page_of_the_documentation_is_this_one() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            kept == page::page(),
            "docs/errors.md is out of date; renew it by \
             `cargo run -p spaceport-cli -- errors --markdown > docs/errors.md`"
        );
    }
}
