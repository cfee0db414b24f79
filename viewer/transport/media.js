// @ts-check
// Watching with WebCodecs what the media protocol (rcdp v2) brings, whatever carries it.
//
// A carrier extends `Media`: it sends text, hands over the text and the packets that come, and says when it
// is open and when it is over.

import { Decoder } from "../decode.js";
import { Failure } from "../failure.js";
import { Painter } from "../present.js";
import { Opener } from "../sealed.js";
import { Clock, Median, Meter } from "../stats.js";
import { parsePacket } from "../wire.js";

/** @typedef {import("../main.js").Session} Session */
/** @typedef {import("../main.js").Events} Events */

/** Round trips measured right after the start, so that the first delay shown is a good one. */
const CLOCK_BURST = 3;

/**
 * Milliseconds after which the server is asked something although all is well. It keeps the clock right and
 * shows that the line lives; a still desktop sends nothing else, and this should not be what it costs.
 */
const HEARTBEAT = 5_000;

/** Milliseconds of silence, where there were pictures, after which the server is asked at once. */
const HUSH = 600;

/** Milliseconds between two looks at whether the line lives. */
const LOOK = 200;

/** An error this many milliseconds before a close is its reason. */
const SAID = 1_000;

export class Media {
  /** Milliseconds an answer may take before the line counts as dead. */
  static patience = 1_300;

  /** @param {Session} session */
  static unavailable(session) {
    if (session.codec !== "h264" && session.codec !== "vp8") {
      return new Failure(`This page does not decode ${session.codec}.`, { code: "no_decoder" });
    }
    if (!Decoder.available) {
      const hint = isSecureContext ? "" : "Open the page over HTTPS or on localhost: only there browsers offer WebCodecs.";
      return new Failure("This browser offers no video decoder to this page.", { code: "no_decoder", hint });
    }
    return null;
  }

  #painter = new Painter();
  #meter = new Meter();
  #latency = new Median();
  #clock = new Clock();
  #decoder;
  #ended = false;
  #muted = false;
  #probes = 0;
  /** When the one `get_stats` in flight was sent; 0 when none is. */
  #probeSent = 0;
  #probedAt = -Infinity;
  #heardAt = 0;
  #lookedAt = 0;
  /** Whether packets have come since the server was last asked. */
  #lively = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #looking;
  /** @type {{failure: Failure, at: number} | null} */
  #lastError = null;

  /** @type {import("../wire.js").Packet | null} the last one shown */
  shown = null;
  codec = "";
  width = 0;
  height = 0;

  /** What opens sealed frames. @type {Opener | null} */
  #opener;
  /** The frames that are being opened, in their order. */
  #opening = Promise.resolve();

