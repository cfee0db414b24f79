// Plays with `whip-whep`, a WHEP player that others wrote, as it comes from npm.

import { readFile } from "node:fs/promises";
import { elsewhere, run, say } from "./browser.mjs";

const player = await readFile(new URL("node_modules/whip-whep/whep.js", import.meta.url), "utf8");

await run(async (browser, origin, token) => {
  const page = await browser.newPage();
  await page.goto(await elsewhere());
  await page.addScriptTag({ content: player.replace("export class WHEPClient", "window.WHEPClient = class WHEPClient") });
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
        const play = async (token) => {
          const peer = new RTCPeerConnection({ bundlePolicy: "max-bundle" });
          peer.addTransceiver("audio", { direction: "recvonly" });
          peer.addTransceiver("video", { direction: "recvonly" });
          const client = new window.WHEPClient();
          await client.view(peer, url, token);
          const frames = async () => {
            const stats = [...(await peer.getStats()).values()];
            return stats.find(({ type, kind }) => type === "inbound-rtp" && kind === "video")?.framesDecoded ?? 0;
          };
          const end = performance.now() + 15_000;
          while ((await frames()) < 10 && performance.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
          const decoded = await frames();
          await client.stop();
          return decoded;
        };
        const refused = await play("wrong").catch((error) => error.message);
        const decoded = await play(token);
        return { refused, decoded, requests };
      },
      { url: `${origin}/whep?display=test-pattern`, token },
    ),
  );
});
