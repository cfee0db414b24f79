"""Plays over WHEP with aiortc, a WebRTC stack of its own, and says in a line of JSON what came.

As aiortc's users write a player: an offer with every candidate in it, one POST, and DELETE at the end.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

ENDPOINT, TOKEN, CODEC = sys.argv[1:]
ENOUGH = 10
PATIENCE = 20


def http(method, url, body=None):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/sdp"}
    request = urllib.request.Request(url, body and body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read().decode()


def look(frame):
    """The middle of each of the eight bars, half way down."""
    plane = frame.reformat(format="rgb24").planes[0]
    data, row = bytes(plane), frame.height // 2 * plane.line_size
    at = [row + (bar * 2 + 1) * frame.width // 16 * 3 for bar in range(8)]
    return {"width": frame.width, "height": frame.height, "bars": [list(data[i : i + 3]) for i in at]}


async def main():
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    receiver = peer.addTransceiver("video", direction="recvonly")
    codecs = RTCRtpReceiver.getCapabilities("video").codecs
    receiver.setCodecPreferences([it for it in codecs if it.mimeType.lower() in (f"video/{CODEC}", "video/rtx")])
    tracks = asyncio.get_running_loop().create_future()
    peer.on("track", tracks.set_result)
    await peer.setLocalDescription(await peer.createOffer())
    status, headers, body = await asyncio.to_thread(http, "POST", ENDPOINT, peer.localDescription.sdp)
    if status != 201:
        await peer.close()
        return {"status": status, "problem": json.loads(body)}
    await peer.setRemoteDescription(RTCSessionDescription(body, "answer"))
    frames, last, error = 0, None, None
    try:
        async with asyncio.timeout(PATIENCE):
            track = await tracks
            while frames < ENOUGH:
                last, frames = await track.recv(), frames + 1
    except (MediaStreamError, TimeoutError) as ended:
        error = repr(ended)
    resource = urllib.parse.urljoin(ENDPOINT, headers["location"])
    deleted, _, _ = await asyncio.to_thread(http, "DELETE", resource)
    await peer.close()
    return {
        "status": status,
        "frames": frames,
        "last": last and look(last),
        "state": peer.connectionState,
        "error": error,
        "deleted": deleted,
    }


print(json.dumps(asyncio.run(main())))
