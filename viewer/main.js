// @ts-check
// The viewer page: one screen, watched in the best way that works.
//
// `Viewer.run` is the whole policy, one loop: open a media session with the ticket in the address, race the
// transports until a picture comes, watch until it ends, and say what happened. Transports know nothing of
// each other or of the page.

import { Failure } from "./failure.js";
import { Menu } from "./menu.js";
import { Pointer } from "./pointer.js";
import { Stage } from "./present.js";
import { asRequest, chosenTarget, entries, fromAddress, label, toAddress } from "./target.js";
import { WebSocketTransport } from "./transport/websocket.js";
import { WebTransportTransport } from "./transport/webtransport.js";
import { WhepTransport } from "./transport/whep.js";

/**
 * A media session, as `POST /viewer/open` answers.
 * @typedef {object} Session
 * @property {string} id
 * @property {import("./target.js").Watchable | null} target
 * @property {string} ticket the media ticket: opens this session's transports and nothing else
 * @property {string} key opens sealed frames; empty where they are not
 * @property {string} codec what the socket carries
 * @property {[number, number]} frameSize
 * @property {{url: string, certificates: Uint8Array<ArrayBuffer>[]} | null} webTransport
 * @property {string} wsUrl
 * @property {string} whepUrl empty when the server has none
 */

/**
 * What a transport tells the page.
 * @typedef {object} Events
 * @property {() => void} frame a picture is on screen
 * @property {(width: number, height: number, codedWidth: number, codedHeight: number) => void} resized
 * @property {(text: string | null) => void} notice why the picture stands still, or that it goes on
 * @property {(title: string) => void} titled the window has another title now
 * @property {import("./pointer.js").Pointer} pointer to be told of the remote pointer, where it is not in the picture
 * @property {(failure: Failure) => void} ended once, and nothing after it
 */

/** @typedef {WebTransportTransport | WebSocketTransport | WhepTransport} Transport */
/** @typedef {"webtransport" | "ws" | "whep"} Kind */
/** @typedef {"opening" | "connecting" | "playing" | "paused" | "reconnecting" | "failed"} State */

/**
 * One transport that may bring a picture.
 * @typedef {object} Attempt
 * @property {Kind} kind
 * @property {Transport} transport
 * @property {Pointer} pointer
 * @property {Parameters<Events["resized"]> | null} sizes
 * @property {ReturnType<typeof setTimeout> | undefined} limit ends it when it brings none
 */

const TRANSPORTS = { webtransport: WebTransportTransport, ws: WebSocketTransport, whep: WhepTransport };

/**
 * In order of preference. What decodes with WebCodecs has a quarter of a video element's delay, and on a line
 * that loses packets WebTransport goes on where the socket waits.
 * @type {Kind[]}
 */
const ORDER = ["webtransport", "ws", "whep"];

/** The next transport is started as well when one shows nothing within this time, in milliseconds. */
const STAGGER = 300;

/** How long a better transport that is under way may still take over once there is a picture. */
const TAKEOVER = 1_500;

/** A transport that shows nothing within this time, in milliseconds, is given up. */
const START_TIMEOUT = 2_000;

/** A tab that is hidden for this long leaves; a person who flips through tabs finds the picture there. */
const HIDDEN_GRACE = 5_000;

/** Reconnecting: half of this at first, at most the other, each wait drawn between half and all of it. */
const BACKOFF_FIRST = 500;
const BACKOFF_MAX = 10_000;

/** The server counts as gone when it has answered nothing for this long, in milliseconds, and the page says so. */
const UNANSWERED = 2_000;

/** Tries without a picture after which the page stops saying "one moment" and shows what is wrong. */
const QUIET_TRIES = 1;

const STATUS = /** @type {Record<State, string>} */ ({
  opening: "Connecting",
  connecting: "Connecting",
  playing: "Live",
  paused: "Paused",
  reconnecting: "Reconnecting",
  failed: "Stopped",
});

const CODECS = /** @type {Record<string, string>} */ ({ h264: "H.264", vp8: "VP8", vp9: "VP9", av1: "AV1" });

class Viewer {
  /** @type {State} */
  state = "opening";
  /** @type {Transport | null} */
  transport = null;
  /** @type {Kind | null} */
  kind = null;
  /** @type {Kind | "auto"} */
  chosen = "auto";
  /** @type {Failure | null} */
  failure = null;
  /** @type {Session | null} */
  session = null;