  /** @param {Events} events @param {Session} session */
  constructor(events, session) {
    this.events = events;
    this.#opener = session.key ? new Opener(session.key) : null;
    this.#decoder = new Decoder({
      picture: (frame, packet) => this.#picture(frame, packet),
      keyframe: () => this.requestKeyframe(),
      failed: (failure) => this.end(failure),
    });
  }

  /** Sends a control message. @param {string} _text */
  sendText(_text) {}

  /** Leaves, without a word to the page. */
  shut() {}

  /** The carrier can send. */
  opened() {
    this.#heardAt = this.#lookedAt = performance.now();
    this.#looking = setInterval(() => this.#look(), LOOK);
    this.#probe();
  }

  /** Something came, a whole message or not. */
  heard() {
    this.#heardAt = performance.now();
  }

  /** The carrier was closed. @param {number} code a close code of the media socket @param {string} reason */
  closed(code, reason) {
    const failure = Failure.fromClose(code, reason);
    // The server says what is wrong right before it closes; that is better than a number.
    const said = this.#lastError;
    if (said && performance.now() - said.at < SAID && code !== 1000) this.end(merge(failure, said.failure));
    else this.end(failure);
  }

  get element() {
    return this.#painter.canvas;
  }

  get frames() {
    return this.#meter.frames;
  }

  /** While muted nothing is decoded; what is on screen stays. @param {boolean} muted */
  mute(muted) {
    this.#muted = muted;
    if (!muted) this.#decoder.skip();
  }

  requestKeyframe() {
    this.send("request_keyframe", {});
  }

  /** What is known when no picture came in time. */
  stalled() {
    return null;
  }

  async stats() {
    return {
      ...this.#meter.rates(performance.now()),
      latency: this.#latency.value,
      rtt: this.#clock.rtt,
      dropped: this.#decoder.dropped,
    };
  }

  close() {
    if (this.#ended) return;
    this.#ended = true;
    clearInterval(this.#looking);
    this.#decoder.close();
    this.shut();
  }

  /** @param {Failure} failure */
  end(failure) {
    if (this.#ended) return;
    this.close();
    this.events.ended(failure);
  }

  /** A packet came. @param {ArrayBuffer} data */
  packet(data) {
    if (this.#ended) return;
    this.heard();
    let packet;
    try {
      packet = parsePacket(data);
    } catch (error) {
      this.end(new Failure(`The server sent ${error instanceof Error ? error.message : error}.`, { code: "protocol" }));
      return;
    }
    this.#meter.add(data.byteLength, 0, performance.now());
    if (!packet) return;
    this.#lively = true;
    this.codec = packet.codec;
    if (this.#muted) return;
    if (this.#opener) this.#open(this.#opener, packet);
    else this.#decoder.decode(packet);
  }

  /** @param {Opener} opener @param {import("../wire.js").Packet} packet */
  #open(opener, packet) {
    this.#opening = this.#opening
      .then(() => (this.#ended ? null : opener.open(packet)))
      .then((opened) => opened && !this.#ended && this.#decoder.decode(opened))
      .then(() => {}, () => this.end(Failure.sealed("What comes cannot be opened with the key in this address.")));
  }

  /** @param {VideoFrame} frame @param {import("../wire.js").Packet} packet */
  #picture(frame, packet) {
    if (this.#painter.paint(frame, packet.width, packet.height)) {
      this.width = packet.width;
      this.height = packet.height;
      this.events.resized(packet.width, packet.height, packet.width, packet.height);
    }
    const now = performance.now();
    this.#meter.add(0, 1, now);
    const latency = this.#clock.since(packet.capturedAt, now);
    // A keyframe served from the cache to a late viewer of a still picture is old by design.
    if (latency !== null && this.shown) this.#latency.add(latency);
    this.shown = packet;
    this.events.frame();
  }

  /** A control message came. @param {string} text */
  control(text) {
    if (this.#ended) return;
    this.heard();
    /** @type {{type?: string, payload?: any}} */
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // not for us; the contract lets a server say more than a client knows
    }
    const payload = message.payload ?? {};
    switch (message.type) {
      case "hello":
        if (payload.selected_version !== 2) {
          this.end(new Failure(`The server speaks version ${payload.selected_version} of the media protocol, this page version 2.`, { code: "protocol" }));
        }
        // Pictures come without the pointer; this page draws it.
        if (payload.capabilities?.includes("cursor.v1")) this.send("set_cursor", { mode: "out_of_band" });
        break;
      case "session_opened":
        this.#geometry(payload.geometry);
        break;
      case "cursor_image":
        this.events.pointer.add(payload);
        break;
      case "cursor":
        this.events.pointer.move(payload);
        break;
      case "stats": {
        const now = performance.now();
        if (this.#probeSent && Number.isFinite(payload.server_time_us)) {
          this.#clock.add(this.#probeSent, now, payload.server_time_us);
        }
        this.#probeSent = 0;
        if (this.#probes < CLOCK_BURST) this.#probe();
        break;
      }
      case "error":
        this.#remember(payload);
        break;
      case "lifecycle":
        this.#lifecycle(payload);
        break;
    }
  }

  /** @param {any} payload */
  #lifecycle(payload) {
    switch (payload.event) {
      case "suspended":
        this.events.notice(payload.error?.message ?? SUSPENDED[payload.reason] ?? "The picture is on hold");
        break;
      case "resumed":
        this.events.notice(null);
        break;
      case "geometry_changed":
        this.#geometry(payload.geometry);
        break;
      case "title_changed":
        this.events.titled(payload.title ?? "");
        break;
      case "closed":
        if (payload.error) this.#remember(payload.error);
        break;
    }
  }

  /** @param {{scale?: number} | undefined} geometry */
  #geometry(geometry) {
    if (geometry?.scale) this.events.pointer.rescale(geometry.scale);
  }

  /** Most errors answer one message and end nothing. @param {import("../failure.js").Report} report */
  #remember(report) {
    this.#lastError = { failure: Failure.fromReport(report), at: performance.now() };
  }

  /**
   * Asks the server something when it is time, and ends when it does not answer. A picture that stands still
   * may be a desktop that does: whether the line lives only an answer tells.
   */
  #look() {
    const now = performance.now();
    // The page itself stood still, with what came meanwhile not read yet.
    if (now - this.#lookedAt > LOOK * 3) this.#heardAt = now;
    this.#lookedAt = now;
    const quiet = now - this.#heardAt;
    if (this.#probeSent) {
      if (Math.min(quiet, now - this.#probeSent) > /** @type {typeof Media} */ (this.constructor).patience) {
        this.end(new Failure("The server stopped answering.", { code: "timeout", title: "Connection lost" }));
      }
    } else if ((this.#lively && quiet > HUSH) || now - this.#probedAt > HEARTBEAT) {
      this.#probe();
    }
  }

  #probe() {
    this.#probes++;
    this.#lively = false;
    this.#probeSent = this.#probedAt = performance.now();
    this.send("get_stats", {});
  }

  /** @param {string} type @param {object} payload */
  send(type, payload) {
    this.sendText(JSON.stringify({ type, payload }));
  }
}

/** @type {Record<string, string>} */
const SUSPENDED = {
  minimized: "The window is minimized",
  occluded_no_frames: "The window is covered",
  consent_required: "Waiting for consent on the remote screen",
  consent_revoked: "Sharing was stopped on the remote screen",
  capture_failed: "The remote screen cannot be read at the moment",
  window_unavailable: "The window is not there at the moment",
};

/** The close code's reach with the words of the error before it. @param {Failure} close @param {Failure} error */
function merge(close, error) {
  return new Failure(error.message, {
    code: error.code,
    title: close.code.startsWith("close_") ? error.title : close.title,
    hint: error.hint || close.hint,
    scope: close.scope,
    retryable: close.retryable,
    retryAfter: error.retryAfter,
  });
}
