"""Open the dashboard of a run, if the package that draws it is installed."""

from __future__ import annotations

from grpo_core import GrpoError, MissingExtraError
from grpo_core.plugins.versions import check_versions
from grpo_report.html.opened import OpenRun


def show_in_terminal(run: OpenRun) -> None:
    """Show a run in the terminal until a key ends it.

    Raises:
        MissingExtraError: textual is not installed.
        VersionError: its version is not supported.
        GrpoError: the screen ended by a fault; its report stands in the terminal.
    """
    check_versions("grpo watch --text", "watch")
    try:
        from grpo_report.terminal.dashboard import Dashboard
    except ModuleNotFoundError as error:
        raise MissingExtraError("grpo watch --text", "watch", package=error.name or "") from None
    dashboard = Dashboard(run)
    dashboard.run()
    if dashboard.return_code:  # Textual prints the fault, and raises nothing
        raise GrpoError(
            "the dashboard ended by the fault that is printed above; "
            "`grpo watch` without --text shows the run in a browser"
        )
