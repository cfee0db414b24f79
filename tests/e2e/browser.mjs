// What every script here needs: a browser, a page that is listened to, and the line protocol with the
// Rust test that started it.

import { once } from "node:events";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { chromium, firefox } from "playwright-core";

/** Browser flags; --no-sandbox because tests run as root in containers. */
const CHROMIUM = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--allow-loopback-in-peer-connection",
];

/** An origin that the browser is to treat as it would HTTPS: outside loopback it offers WebCodecs to no other. */
if (process.env.SECURE) CHROMIUM.push(`--unsafely-treat-insecure-origin-as-secure=${process.env.SECURE}`);

const FIREFOX = {
  "media.peerconnection.ice.loopback": true,
  // Without a camera's permission Firefox uses the address of the default route alone, and from there
  // it does not try a loopback one.
  "permissions.default.camera": 1,
  "media.peerconnection.ice.obfuscate_host_addresses": false,
};

/** A script that hangs must not outlive its test. */
const LIMIT = 28_000;

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Says one thing to the test. */
export function say(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

/** Waits for the test to say "go on". */
export async function told() {
  await input.next();
}

/**
 * Runs a scenario in the browser that the command line names, and ends the process.
 * @param {(browser: import("playwright-core").Browser, ...args: string[]) => Promise<void>} scenario
 */
export async function run(scenario) {
  const [name, ...args] = process.argv.slice(2);
  const timer = setTimeout(() => {
    console.error("the script took too long");
    browser.close().finally(() => process.exit(1));
  }, LIMIT);
  const browser =
    name === "firefox"
      ? await firefox.launch({ channel: "moz-firefox", executablePath: "/usr/bin/firefox-esr", firefoxUserPrefs: FIREFOX })
      : await chromium.launch({ executablePath: "/usr/bin/chromium", args: CHROMIUM });
  // The test is over, well or badly; what it does not need any more must not stay.
  process.on("SIGTERM", () => browser.close().finally(() => process.exit(1)));
  try {
    await scenario(browser, ...args);
    clearTimeout(timer);
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  }
  await browser.close();
  if (process.stdout.writableNeedDrain) await once(process.stdout, "drain");
  process.exit();
}

/**
 * An empty page of an origin that is not the gateway's. It lives on this machine: browsers ask people
 * before they let a page from anywhere else reach loopback.
 * @returns {Promise<string>} its address
 */
export async function elsewhere() {
  const server = createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end("<!doctype html><title>elsewhere</title>");
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  server.unref();
  return `http://127.0.0.1:${server.address().port}/`;
}

/**
 * Opens a page with the helpers of `inPage`, and listens to all it complains about.
 * @param {import("playwright-core").Browser} browser
 * @param {string} url
 * @param {{before?: () => void}} [options] `before` runs in the page before its own scripts
 */
export async function open(browser, url, { before } = {}) {
  const page = await browser.newPage({ viewport: { width: 1000, height: 700 } });
  const complaints = [];
  page.on("console", (message) => {
    if (["error", "warning", "assert"].includes(message.type())) complaints.push(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`uncaught: ${error}`));
  await page.addInitScript(inPage);
  if (before) await page.addInitScript(before);
  await page.goto(url);
  return { page, complaints };
}

/** Waits until the viewer is in a state. */
export async function reach(page, state, timeout = 10_000) {
  try {
    await page.waitForFunction((wanted) => window.spaceport?.state === wanted, state, { timeout, polling: 10 });
  } catch (error) {
    const found = await page.evaluate(() => ({ ...window.spaceport, text: document.body.innerText }));
    throw new Error(`not ${state} but ${JSON.stringify(found)}`, { cause: error });
  }
}

/** Runs within the page: reads the picture it shows. The marker's layout is `media::capture::counter`'s. */
function inPage() {
  const CELL = 16;
  const COLUMNS = 24;
  const CONTRAST = 64;
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true, alpha: false });

  /** The shown picture at its own size, or null before there is one. */
  function snapshot() {
    const element = window.spaceport?.element;
    const [width, height] = window.spaceport?.size ?? [0, 0];
    if (!element || !width || !window.spaceport.frames) return null;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    context.drawImage(element, 0, 0);
    return true;
  }

  window.e2e = {
    /** The number in the corner; null when there is no picture or no marker in it. */
    marker() {
      if (!snapshot()) return null;
      const { data } = context.getImageData(0, 0, CELL * COLUMNS, CELL * 2);
      const green = (x, y) => data[(y * CELL * COLUMNS + x) * 4 + 1];
      let word = 0;
      for (let column = 0; column < COLUMNS; column++) {
        const x = column * CELL + CELL / 2;
        const difference = green(x, CELL / 2) - green(x, CELL * 1.5);
        if (Math.abs(difference) < CONTRAST) return null;
        word = word * 2 + Number(difference > 0);
      }
      const counter = (word >> 4) & 0xffff;
      const checksum = [12, 8, 4, 0].reduce((sum, shift) => sum ^ ((counter >> shift) & 0xf), 0b0101);
      return word >> 20 === 0b1010 && (word & 0xf) === checksum ? counter : null;
    },
    /** Colours at points, each [r, g, b]. */
    colours(points) {
      if (!snapshot()) return null;
      return points.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data.subarray(0, 3)]);
    },
  };
}
