// @ts-check
// WebTransport: control messages on one stream, each frame on a stream of its own.

import { Failure } from "../failure.js";
import { Order } from "../order.js";
import { ControlReader, FRAME_HEADER, framed, parseFrameHeader } from "../wire.js";
import { Media } from "./media.js";

/** @typedef {import("../main.js").Session} Session */
/** @typedef {import("../main.js").Events} Events */

/** How the server closes when all is well. */
const DONE = 0;

/** Milliseconds in which the browser may still say why a session is over. */
const LAST_WORDS = 500;

/** Control messages that wait to be sent; a server that takes none is gone before there are more. */
const MAX_UNSENT = 64;

export class WebTransportTransport extends Media {
  static label = "WebTransport";

  /** @param {Session} session */
  static unavailable(session) {
    if (!session.webTransport) return new Failure("This server does not offer WebTransport.", { code: "webtransport_off" });
    if (typeof WebTransport !== "function") {
      const hint = isSecureContext ? "" : "Open the page over HTTPS or on localhost: only there browsers offer WebTransport.";
      return new Failure("This browser offers no WebTransport to this page.", { code: "webtransport_missing", hint });
    }
    return Media.unavailable(session);
  }

  #transport;
  #left = false;
  #connected = false;
  #unsent = 0;
  /** @type {WritableStreamDefaultWriter<Uint8Array> | null} */
  #writer = null;
  /** @type {Order<ArrayBuffer>} */
  #order = new Order();

  /** Whether frames could be handed on when the last one came. */
  #whole = false;

  /** @param {Session} session @param {Events} events */
  constructor(session, events) {
    super(events, session);
    const { url, certificates } = /** @type {NonNullable<Session["webTransport"]>} */ (session.webTransport);
    this.#transport = new WebTransport(url, {
      serverCertificateHashes: certificates.map((value) => ({ algorithm: "sha-256", value })),
      congestionControl: "low-latency",
    });
    // Whichever comes first says why; the others fail for the same reason.
    this.#transport.closed.then(
      ({ closeCode = DONE, reason = "" }) => this.#over(closeCode, reason),
      () => this.#lost(),
    );
    // Streams break a moment before the browser says why.
    this.#run(session).catch(() => setTimeout(() => this.#lost(), this.#connected ? LAST_WORDS : 0));
  }

  /** @param {string} text */
  sendText(text) {
    if (!this.#writer || this.#unsent >= MAX_UNSENT) return;
    this.#unsent++;
    this.#writer.write(framed(text)).then(() => this.#unsent--, () => {}); // the end says why
  }

  shut() {
    this.#left = true;
    this.#transport.ready.catch(() => {});
    try {
      this.#transport.close({ closeCode: DONE, reason: "" });
    } catch {
      // It is closed, or Firefox has not connected it yet.
    }
  }

  /** @param {Session} session */
  async #run(session) {
    await this.#transport.ready;
    if (this.#left) return this.shut();
    const { readable, writable } = await this.#transport.createBidirectionalStream();
    this.#connected = true;
    this.#writer = writable.getWriter();
    // The first thing said. It travels in no address, where somebody would log it.
    this.sendText(JSON.stringify({ type: "ticket", payload: { ticket: session.ticket, video: "streams" } }));
    this.opened();
    await Promise.all([this.#listen(readable), this.#frames()]);
  }

  /** @param {ReadableStream<Uint8Array>} readable */
  async #listen(readable) {
    const messages = new ControlReader();
    const reader = readable.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return; // how the session closes says why
      for (const text of messages.push(value)) this.control(text);
    }
  }

  async #frames() {
    const reader = this.#transport.incomingUnidirectionalStreams.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.#frame(value);
    }
  }

  /** Reads one frame. @param {ReadableStream<Uint8Array>} stream */
  async #frame(stream) {
    /** @type {import("../wire.js").FrameHeader | null} */
    let header = null;
    try {
      const reader = stream.getReader();
      let head = new Uint8Array(0);
      let packet = new Uint8Array(0);
      let filled = 0;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        this.heard();
        let piece = value;
        if (!header) {
          const joined = new Uint8Array(head.length + piece.length);
          joined.set(head);
          joined.set(piece, head.length);
          head = joined;
          if (head.length < FRAME_HEADER) continue;
          header = parseFrameHeader(head);
          packet = new Uint8Array(header.total);
          piece = head.subarray(FRAME_HEADER);
        }
        packet.set(piece, filled); // fails for one that is longer than it says
        filled += piece.length;
      }
      if (!header || filled < header.total) throw new Error("a frame that is cut short");
      this.#order.push(header.id, header.keyframe, packet.buffer);
    } catch {
      // Reset, because a keyframe comes that makes it worthless; or all of the connection is gone.
      if (header) this.#order.lost(header.id);
    }
    for (const packet of this.#order.take()) this.packet(packet);
    // Usually the server has made one already: it is why the others were reset.
    if (this.#order.awaitsKeyframe && this.#whole) this.requestKeyframe();
    this.#whole = !this.#order.awaitsKeyframe;
  }

  /** @param {number} code @param {string} reason */
  #over(code, reason) {
    if (this.#left) return;
    // 0x4xx and 0x5xx mirror the socket's 4xxx; see docs/wire.md.
    this.closed(code === DONE ? 1000 : 4000 + Number(code.toString(16)), reason);
  }

  #lost() {
    if (this.#left) return;
    if (this.#connected) this.closed(1006, "");
    else this.end(refused());
  }
}

/** Browsers do not say why there was no session. */
function refused() {
  return new Failure("The server could not be reached over UDP.", {
    code: "udp_blocked",
    title: "No connection",
    hint: "A network in between may not let UDP through.",
    scope: "ticket", // which may be spent, or the certificate another by now: a new session knows
  });
}
