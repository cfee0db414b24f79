// @ts-check
// Why there is no picture, in the server's words where it has some.
//
// The server speaks of failures in three ways: `application/problem+json` on HTTP, an `error` message
// on the media socket, and the socket's close code. All three become a `Failure`, and a `Failure` is
// what the error card shows.

/**
 * What a server says about a failure, on any surface; the fields of its `Report`.
 * @typedef {object} Report
 * @property {string} [kind]
 * @property {string} [code]
 * @property {string} [cause]
 * @property {string} [title]
 * @property {string} [detail]
 * @property {string} [message]
 * @property {string} [hint]
 * @property {boolean} [retryable]
 * @property {number} [retry_after_ms]
 */

/**
 * How far a failure reaches.
 *
 * - `transport`: this way of watching; another may work.
 * - `ticket`: the media ticket; the page's own ticket may still buy a new one.
 * - `session`: all ways of watching.
 * @typedef {"transport" | "ticket" | "session"} Scope
 */

export class Failure extends Error {
  /**
   * @param {string} message
   * @param {{kind?: string, code?: string, title?: string, hint?: string, scope?: Scope, retryable?: boolean, retryAfter?: number}} [facts]
   */
  constructor(message, facts = {}) {
    super(message);
    this.name = "Failure";
    /** The server's sort of error; all that goes wrong on the way to a picture is `stream`. */
    this.kind = facts.kind ?? "stream";
    /** What exactly it was: the cause, where the kind has some. */
    this.code = facts.code ?? "stream";
    this.title = facts.title ?? "No picture";
    this.hint = facts.hint ?? "";
    this.scope = facts.scope ?? "transport";
    this.retryable = facts.retryable ?? true;
    /** Milliseconds to wait before another try; 0 leaves it to the caller's backoff. */
    this.retryAfter = facts.retryAfter ?? 0;
  }

  /**
   * @param {Report} report
   * @param {{title?: string, scope?: Scope, retryable?: boolean}} [fallback] for what the report leaves open
   */
  static fromReport(report, fallback = {}) {
    const code = report.cause ?? report.kind ?? report.code ?? "stream";
    return new Failure(sentence(report.detail ?? report.message ?? report.title ?? code), {
      kind: report.kind,
      code,
      title: report.title ?? fallback.title,
      hint: sentence(report.hint ?? ""),
      scope: SCOPES[code] ?? fallback.scope ?? "session",
      retryable: report.retryable ?? fallback.retryable ?? false,
      retryAfter: report.retry_after_ms,
    });
  }

  /**
   * Reads a failed HTTP answer, whatever it holds.
   * @param {Response} response
   * @param {{title?: string, scope?: Scope}} [fallback]
   */
  static async fromResponse(response, fallback = {}) {
    const seconds = Number(response.headers.get("Retry-After"));
    /** @type {Report} */
    let report = { code: `http_${response.status}`, detail: `the server answered ${response.status}` };
    try {
      if (response.headers.get("Content-Type")?.includes("json")) report = await response.json();
    } catch {
      // The status has to say it all.
    }
    // 5xx passes; 4xx is about what was asked for, and asking again gives the same answer.
    const failure = Failure.fromReport(report, { retryable: response.status >= 500, ...fallback });
    if (!failure.retryAfter && seconds > 0) failure.retryAfter = seconds * 1000;
    return failure;
  }

  /**
   * @param {number} code a WebSocket close code
   * @param {string} reason
   */
  static fromClose(code, reason) {
    const known = CLOSE_CODES[code];
    if (!known) {
      return new Failure("The connection was lost.", { code: `close_${code}`, title: "Connection lost" });
    }
    const { message, ...facts } = known;
    return new Failure(reason ? sentence(reason) : message, facts);
  }

  /** Frames that are sealed from end to end, and no key that opens them. @param {string} message */
  static sealed(message) {
    return new Failure(message, {
      code: "no_decoder",
      title: "This link does not open what comes",
      hint: "Open the whole link, with everything behind the # sign, or ask for a new one.",
      scope: "session",
      retryable: false,
    });
  }

  /** Nothing at all comes from the server. */
  static unreachable() {
    if (behindRelay()) {
      return new Failure("The relay cannot be reached.", {
        code: "relay_unreachable",
        title: "No connection",
        hint: "It may be starting again, or a firewall in between blocks everything. The page goes on by itself once it can.",
        scope: "session",
      });
    }
    return new Failure("The server cannot be reached.", {
      code: "guest_offline",
      title: "No connection",
      hint: "Its machine may be off, or a firewall in between blocks everything. The page goes on by itself once it can.",
      scope: "session",
    });
  }

  /** @param {unknown} error */
  static from(error) {
    if (error instanceof Failure) return error;
    return new Failure(sentence(error instanceof Error ? error.message : String(error)), { code: "internal" });
  }
}

/** Whether this page came by a relay, which has each machine below a path of its own. */
function behindRelay() {
  return /^\/m\/[^/]+\//.test(location.pathname);
}

/** Reach of what the server names; for the rest it depends on what was asked. @type {Record<string, Scope>} */
const SCOPES = {
  udp_blocked: "transport",
  ice_failed: "transport",
  dtls_failed: "transport",
  codec_unavailable: "transport",
  no_decoder: "transport",
  viewer_too_slow: "transport",
  ticket_expired: "ticket",
  unauthenticated: "ticket",
  session_closed: "session",
  target_gone: "session",
  too_many_viewers: "session",
};

/**
 * The media socket's close codes that mean something; any other is a lost connection.
 * @type {Record<number, {message: string, code: string, title: string, hint?: string, scope: Scope, retryable: boolean}>}
 */
const CLOSE_CODES = {
  1000: { message: "The server ended the stream.", code: "ended", title: "The stream ended", scope: "session", retryable: false },
  4400: { message: "The server did not understand this page.", code: "invalid_argument", title: "The page and the server disagree", hint: "Reload the page: it may be older than the server.", scope: "session", retryable: false },
  4401: { message: "The ticket is no longer valid.", code: "ticket_expired", title: "The ticket has expired", hint: "Ask for a new link.", scope: "ticket", retryable: true },
  4404: { message: "The media session was closed.", code: "session_closed", title: "The session was closed", hint: "Try again to open a new one.", scope: "session", retryable: false },
  4408: { message: "The server had no answer from this page for a minute.", code: "timeout", title: "Connection lost", scope: "transport", retryable: true },
  4410: { message: "The display or window is gone.", code: "target_gone", title: "Nothing left to show", hint: "Try again once it is back.", scope: "session", retryable: false },
  4429: { message: "The session has as many viewers as it may have.", code: "too_many_viewers", title: "Too many viewers", hint: "Close another viewer, then try again.", scope: "session", retryable: false },
  4500: { message: "The server failed.", code: "internal", title: "The server failed", scope: "session", retryable: true },
};

/** Server messages are lowercase without a period; a card shows sentences. @param {string} text */
function sentence(text) {
  const trimmed = text.trim();
  if (!trimmed) return "";
  const first = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}
