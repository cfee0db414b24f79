// @ts-check
// Pictures to the screen, and the pointer over them.

import { Pointer } from "./pointer.js";

/** The element pictures are shown in, and its box, which cuts a padded row or column off. */
export class Stage {
  /** The pointer over what is shown. */
  pointer = new Pointer();

  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
  }

  /** Puts it behind what is shown: a video element plays only within a page. @param {HTMLElement} element */
  prepare(element) {
    this.box.prepend(element);
  }

  /**
   * Shows an element instead of the one before. Those that are prepared stay.
   * @param {HTMLElement} element prepared before
   * @param {Pointer} pointer
   */
  show(element, pointer) {
    // Taking it out and putting it in again would pause a video.
    for (const shown of this.box.querySelectorAll("[data-shown]")) if (shown !== element) shown.remove();
    element.dataset.shown = "";
    this.pointer.element.remove();
    this.pointer = pointer;
    this.box.append(pointer.element);
  }

  /**
   * @param {number} width the true size
   * @param {number} height
   * @param {number} [codedWidth] the size of what the element shows, where it is another
   * @param {number} [codedHeight]
   */
  fit(width, height, codedWidth = width, codedHeight = height) {
    const { style } = this.box;
    style.setProperty("--width", String(width));
    style.setProperty("--height", String(height));
    style.setProperty("--coded-width", String(codedWidth / width));
    style.setProperty("--coded-height", String(codedHeight / height));
  }
}

/** Paints decoded frames on a canvas at once, without waiting for a screen refresh. */
export class Painter {
  canvas = document.createElement("canvas");

  constructor() {
    // Opaque and desynchronized: no blending, and no wait for the compositor where the browser can skip it.
    const context = this.canvas.getContext("2d", { alpha: false, desynchronized: true });
    if (!context) throw new Error("this browser has no 2D canvas");
    this.context = context;
  }

  /**
   * @param {VideoFrame} frame
   * @param {number} width true size; 4:2:0 video has even sides, so the frame may be a pixel larger
   * @param {number} height
   * @returns {boolean} whether the size changed
   */
  paint(frame, width, height) {
    const { canvas } = this;
    const resized = canvas.width !== width || canvas.height !== height;
    if (resized) {
      canvas.width = width;
      canvas.height = height;
    }
    this.context.drawImage(frame, 0, 0, width, height, 0, 0, width, height);
    return resized;
  }
}
