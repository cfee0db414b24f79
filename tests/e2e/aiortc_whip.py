"""A WHIP endpoint on aiortc, a WebRTC stack that is none of a browser's: answers an offer, decodes what comes
and says what that looks like.

Arguments: port (0 for any), bearer token, codec. It says where it is, then a line for each thing that happens.
"""

import asyncio
import json
import sys

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.codecs import CODECS
from aiortc.mediastreams import MediaStreamError

PORT, TOKEN, CODEC = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ENOUGH = 10

# Preferences come too late for an answer: it has no other codec then, and retransmissions of that.
kept = [it for it in CODECS["video"] if it.mimeType.lower() == f"video/{CODEC}"]
numbers = {it.payloadType for it in kept}
CODECS["video"] = kept + [it for it in CODECS["video"] if it.parameters.get("apt") in numbers]

peers = {}


def say(**what):
    print(json.dumps(what), flush=True)


def look(frame):
    """The middle of each of the eight bars, half way down."""
    plane = frame.reformat(format="rgb24").planes[0]
    data, row = bytes(plane), frame.height // 2 * plane.line_size
    at = [row + (bar * 2 + 1) * frame.width // 16 * 3 for bar in range(8)]
    return {"width": frame.width, "height": frame.height, "bars": [list(data[i : i + 3]) for i in at]}


def marker(frame):
    """The number in the picture's corner, as `media::capture::counter` paints it; None when it is unreadable."""
    plane = frame.reformat(format="gray").planes[0]
    data, size = bytes(plane), plane.line_size
    word = 0
    for column in range(24):
        x = column * 16 + 8
        difference = data[8 * size + x] - data[24 * size + x]
        if abs(difference) < 64:
            return None
        word = word * 2 + (difference > 0)
    counter, check = word >> 4 & 0xFFFF, 0b0101
    for shift in (12, 8, 4, 0):
        check ^= counter >> shift & 0xF
    return counter if word >> 20 == 0b1010 and word & 0xF == check else None


async def watch(track):
    counters = []
    try:
        while True:
            frame = await track.recv()
            counters.append(marker(frame))
            if len(counters) == ENOUGH:
                say(event="playing", frames=len(counters), counters=counters, last=look(frame))
    except MediaStreamError:
        say(event="over", frames=len(counters))


async def offered(sdp):
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    peer.on("track", lambda track: asyncio.ensure_future(watch(track)))
    await peer.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
    await peer.setLocalDescription(await peer.createAnswer())
    name = f"/resource/{len(peers)}"
    peers[name] = peer
    return name, peer.localDescription.sdp


async def answer(method, path, headers, body):
    if headers.get("authorization") != f"Bearer {TOKEN}":
        return 401, {}, ""
    if method == "POST" and path.startswith("/whip"):
        say(event="offered", directions=[line for line in body.splitlines() if line in ("a=sendonly", "a=sendrecv")],
            codecs=[line.split()[1] for line in body.splitlines() if line.startswith("a=rtpmap:")],
            content_type=headers.get("content-type"))
        name, sdp = await offered(body)
        return 201, {"Location": name, "Content-Type": "application/sdp", "ETag": '"1"'}, sdp
    if method == "DELETE" and path in peers:
        say(event="deleted", state=peers[path].connectionState)
        await peers.pop(path).close()
        return 200, {}, ""
    return 405 if path in peers else 404, {}, ""


async def serve(reader, writer):
    try:
        method, path, _ = (await reader.readline()).decode().split()
        headers = {}
        while (line := (await reader.readline()).decode().strip()):
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        body = (await reader.readexactly(int(headers.get("content-length", 0)))).decode()
        status, more, text = await answer(method, path, headers, body)
        head = [f"HTTP/1.1 {status} -", f"Content-Length: {len(text)}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in more.items()]
        writer.write(("\r\n".join(head) + "\r\n\r\n" + text).encode())
        await writer.drain()
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", PORT)
    say(event="listening", port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


asyncio.run(main())
