"""Open the dashboard of a run, if the package that draws it is installed."""

from __future__ import annotations

from grpo_core.protocol.errors import MissingExtraError
from grpo_core.report.html.opened import OpenRun


def show_in_terminal(run: OpenRun) -> None:
    """Show a run in the terminal until a key ends it.

    Raises:
        MissingExtraError: textual is not installed.
    """
    try:
        from grpo_core.report.terminal.dashboard import Dashboard
    except ModuleNotFoundError as error:
        raise MissingExtraError("grpo watch --text", "watch", package=error.name or "") from None
    Dashboard(run).run()
