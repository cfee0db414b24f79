// A plain WHEP player in a page, without anything of the viewer's: it has the endpoint's address and a
// token, as players that others wrote do. How the media may travel is what differs.

import { elsewhere, run, say, told } from "./browser.mjs";

await run(async (browser, origin, token, way) => {
  const page = await browser.newPage();
  await page.goto(await elsewhere());
  const played = await page.evaluate(play, { endpoint: `${origin}/whep?display=test-pattern`, token, way });
  say(played);
  await told();
  say(await page.evaluate(() => window.counts()));
});

/** Runs in the page. */
async function play({ endpoint, token, way }) {
  const authorization = `Bearer ${token}`;
  // What the endpoint says of its servers, as `RTCPeerConnection` takes it.
  const servers = (await fetch(endpoint, { method: "OPTIONS", headers: { authorization } })).headers.get("link");
  const iceServers = [...(servers ?? "").matchAll(/<([^>]*)>; rel="ice-server"(?:; username="([^"]*)"; credential="([^"]*)")?/g)].map(
    ([, urls, username, credential]) => ({ urls, username, credential }),
  );
  const relay = way.startsWith("turn");
  const peer = new RTCPeerConnection({
    iceServers: iceServers.filter(({ urls }) => !relay || urls.endsWith(`transport=${way.slice(5)}`)),
    iceTransportPolicy: relay ? "relay" : "all",
  });
  peer.addTransceiver("video", { direction: "recvonly" });
  const video = document.body.appendChild(document.createElement("video"));
  video.muted = true;
  peer.ontrack = ({ streams, track }) => {
    video.srcObject = streams[0] ?? new MediaStream([track]);
    video.play();
  };
  await peer.setLocalDescription();
  if (peer.iceGatheringState !== "complete") {
    await new Promise((resolve) => {
      peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && resolve();
      setTimeout(resolve, 3_000);
    });
  }
  const response = await fetch(endpoint, {
    method: "POST",
    headers: { authorization, "content-type": "application/sdp" },
    body: peer.localDescription.sdp,
  });
  const body = await response.text();
  if (response.status !== 201) return { status: response.status, problem: body };
  let answer = body;
  if (way === "tcp") answer = answer.replace(/a=candidate:\S+ 1 udp .*\r\n/gi, "");
  await peer.setRemoteDescription({ type: "answer", sdp: answer });

  window.counts = async () => {
    const stats = [...(await peer.getStats()).values()];
    const inbound = stats.find(({ type }) => type === "inbound-rtp");
    const transport = stats.find(({ type }) => type === "transport");
    const pair = stats.find(({ id }) => id === transport?.selectedCandidatePairId);
    const candidate = (id) => {
      const { candidateType, protocol, relayProtocol } = stats.find((it) => it.id === id) ?? {};
      return { type: candidateType, protocol, relay: relayProtocol };
    };
    return {
      state: peer.connectionState,
      frames: inbound?.framesDecoded ?? 0,
      local: candidate(pair?.localCandidateId),
      remote: candidate(pair?.remoteCandidateId),
      candidates: answer.split("\r\n").filter((line) => line.startsWith("a=candidate")).length,
    };
  };
  const end = performance.now() + 15_000;
  let counts = await window.counts();
  while (counts.frames < 10 && performance.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    counts = await window.counts();
  }
  return { status: 201, servers: iceServers.map(({ urls }) => urls), ...counts };
}
