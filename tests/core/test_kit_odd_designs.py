"""The kit leaves sound environments alone that look odd, and still finds their faulty variants."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment
from grpo_core.testing import check_environment

sys.path.insert(0, str(Path(__file__).parent))

import planted_odd


@pytest.mark.parametrize(("sound", "check"), planted_odd.SOUND.items())
def test_a_sound_environment_is_valid(sound: type[Environment[Any]], check: str) -> None:
    (result,) = check_environment(sound(), only=[check], isolation="inline").results
    assert result.status == "valid", result.message


@pytest.mark.parametrize(("faulty", "check"), planted_odd.FAULTS.items())
def test_its_faulty_variant_is_found(faulty: type[Environment[Any]], check: str) -> None:
    report = check_environment(faulty(), only=[check], isolation="inline")
    assert any(result.severity == "fault" for result in report.problems), str(report)
