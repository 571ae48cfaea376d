"""What all tests start from."""

from __future__ import annotations

import os
import signal

# Models of a few thousand weights: several threads would only wait for one another, here and in every child.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the tests in the background leaves Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
