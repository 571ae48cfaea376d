"""Ask work that is in progress to end soon."""

from __future__ import annotations


class StopRequest:
    """Ask work that is in progress to end soon; the first reason counts."""

    def __init__(self) -> None:
        self.is_made = False
        self.reason = ""

    def make(self, reason: str = "a stop was requested") -> None:
        """Request the stop."""
        self.reason = self.reason or reason
        self.is_made = True

    def withdraw(self) -> None:
        """Forget the request, which has been fulfilled."""
        self.is_made, self.reason = False, ""
