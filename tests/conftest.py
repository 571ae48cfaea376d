"""What all tests start from."""

from __future__ import annotations

import signal

# A shell that runs the tests in the background leaves Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
