// Comes late to a desktop on which nothing happens. How long until its picture is there, and does the next
// change show?

import { open, reach, run, say, told } from "./browser.mjs";

await run(async (browser, url, number, next, x, y) => {
  // The browser's own start is not what is measured.
  await (await browser.newPage()).close();
  const { page, complaints } = await open(browser, url);
  const appears = (wanted) =>
    page.evaluate(async (wanted) => {
      const end = performance.now() + 8_000;
      while (window.e2e.marker() !== wanted) {
        if (performance.now() > end) return null;
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
      return performance.now();
    }, Number(wanted));
  const shown = await appears(number);
  const first = await page.evaluate(
    ([x, y]) => ({
      // The session is open when its answer is here; from then on the viewer attaches.
      opened: performance.getEntriesByType("resource").find(({ name }) => name.endsWith("/viewer/open")).responseEnd,
      colour: window.e2e.colours([[x, y]])?.[0],
      transport: window.spaceport.transport,
      size: window.spaceport.size,
    }),
    [Number(x), Number(y)],
  );
  say({ ...first, attach: shown === null ? null : shown - first.opened });
  await told(); // long enough for a still picture to be refined
  const refined = await page.evaluate(([x, y]) => window.e2e.colours([[x, y]])?.[0], [Number(x), Number(y)]);
  say({ colour: refined });
  await told(); // the desktop has changed
  const since = await page.evaluate(() => performance.now());
  const changed = await appears(next);
  await reach(page, "playing");
  say({ change: changed === null ? null : changed - since, complaints });
});
