// The desktop goes away while it is watched, and comes back: the page says so, and shows it again.

import { open, reach, run, say, told } from "./browser.mjs";

await run(async (browser, url, next) => {
  const { page, complaints } = await open(browser, url);
  await reach(page, "playing");
  say({ playing: true });
  await told(); // it is gone
  const notice = page.locator("body[data-notice] #wait-text");
  await notice.waitFor({ timeout: 5_000 });
  say({ notice: await notice.innerText() });
  await told(); // it is back
  await page.waitForFunction((wanted) => window.e2e.marker() === wanted, Number(next), { timeout: 10_000, polling: 20 });
  say({ state: await page.evaluate(() => window.spaceport.state), notice: await notice.count(), complaints });
});
