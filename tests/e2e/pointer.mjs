// The remote pointer: drawn over the picture by the page, or in the picture by the server.

import { open, reach, run, say, told } from "./browser.mjs";

const scenarios = {
  /** Follows the overlay to places of the pointer, until it is hidden. */
  async apart(browser, url, ...places) {
    const { page, complaints } = await open(browser, url);
    await reach(page, "playing");
    say({ transport: await page.evaluate(() => window.spaceport.transport) });
    for (const place of places.map((place) => place.split(",").map(Number))) {
      await told(); // it is there
      await page.waitForFunction(([x, y]) => window.spaceport.pointer?.x === x && window.spaceport.pointer.y === y, place, { polling: 10 });
      const seen = await page.evaluate(() => {
        const rect = (id) => {
          const { x, y, width, height } = document.getElementById(id).getBoundingClientRect();
          return { x, y, width, height };
        };
        const drawn = document.getElementById("pointer");
        const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
        copy.drawImage(drawn, -drawn.width / 2, -drawn.height / 2);
        const middle = copy.getImageData(0, 0, 1, 1).data;
        return { frame: rect("frame"), pointer: rect("pointer"), colour: [...middle], size: window.spaceport.size };
      });
      say(seen);
    }
    await told(); // it is hidden
    await page.waitForFunction(() => window.spaceport.pointer === null && document.getElementById("pointer").hidden, null, { polling: 10 });
    say({ hidden: true, frames: await page.evaluate(() => window.spaceport.frames), complaints });
  },

  /** Looks for the pointer's colour in the picture. */
  async baked(browser, url, colour, ...places) {
    const { page, complaints } = await open(browser, url);
    await reach(page, "playing");
    say({ transport: await page.evaluate(() => window.spaceport.transport) });
    for (const place of places.map((place) => place.split(",").map(Number))) {
      await told();
      await page.waitForFunction(
        ({ place, colour }) => {
          const seen = window.e2e.colours([place])?.[0];
          return seen?.every((value, index) => Math.abs(value - colour[index]) < 40);
        },
        { place, colour: colour.split(",").map(Number) },
        { polling: 20 },
      );
      say({ overlay: await page.evaluate(() => !document.getElementById("pointer").hidden) });
    }
    say({ complaints });
  },
};

await run((browser, scenario, ...args) => scenarios[scenario](browser, ...args));