  /** The one that worked last; where it worked, it is tried first. @type {Kind | null} */
  #worked = null;
  /** The one that stood still last; for the time being it is tried last. @type {Kind | null} */
  #stalled = null;
  /** Whether the server has answered nothing lately, however it was asked. */
  #unanswered = false;
  /** Ends what the loop waits for. */
  #interrupt = () => {};
  #stage = new Stage(element("frame"));
  #ticket;
  /** Opens sealed frames; empty where they are not. */
  #key;
  /** What is to be watched. @type {import("./target.js").Target} */
  #target;

  /** @param {URLSearchParams} parameters of the address's fragment, which no server sees */
  constructor(parameters) {
    this.#ticket = parameters.get("ticket") ?? "";
    this.#key = parameters.get("key") ?? "";
    this.#target = fromAddress(parameters);
    const forced = parameters.get("transport");
    if (forced && Object.hasOwn(TRANSPORTS, forced)) this.chosen = /** @type {Kind} */ (forced);
  }

  /** Runs until the page goes away. @returns {Promise<never>} */
  async run() {
    let tries = 0;
    for (;;) {
      const round = await this.#round();
      const { played } = round;
      if (played) tries = 0;
      // What each way says is of no use then.
      const gone = this.#unanswered && !played && round.failure.scope === "transport";
      const failure = gone ? Failure.unreachable() : round.failure;
      if (failure === INTERRUPTED) {
        tries = 0;
        hideCard();
      } else {
        this.failure = failure;
        // A spent media ticket is no reason to stop: whether there is another is for the page's own to say.
        const hopeful = failure.retryable || failure.scope === "ticket";
        if (!hopeful || failure.scope !== "transport") this.session = null;
        this.#enter(hopeful ? "reconnecting" : "failed");
        // Where it is known what is in the way, one more moment changes nothing.
        const known = failure.code === "udp_blocked";
        if (!hopeful || known || tries >= QUIET_TRIES) showCard(failure, this.#choosy(), this.#desktop(failure));
        else {
          say("Connection lost, reconnecting");
          if (failure.scope === "transport") this.#doubt();
        }
        const acted = await this.#pause(hopeful ? Math.max(failure.retryAfter, backoff(tries)) : Infinity);
        tries++;
        // Someone who pressed a button wants to see that something happens; else the card stays until it
        // is no longer true.
        if (acted) hideCard();
      }
      if (document.hidden) {
        await this.#hidden();
        this.session = null; // nobody knows how long that was
        tries = 0;
      }
    }
  }

  /** @param {Kind | "auto"} choice */
  choose(choice) {
    this.chosen = choice;
    this.#worked = this.#stalled = null;
    this.#interrupt();
  }

  retry() {
    this.#interrupt();
  }

  /** Shows something else, in the same page. @param {import("./target.js").Target} target */
  watch(target) {
    this.#target = target;
    this.session = null;
    toAddress(target);
    this.#interrupt();
  }

  /** What can be watched now. @returns {Promise<import("./target.js").Watchable[]>} */
  async targets() {
    const headers = { Authorization: `Bearer ${this.#ticket}` };
    const response = await fetch(new URL("targets", location.href), { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
    if (!response.ok) throw await Failure.fromResponse(response);
    return response.json();
  }

  /** Where the remote pointer is drawn. */
  get pointer() {
    return this.#stage.pointer.place;
  }

  /** One pass over the transports. Ends when watching ended, or when none of them brought a picture. */
  async #round() {
    try {
      this.#enter(this.state === "reconnecting" ? "reconnecting" : "connecting");
      while (!this.session) {
        const target = this.#target;
        const session = await this.#open();
        this.#unanswered = false;
        // Something else may have been chosen meanwhile.
        if (target === this.#target) this.session = session;
      }
      showTarget(this.session.target);
      return await this.#watch(this.#kinds(), this.session);
    } catch (error) {
      return { failure: Failure.from(error), played: false };
    }
  }

  /** Says that the server is gone if it answers nothing, while ways to it are tried still. */
  async #doubt() {
    try {
      await fetch(new URL("../health", location.href), { method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(UNANSWERED) });
    } catch (error) {
      // A server that refuses at once may be starting again.
      const silent = error instanceof DOMException && error.name === "TimeoutError";
      if (silent && this.state === "reconnecting") this.#gone();
    }
  }

  #gone() {
    this.#unanswered = true;
    this.failure = Failure.unreachable();
    showCard(this.failure, false, false);
  }

  #kinds() {
    if (this.chosen !== "auto") return [this.chosen];
    /** @param {Kind} kind */
    const rank = (kind) => (kind === this.#stalled ? 2 : kind === this.#worked ? 0 : 1);
    return ORDER.toSorted((a, b) => rank(a) - rank(b));
  }

  /** Whether the error card should offer the other transports: when only one was to be tried. */
  #choosy() {
    return this.chosen !== "auto";
  }

