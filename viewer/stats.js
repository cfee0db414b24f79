// @ts-check
// What the status bar says: rates over the last second, the median delay, the server's clock.

/**
 * @typedef {object} Sample
 * @property {number} fps
 * @property {number} bitrate bits a second
 * @property {number | null} latency milliseconds from capture to picture
 * @property {number | null} rtt milliseconds
 */

/** Frames and bytes within a sliding window. */
export class Meter {
  /** @type {{at: number, bytes: number, frames: number}[]} */
  #events = [];

  frames = 0;
  bytes = 0;

  /** @param {number} bytes @param {number} frames @param {number} now */
  add(bytes, frames, now) {
    this.bytes += bytes;
    this.frames += frames;
    this.#events.push({ at: now, bytes, frames });
    this.#trim(now);
  }

  /** @param {number} now @returns {{fps: number, bitrate: number}} */
  rates(now) {
    this.#trim(now);
    let bytes = 0;
    let frames = 0;
    for (const event of this.#events) {
      bytes += event.bytes;
      frames += event.frames;
    }
    return { fps: (frames * 1000) / WINDOW, bitrate: (bytes * 8000) / WINDOW };
  }

  /** @param {number} now */
  #trim(now) {
    while (this.#events.length > 0 && this.#events[0].at <= now - WINDOW) this.#events.shift();
  }
}

/** The last few values of something that jumps about. */
export class Median {
  /** @type {number[]} */
  #values = [];

  /** @param {number} value */
  add(value) {
    this.#values.push(value);
    if (this.#values.length > MEDIAN_OF) this.#values.shift();
  }

  get value() {
    const sorted = this.#values.toSorted((a, b) => a - b);
    return sorted.length > 0 ? sorted[sorted.length >> 1] : null;
  }
}

/**
 * How far the server's media clock is from `performance.now()`.
 *
 * An answer was written after it was asked for and before it came; a picture was captured before it is shown. Each
 * says that the offset lies within bounds, and all of them together leave little room, even where every round trip
 * was slow in one direction.
 */
export class Clock {
  /** @type {{rtt: number, least: number, most: number}[]} */
  #samples = [];

  /**
   * @param {number} sent
   * @param {number} received
   * @param {number} serverTime microseconds, read by the server in between
   */
  add(sent, received, serverTime) {
    const server = serverTime / 1000;
    this.#samples.push({ rtt: received - sent, least: server - received, most: server - sent });
    if (this.#samples.length > CLOCK_SAMPLES) this.#samples.shift();
  }

  /** The shortest round trip of late, in milliseconds. */
  get rtt() {
    return this.#samples.length > 0 ? Math.min(...this.#samples.map(({ rtt }) => rtt)) : null;
  }

  /** Milliseconds since a picture was captured that is shown now. @param {number} capturedAt microseconds @param {number} now */
  since(capturedAt, now) {
    const last = this.#samples.at(-1);
    if (!last) return null;
    const captured = capturedAt / 1000;
    last.least = Math.max(last.least, captured - now);
    const least = Math.max(...this.#samples.map((sample) => sample.least));
    const most = Math.min(...this.#samples.map((sample) => sample.most));
    return Math.max(0, now + (least + most) / 2 - captured);
  }
}

/** Milliseconds over which rates are taken. */
const WINDOW = 1000;
const MEDIAN_OF = 31;
/** Answers that are remembered; clocks drift apart, so that old bounds would be wrong. */
const CLOCK_SAMPLES = 8;
