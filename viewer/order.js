// @ts-check
// Frames that came on streams of their own, back in order; as `crates/wire/src/order.rs` has it.
//
// Streams overtake each other, and the server resets those that a newer keyframe has made worthless. So frames
// are handed on as their ids say, except that a keyframe waits for nobody.

/** Frames that may wait for one before them; about a second at 60 fps. */
const MAX_WAITING = 64;

/** @template T */
export class Order {
  #next = 0;
  /** @type {Map<number, T>} */
  #waiting = new Map();

  /** Whether nothing is handed on before the next keyframe. */
  awaitsKeyframe = true;

  /** A frame is complete. @param {number} id @param {boolean} keyframe @param {T} frame */
  push(id, keyframe, frame) {
    if (id < this.#next) return;
    if (keyframe) {
      this.awaitsKeyframe = false;
      this.#next = id;
      for (const waiting of this.#waiting.keys()) if (waiting < id) this.#waiting.delete(waiting);
    }
    this.#waiting.set(id, frame);
    if (this.#waiting.size > MAX_WAITING) {
      this.awaitsKeyframe = true;
      this.#waiting.delete(Math.min(...this.#waiting.keys()));
    }
  }

  /** A frame will not come. @param {number} id */
  lost(id) {
    // What waits may still be of use: the keyframe before it may be the last to come.
    if (id >= this.#next) this.awaitsKeyframe = true;
  }

  /** The frames that are next, in order. @returns {Generator<T, void>} */
  *take() {
    while (!this.awaitsKeyframe) {
      const frame = this.#waiting.get(this.#next);
      if (frame === undefined) return;
      this.#waiting.delete(this.#next++);
      yield frame;
    }
  }
}