  /** Whether the desktop is worth offering on the error card: instead of a window that is gone. @param {Failure} failure */
  #desktop({ code }) {
    return this.#target?.kind === "window" && (code === "target_gone" || code === "not_found");
  }

  /** @returns {Promise<Session>} */
  async #open() {
    if (!this.#ticket) {
      throw new Failure("The address has no ticket.", {
        code: "unauthenticated",
        title: "This link is not complete",
        hint: "Open the whole link, with everything behind the # sign.",
        scope: "session",
        retryable: false,
      });
    }
    let response;
    const unanswered = setTimeout(() => this.#gone(), UNANSWERED);
    try {
      response = await fetch(new URL("open", location.href), {
        method: "POST",
        headers: { Authorization: `Bearer ${this.#ticket}`, "Content-Type": "application/json" },
        body: JSON.stringify(asRequest(this.#target)),
        cache: "no-store",
        signal: AbortSignal.timeout(10_000),
      });
    } catch {
      throw Failure.unreachable();
    } finally {
      clearTimeout(unanswered);
    }
    if (!response.ok) {
      const failure = await Failure.fromResponse(response);
      failure.scope = "session"; // there is no other ticket to try, and no other way in
      throw failure;
    }
    const answer = await response.json();
    // One without the other is a link that lost its end, or somebody in between who wants to read along.
    const sealed = answer.sealed === true;
    if (sealed && !/^[0-9a-f]{64}$/.test(this.#key)) throw Failure.sealed("What this Space shows is sealed, and the address has no key to it.");
    if (!sealed && this.#key) throw Failure.sealed("The address has a key, but what comes is not sealed with it.");
    // The server may live below a path, such as a relay's `/m/<id>`; its own paths start after that.
    const base = new URL("..", location.href).href.replace(/\/$/, "");
    const socket = new URL(base + answer.ws_path);
    socket.protocol = socket.protocol === "https:" ? "wss:" : "ws:";
    socket.search = ""; // the ticket is there for clients without subprotocols
    return {
      id: answer.session_id,
      target: answer.target ?? null,
      ticket: answer.ticket,
      key: this.#key,
      codec: answer.codec,
      frameSize: answer.frame_size,
      webTransport: webTransport(answer.webtransport),
      wsUrl: socket.href,
      // WebRTC knows nothing of such seals.
      whepUrl: answer.whep_path && !sealed ? base + answer.whep_path : "",
    };
  }

  /**
   * Watches with the best transport that brings a picture, until that ends or the page wants something else.
   *
   * They start one after the other, a moment apart, and the first picture is shown. A better one that is
   * under way may still take over; all others leave.
   * @param {Kind[]} kinds the best first
   * @param {Session} session
   * @returns {Promise<{failure: Failure, played: boolean}>}
   */
  #watch(kinds, session) {
    return new Promise((resolve) => {
      /** @type {Attempt[]} */
      const attempts = [];
      /** @type {[Kind, Failure][]} */
      const failures = [];
      const queue = [...kinds];
      /** @type {Attempt | null} */
      let shown = null;
      let done = false;
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let grace;
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let stagger;

      const visibility = () => {
        clearTimeout(grace);
        for (const { transport } of attempts) transport.mute(document.hidden);
        if (document.hidden) grace = setTimeout(() => finish(INTERRUPTED), HIDDEN_GRACE);
      };

      /** @param {Attempt} attempt */
      const drop = (attempt) => {
        clearTimeout(attempt.limit);
        const at = attempts.indexOf(attempt);
        if (at < 0) return;
        attempts.splice(at, 1);
        attempt.transport.close();
        attempt.pointer.clear();
        // The last picture stays until there is another; what never showed one goes.
        if (attempt !== shown) attempt.transport.element.remove();
      };

      /** @param {Failure} failure */
      const finish = (failure) => {
        if (done) return;
        done = true;
        clearTimeout(stagger);
        clearTimeout(grace);
        document.removeEventListener("visibilitychange", visibility);
        this.#interrupt = () => {};
        delete document.body.dataset.notice;
        for (const attempt of [...attempts]) drop(attempt);
        resolve({ failure, played: shown !== null });
      };

      /** One has failed. @param {Kind} kind @param {Failure} failure */
      const failed = (kind, failure) => {
        failures.push([kind, failure]);
        if (failure.scope === "session") return finish(failure);
        if (shown) return;
        if (queue.length > 0) next();
        else if (attempts.length === 0) finish(both(failures));
      };

      /** @param {Attempt} attempt */
      const show = (attempt) => {
        const { kind, transport } = attempt;
        clearTimeout(stagger);
        queue.length = 0;
        const before = shown;
        shown = attempt;
        if (before) drop(before);
        const rank = kinds.indexOf(kind);
        for (const other of [...attempts]) {
          if (other === attempt) clearTimeout(other.limit);
          else if (kinds.indexOf(other.kind) > rank) drop(other);
          else {
            clearTimeout(other.limit);
            other.limit = setTimeout(() => drop(other), TAKEOVER);
          }
        }
        this.transport = transport;
        this.kind = kind;
        this.#worked = kind;
        this.failure = null;
        this.#unanswered = false;
        this.#stage.show(transport.element, attempt.pointer);
        if (attempt.sizes) this.#stage.fit(...attempt.sizes);
        document.body.dataset.picture = kind;
        hideCard();
        this.#enter("playing");
      };

      const next = () => {
        clearTimeout(stagger);
        const kind = queue.shift();
        if (done || !kind) return;
        const unavailable = TRANSPORTS[kind].unavailable(session);
        if (unavailable) return failed(kind, unavailable);
        const pointer = new Pointer();
        const current = () => shown === attempt || (!shown && attempts[0] === attempt);
        /** @type {Attempt} */
        let attempt;
        let transport;
        try {
          transport = new TRANSPORTS[kind](session, {
            frame: () => {
              if (!done && shown !== attempt && attempts.includes(attempt)) show(attempt);
            },
            resized: (...sizes) => {
              attempt.sizes = sizes;
              if (shown === attempt) this.#stage.fit(...sizes);
            },
            notice: (text) => {
              if (!current()) return;
              if (text === null) delete document.body.dataset.notice;
              else say((document.body.dataset.notice = text));
            },
            titled: (title) => {
              if (session.target?.kind !== "window") return;
              session.target.title = title;
              showTarget(session.target);
            },
            pointer,
            ended: (failure) => {
              if (done) return;
              drop(attempt);
              if (shown !== attempt) return failed(kind, failure);
              // What stood still once may do so again: others are better for now.
              if (failure.code === "timeout") this.#stalled = kind;
              finish(failure);
            },
          });
        } catch (error) {
          return failed(kind, Failure.from(error));
        }
        attempt = { kind, transport, pointer, sizes: null, limit: undefined };
        attempt.limit = setTimeout(() => {
          // Nobody decodes for a hidden tab; it does not count as a stall.
          if (document.hidden) return finish(INTERRUPTED);
          const { label } = TRANSPORTS[kind];
          const failure = transport.stalled() ?? new Failure(`No picture came over ${label} within ${START_TIMEOUT / 1000} seconds.`, { code: "timeout" });
          drop(attempt);
          failed(kind, failure);
        }, START_TIMEOUT);
        attempts.push(attempt);
        this.#stage.prepare(transport.element);
        if (document.hidden) visibility();
        if (queue.length > 0) stagger = setTimeout(next, STAGGER);
      };

      this.#interrupt = () => finish(INTERRUPTED);
      document.addEventListener("visibilitychange", visibility);
      next();
    });
  }

  /** Waits until someone looks. @returns {Promise<void>} */
  #hidden() {
    this.#enter("paused");
    say("Paused while hidden");
    return new Promise((resolve) => {
      document.addEventListener("visibilitychange", () => resolve(), { once: true });
    });
  }

  /**
   * Ends early when the user acts, or when the network comes back and that may help.
   * @param {number} wait milliseconds
   * @returns {Promise<boolean>} whether the user acted
   */
  #pause(wait) {
    return new Promise((resolve) => {
      /** @param {boolean} acted */
      const end = (acted) => {
        clearTimeout(timer);
        removeEventListener("online", online);
        this.#interrupt = () => {};
        resolve(acted);
      };
      const online = () => end(false);
      const timer = wait === Infinity ? undefined : setTimeout(() => end(false), wait);
      if (wait !== Infinity) addEventListener("online", online);
      this.#interrupt = () => end(true);
    });
  }

  /** @param {State} state */
  #enter(state) {
    this.state = state;
    document.body.dataset.state = state;
    element("bar-state").textContent = STATUS[state];
    if (state === "opening" || state === "connecting") say("Connecting");
    if (state !== "playing") clearFacts();
  }
}

