// @ts-check
// Encoded frames to pictures, with WebCodecs.
//
// The decoder is configured from what the stream itself says at a keyframe, so a new size, profile
// or codec needs no message of its own. Nothing waits: a picture is handed over in the decoder's own
// callback, and when the decoder falls behind, frames up to the next keyframe are dropped.

import { Failure } from "./failure.js";
import { codecString } from "./wire.js";

/** @typedef {import("./wire.js").Packet} Packet */

/**
 * Frames the decoder may have waiting. With `optimizeForLatency` it holds none back, so more than a few
 * means that it is slower than the stream, and every further frame would be shown later than the one before.
 */
const MAX_QUEUE = 3;

/**
 * The same before the first picture: a browser takes a while to start its decoder, and catches up at once. Dropping
 * what waits would make the first picture later still.
 */
const MAX_QUEUE_COLD = 60;

/** The shortest time between two keyframe requests, in milliseconds; the server caps them as well. */
const KEYFRAME_INTERVAL = 500;

/** Decoder errors without a picture in between after which this way of watching is given up. */
const MAX_ERRORS = 3;

/** Nominal frame duration in microseconds. Only rate estimates in the browser read it; nothing waits for it. */
const DURATION = 16_667;

export class Decoder {
  /** @type {VideoDecoder | null} */
  #decoder = null;
  #configured = "";
  /** Packets in the decoder, by the timestamp they were given there. @type {Map<number, Packet>} */
  #pending = new Map();
  #timestamp = -1;
  #waiting = true; // for a keyframe
  #asked = -Infinity;
  #errors = 0;
  #cold = true;
  #closed = false;

  /** Frames not shown because the decoder was behind. */
  dropped = 0;

  /**
   * @param {object} sink
   * @param {(frame: VideoFrame, packet: Packet) => void} sink.picture must not keep the frame
   * @param {() => void} sink.keyframe a keyframe is needed to go on
   * @param {(failure: Failure) => void} sink.failed
   */
  constructor(sink) {
    this.sink = sink;
  }

  static get available() {
    return typeof VideoDecoder === "function";
  }

  /** @param {Packet} packet */
  decode(packet) {
    if (this.#closed) return;
    if (packet.keyframe) {
      if (!this.#configure(packet)) return;
      this.#waiting = false;
    } else if (this.#waiting) {
      this.dropped++;
      this.#askKeyframe();
      return;
    }
    const decoder = this.#decoder;
    if (!decoder) return;
    if (!packet.keyframe && decoder.decodeQueueSize > (this.#cold ? MAX_QUEUE_COLD : MAX_QUEUE)) {
      this.dropped++;
      this.skip();
      return;
    }
    // Timestamps come back with the pictures and must not repeat; the capture clock may stand still
    // between a frame and its refinement.
    this.#timestamp = Math.max(packet.capturedAt, this.#timestamp + 1);
    this.#pending.set(this.#timestamp, packet);
    try {
      decoder.decode(
        new EncodedVideoChunk({
          type: packet.keyframe ? "key" : "delta",
          timestamp: this.#timestamp,
          duration: DURATION,
          data: packet.payload,
        }),
      );
    } catch (error) {
      this.#broken(decoder, error);
    }
  }

  /** Gives up what came so far: nothing is shown until the next keyframe, which is asked for. */
  skip() {
    this.#waiting = true;
    this.#askKeyframe();
  }

  close() {
    this.#closed = true;
    this.#drop();
  }

  /** @param {Packet} packet @returns {boolean} whether the decoder is ready for this keyframe */
  #configure(packet) {
    const codec = codecString(packet);
    if (!codec) {
      this.sink.failed(
        new Failure(`A ${packet.codec} keyframe came that this page cannot start from.`, { code: "no_decoder" }),
      );
      return false;
    }
    const wanted = `${codec} ${packet.codecEpoch} ${packet.width}x${packet.height}`;
    if (this.#decoder?.state === "configured" && this.#configured === wanted) return true;
    try {
      if (this.#decoder?.state !== "configured") this.#drop();
      this.#decoder ??= this.#create();
      // No `description`: the stream is Annex B and carries its parameter sets in front of each keyframe.
      this.#decoder.configure({ codec, optimizeForLatency: true });
    } catch (error) {
      this.sink.failed(new Failure(`This browser does not decode ${codec}.`, { code: "no_decoder" }));
      return false;
    }
    this.#configured = wanted;
    return true;
  }

  #create() {
    const decoder = new VideoDecoder({
      output: (frame) => {
        const packet = this.#pending.get(frame.timestamp);
        this.#forget(frame.timestamp);
        this.#errors = 0;
        this.#cold = decoder.decodeQueueSize > MAX_QUEUE && this.#cold;
        try {
          if (packet && !this.#closed) this.sink.picture(frame, packet);
        } finally {
          frame.close(); // decoders own few frames and stop when all are kept
        }
      },
      error: (error) => this.#broken(decoder, error),
    });
    return decoder;
  }

  /** @param {VideoDecoder} decoder @param {unknown} error */
  #broken(decoder, error) {
    if (this.#closed || decoder !== this.#decoder) return;
    this.#drop();
    this.#errors++;
    if (this.#errors >= MAX_ERRORS) {
      const reason = error instanceof Error ? error.message : String(error);
      this.sink.failed(new Failure(`The browser's decoder gave up: ${reason}`, { code: "no_decoder" }));
      return;
    }
    this.skip();
  }

  /** Forgets packets up to `timestamp`: the decoder may swallow one, and pictures come in order. @param {number} timestamp */
  #forget(timestamp) {
    for (const key of this.#pending.keys()) {
      if (key > timestamp) break;
      this.#pending.delete(key);
    }
  }

  #drop() {
    const decoder = this.#decoder;
    this.#decoder = null;
    this.#configured = "";
    this.#cold = true;
    this.#pending.clear();
    if (decoder && decoder.state !== "closed") decoder.close();
  }

  #askKeyframe() {
    const now = performance.now();
    if (now - this.#asked < KEYFRAME_INTERVAL) return;
    this.#asked = now;
    this.sink.keyframe();
  }
}
