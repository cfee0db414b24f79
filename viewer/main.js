// @ts-check
// The viewer page: one screen, watched in the best way that works.
//
// `Viewer.run` is the whole policy, one loop: open a media session with the ticket in the address, try one
// transport after the other until a picture comes, watch until it ends, and say what happened. Transports
// know nothing of each other or of the page.

import { Failure } from "./failure.js";
import { Menu } from "./menu.js";
import { Stage } from "./present.js";
import { asRequest, chosenTarget, entries, fromAddress, label, toAddress } from "./target.js";
import { WebSocketTransport } from "./transport/websocket.js";
import { WhepTransport } from "./transport/whep.js";

/**
 * A media session, as `POST /viewer/open` answers.
 * @typedef {object} Session
 * @property {string} id
 * @property {import("./target.js").Watchable | null} target
 * @property {string} ticket the media ticket: opens this session's transports and nothing else
 * @property {string} codec what the socket carries
 * @property {[number, number]} frameSize
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

/** @typedef {WebSocketTransport | WhepTransport} Transport */
/** @typedef {"ws" | "whep"} Kind */
/** @typedef {"opening" | "connecting" | "playing" | "paused" | "reconnecting" | "failed"} State */

const TRANSPORTS = { ws: WebSocketTransport, whep: WhepTransport };

/** @type {Kind[]} in order of preference: the socket's delay is a quarter of a video element's */
const ORDER = ["ws", "whep"];

/** A transport that shows nothing within this time, in milliseconds, gives way to the next. */
const START_TIMEOUT = 2_000;

/** A tab that is hidden for this long leaves; a person who flips through tabs finds the picture there. */
const HIDDEN_GRACE = 5_000;

