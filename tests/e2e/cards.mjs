// Things that go wrong, and what the page says about them.

import { open, reach, run, say, told } from "./browser.mjs";

const card = async (page) => ({
  shown: await page.locator("#card").isVisible(),
  title: await page.locator("#card-title").innerText(),
  message: await page.locator("#card-message").innerText(),
  hint: await page.locator("#card-hint").innerText(),
  code: await page.locator("#card-code").innerText(),
  failure: await page.evaluate(() => window.spaceport.failure),
});

const scenarios = {
  /** The link opens nothing. */
  async refused(browser, url) {
    const { page, complaints } = await open(browser, url);
    await reach(page, "failed");
    say({ ...(await card(page)), complaints });
  },

  /** The session is closed while it is watched; a new one is a click away. */
  async closed(browser, url) {
    const { page, complaints } = await open(browser, url);
    await reach(page, "playing");
    say({ session: await page.evaluate(() => window.spaceport.session) });
    await told(); // it is closed
    await reach(page, "failed");
    say({ ...(await card(page)) });
    await page.locator("#card-retry").click();
    await reach(page, "playing");
    say({ card: await page.locator("#card").isVisible(), complaints });
  },
};

await run((browser, scenario, url) => scenarios[scenario](browser, url));
