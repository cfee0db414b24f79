// The consent page: shows what would move to whoever has a one-time link, and takes one answer.
//
// The link's secret is in the fragment and goes into a header; once read, it leaves the address bar.
// Everything shown is set as text, since names come from others.

/**
 * What this page is asked to show.
 *
 * @typedef {object} Question
 * @property {string} standing
 * @property {string} fingerprint
 * @property {Terms} terms
 *
 * @typedef {object} Terms
 * @property {string} app
 * @property {string} profile
 * @property {{ label: string, estimated_bytes: number, is_sensitive: boolean }[]} items
 * @property {string[] | null} sites
 * @property {{ replace_existing: boolean, expires_at_ms: number }} how
 * @property {string[]} notes
 * @property {{ name: string, url: string }} destination
 */

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
function element(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** @param {boolean} disabled */
function lock(disabled) {
  for (const id of ["approve", "deny"]) element(id).toggleAttribute("disabled", disabled);
}

const secret = new URLSearchParams(location.hash.slice(1)).get("link") ?? "";
history.replaceState(null, "", location.pathname);

/**
 * @param {string} path
 * @param {object} [body]
 */
async function call(path, body) {
  const response = await fetch(`../consent/${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${secret}`, "content-type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error([answer.detail, answer.hint].filter(Boolean).join(". "));
  return answer;
}

/** @param {number} bytes */
function size(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

/**
 * @param {HTMLElement} list
 * @param {string} text
 * @param {string} [name]
 */
function line(list, text, name) {
  const item = document.createElement("li");
  item.textContent = text;
  if (name) item.className = name;
  list.append(item);
}

/** @param {string} text */
function end(text) {
  element("details").hidden = true;
  element("what").textContent = text;
}

/** @param {Question} request */
function show(request) {
  const { terms } = request;
  if (request.standing !== "pending") return end("This was answered before.");
  element("what").textContent =
    `${terms.app} (profile “${terms.profile}”) would be copied to another machine:`;
  for (const item of terms.items) {
    const warning = item.is_sensitive ? " — can sign someone in, or tells what you did" : "";
    line(
      element("items"),
      `${item.label}, ${size(item.estimated_bytes)}${warning}`,
      item.is_sensitive ? "sensitive" : "",
    );
  }
  if (terms.sites) line(element("notes"), `Only of these sites: ${terms.sites.join(", ")}`);
  if (terms.how.replace_existing) line(element("notes"), "It replaces the profile that is there.");
  if (terms.how.expires_at_ms > 0) {
    const when = new Date(terms.how.expires_at_ms).toLocaleString();
    line(element("notes"), `It is taken back on ${when}.`);
  }
  for (const note of terms.notes) line(element("notes"), note);
  element("destination").textContent = `${terms.destination.name} at ${terms.destination.url}`;
  element("fingerprint").textContent = request.fingerprint;
  element("details").hidden = false;
  return undefined;
}

/** @param {boolean} approve */
async function answer(approve) {
  lock(true);
  try {
    await call("answer", { approve });
    end(approve ? "Agreed. It moves when it is asked for again within 5 minutes." : "Refused. Nothing moves.");
  } catch (error) {
    end(error instanceof Error ? error.message : String(error));
  }
}

element("approve").addEventListener("click", () => answer(true));
element("deny").addEventListener("click", () => answer(false));
call("request").then(show, (error) => end(error.message));