/** Reconnecting: half of this at first, at most the other, each wait drawn between half and all of it. */
const BACKOFF_FIRST = 500;
const BACKOFF_MAX = 10_000;

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
  /** Ends what the loop waits for. */
  #interrupt = () => {};
  #stage = new Stage(element("frame"));
  #ticket;
  /** What is to be watched. @type {import("./target.js").Target} */
  #target;

  /** @param {URLSearchParams} parameters of the address's fragment, which no server sees */
  constructor(parameters) {
    this.#ticket = parameters.get("ticket") ?? "";
    this.#target = fromAddress(parameters);
    const forced = parameters.get("transport");
    if (forced === "ws" || forced === "whep") this.chosen = forced;
  }

  /** Runs until the page goes away. @returns {Promise<never>} */
  async run() {
    let tries = 0;
    for (;;) {
      const { failure, played } = await this.#round();
      if (played) tries = 0;
      if (failure === INTERRUPTED) {
        tries = 0;
        hideCard();
      } else {
        this.failure = failure;
        // A spent media ticket is no reason to stop: whether there is another is for the page's own to say.
        const hopeful = failure.retryable || failure.scope === "ticket";
        if (!hopeful || failure.scope !== "transport") this.session = null;
        this.#enter(hopeful ? "reconnecting" : "failed");
        if (!hopeful || tries >= QUIET_TRIES) showCard(failure, this.#other(), this.#desktop(failure));
        else say("Connection lost, reconnecting");
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
    this.#worked = null;
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
    /** @type {[Kind, Failure][]} */
    const failures = [];
    try {
      this.#enter(this.state === "reconnecting" ? "reconnecting" : "connecting");
      while (!this.session) {
        const target = this.#target;
        const session = await this.#open();
        // Something else may have been chosen meanwhile.
        if (target === this.#target) this.session = session;
      }
      showTarget(this.session.target);
      for (const kind of this.#kinds()) {
        const unavailable = TRANSPORTS[kind].unavailable(this.session);
        if (unavailable) {
          failures.push([kind, unavailable]);
          continue;
        }
        const { failure, played } = await this.#watch(kind, this.session);
        if (played || failure === INTERRUPTED || failure.scope === "session") return { failure, played };
        failures.push([kind, failure]);
      }
    } catch (error) {
      return { failure: Failure.from(error), played: false };
    }
    return { failure: both(failures), played: false };
  }

  #kinds() {
    if (this.chosen !== "auto") return [this.chosen];
    return ORDER.toSorted((a, b) => Number(b === this.#worked) - Number(a === this.#worked));
  }

  /** A transport worth offering on the error card. @returns {Kind | null} */
  #other() {
    return this.chosen === "auto" ? null : this.chosen === "ws" ? "whep" : "ws";
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
    try {
      response = await fetch(new URL("open", location.href), {
        method: "POST",
        headers: { Authorization: `Bearer ${this.#ticket}`, "Content-Type": "application/json" },
        body: JSON.stringify(asRequest(this.#target)),
        cache: "no-store",
        signal: AbortSignal.timeout(10_000),
      });
    } catch {
      throw new Failure("The server cannot be reached.", { code: "unreachable", title: "No connection", scope: "session" });
    }
    if (!response.ok) {
      const failure = await Failure.fromResponse(response);
      failure.scope = "session"; // there is no other ticket to try, and no other way in
      throw failure;
    }
    const answer = await response.json();
    // The server may live below a path, such as a relay's `/m/<id>`; its own paths start after that.
    const base = new URL("..", location.href).href.replace(/\/$/, "");
    const socket = new URL(base + answer.ws_path);
    socket.protocol = socket.protocol === "https:" ? "wss:" : "ws:";
    socket.search = ""; // the ticket is there for clients without subprotocols
    return {
      id: answer.session_id,
      target: answer.target ?? null,
      ticket: answer.ticket,
      codec: answer.codec,
      frameSize: answer.frame_size,
      wsUrl: socket.href,
      whepUrl: answer.whep_path ? base + answer.whep_path : "",
    };
  }

  /**
   * Watches with one transport until it ends or the page wants something else.
   * @param {Kind} kind
   * @param {Session} session
   * @returns {Promise<{failure: Failure, played: boolean}>}
   */
  #watch(kind, session) {
    return new Promise((resolve, reject) => {
      let played = false;
      let done = false;
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let grace;
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let stall;
      /** @type {Transport} */
      let transport;

      const visibility = () => {
        clearTimeout(grace);
        transport.mute(document.hidden);
        if (document.hidden) grace = setTimeout(() => finish(INTERRUPTED), HIDDEN_GRACE);
      };
      /** @param {Failure} failure */
      const finish = (failure) => {
        if (done) return;
        done = true;
        clearTimeout(stall);
        clearTimeout(grace);
        document.removeEventListener("visibilitychange", visibility);
        this.#interrupt = () => {};
        delete document.body.dataset.notice;
        transport.close();
        this.#stage.pointer.clear();
        // The last picture stays until there is another; what never showed one goes.
        if (!played) transport.element.remove();
        resolve({ failure, played });
      };

      try {
        transport = new TRANSPORTS[kind](session, {
          frame: () => {
            if (played || done) return;
            played = true;
            clearTimeout(stall);
            this.#worked = kind;
            this.failure = null;
            this.#stage.show(transport.element);
            document.body.dataset.picture = kind;
            hideCard();
            this.#enter("playing");
          },
          resized: (...sizes) => this.#stage.fit(...sizes),
          notice: (text) => {
            if (text === null) delete document.body.dataset.notice;
            else say((document.body.dataset.notice = text));
          },
          titled: (title) => {
            if (session.target?.kind !== "window") return;
            session.target.title = title;
            showTarget(session.target);
          },
          pointer: this.#stage.pointer,
          ended: finish,
        });
      } catch (error) {
        return reject(error);
      }
      this.transport = transport;
      this.kind = kind;
      this.#interrupt = () => finish(INTERRUPTED);
      this.#stage.prepare(transport.element);
      document.addEventListener("visibilitychange", visibility);
      if (document.hidden) visibility();
      stall = setTimeout(() => {
        // Nobody decodes for a hidden tab; it does not count as a stall.
        if (document.hidden) return finish(INTERRUPTED);
        const { label } = TRANSPORTS[kind];
        finish(transport.stalled() ?? new Failure(`No picture came over ${label} within ${START_TIMEOUT / 1000} seconds.`, { code: "timeout" }));
      }, START_TIMEOUT);
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

/** Not a failure: the page itself ended what was going on. */
const INTERRUPTED = new Failure("interrupted", { code: "interrupted" });

/** What to say when no transport brought a picture. @param {[Kind, Failure][]} failures */
function both(failures) {
  if (failures.length === 1) return failures[0][1];
  return new Failure(failures.map(([kind, { message }]) => `${TRANSPORTS[kind].label}: ${message}`).join("\n"), {
    code: failures[0][1].code,
    hint: failures.map(([, { hint }]) => hint).find(Boolean),
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

/** @param {Failure} failure @param {Kind | null} other @param {boolean} desktop */
function showCard(failure, other, desktop) {
  element("card-title").textContent = failure.title;
  element("card-message").textContent = failure.message;
  element("card-hint").textContent = failure.hint;
  element("card-code").textContent = failure.code;
  const button = element("card-other");
  button.hidden = !other;
  if (other) {
    button.textContent = `Use ${TRANSPORTS[other].label}`;
    button.onclick = () => viewer.choose(other);
  }
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
  const basis = kind === "ws" ? "From capture to picture" : "Network and receiver; capture and encoding not included";
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
      return failure && { code: failure.code, title: failure.title, message: failure.message, hint: failure.hint };
    },
    stats: () => viewer.transport?.stats() ?? Promise.resolve(null),
  }),
});

viewer.run();
