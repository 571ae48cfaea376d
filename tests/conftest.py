"""What all tests start from."""

from __future__ import annotations

import os
import signal

import pytest

# Models of a few thousand weights: several threads would only wait for one another, here and in every child.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the tests in the background leaves Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep notes of what was trusted out of the home folder, here and in every child."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each file stays with one process, and files that count or kill the machine's jails (group "jails") with the same one."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
