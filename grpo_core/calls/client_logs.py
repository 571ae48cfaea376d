"""Remove keys from what the HTTP client logs: at its lower levels it repeats response headers."""

from __future__ import annotations

import logging

from grpo_core.calls.redaction import MAX_SCANNED_CHARS, Redactor

_PARTS = ("connection", "http11", "http2", "proxy", "socks")
_CORES = ("httpcore", "httpcore2")
_LOGGERS = ["httpx", "httpx2", *(f"{core}.{part}" for core in _CORES for part in _PARTS)]
"""A logger's filters do not apply to its children, so each logger is listed."""


class _Redacting(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.redactors = dict[str, Redactor]()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for redact in self.redactors.values():
            text = redact(text, max_chars=MAX_SCANNED_CHARS)
        record.msg, record.args = text, ()
        return True


_FILTER = _Redacting()


def redact_client_logs(key: str, redact: Redactor) -> None:
    """Apply `redact` to all logs of the HTTP client, once for each key."""
    _FILTER.redactors.setdefault(key, redact)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
