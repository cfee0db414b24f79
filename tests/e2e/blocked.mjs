// The page on networks that let little or nothing through.

import { open, reach, run, say, told } from "./browser.mjs";

/** When a state is reached, in milliseconds since the page began to load. */
const at = (page, state) =>
  page.evaluate(
    (wanted) =>
      new Promise((resolve) => {
        const look = () => (window.spaceport?.state === wanted && (wanted !== "playing" || window.spaceport.frames > 0) ? resolve(Math.round(performance.now())) : setTimeout(look, 5));
        look();
      }),
    state,
  );

/** When the card is there, in milliseconds since now, and what it says. */
const card = (page) =>
  page.evaluate(
    () =>
      new Promise((resolve) => {
        const since = performance.now();
        const look = () =>
          document.getElementById("card").hidden
            ? setTimeout(look, 5)
            : resolve({ after: Math.round(performance.now() - since), card: document.getElementById("card").innerText, failure: window.spaceport.failure });
        look();
      }),
  );

const scenarios = {
  /** How long it takes to a picture, and by what way it comes. */
  async starts(browser, url) {
    const { page } = await open(browser, url);
    const after = await at(page, "playing");
    const ways = await page.evaluate(() => ({ transport: window.spaceport.transport, secure: isSecureContext }));
    say({ after, ...ways });
  },

  /** Nothing brings a picture, though the page came. */
  async refused(browser, url) {
    const { page } = await open(browser, url);
    say(await card(page));
  },

  /** It plays, then nothing gets through, and then everything does again. */
  async cut(browser, url) {
    const { page } = await open(browser, url);
    await reach(page, "playing");
    say({ transport: await page.evaluate(() => window.spaceport.transport) });
    await told(); // it is cut
    say(await card(page));
    await told(); // it is mended
    await reach(page, "playing", 15_000);
    say({ card: await page.locator("#card").isVisible() });
  },
};

await run((browser, scenario, url) => scenarios[scenario](browser, url));
