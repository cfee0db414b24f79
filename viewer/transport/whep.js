// @ts-check
// Watching over WebRTC: WHEP (draft-ietf-wish-whep) and a video element.

import { Failure } from "../failure.js";
import { Median, Meter } from "../stats.js";

/** @typedef {import("../main.js").Session} Session */
/** @typedef {import("../main.js").Events} Events */

/**
 * How long to wait for the browser's own addresses before the offer goes out without the rest. The server's
 * are all in its answer, and checks from here reach it however few of ours it knows.
 */
const GATHERING = 150;

/** How long ICE may be `disconnected` before the connection is set up anew; it often comes back by itself. */
const PATIENCE = 3_000;

/** Milliseconds between two readings of the browser's counters. */
const POLL = 500;

export class WhepTransport {
  static label = "WebRTC";

  /** @param {Session} session */
  static unavailable(session) {
    if (!session.whepUrl) return new Failure("This server does not offer WebRTC.", { code: "whep_off" });
    if (typeof RTCPeerConnection !== "function") {
      return new Failure("WebRTC is turned off in this browser.", { code: "no_webrtc" });
    }
    return null;
  }

  #abort = new AbortController();
  #peer;
  #video = document.createElement("video");
  #meter = new Meter();
  #latency = new Median();
  #session;
  #resource = "";
  /** The server has said goodbye, and its resource with it. */
  #gone = false;
  #ended = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #patience;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #poll;
  /** @type {number | null} */
  #rtt = null;
  #dropped = 0;
  #last = { bytes: 0, decoded: 0, delay: 0 };

  shown = null;
  codec = "";
  width = 0;
  height = 0;

