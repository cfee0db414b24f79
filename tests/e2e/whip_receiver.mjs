// A WHIP endpoint whose WebRTC is a browser's: a small server takes the offer, the page answers it, and what
// the page shows is read from its pixels.

import { once } from "node:events";
import { createServer } from "node:http";
import { elsewhere, run, say, told } from "./browser.mjs";

await run(async (browser) => {
  const page = await browser.newPage();
  await page.goto(await elsewhere());
  let left;
  const deleted = new Promise((resolve) => (left = resolve));
  const server = createServer(async (request, response) => {
    if (request.method === "DELETE") {
      response.end();
      return left(await page.evaluate(() => window.peer.connectionState));
    }
    let offer = "";
    for await (const part of request) offer += part;
    const answer = await page.evaluate(take, offer);
    response.writeHead(201, { location: "/resource", "content-type": "application/sdp" }).end(answer);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  say({ port: server.address().port });
  await page.waitForFunction(() => window.seen?.frames >= 10, null, { timeout: 20_000, polling: 50 });
  say(await page.evaluate(() => window.seen));
  say({ deleted: await deleted });
  await told();
  server.close();
});

/** Runs in the page: answers the offer, and looks at what comes. */
async function take(offer) {
  const peer = (window.peer = new RTCPeerConnection());
  const video = document.body.appendChild(document.createElement("video"));
  video.muted = true;
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true, alpha: false });
  window.seen = { frames: 0 };
  const look = () => {
    const { videoWidth: width, videoHeight: height } = video;
    Object.assign(canvas, { width, height });
    context.drawImage(video, 0, 0);
    const bars = Array.from({ length: 8 }, (_, bar) => [
      ...context.getImageData(((bar * 2 + 1) * width) >> 4, height >> 1, 1, 1).data.subarray(0, 3),
    ]);
    window.seen = { frames: window.seen.frames + 1, last: { width, height, bars } };
    video.requestVideoFrameCallback(look);
  };
  peer.ontrack = ({ track }) => {
    video.srcObject = new MediaStream([track]);
    video.play();
    video.requestVideoFrameCallback(look);
  };
  await peer.setRemoteDescription({ type: "offer", sdp: offer });
  await peer.setLocalDescription();
  if (peer.iceGatheringState !== "complete") {
    await new Promise((resolve) => {
      peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && resolve();
      setTimeout(resolve, 3_000);
    });
  }
  return peer.localDescription.sdp;
}
