//! `docs/errors.md`, made from the table of kinds and causes.

use spaceport_types::{Cause, Error, Kind};

use super::words::{self, Words};
use crate::render::{code_of, word};

/// The whole page.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for kind in Kind::ALL {
        let spec = kind.spec();
        let (name, words) = (word(kind), words::of_kind(kind));
        page.push_str(&format!(
            "| [`{name}`](#{name}) | {} | {} | {} | {} | {} |\n",
            spec.http,
            spec.grpc,
            spec.exit,
            word(spec.retry),
            words.meaning
        ));
    }
    for kind in Kind::ALL {
        page.push_str(&section(kind));
    }
    page
}

fn section(kind: Kind) -> String {
    let (spec, Words { meaning, remedy, verbs }) = (kind.spec(), words::of_kind(kind));
    let mut section = format!(
        "\n## {}\n\n{meaning} {remedy}\n\n| | |\n|---|---|\n\
         | title | {} |\n| code | `{}` |\n| HTTP status | {} |\n| gRPC status | {} |\n\
         | exit code | {} |\n| retry | `{}` |\n| effect | `{}` |\n| returned by | {verbs} |\n",
        word(kind),
        spec.title,
        code_of(kind),
        spec.http,
        spec.grpc,
        spec.exit,
        word(spec.retry),
        word(spec.disposition),
    );
    let mut causes = Cause::ALL.into_iter().filter(|cause| cause.kind() == kind).peekable();
    if causes.peek().is_some() {
        section.push_str(
            "\n| cause | meaning | what to do | retry | HTTP | returned by |\n|---|---|---|---|---|---|\n",
        );
    }
    for cause in causes {
        let Words { meaning, remedy, verbs } = words::of_cause(cause);
        let http = Error::because(cause, "").http_status();
        section.push_str(&format!(
            "| `{}` | {meaning} | {remedy} | `{}` | {http} | {verbs} |\n",
            word(cause),
            word(cause.retry()),
        ));
    }
    section
}

const HEAD: &str = "\
# Errors

Made from the code's own table by `spaceport errors --markdown`; change it there.

Every failure is one error, with the same fields on every surface:

| field | |
|---|---|
| `kind` | what went wrong, as below; programs branch on it |
| `cause` | the exact reason, for `stream`, `transfer_failed` and `teleport_refused` |
| `message`, `hint` | what happened, and what to do next, for people |
| `retryable` | whether the very same request may succeed later, with nobody doing anything |
| `retry` | what has to happen first: `never`, `backoff`, `after_delay`, `after_read`, `after_action`, or `by_cause` in the tables below |
| `retry_after_ms` | how long to wait first, where that is known |
| `disposition` | `not_dispatched` (nothing happened), `provider_reported` (the other side said no), `unknown_after_dispatch` (read the state first) |
| `operation`, `context`, `issues`, `causes` | what failed; facts; arguments that are wrong; what lies behind it |

| surface | where they are |
|---|---|
| MCP | a result with `isError` and `structuredContent.error` |
| gRPC | the status, and `ErrorInfo` in `grpc-status-details-bin`: `kind`, `cause`, `hint` and the facts are its metadata. A failure that passes by itself goes bare, as deployed clients retry no other |
| HTTP, WHEP | `application/problem+json`, with the fields beside `type`, `title`, `status` and `detail` |
| command line | `error:`, `caused by:` and `hint:` on stderr, and the exit code; `--json` prints `{\"error\": …}` on stdout, `--agent` one on stderr |

| kind | HTTP | gRPC | exit | retry | meaning |
|---|---|---|---|---|---|
";
