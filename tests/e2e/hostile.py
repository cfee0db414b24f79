"""WHEP clients that mean harm, or are broken; one line of JSON when they are done.

Made of aiortc and aioice, so that what they get as far as is real: a signed ICE check, a whole connection.
"""

import asyncio
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request

import aioice
from aioice import stun
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

WHAT, ENDPOINT, TOKEN = sys.argv[1:]


def http(method, url, body=None):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/sdp"}
    request = urllib.request.Request(url, body and body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read().decode()


async def post(offer):
    status, headers, answer = await asyncio.to_thread(http, "POST", ENDPOINT, offer)
    assert status == 201, (status, answer)
    return urllib.parse.urljoin(ENDPOINT, headers["location"]), answer


def value(sdp, name):
    return next(line.split(":", 1)[1] for line in sdp.splitlines() if line.startswith(f"a={name}:"))


async def pli():
    """Asks for keyframes as fast as it can, for three seconds."""
    peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    transceiver = peer.addTransceiver("video", direction="recvonly")
    tracks = asyncio.get_running_loop().create_future()
    peer.on("track", tracks.set_result)
    await peer.setLocalDescription(await peer.createOffer())
    resource, answer = await post(peer.localDescription.sdp)
    await peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    track = await tracks
    await track.recv()
    receiver, sent = transceiver.receiver, 0
    source = next(iter(receiver._RTCRtpReceiver__active_ssrc))
    end = asyncio.get_running_loop().time() + 3
    while asyncio.get_running_loop().time() < end:
        for _ in range(50):
            await receiver._send_rtcp_pli(source)
            sent += 1
        await asyncio.sleep(0)
    await asyncio.to_thread(http, "DELETE", resource)
    await peer.close()
    return {"sent": sent}


OFFER = """v=0
o=- 42 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0
m=video 9 UDP/TLS/RTP/SAVPF 109
c=IN IP4 0.0.0.0
a=ice-ufrag:{ufrag}
a=ice-pwd:{pwd}
a=fingerprint:sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF
a=setup:active
a=mid:0
a=recvonly
a=rtcp-mux
a=rtpmap:109 H264/90000
a=fmtp:109 packetization-mode=1;profile-level-id=42e01f
{candidates}""".replace("\n", "\r\n")


async def no_dtls():
    """Connects, and then never says a word of DTLS. Returns what the server says of that."""
    ice = aioice.Connection(ice_controlling=True, use_ipv6=False)
    await ice.gather_candidates()
    lines = "".join(f"a=candidate:{it.to_sdp()}\r\n" for it in ice.local_candidates)
    offer = OFFER.format(ufrag=ice.local_username, pwd=ice.local_password, candidates=lines)
    resource, answer = await post(offer)
    ice.remote_username, ice.remote_password = value(answer, "ice-ufrag"), value(answer, "ice-pwd")
    for line in answer.splitlines():
        if line.startswith("a=candidate:") and " udp " in line.lower():
            await ice.add_remote_candidate(aioice.Candidate.from_sdp(line.split(":", 1)[1]))
    await ice.add_remote_candidate(None)
    await ice.connect()
    print(json.dumps({"connected": True}), flush=True)
    for _ in range(300):
        status, _, body = await asyncio.to_thread(http, "GET", resource)
        if status != 204:
            await ice.close()
            return {"status": status, "cause": json.loads(body).get("cause")}
        await asyncio.sleep(0.1)
    return {"status": 204}


async def checks():
    """Ten thousand checks with each of three sorts of names and signatures, from many ports."""
    offer = OFFER.format(ufrag="abcd", pwd="0123456789012345678901", candidates="")
    resource, answer = await post(offer)
    ufrag, pwd = value(answer, "ice-ufrag"), value(answer, "ice-pwd")
    line = next(it for it in answer.splitlines() if it.startswith("a=candidate:") and " udp " in it.lower())
    to = (line.split()[4], int(line.split()[5]))
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(200)]
    sent = 0
    for name, key in [("nobody:abcd", pwd), (f"{ufrag}:abcd", "wrong"), (f"{ufrag}:abcd", pwd)]:
        for number in range(10_000):
            check = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
            check.attributes["USERNAME"] = name
            check.attributes["PRIORITY"] = 1
            check.attributes["ICE-CONTROLLING"] = 1
            check.add_message_integrity(key.encode())
            sockets[number % len(sockets)].sendto(bytes(check), to)
            sent += 1
            if number % 100 == 0:
                await asyncio.sleep(0)
    status, _, _ = await asyncio.to_thread(http, "DELETE", resource)
    return {"sent": sent, "deleted": status}


print(json.dumps(asyncio.run({"pli": pli, "no_dtls": no_dtls, "checks": checks}[WHAT]())), flush=True)
# What aiortc leaves running must not keep the test waiting.
os._exit(0)