/**
 * WebTransport has a port of its own on the same host.
 * @param {{port: number, path: string, certificates: string[], loopback: string} | undefined} way
 */
function webTransport(way) {
  if (!way) return null;
  // A browser may take this name for the address that the server does not listen on, and try no other.
  const host = location.hostname === "localhost" ? way.loopback : location.hostname;
  const certificates = way.certificates.map((hash) => Uint8Array.from(hash.match(/../g) ?? [], (byte) => parseInt(byte, 16)));
  return { url: `https://${host}:${way.port}${way.path}`, certificates };
}

/** Not a failure: the page itself ended what was going on. */
const INTERRUPTED = new Failure("interrupted", { code: "interrupted" });

/** What to say when no transport brought a picture. @param {[Kind, Failure][]} failures */
function both(failures) {
  if (failures.length === 1) return failures[0][1];
  // One that asks by HTTP found nobody: then no way leads anywhere, whatever it makes of that.
  const unreachable = Failure.unreachable();
  if (failures.some(([, { code }]) => code === unreachable.code)) return unreachable;
  // That nothing came in time is said of a way; why nothing could come is what helps.
  const why = failures.map(([, failure]) => failure).find(({ code }) => code === "udp_blocked") ?? failures[0][1];
  return new Failure(failures.map(([kind, { message }]) => `${TRANSPORTS[kind].label}: ${message}`).join("\n"), {
    kind: why.kind,
    code: why.code,
    hint: why.hint || failures.map(([, { hint }]) => hint).find(Boolean),
    scope: failures.some(([, { scope }]) => scope === "ticket") ? "ticket" : "transport",
    retryable: failures.some(([, { retryable }]) => retryable),
    retryAfter: Math.max(...failures.map(([, { retryAfter }]) => retryAfter)),
  });
}

