// Another target is chosen in the page's menu: a window, and the desktop again.

import { open, run, say, told } from "./browser.mjs";

/** Waits for pictures of a size. */
const shows = async (page, size) => {
  await page.waitForFunction((size) => window.spaceport.state === "playing" && window.spaceport.size.join() === size, size, { timeout: 8_000, polling: 20 });
};

const facts = (page) =>
  page.evaluate(() => ({
    title: document.title,
    label: document.getElementById("fact-target").textContent,
    address: location.hash.replace(/ticket=[^&]*/, "ticket"),
    target: window.spaceport.target,
    colour: window.e2e.colours([[window.spaceport.size[0] - 2, window.spaceport.size[1] - 2]])?.[0],
    loaded: window.loadedOnce,
  }));

const menu = async (page) => {
  await page.locator("#target-button").click();
  await page.locator("#target-menu [role=menuitemradio]").first().waitFor();
  return page.locator("#target-menu [role=menuitemradio]");
};

const scenarios = {
  async switch(browser, url, desktop, window, title) {
    const { page, complaints } = await open(browser, url);
    await page.evaluate(() => (window.loadedOnce = true));
    await shows(page, desktop);
    say(await facts(page));

    const entries = await menu(page);
    say({ entries: await entries.evaluateAll((all) => all.map((it) => [it.innerText, it.ariaChecked])) });
    await entries.filter({ hasText: title }).click();
    await shows(page, window);
    say(await facts(page));

    await told(); // it has another title
    await page.waitForFunction((title) => document.title.startsWith(title), "Renamed", { polling: 20 });
    say(await facts(page));

    await (await menu(page)).filter({ hasText: "Desktop" }).click();
    await shows(page, desktop);
    say({ ...(await facts(page)), complaints });
  },

  /** A window of the address is shown from the start; when it closes, the card offers the desktop. */
  async closed(browser, url, desktop, window) {
    const { page, complaints } = await open(browser, url);
    await shows(page, window);
    say(await facts(page));
    await told(); // it is closed
    await page.locator("#card:not([hidden])").waitFor({ timeout: 8_000 });
    say({ title: await page.locator("#card-title").innerText(), code: await page.locator("#card-code").innerText() });
    await page.locator("#card-desktop").click();
    await shows(page, desktop);
    say({ ...(await facts(page)), card: await page.locator("#card:not([hidden])").count(), complaints });
  },
};

await run(async (browser, scenario, ...args) => {
  await scenarios[scenario](browser, ...args);
});
