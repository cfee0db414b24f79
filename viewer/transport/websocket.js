// @ts-check
// The media WebSocket.

import { Failure } from "../failure.js";
import { Media } from "./media.js";

/** @typedef {import("../main.js").Session} Session */
/** @typedef {import("../main.js").Events} Events */

export class WebSocketTransport extends Media {
  static label = "WebSocket";

  /** A message shows nothing before all of it has come, and on a slow line a keyframe takes its time. */
  static patience = 4_000;

  #socket;

  /** @param {Session} session @param {Events} events */
  constructor(session, events) {
    super(events, session);
    let opened = false;
    // The ticket travels as a subprotocol, so that no proxy logs it as part of an address.
    const socket = new WebSocket(session.wsUrl, ["rcdp.v2", `cua.ticket.${session.ticket}`]);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      opened = true;
      this.opened();
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.control(data);
      else this.packet(data);
    };
    socket.onclose = ({ code, reason }) => {
      if (opened) this.closed(code, reason);
      else this.end(refused());
    };
    this.#socket = socket;
  }

  /** @param {string} text */
  sendText(text) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(text);
  }

  shut() {
    const socket = this.#socket;
    socket.onopen = socket.onmessage = socket.onclose = null;
    // Browsers complain of a socket that is closed before it is open.
    if (socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close(1000);
    else socket.close(1000);
  }
}

/** Browsers do not say why a socket was not opened: a spent ticket, a proxy, or nothing there. */
function refused() {
  return new Failure("The media socket could not be opened.", {
    code: "websocket_refused",
    title: "No connection",
    hint: "A proxy in between may not pass WebSockets on.",
    scope: "ticket",
  });
}
