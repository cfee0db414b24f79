// Watches the test pattern for a while: is every picture whole, does it move, are its colours right?

import { open, reach, run, say } from "./browser.mjs";

await run(async (browser, url, milliseconds) => {
  const { page, complaints } = await open(browser, url);
  await reach(page, "playing");
  const seen = await page.evaluate(async (duration) => {
    const pictures = [];
    let unreadable = 0;
    const end = performance.now() + duration;
    let frames = 0;
    while (performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, 4));
      const { spaceport } = window;
      if (spaceport.frames === frames) continue;
      frames = spaceport.frames;
      const counter = window.e2e.marker();
      if (counter === null) unreadable++;
      // On the socket the packet says when its picture was made; both are of the same instant, for
      // nothing else runs in between.
      else if (counter !== pictures.at(-1)?.counter) pictures.push({ counter, capturedAt: spaceport.shown?.capturedAt ?? null });
    }
    const [width, height] = spaceport.size;
    const colours = window.e2e.colours(Array.from({ length: 8 }, (_, bar) => [((bar * 2 + 1) * width) >> 4, height >> 1]));
    return { pictures, unreadable, frames, width, height, colours, stats: await spaceport.stats(), transport: spaceport.transport, codec: spaceport.codec };
  }, Number(milliseconds));
  say({ ...seen, complaints, bar: await page.locator("#bar").innerText() });
});
