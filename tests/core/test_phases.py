"""A phase of a preparation is told of while it lasts, and only if it lasts."""

import time

import pytest

from grpo_core.calls import phases


def test_only_a_phase_that_lasts_has_a_line_and_never_after_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phases, "LONG", 0.1)
    lines: list[str] = []
    with phases.phase("measuring memory", lines.append):
        pass
    time.sleep(0.2)
    assert lines == []
    with phases.phase("measuring memory", lines.append):
        time.sleep(0.3)
        assert lines == ["measuring memory ..."]
    assert lines == ["measuring memory ..."]
