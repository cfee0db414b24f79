// Which way of watching the page takes, and when it takes another.

import { open, reach, run, say, told } from "./browser.mjs";

const transport = (page) => page.evaluate(() => window.spaceport.transport);

/** Waits for pictures after the ones there are. */
const moves = async (page) => {
  const before = await page.evaluate(() => window.spaceport.frames);
  await page.waitForFunction((before) => window.spaceport.frames > before + 5, before, { timeout: 5_000 });
};

/** Waits until one way of watching is taken; a better one may take over a moment after the first picture. */
const takes = (page, way) => page.waitForFunction((way) => spaceport.state === "playing" && spaceport.transport === way, way);

const scenarios = {
  /** Left alone, the page takes WebTransport; the menu changes that and back. */
  async menu(browser, url) {
    const { page, complaints } = await open(browser, url);
    const taken = [];
    await takes(page, "webtransport");
    taken.push(await transport(page));
    for (const way of ["whep", "ws", "auto"]) {
      await page.locator("#menu-button").click();
      await page.locator(`#menu [data-transport=${way}]`).click();
      await takes(page, way === "auto" ? "webtransport" : way);
      await moves(page);
      taken.push(await transport(page));
    }
    say({ taken, complaints });
  },

  /** No WebCodecs: an insecure page, or a browser that has none. */
  async undecoded(browser, url) {
    const { page, complaints } = await open(browser, url, { before: () => delete window.VideoDecoder });
    await reach(page, "playing");
    say({ transport: await transport(page), complaints });
  },

  /** Something in between swallows UDP. */
  async blocked(browser, url) {
    const { page, complaints } = await open(browser, url, {
      before: () => {
        window.WebTransport = class {
          ready = new Promise(() => {});
          closed = new Promise(() => {});
          close() {}
        };
      },
    });
    await reach(page, "playing");
    await moves(page);
    say({ transport: await transport(page), complaints });
  },

  /** WebTransport plays, and then nothing comes any more and nobody says so. */
  async silent(browser, url) {
    const { page, complaints } = await open(browser, url, {
      before: () => {
        const gate = () =>
          new TransformStream({
            async transform(chunk, controller) {
              if (window.silent) await new Promise(() => {});
              controller.enqueue(chunk);
            },
          });
        window.WebTransport = class extends window.WebTransport {
          get incomingUnidirectionalStreams() {
            return super.incomingUnidirectionalStreams.pipeThrough(gate());
          }
          async createBidirectionalStream() {
            const { readable, writable } = await super.createBidirectionalStream();
            return { readable: readable.pipeThrough(gate()), writable };
          }
        };
      },
    });
    await takes(page, "webtransport");
    await moves(page);
    const noticed = await page.evaluate(async () => {
      window.silent = true;
      const since = performance.now();
      while (spaceport.state === "playing") await new Promise((resolve) => setTimeout(resolve, 5));
      return Math.round(performance.now() - since);
    });
    await reach(page, "playing");
    await moves(page);
    say({ noticed, transport: await transport(page), complaints });
  },

  /** Something in between takes the socket and lets nothing through. */
  async stalled(browser, url) {
    const { page, complaints } = await open(browser, url, {
      before: () => {
        delete window.WebTransport;
        window.WebSocket = class extends EventTarget {
          static OPEN = 1;
          readyState = 1;
          send() {}
          close() {}
        };
      },
    });
    await reach(page, "playing");
    say({ transport: await transport(page), complaints });
  },

  /** A hidden page leaves, and comes back when it is looked at. */
  async hidden(browser, url) {
    const { page, complaints } = await open(browser, url);
    await reach(page, "playing");
    const hide = (hidden) =>
      page.evaluate((hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
    // A short look elsewhere: the connection stays, and the picture goes on.
    await hide(true);
    await page.waitForTimeout(300);
    await hide(false);
    await moves(page);
    await hide(true);
    await reach(page, "paused");
    say({ paused: true });
    await told(); // nobody watches
    await hide(false);
    await takes(page, "webtransport");
    await moves(page);
    say({ transport: await transport(page), complaints });
  },
};

await run((browser, scenario, url) => scenarios[scenario](browser, url));
