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

/** How far the server's media clock is from `performance.now()`. */
export class Clock {
  /** @type {{rtt: number, offset: number}[]} */
  #samples = [];

  /**
   * @param {number} sent
   * @param {number} received
   * @param {number} serverTime microseconds, read by the server in between
   */
  add(sent, received, serverTime) {
    const offset = serverTime / 1000 - (sent + received) / 2;
    this.#samples.push({ rtt: received - sent, offset });
    if (this.#samples.length > CLOCK_SAMPLES) this.#samples.shift();
  }

  /** The sample with the shortest round trip, which has the least room for error. */
  get #best() {
    return this.#samples.reduce(
      (best, sample) => (best && best.rtt <= sample.rtt ? best : sample),
      /** @type {{rtt: number, offset: number} | null} */ (null),
    );
  }

  get rtt() {
    return this.#best?.rtt ?? null;
  }

  /** Milliseconds since a moment on the server's clock. @param {number} serverTime microseconds @param {number} now */
  since(serverTime, now) {
    const best = this.#best;
    return best && now + best.offset - serverTime / 1000;
  }
}

/** Milliseconds over which rates are taken. */
const WINDOW = 1000;
const MEDIAN_OF = 31;
const CLOCK_SAMPLES = 8;
