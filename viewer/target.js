// @ts-check
// What is watched: a display or a window, in the address, in words, and in a menu.

/**
 * Something that can be watched, as `GET /viewer/targets` lists it.
 * @typedef {object} Watchable
 * @property {"display" | "window"} kind
 * @property {string} id
 * @property {[number, number]} size
 * @property {string} [name] of a display
 * @property {boolean} [primary] whether this is the display that is watched when nothing is chosen
 * @property {string} [title] of a window
 * @property {string} [app] of a window
 * @property {boolean} [available] whether the window can be seen now
 */

/** What is asked for; null is the primary display. @typedef {{kind: "display" | "window", id: string} | null} Target */

/** @param {URLSearchParams} parameters of the address's fragment @returns {Target} */
export function fromAddress(parameters) {
  const window = parameters.get("window");
  if (window) return { kind: "window", id: window };
  const display = parameters.get("target");
  return display ? { kind: "display", id: display } : null;
}

/** Changes the address, so that a page that is loaded again shows the same. @param {Target} target */
export function toAddress(target) {
  const parameters = new URLSearchParams(location.hash.slice(1));
  parameters.delete("window");
  parameters.delete("target");
  if (target) parameters.set(target.kind === "window" ? "window" : "target", target.id);
  history.replaceState(history.state, "", `#${parameters}`);
}

/** What `POST /viewer/open` is asked for. @param {Target} target */
export function asRequest(target) {
  if (!target) return {};
  return target.kind === "window" ? { window_id: target.id } : { display_id: target.id };
}

/** In a word or two. @param {Watchable | null} watched */
export function label(watched) {
  if (!watched) return "Desktop";
  if (watched.kind === "window") return watched.title || watched.app || "Untitled window";
  return watched.primary && watched.id !== TEST_PATTERN ? "Desktop" : watched.name || watched.id;
}

/** Has no screen to be the desktop of. */
const TEST_PATTERN = "test-pattern";

/**
 * The entries of the menu.
 * @param {Watchable[]} list
 * @param {Watchable | null} watched what is watched now
 */
export function entries(list, watched) {
  return list.map((it) => {
    const entry = document.createElement("button");
    entry.type = "button";
    entry.setAttribute("role", "menuitemradio");
    entry.dataset.kind = it.kind;
    entry.dataset.id = it.id;
    if (it.primary) entry.dataset.primary = "";
    entry.setAttribute("aria-checked", String(it.kind === watched?.kind && it.id === watched.id));
    entry.disabled = it.available === false;
    const title = document.createElement("span");
    title.textContent = label(it);
    const details = document.createElement("small");
    const app = it.kind === "window" && it.title ? it.app : "";
    const size = entry.disabled ? "not on screen" : it.size.join(" × ");
    details.textContent = [app, size].filter(Boolean).join(" · ");
    entry.append(title, details);
    return entry;
  });
}

/** What an entry stands for. @param {DOMStringMap} entry its data @returns {Target} */
export function chosenTarget({ kind, id, primary }) {
  if (primary !== undefined || !id) return null;
  return { kind: kind === "window" ? "window" : "display", id };
}
