"""The published Cua client and windows: list them, stream one by id and by app name, see it close."""

import asyncio
import json
import sys

import cua

from cua_client import Sink, failed, run, say

URL, TOKEN, HOME = sys.argv[1:4]


async def main():
    spaces = cua.embedded(state_dir=f"{HOME}/state", spaces_home=f"{HOME}/spaces").spaces()
    await spaces.add(URL, TOKEN, "test")
    space = await spaces.space("test")
    windows = await space.windows(None)
    say(windows=[{"epoch": w.epoch, "title": w.title, "app": w.app_name} for w in windows])

    sinks, attached = [], []
    for choice in [{"window_id": windows[0].window_id}, {"app_name": windows[1].app_name}]:
        stream = await space.open_stream(cua.SpaceStreamOptions(codecs=["h264"], **choice))
        sink = Sink()
        attached.append(await space.attach_stream(stream, sink, None))  # one that is dropped detaches
        await sink.reach(lambda: len(sink.frames) >= 10)
        say(size=[stream.width, stream.height], first=sink.frames[0], frames=len(sink.frames))
        sinks.append(sink)

    try:
        await space.open_stream(cua.SpaceStreamOptions(window_id="w999"))
        say(error=None)
    except Exception as error:
        say(**failed(error))

    say(step="close the second")
    await asyncio.to_thread(sys.stdin.readline)
    await sinks[1].reach(lambda: sinks[1].events[-1][0] == "closed")
    lifecycle = [json.loads(text)["payload"] for kind, text in sinks[1].events if kind == "lifecycle"]
    say(close_code=json.loads(sinks[1].events[-1][1])["code"], lifecycle=lifecycle[-1]["event"])
    seen = len(sinks[0].frames)
    await sinks[0].reach(lambda: len(sinks[0].frames) > seen)
    say(other="still plays")


run(main)
