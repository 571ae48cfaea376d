"""What all tests start from."""

import asyncio
import gc
import inspect
import os
import signal

import pytest

# Models of a few thousand weights: several threads would only wait for one another, here and in every child.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the tests in the background leaves Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What the tests import are a million objects that stay, which Python would search for garbage again and again.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, but not among what was imported; in the process that collects no tests, too."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run a test that is async in an event loop of its own."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = lambda **arguments: asyncio.run(test(**arguments))


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep notes of what was trusted, and indexes, out of the home folder, here and in every child."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["GRPO_INDEXES"] = str(tmp_path_factory.mktemp("indexes"))


LONGEST = (
    *("test_backends", "test_sessions", "test_kit", "test_episodes", "test_verify", "test_trainer"),
    *("test_judge_blame", "test_docker", "test_bridge", "test_catalogue", "test_trust"),
    *("test_kit_startup", "test_workers", "test_reasoning_gym_protection", "test_kit_answers"),
    *("test_raises_at_answers", "test_jailed_agents", "test_report_browser", "test_ranks"),
)
"""The files that take longest, which begin first: at the end no process waits long for another."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each file with one process, so that its fixtures are made once, and begin with the longest ones.

    Tests that count, kill or break jails know theirs by a mark or have a Docker engine of their own.
    """
    _make_most_cases_slow(items)
    ranks = {stem: rank for rank, stem in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _make_most_cases_slow(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(n)`, leave n evenly spaced cases in the default run, and mark the others `slow`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        (count,) = of_one_test[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
        kept = {index * len(of_one_test) // count for index in range(count)}
        for index, item in enumerate(of_one_test):
            if index not in kept:
                item.add_marker(pytest.mark.slow)
