// @ts-check
// The remote pointer, drawn over the picture where a transport tells of it beside the pictures.

/**
 * What the pointer looks like.
 * @typedef {object} PointerImage
 * @property {number} serial
 * @property {number} width pixels of the remote screen
 * @property {number} height
 * @property {number} hotspot_x the pixel that points
 * @property {number} hotspot_y
 * @property {string} png base64
 */

/**
 * Where the pointer is.
 * @typedef {object} PointerPlace
 * @property {boolean} visible
 * @property {number} x column of the pixel that points, in the frame
 * @property {number} y
 * @property {number} serial of the image to draw
 */

/** The last images are kept: the server sends none of them again. */
const KEPT = 32;

export class Pointer {
  element = document.createElement("canvas");

  /** @type {Map<number, PointerImage & {bitmap: Promise<ImageBitmap>}>} in the order they came */
  #images = new Map();
  /** Frame pixels per pixel of the remote screen. */
  #scale = 1;
  /** @type {PointerPlace | null} */
  #place = null;
  /** The serial of what the canvas shows. @type {number | null} */
  #drawn = null;

  constructor() {
    this.element.id = "pointer";
    this.element.hidden = true;
    this.element.setAttribute("aria-hidden", "true");
  }

  /** Forgets everything: what comes next is another connection's. */
  clear() {
    this.#images.clear();
    this.#place = this.#drawn = null;
    this.element.hidden = true;
  }

  /** @param {PointerImage} image */
  add(image) {
    const bytes = Uint8Array.from(atob(image.png), (character) => character.charCodeAt(0));
    const bitmap = createImageBitmap(new Blob([bytes], { type: "image/png" }));
    bitmap.catch(() => {}); // whoever draws it sees that
    this.#images.delete(image.serial);
    this.#images.set(image.serial, { ...image, bitmap });
    for (const oldest of this.#images.keys()) {
      if (this.#images.size <= KEPT) break;
      this.#images.delete(oldest);
    }
  }

  /** @param {number} scale frame pixels per pixel of the remote screen */
  rescale(scale) {
    this.#scale = scale;
    this.#show();
  }

  /** @param {PointerPlace} place */
  move(place) {
    this.#place = place;
    this.#show();
  }

  /** Where it is drawn, in the frame; null while it is not. */
  get place() {
    const { hidden } = this.element;
    return hidden || !this.#place ? null : { x: this.#place.x, y: this.#place.y, serial: this.#drawn };
  }

  async #show() {
    const place = this.#place;
    const image = place?.visible ? this.#images.get(place.serial) : undefined;
    if (!place || !image) {
      this.element.hidden = true;
      return;
    }
    if (this.#drawn !== image.serial) {
      let bitmap;
      try {
        bitmap = await image.bitmap;
      } catch {
        return; // a broken image; the one before stays
      }
      if (this.#place !== place) return; // it moved meanwhile, and was shown there
      const { element } = this;
      element.width = bitmap.width;
      element.height = bitmap.height;
      element.getContext("2d")?.drawImage(bitmap, 0, 0);
      this.#drawn = image.serial;
    }
    const { style } = this.element;
    const scale = this.#scale;
    style.setProperty("--x", String(place.x - image.hotspot_x * scale));
    style.setProperty("--y", String(place.y - image.hotspot_y * scale));
    style.setProperty("--own-width", String(image.width * scale));
    style.setProperty("--own-height", String(image.height * scale));
    this.element.hidden = false;
  }
}
