"""`grpo env probe` tells with SmolLM2-135M what training would have told after an hour: words backwards are beyond it, small sums are not.

Heavy: the model is fetched if it is not in the cache, and attempts 384 tasks in all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app

from ..commandline import words

pytestmark = pytest.mark.heavy
REVERSE = f"{Path(__file__).parents[2] / 'examples' / '02_write_an_environment.py'}:Reverse"


def probed(name: str) -> tuple[int, Any]:
    """Status and report of 24 x 8 attempts at the easiest level."""
    done = CliRunner().invoke(
        app, ["env", "probe", name, *words("--model smollm2-135m --level 0 --tasks 24 --json")]
    )
    return done.exit_code, json.loads(done.stdout)


def test_words_backwards_are_untrainable_although_their_rewards_differ() -> None:
    status, found = probed(REVERSE)
    (level,) = found["levels"]
    assert (status, found["trainable"]) == (1, False)
    assert "an attempt that passes, so there is no success to learn from" in found["reason"]
    assert level["mixed_reward"] > 0.2


def test_small_sums_are_trainable() -> None:
    status, found = probed("arithmetic")
    (level,) = found["levels"]
    assert (status, found["trainable"], found["level"]) == (0, True, 0.0)
    assert 0.03 < level["pass_rate"] < 0.2
    assert level["pass_at"]["8"] > 0.3
    assert found["group_size"] in (8, 16)
    assert found["max_new_tokens"] <= 24