/** @param {number} tries */
function backoff(tries) {
  const most = Math.min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** tries);
  return most / 2 + (Math.random() * most) / 2;
}

// ---- The page around the picture ----

/** @param {string} id @returns {HTMLElement} */
function element(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** @param {string} text */
function say(text) {
  element("wait-text").textContent = text;
}

/** @param {Failure} failure @param {boolean} choosy @param {boolean} desktop */
function showCard(failure, choosy, desktop) {
  element("card-title").textContent = failure.title;
  element("card-message").textContent = failure.message;
  element("card-hint").textContent = failure.hint;
  element("card-code").textContent = failure.code;
  element("card-other").hidden = !choosy;
  element("card-desktop").hidden = !desktop;
  document.body.dataset.card = "";
  element("card").hidden = false;
}

function hideCard() {
  delete document.body.dataset.card;
  element("card").hidden = true;
}

/** @param {import("./target.js").Watchable | null} target */
function showTarget(target) {
  fact("target", label(target));
  document.title = target?.kind === "window" ? `${label(target)} – Spaceport` : "Spaceport";
}

function clearFacts() {
  for (const id of ["codec", "size", "fps", "rate", "latency"]) element(`fact-${id}`).textContent = "";
}

/** @param {string} id @param {string} text */
function fact(id, text) {
  const node = element(`fact-${id}`);
  if (node.textContent !== text) node.textContent = text;
}

/** @param {number} bits a second */
function bitrate(bits) {
  return bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${Math.round(bits / 1e3)} kbit/s`;
}

/** Milliseconds between two updates of the status bar. */
const STATUS_INTERVAL = 500;

async function updateBar() {
  const { transport, kind, chosen, state } = viewer;
  const label = kind && state === "playing" ? TRANSPORTS[kind].label : chosen === "auto" ? "Automatic" : TRANSPORTS[chosen].label;
  fact("transport", label);
  for (const item of document.querySelectorAll("#menu [data-transport]")) {
    item.setAttribute("aria-checked", String(item instanceof HTMLElement && item.dataset.transport === chosen));
  }
  if (!transport || state !== "playing" || document.hidden) return;
  const { fps, bitrate: bits, latency, rtt } = await transport.stats();
  if (viewer.state !== "playing") return;
  fact("codec", CODECS[transport.codec] ?? transport.codec);
  fact("size", transport.width ? `${transport.width} × ${transport.height}` : "");
  fact("fps", fps > 0 ? `${Math.round(fps)} fps` : "still");
  fact("rate", bitrate(bits));
  fact("latency", latency === null ? "" : `${latency.toFixed(latency < 10 ? 1 : 0)} ms`);
  const basis = kind !== "whep" ? "From capture to picture" : "Network and receiver; capture and encoding not included";
  element("fact-latency").title = rtt === null ? basis : `${basis}. Round trip ${rtt.toFixed(1)} ms.`;
}

/** Lists what can be watched, as it is now. @param {Menu} menu */
async function listTargets(menu) {
  const list = element("target-menu");
  try {
    const watchable = await viewer.targets();
    list.replaceChildren(...entries(watchable, viewer.session?.target ?? null));
    if (menu.isOpen) menu.focus();
  } catch (error) {
    const note = document.createElement("p");
    note.textContent = Failure.from(error).message;
    list.replaceChildren(note);
  }
}

function wireUp() {
  new Menu(element("menu-button"), element("menu"), ({ dataset }) => {
    viewer.choose(/** @type {Kind | "auto"} */ (dataset.transport));
    updateBar();
  });
  const targets = new Menu(
    element("target-button"),
    element("target-menu"),
    ({ ariaChecked, dataset }) => {
      if (ariaChecked !== "true" || viewer.state === "failed") viewer.watch(chosenTarget(dataset));
    },
    () => listTargets(targets),
  );
  element("card-desktop").addEventListener("click", () => viewer.watch(null));
  element("card-other").addEventListener("click", () => viewer.choose("auto"));
  element("card-retry").addEventListener("click", () => viewer.retry());
  const fullscreen = element("fullscreen");
  fullscreen.hidden = !document.fullscreenEnabled;
  fullscreen.addEventListener("click", () => {
    const change = document.fullscreenElement ? document.exitFullscreen() : document.body.requestFullscreen();
    change.catch(() => {}); // the browser or the user said no, which needs no words
  });
  addEventListener("pagehide", () => viewer.transport?.close());
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload(); // back from the browser's cache with its connections cut
  });
  // The address is the whole state: another ticket or target is another page.
  addEventListener("hashchange", () => location.reload());
  setInterval(() => updateBar().catch(() => {}), STATUS_INTERVAL);
}

document.body.dataset.picture = "none";
const viewer = new Viewer(new URLSearchParams(location.hash.slice(1)));
wireUp();

/** What the page shows, for tests and for curious people; read-only. */
Object.defineProperty(window, "spaceport", {
  value: Object.freeze({
    get state() { return viewer.state; },
    get transport() { return viewer.kind; },
    get codec() { return viewer.transport?.codec ?? ""; },
    get element() { return viewer.transport?.element ?? null; },
    get frames() { return viewer.transport?.frames ?? 0; },
    get size() { return viewer.transport ? [viewer.transport.width, viewer.transport.height] : [0, 0]; },
    get session() { return viewer.session?.id ?? ""; },
    get target() { return viewer.session?.target ?? null; },
    get pointer() { return viewer.pointer; },
    get shown() { return viewer.transport?.shown ? { ...viewer.transport.shown, payload: undefined } : null; },
    get failure() {
      const { failure } = viewer;
      return failure && { kind: failure.kind, code: failure.code, title: failure.title, message: failure.message, hint: failure.hint };
    },
    stats: () => viewer.transport?.stats() ?? Promise.resolve(null),
  }),
});

viewer.run();
