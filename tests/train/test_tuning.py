"""Sizes that depend on the device: a GPU's are simulated on a CPU."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config, find_setting, nested
from grpo_core.config.sizes import DEVICE_SIZES as KEYS
from grpo_core.engine.compute.tuning import CPU, Tuning, gpu_tuning, tuning_of
from grpo_core.runs.folder import RunFolder
from grpo_core.train.actor import Actor
from grpo_core.train.run.measure import decoded_together
from grpo_core.train.trainer import Trainer

from .runs import Heard
from .trained import trained

GIB = 2**30


def sizes(tuning: Tuning) -> tuple[int, ...]:
    return tuple(getattr(tuning, key.partition(".")[2]) for key in KEYS)


@pytest.mark.parametrize(
    ("gib", "weights", "expected"),
    [
        (80, 500_000_000, (1024, 20480, 32768, 1024)),
        (80, 7_000_000_000, (1024, 20480, 2048, 1024)),
        (24, 500_000_000, (256, 6144, 2048, 307)),
        (4, 100_000_000, (256, 1024, 2048, 64)),
    ],
)
def test_the_sizes_of_a_gpu_follow_its_memory_and_the_model(gib, weights, expected) -> None:
    tuning = gpu_tuning(gib * GIB, weights=weights)
    assert sizes(tuning) == expected
    assert tuning.cuda_graphs


def test_a_device_that_is_no_cuda_device_has_the_sizes_of_a_cpu() -> None:
    for name in ("cpu", "mps"):
        assert tuning_of(torch.device(name), weights=1) is CPU
    assert sizes(CPU) == (256, 4096, 2048, 64)
    assert not CPU.cuda_graphs


def test_the_settings_explain_the_rule() -> None:
    large, small = (gpu_tuning(gib * GIB, weights=1) for gib in (80, 24))
    for key in KEYS:
        ((_, info),) = find_setting(key)
        assert info.default is None
        text = " ".join((info.description or "").split())
        assert "Unset: by the device" in text
        assert "never measured" in text or "measured on an H200" in text
        name = key.partition(".")[2]
        named = {int(number) for number in re.findall(r"\d+", text)}
        shares = {"kv_mb": "a quarter of the memory", "logits_mb": "an 80th of the memory"}
        expected = {getattr(CPU, name)}
        if name in shares:
            assert shares[name] in text
        else:
            expected |= {getattr(large, name), getattr(small, name)}
        assert expected <= named


def test_the_documentation_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "grpo_core/engine/README.md").read_text()
    section = page.partition("## Defaults by device")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\S+)` \| (\d+) \|", section, re.M))
    assert {key: int(number) for key, number in rows.items()} == dict(
        zip(KEYS, sizes(CPU), strict=True)
    )


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "grpo_core.engine.policy.log_probs.tuning_of",
        lambda device, *, weights: gpu_tuning(80 * GIB, weights=weights),
    )


def short_run(settings: dict[str, Any], folder: Path, **changes: Any) -> tuple[Trainer, Heard]:
    few = {"steps": 1, "group_size": 2, "eval": {"tasks": 2}}
    return trained(folder, settings, few, nested(changes))


def recorded(folder: Path) -> tuple[int, ...]:
    config = RunFolder.open(folder).config()
    return tuple(config[section][name] for section, name in (key.split(".") for key in KEYS))


def test_a_run_records_the_sizes_of_a_cpu_and_says_nothing(settings, tmp_path: Path) -> None:
    _, heard = short_run(settings, tmp_path / "run")
    assert recorded(tmp_path / "run") == sizes(CPU)
    assert not [text for text in heard.texts if "max_rows" in text]


@pytest.mark.usefixtures("on_a_gpu")
def test_on_a_gpu_a_run_records_its_sizes_and_says_so(settings, tmp_path: Path) -> None:
    trainer, heard = short_run(settings, tmp_path / "run")
    assert recorded(tmp_path / "run") == (1024, 20480, 32768, 1024)
    assert trainer.actor.policy.logits_bytes == 2**30
    (line,) = [text for text in heard.texts if "max_rows" in text]
    assert "sampling.max_rows=1024" in line
    assert "the device's default" in line


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_gpu")
def test_a_setting_that_the_user_gives_wins(settings, tmp_path: Path) -> None:
    given = dict(zip(KEYS, (5, 1, 60, 0), strict=True))
    trainer, heard = short_run(settings, tmp_path / "run", **given)
    assert recorded(tmp_path / "run") == (5, 1, 60, 0)
    assert trainer.actor.policy.logits_bytes == 0
    assert not [text for text in heard.texts if "max_rows" in text]


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [False, True])
def test_evaluations_on_a_gpu_sample_as_many_rollouts_as_are_decoded_together(
    settings, tmp_path, monkeypatch, request, gpu
):
    if gpu:
        request.getfixturevalue("on_a_gpu")
    sampled: list[int] = []
    sample_and_verify = Actor.sample_and_verify

    async def counted(self: Actor, tasks_P: Any, **more: Any) -> Any:
        sampled.append(len(tasks_P))
        return await sample_and_verify(self, tasks_P, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", counted)
    trainer, _ = short_run(settings, tmp_path / "run", **{"eval.tasks": 100, "steps": 1})
    assert max(sampled) == (100 if gpu else 64)
    assert decoded_together(trainer.actor) == [(100 if gpu else 64, 1)]


@pytest.mark.slow
def test_a_run_with_stacked_layers_ends_and_trains_the_adapter(settings, tmp_path: Path) -> None:
    trainer, _ = short_run(settings, tmp_path / "run", **{"model.dtype": "bfloat16"})
    policy = trainer.actor.policy
    assert policy.casting.stacks is not None
    # Those matrices of an adapter start as zeros.
    assert all(tensor.any() for name, tensor in policy.trainable() if "lora_B" in name)
    changes = {"trainer.stacked_layers": False, "model.dtype": "bfloat16"}
    plain, _ = short_run(settings, tmp_path / "plain", **changes)
    assert plain.actor.policy.casting.stacks is None


def test_a_run_that_left_stacking_to_the_device_is_read() -> None:
    recorded = {"environment": "letters", "trainer": {"stacked_layers": None}}
    assert build_config([recorded]).trainer.stacked_layers is True