  /** @param {Session} session @param {Events} events */
  constructor(session, events) {
    this.events = events;
    this.#session = session;
    const video = this.#video;
    video.muted = video.autoplay = video.playsInline = true;
    video.disablePictureInPicture = true;
    video.addEventListener("resize", () => this.#resized());
    video.requestVideoFrameCallback(() => this.#frame());

    const peer = new RTCPeerConnection({ bundlePolicy: "max-bundle" });
    this.#peer = peer;
    const transceiver = peer.addTransceiver("video", { direction: "recvonly" });
    // A desktop is wanted as it is now; smoothing costs delay. Not all browsers know the setting.
    const receiver = /** @type {RTCRtpReceiver & {jitterBufferTarget?: number}} */ (transceiver.receiver);
    if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
    peer.ontrack = ({ track }) => {
      video.srcObject = new MediaStream([track]);
    };
    peer.onconnectionstatechange = () => this.#connection(peer.connectionState);
    this.#negotiate().catch((error) => this.#end(asFailure(error)));
  }

  get element() {
    return this.#video;
  }

  get frames() {
    return this.#meter.frames;
  }

  /** A receiver cannot ask for less; the page leaves when it stays hidden. @param {boolean} _muted */
  mute(_muted) {}

  /** The browser asks by itself (RTCP PLI) when it cannot decode. */
  requestKeyframe() {}

  /** What is known when no picture came in time. */
  stalled() {
    return this.#resource && this.#peer.connectionState !== "connected" ? blocked() : null;
  }

  async stats() {
    return {
      ...this.#meter.rates(performance.now()),
      latency: this.#latency.value,
      rtt: this.#rtt,
      dropped: this.#dropped,
    };
  }

  close() {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#patience);
    clearInterval(this.#poll);
    this.#abort.abort();
    const peer = this.#peer;
    peer.onconnectionstatechange = peer.ontrack = null;
    this.#video.srcObject = null;
    if (!this.#resource || this.#gone) return peer.close();
    // The resource first: once the peer has said goodbye there is none. `keepalive` lets it out even while the page
    // goes away; where it fails, the server's own timeout does the work.
    const headers = { Authorization: `Bearer ${this.#session.ticket}` };
    fetch(this.#resource, { method: "DELETE", headers, keepalive: true }).catch(() => {}).finally(() => peer.close());
  }

  /** @param {Failure} failure */
  #end(failure) {
    if (this.#ended) return;
    this.close();
    this.events.ended(failure);
  }

  async #negotiate() {
    const peer = this.#peer;
    await peer.setLocalDescription();
    await gathered(peer);
    if (this.#ended) return;
    // A video element cannot be told where the pointer is: it has to be in the picture.
    const url = new URL(this.#session.whepUrl);
    url.searchParams.set("cursor", "baked");
    const response = await fetch(url, {
      method: "POST",
      headers: {
        Authorization: `Bearer ${this.#session.ticket}`,
        "Content-Type": "application/sdp",
        Accept: "application/sdp",
      },
      body: peer.localDescription?.sdp,
      signal: this.#abort.signal,
    });
    if (response.status !== 201) {
      throw await Failure.fromResponse(response, { title: "WebRTC was refused", scope: "transport" });
    }
    const location = response.headers.get("Location");
    if (location) this.#resource = new URL(location, this.#session.whepUrl).href;
    const sdp = await response.text();
    if (this.#ended) return;
    const servers = iceServers(response.headers.get("Link") ?? "");
    if (servers.length > 0) peer.setConfiguration({ ...peer.getConfiguration(), iceServers: servers });
    await peer.setRemoteDescription({ type: "answer", sdp });
    // A server that has no codec of ours should say 406; one that says 201 with the video refused would
    // leave this page waiting for ever.
    const [transceiver] = peer.getTransceivers();
    if (transceiver.currentDirection !== "recvonly") {
      throw new Failure("The server has no codec that this browser plays.", { code: "codec_unavailable" });
    }
    const transport = transceiver.receiver.transport;
    if (transport) {
      // The server's goodbye. `connectionState` does not show it.
      transport.onstatechange = () => {
        if (transport.state !== "closed") return;
        this.#gone = true;
        this.#reason().then((failure) => this.#end(failure));
      };
    }
    this.#poll = setInterval(() => this.#read(), POLL);
  }

  /** Why the server said goodbye: its resource tells for a while. @returns {Promise<Failure>} */
  async #reason() {
    try {
      const response = await fetch(this.#resource, { cache: "no-store", signal: this.#abort.signal });
      if (!response.ok && response.status !== 404) return await Failure.fromResponse(response, { scope: "transport" });
    } catch {
      // Then the goodbye has to say it all.
    }
    return lost("The server ended the connection.");
  }

  /** @param {RTCPeerConnectionState} state */
  #connection(state) {
    clearTimeout(this.#patience);
    if (state === "failed") {
      this.#end(this.frames === 0 ? blocked() : lost("The connection was lost."));
    } else if (state === "disconnected") {
      this.#patience = setTimeout(() => this.#end(lost("The connection was lost.")), PATIENCE);
    }
  }

  #frame() {
    if (this.#ended) return;
    this.#video.requestVideoFrameCallback(() => this.#frame());
    this.#meter.add(0, 1, performance.now());
    if (this.frames === 1) this.#resized();
    this.events.frame();
  }

  #resized() {
    const { videoWidth, videoHeight } = this.#video;
    if (!videoWidth || this.#ended) return;
    // 4:2:0 video has even sides; the session says whether the last column or row is padding.
    const [trueWidth, trueHeight] = this.#session.frameSize;
    this.width = trueWidth === videoWidth - 1 ? trueWidth : videoWidth;
    this.height = trueHeight === videoHeight - 1 ? trueHeight : videoHeight;
    this.events.resized(this.width, this.height, videoWidth, videoHeight);
  }

  async #read() {
    /** @type {any} */
    let inbound;
    /** @type {any} */
    let pair;
    const report = await this.#peer.getStats();
    for (const entry of report.values()) {
      if (entry.type === "inbound-rtp" && entry.kind === "video") inbound = entry;
      if (entry.type === "candidate-pair" && entry.nominated && entry.state === "succeeded") pair = entry;
    }
    if (!inbound || this.#ended) return;
    this.codec = report.get(inbound.codecId)?.mimeType.replace("video/", "").toLowerCase() ?? this.codec;
    this.#dropped = inbound.framesDropped ?? 0;
    this.#rtt = pair?.currentRoundTripTime === undefined ? null : pair.currentRoundTripTime * 1000;
    const last = this.#last;
    this.#meter.add(inbound.bytesReceived - last.bytes, 0, performance.now());
    // From the first packet of a frame to its picture. Where the browser does not say, the two parts of it
    // that every browser counts.
    const delay = inbound.totalProcessingDelay ?? (inbound.jitterBufferDelay ?? 0) + (inbound.totalDecodeTime ?? 0);
    const decoded = inbound.framesDecoded ?? 0;
    if (decoded > last.decoded) {
      const each = ((delay - last.delay) * 1000) / (decoded - last.decoded);
      this.#latency.add(each + (this.#rtt ?? 0) / 2);
    }
    this.#last = { bytes: inbound.bytesReceived, decoded, delay };
  }
}

/** @param {string} message */
function lost(message) {
  return new Failure(message, { code: "connection_lost", title: "Connection lost" });
}

function blocked() {
  return new Failure("Neither a UDP packet nor a TCP connection came through.", {
    code: "udp_blocked",
    title: "WebRTC is blocked",
    hint: "A firewall may block UDP, or the server listens where this browser does not try. Use WebSocket instead, or ask for a TURN server.",
  });
}

/** @param {unknown} error */
function asFailure(error) {
  // `fetch` throws a TypeError whatever went wrong on the way.
  if (!(error instanceof TypeError)) return Failure.from(error);
  const failure = Failure.unreachable();
  failure.scope = "transport"; // another way may get there
  return failure;
}

/** @param {RTCPeerConnection} peer @returns {Promise<void>} */
function gathered(peer) {
  return new Promise((resolve) => {
    if (peer.iceGatheringState === "complete") return resolve();
    const timer = setTimeout(resolve, GATHERING);
    peer.addEventListener("icegatheringstatechange", () => {
      if (peer.iceGatheringState !== "complete") return;
      clearTimeout(timer);
      resolve();
    });
  });
}

/**
 * STUN and TURN servers of a `Link` header (RFC 9725 §4.6).
 * @param {string} header
 * @returns {RTCIceServer[]}
 */
export function iceServers(header) {
  /** @type {RTCIceServer[]} */
  const servers = [];
  for (const [, urls, parameters] of header.matchAll(/<([^>]*)>((?:\s*;\s*[\w-]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^",;\s]+))*)/g)) {
    /** @type {Record<string, string>} */
    const values = {};
    for (const [, name, quoted, bare] of parameters.matchAll(/([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",;\s]+))/g)) {
      values[name.toLowerCase()] = quoted === undefined ? bare : quoted.replace(/\\(.)/g, "$1");
    }
    if (values.rel !== "ice-server") continue;
    servers.push({ urls, ...(values.username ? { username: values.username, credential: values.credential } : {}) });
  }
  return servers;
}
