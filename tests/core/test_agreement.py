"""Whether a judge agrees with people."""

from __future__ import annotations

import asyncio

import pytest

from grpo_core import JudgeRequest
from grpo_core.protocol.errors import GrpoError
from grpo_core.report.agreement import Pair, agreement
from grpo_core.testing import FakeJudge

PAIRS = [Pair(JudgeRequest("good"), JudgeRequest("bad"))]


def test_a_judge_that_raises_is_one_error_of_its_own() -> None:
    def broken(request: JudgeRequest) -> float:
        raise ZeroDivisionError("no score")

    with pytest.raises(GrpoError, match="the judge failed: ZeroDivisionError: no score"):
        asyncio.run(agreement(FakeJudge(broken), PAIRS))


def test_a_pair_is_right_if_the_better_text_has_the_higher_score() -> None:
    found = asyncio.run(
        agreement(FakeJudge(lambda request: float(request.candidate == "good")), PAIRS)
    )
    assert (found.right, found.tied, found.wrong, found.failed) == (1, 0, 0, 0)
