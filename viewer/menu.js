// @ts-check
// A menu of choices above a button.

/** Opens and closes one, by pointer and by keyboard, and says what was chosen. */
export class Menu {
  #button;
  #menu;
  #opened;

  /**
   * @param {HTMLElement} button
   * @param {HTMLElement} menu holds elements of the role `menuitemradio`
   * @param {(item: HTMLElement) => void} chosen
   * @param {() => void} [opened]
   */
  constructor(button, menu, chosen, opened = () => {}) {
    this.#button = button;
    this.#menu = menu;
    this.#opened = opened;
    button.addEventListener("click", () => this.#toggle(Boolean(menu.hidden)));
    menu.addEventListener("click", (event) => {
      const item = event.target instanceof Element && event.target.closest("[role=menuitemradio]");
      if (!(item instanceof HTMLElement)) return;
      this.close();
      chosen(item);
    });
    menu.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const items = this.#items;
      const at = items.findIndex((item) => item === document.activeElement);
      items.at((at + step) % items.length)?.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isOpen) this.close();
    });
    document.addEventListener("pointerdown", (event) => {
      if (event.target instanceof Node && !menu.contains(event.target) && !button.contains(event.target)) this.#toggle(false);
    });
  }

  get isOpen() {
    return !this.#menu.hidden;
  }

  /** Back to where it was opened from. */
  close() {
    this.#toggle(false);
    this.#button.focus();
  }

  /** Puts the focus on what holds now, as it is when the menu opens. */
  focus() {
    const items = this.#items;
    (items.find((item) => item.ariaChecked === "true") ?? items[0])?.focus();
  }

  get #items() {
    return /** @type {HTMLElement[]} */ ([...this.#menu.querySelectorAll("[role=menuitemradio]:not(:disabled)")]);
  }

  /** @param {boolean} open */
  #toggle(open) {
    this.#menu.hidden = !open;
    this.#button.setAttribute("aria-expanded", String(open));
    if (!open) return;
    this.#opened();
    this.focus();
  }
}
