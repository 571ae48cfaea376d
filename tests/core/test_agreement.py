"""Whether a judge agrees with people."""

import asyncio

import pytest

from grpo_core import JudgeRequest
from grpo_core.protocol.errors import GrpoError
from grpo_core.testing import FakeJudge
from grpo_judge.agreement import Pair, agreement

PAIRS = [Pair(JudgeRequest("good"), JudgeRequest("bad"))]


def test_a_judge_that_raises_is_one_error_of_its_own() -> None:
    def broken(request: JudgeRequest) -> float:
        raise ZeroDivisionError("no score")

    with pytest.raises(GrpoError, match="the judge failed: ZeroDivisionError: no score"):
        asyncio.run(agreement(FakeJudge(broken), PAIRS))


@pytest.mark.parametrize(
    ("good", "counts"), [(1.0, (1, 0, 0)), (0.1 + 0.2, (0, 1, 0))], ids=["more", "more by rounding"]
)
def test_a_pair_is_right_if_the_better_text_has_the_higher_score(
    good: float, counts: tuple[int, int, int]
) -> None:
    judge = FakeJudge(lambda request: good if request.candidate == "good" else 0.3)
    found = asyncio.run(agreement(judge, PAIRS))
    assert (found.right, found.tied, found.wrong, found.failed) == (*counts, 0)
