// @ts-check
// Watching over the media WebSocket (rcdp v2) with WebCodecs.

import { Decoder } from "../decode.js";
import { Failure } from "../failure.js";
import { Painter } from "../present.js";
import { Clock, Median, Meter } from "../stats.js";
import { parsePacket } from "../wire.js";

/** @typedef {import("../main.js").Session} Session */
/** @typedef {import("../main.js").Events} Events */

/** Round trips measured right after the start, so that the first delay shown is a good one. */
const CLOCK_BURST = 3;

/**
 * Milliseconds between two `get_stats` afterwards. They keep the clock right and show that the line lives; a
 * still desktop sends nothing else, and this should not be what it costs.
 */
const HEARTBEAT = 5_000;

/** An error this many milliseconds before a close is its reason. */
const SAID = 1_000;

/** Heartbeats without any byte from the server after which the line counts as dead. */
const MISSED = 2;

export class WebSocketTransport {
  static label = "WebSocket";

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
  #socket;
  #ended = false;
  #opened = false;
  #muted = false;
  #silent = 0;
  #probes = 0;
  /** When the one `get_stats` in flight was sent; 0 when none is. */
  #probeSent = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #heartbeat;
  /** @type {{failure: Failure, at: number} | null} */
  #lastError = null;

  /** @type {import("../wire.js").Packet | null} the last one shown */
  shown = null;
  codec = "";
  width = 0;
  height = 0;

  /** @param {Session} session @param {Events} events */
  constructor(session, events) {
    this.events = events;
    this.#decoder = new Decoder({
      picture: (frame, packet) => this.#picture(frame, packet),
      keyframe: () => this.requestKeyframe(),
      failed: (failure) => this.#end(failure),
    });
    // The ticket travels as a subprotocol, so that no proxy logs it as part of an address.
    const socket = new WebSocket(session.wsUrl, ["rcdp.v2", `cua.ticket.${session.ticket}`]);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#opened = true;
      this.#beat();
    };
    socket.onmessage = ({ data }) => {
      this.#silent = 0;
      if (typeof data === "string") this.#control(data);
      else this.#packet(data);
    };
    socket.onclose = ({ code, reason }) => {
      const failure = Failure.fromClose(code, reason);
      // The server says what is wrong right before it closes; that is better than a number.
      const said = this.#lastError;
      if (said && performance.now() - said.at < SAID && code !== 1000) this.#end(merge(failure, said.failure));
      else if (this.#opened) this.#end(failure);
      else this.#end(refused());
    };
    this.#socket = socket;
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
    this.#send("request_keyframe", {});
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
    this.#ended = true;
    clearTimeout(this.#heartbeat);
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close(1000);
    this.#decoder.close();
  }

  /** @param {Failure} failure */
  #end(failure) {
    if (this.#ended) return;
    this.close();
    this.events.ended(failure);
  }

  /** @param {ArrayBuffer} data */
  #packet(data) {
    let packet;
    try {
      packet = parsePacket(data);
    } catch (error) {
      this.#end(new Failure(`The server sent ${error instanceof Error ? error.message : error}.`, { code: "protocol" }));
      return;
    }
    this.#meter.add(data.byteLength, 0, performance.now());
    if (!packet) return;
    this.codec = packet.codec;
    if (!this.#muted) this.#decoder.decode(packet);
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

  /** @param {string} text */
  #control(text) {
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
          this.#end(new Failure(`The server speaks version ${payload.selected_version} of the media protocol, this page version 2.`, { code: "protocol" }));
        }
        // Pictures come without the pointer; this page draws it.
        if (payload.capabilities?.includes("cursor.v1")) this.#send("set_cursor", { mode: "out_of_band" });
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
        if (this.#probes < CLOCK_BURST) this.#beat();
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

  #beat() {
    if (this.#ended) return;
    clearTimeout(this.#heartbeat);
    this.#heartbeat = setTimeout(() => {
      this.#silent++;
      if (this.#silent > MISSED) this.#end(new Failure("The server stopped answering.", { code: "timeout", title: "Connection lost" }));
      else this.#beat();
    }, HEARTBEAT);
    this.#probes++;
    this.#probeSent = performance.now();
    this.#send("get_stats", {});
  }

  /** @param {string} type @param {object} payload */
  #send(type, payload) {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(JSON.stringify({ type, payload }));
    }
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

/** Browsers do not say why a socket was not opened: a spent ticket, a proxy, or nothing there. */
function refused() {
  return new Failure("The media socket could not be opened.", {
    code: "websocket_refused",
    title: "No connection",
    hint: "A proxy in between may not pass WebSockets on.",
    scope: "ticket",
  });
}

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
