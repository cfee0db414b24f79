"""The published Cua client, from adding a Space to closing a stream; one line of JSON a step."""

import asyncio
import json
import os
import sys
import threading

import cua

URL, TOKEN, HOME = sys.argv[1:4]
FRAMES = 30


def say(**step):
    print(json.dumps(step), flush=True)


def failed(error):
    return {"error": type(error).__name__, "message": str(error)}


class Sink(cua.FrameSink):
    """Called from the client's own threads."""

    def __init__(self):
        self.changed = threading.Condition()
        self.frames = []
        self.events = []

    def on_frame(self, frame):
        with self.changed:
            self.frames.append({"sequence": frame.sequence, "keyframe": frame.keyframe, "bytes": len(frame.data)})
            self.changed.notify_all()

    def on_event(self, event):
        with self.changed:
            self.events.append((event.kind, event.json))
            self.changed.notify_all()

    async def reach(self, condition):
        def wait():
            with self.changed:
                return self.changed.wait_for(condition, timeout=8)

        assert await asyncio.to_thread(wait), f"{len(self.frames)} frames, {self.events}"


async def main():
    spaces = cua.embedded(state_dir=f"{HOME}/state", spaces_home=f"{HOME}/spaces").spaces()
    try:
        await spaces.add(URL, TOKEN, "test")
    except Exception as error:
        return say(step="add", **failed(error))
    say(step="added")
    space = await spaces.space("test")

    displays = await space.displays()
    say(displays=[{"id": d.id, "primary": d.primary, "size": [d.width_px, d.height_px]} for d in displays])
    try:
        say(windows=len(await space.windows(None)))
    except Exception as error:
        say(step="windows", **failed(error))

    stream = await space.open_stream(cua.SpaceStreamOptions(display="test-pattern", codecs=["h264"]))
    say(codec=stream.codec, wire_version=stream.wire_version, size=[stream.width, stream.height])

    sink = Sink()
    session = await space.attach_stream(stream, sink, None)
    await sink.reach(lambda: len(sink.frames) >= FRAMES)
    kinds = [kind for kind, _ in sink.events]
    say(frames=sink.frames[:FRAMES], events=kinds, malformed=session.stats().malformed)

    start = len(sink.frames)
    session.send_control('{"type":"request_keyframe","payload":{}}')
    await sink.reach(lambda: any(frame["keyframe"] for frame in sink.frames[start:]))
    say(keyframe=True)

    await space.close_stream(stream.media_session_id)
    await sink.reach(lambda: sink.events[-1][0] == "closed")
    say(close_code=json.loads(sink.events[-1][1])["code"])
    for step, call in [
        ("close", lambda: space.close_stream(stream.media_session_id)),
        ("attach", lambda: space.attach_stream(stream, Sink(), None)),
    ]:
        try:
            await call()
            say(step=step, error=None)
        except Exception as error:
            say(step=step, **failed(error))


def run(script):
    """Runs a script and exits with what became of it."""
    status = 0
    try:
        asyncio.run(script())
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        status = 1
    # A thread of the client may still run, and an orderly exit would abort the interpreter.
    os._exit(status)


if __name__ == "__main__":
    run(main)
