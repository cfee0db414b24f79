// Plays with `@eyevinn/webrtc-player`, a WHEP player that others wrote, as it comes from npm.

import { createRequire } from "node:module";
import { readFile } from "node:fs/promises";
import { elsewhere, run, say } from "./browser.mjs";

// Published for bundlers. What it takes of others is `events`; advertisements and the other protocol
// that it knows are not asked for here, and would pull in a bundler.
const require = createRequire(import.meta.url);
const source = (name) => readFile(require.resolve(name), "utf8");
const [player, events] = await Promise.all([source("@eyevinn/webrtc-player"), source("events/")]);
const wrapped = (text, of) => `${of} = ((module, require) => { (function (exports) { ${text} })(module.exports); return module.exports; })({ exports: {} }, window.required);`;

await run(async (browser, origin, token) => {
  const page = await browser.newPage();
  await page.goto(await elsewhere());
  await page.addScriptTag({ content: "window.required = (name) => (name === 'events' ? window.events : {});" });
  await page.addScriptTag({ content: wrapped(events, "window.events") });
  await page.addScriptTag({ content: wrapped(player, "window.eyevinn") });
  say(
    await page.evaluate(
      async ({ url, token }) => {
        const requests = [];
        const plain = window.fetch;
        window.fetch = async (url, options) => {
          const response = await plain(url, options);
          requests.push([options?.method ?? "GET", response.status]);
          return response;
        };
        const video = document.body.appendChild(document.createElement("video"));
        Object.assign(video, { muted: true, autoplay: true });
        const make = () => new window.eyevinn.WebRTCPlayer({ video, type: "whep", iceServers: [] });

        const refused = await new Promise((resolve) => {
          const player = make();
          player.on("initial-connection-failed", () => resolve(true));
          player.load(new URL(url), "Bearer wrong");
          setTimeout(() => resolve(false), 10_000);
        });

        const player = make();
        await player.load(new URL(url), `Bearer ${token}`);
        const shown = () => video.getVideoPlaybackQuality().totalVideoFrames;
        const end = performance.now() + 15_000;
        while (shown() < 10 && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
        const [width, height] = [video.videoWidth, video.videoHeight];
        const canvas = Object.assign(document.createElement("canvas"), { width, height });
        const context = canvas.getContext("2d");
        if (width) context.drawImage(video, 0, 0);
        const bars = Array.from({ length: 8 }, (_, bar) => [...context.getImageData(((bar * 2 + 1) * width) >> 4, height >> 1, 1, 1).data.subarray(0, 3)]);
        const frames = shown();
        await player.unload();
        return { refused, frames, last: { width, height, bars }, requests };
      },
      { url: `${origin}/whep?display=test-pattern`, token },
    ),
  );
});
