"""The check of the ways to compute is done once for a model, and its stored result is believed no further than needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.ways import DecodingWay, Training

from .tiny import save_tiny


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by each plain forward pass that a check computes."""
    passes: list[int] = []
    plain = Policy.plain_logits
    monkeypatch.setattr(
        Policy, "plain_logits", lambda self, text: (passes.append(1), plain(self, text))[1]
    )
    return passes


def load(settings: dict[str, Any], **more: Any) -> Policy:
    return load_policy(build_config([settings, nested(more)]), need_reference=False)


def assert_fast(policy: Policy) -> None:
    assert (policy.training, policy.sampling) == (Training.TREES, DecodingWay.TREES)
    assert policy.masking is not None
    assert policy.logits_bytes > 0


def files(cache: Path) -> Iterator[Path]:
    return (cache / "checks").glob("*.json")


def test_a_second_run_does_not_check_again(
    settings: dict[str, Any], own_cache: Path, checks: list[int]
) -> None:
    assert_fast(load(settings))
    count = len(checks)
    assert count > 0
    assert_fast(load(settings, seed=7))  # the adapter's numbers are others
    assert len(checks) == count
    assert_fast(load(settings, **{"trainer.self_check": "always"}))
    assert len(checks) == 2 * count
    assert len(list(files(own_cache))) == 1


def test_other_weights_types_and_settings_are_checked_by_themselves(
    settings: dict[str, Any], own_cache: Path, checks: list[int], tmp_path: Path
) -> None:
    load(settings)
    for more in (
        {"model.name": str(save_tiny(tmp_path / "other", seed=9))},
        {"lora.targets": ["q_proj"]},
        {"trainer.shared_prefix": False},
        {"trainer.logits_mb": 1},
        {"model.dtype": "float64"},
    ):
        count = len(checks)
        load(settings, **more)
        assert len(checks) > count, more
    assert len(list(files(own_cache))) == 6


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b"[" * 4000,
        b'{"fast training 0": 1}',
        b'{"x": true}',
        b"{}" + b" " * 10_000,
        None,
    ],
    ids=repr,
)
def test_a_broken_file_is_replaced_by_a_new_check(
    settings: dict[str, Any], own_cache: Path, checks: list[int], content: bytes | None
) -> None:
    load(settings)
    (file,), whole, count = files(own_cache), next(files(own_cache)).read_bytes(), len(checks)
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    assert_fast(load(settings))
    assert len(checks) == 2 * count
    assert content is None or file.read_bytes() == whole


def test_a_file_says_only_which_ways_passed(
    settings: dict[str, Any], own_cache: Path, checks: list[int]
) -> None:
    load(settings)
    (file,), count = files(own_cache), len(checks)
    results = json.loads(file.read_bytes())
    file.write_text(
        json.dumps(dict.fromkeys(results, False))
    )  # nothing passes: that is not believed
    assert_fast(load(settings))
    assert len(checks) == 2 * count
    slow = {
        "fast training 0": False,
        "slow training 0": False,
        "slow training 1": True,
        "slow logits": False,
    }
    file.write_text(json.dumps(slow | {"slow sampling PADDED": True}))
    policy = load(settings)
    assert len(checks) == 2 * count
    assert (policy.training, policy.sampling, policy.logits_bytes) == (
        Training.PADDED,
        DecodingWay.PADDED,
        0,
    )


def test_a_lack_of_memory_is_not_remembered(
    settings: dict[str, Any], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Policy, *_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    computes = Policy.text_logprobs
    monkeypatch.setattr(
        Policy,
        "text_logprobs",
        lambda self, *more: (refuse if self.training is Training.TREES else computes)(self, *more),
    )
    assert load(settings).training is Training.PADDED
    monkeypatch.undo()
    monkeypatch.setenv("GRPO_CACHE", str(own_cache))
    assert_fast(load(settings))


def test_a_cache_that_cannot_be_written_changes_nothing(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "file"))
    assert_fast(load(settings))
