"""Captures with pixelflux and writes access units as source.rs describes."""

import os
import struct
import sys
import threading

from pixelflux import CaptureSettings, ScreenCapture

# It logs to stdout, which is where the access units go.
units = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

width, height, fps, quantizer = map(int, sys.argv[1:])

settings = CaptureSettings()
settings.capture_width = width
settings.capture_height = height
settings.capture_x = 0
settings.capture_y = 0
settings.capture_cursor = False
settings.target_fps = float(fps)
settings.codec = "h264"
settings.use_cpu = True
settings.video_crf = quantizer
settings.video_fullframe = True
settings.omit_stripe_headers = True


def on_frame(frame):
    # Its own time stamp: when the encoder was done, before Python was involved.
    unit = bytes(frame)
    units.write(struct.pack("<QI", frame.encode_end_ns, len(unit)) + unit)
    units.flush()


capture = ScreenCapture()
capture.start_capture(on_frame, settings)
threading.Event().wait()
