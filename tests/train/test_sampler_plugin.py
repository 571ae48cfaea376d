"""A run draws its completions with the sampler of a plugin, which lives outside of the repository: the one that `grpo new` writes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.models.load import ModelSource
from grpo_core.train.policy.weights import model_to_sample
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.trainer import Trainer

from ..core.distributions import grpo, install
from .arrange import run_config, tiny_policy
from .letters import Letters
from .tiny import save_tiny

BROKEN = """
from {package}.sampler import {name} as Sound


class Off(Sound):
    'Claims log-probs that are off by a fixed amount.'

    by = {by}

    async def generate(self, request):
        from dataclasses import replace

        completion = await super().generate(request)
        return replace(completion, logprobs=tuple(x - self.by for x in completion.logprobs))
"""


RESTING = """
from grpo_sampler_my_engine.sampler import MyEngineSampler


class Resting(MyEngineSampler):
    'Keeps nothing while the policy is trained.'

    rests = 0

    async def rest(self):
        type(self).rests += 1
        self._engine = None
"""


class Listener(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of an installed sampler."""
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(site)
        patch.syspath_prepend(site)
        assert grpo("new", "sampler", "my-engine", "--out", str(site / "project")).exit_code == 0
        patch.syspath_prepend(site / "project")
        for name, by in (("half", 0.5), ("far", 3.0)):
            source = BROKEN.format(package="grpo_sampler_my_engine", name="MyEngineSampler", by=by)
            (site / f"off_{name}.py").write_text(source)
        (site / "resting.py").write_text(RESTING)
        offers = "\n".join(
            f"        Spec({name!r}, {target!r}, summary='.'),"
            for name, target in (
                ("my-engine", "grpo_sampler_my_engine.sampler:MyEngineSampler"),
                ("off-half", "off_half:Off"),
                ("off-far", "off_far:Off"),
                ("resting", "resting:Resting"),
            )
        )
        install(
            site,
            "grpo-sampler-my-engine",
            entry_points={"my-engine": "plugin_my_engine"},
            modules={
                "plugin_my_engine": "from grpo_core import Spec, hookimpl\n\n\n@hookimpl\n"
                f"def grpo_samplers():\n    return [\n{offers}\n    ]\n"
            },
        )
        yield "my-engine"


def trained(
    folder: Path, name: str, *, listener: Observer | None = None, **more: Any
) -> tuple[Trainer, Sequence[dict[str, Any]], list[dict[str, Any]]]:
    """The trainer of a finished run, the lines of its steps and of its rollouts."""
    config = build_config(
        [
            {
                "environment": "letters",
                "model": {"name": str(save_tiny(folder / "model")), "dtype": "float32"},
                "sampler": {"name": name},
                "steps": 3,
                "prompts_per_step": 2,
                "group_size": 4,
                "sampling": {"max_new_tokens": 5},
                "eval": {"tasks": 2},
                "optimizer": {"lr": 0.02},
                **more,
            }
        ]
    )
    trainer = Trainer(
        config, Letters(), folder=RunFolder(folder / "run"), host=PluginHost(), observer=listener
    )
    trainer.run()
    lines = [line for line in read_lines(folder / "run" / "metrics.jsonl") if "loss" in line]
    return trainer, lines, list(RunFolder(folder / "run").rollout_lines())


@pytest.mark.parametrize("adapter", [True, False])
def test_each_step_is_drawn_with_the_weights_after_the_one_before(
    plugin: str, tmp_path: Path, adapter: bool
) -> None:
    listener = Listener()
    _, steps, rollouts = trained(tmp_path, plugin, listener=listener, lora={"enabled": adapter})
    assert max(line["sampling/logprob_gap"] for line in steps) < 1e-4  # weights move by 0.02 a step
    assert all(line["time/sync"] > 0 for line in steps)
    versions = {(line["step"], line["key"]["split"]): tuple(line["versions"]) for line in rollouts}
    assert versions == {
        (0, "eval"): (0,),
        **{(step, "train"): (step - 1,) for step in (1, 2, 3)},
        (3, "eval"): (3,),
    }
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["sampler"]["name"], config["loss"]["tis_cap"]) == (plugin, 2.0)
    assert "draws that a replay does not repeat" in (tmp_path / "run" / "log.txt").read_text()


def test_a_sampler_leaves_the_device_to_each_update(plugin: str, tmp_path: Path) -> None:
    _, steps, _ = trained(tmp_path, "resting")
    assert importlib.import_module("resting").Resting.rests == len(steps) == 3
    assert max(line["sampling/logprob_gap"] for line in steps) < 1e-4


def test_a_sampler_is_told_the_rank_of_the_adapter_that_the_model_has(tmp_path: Path) -> None:
    policy, rank = tiny_policy(), run_config().lora.r
    source = ModelSource("tiny", str(tmp_path))
    described = model_to_sample(run_config(lora={"r": rank + 1}), policy, source)
    assert described.adapter_rank == rank
    without = model_to_sample(run_config(), tiny_policy(adapter=False), source)
    assert without.adapter_rank is None


def test_a_cap_that_was_set_stays_and_the_builtin_sampler_has_none(
    plugin: str, tmp_path: Path
) -> None:
    for name, cap, wanted in ((plugin, 0.0, 0.0), (plugin, 1.5, 1.5), ("builtin", None, None)):
        loss = {} if cap is None else {"tis_cap": cap}
        folder = tmp_path / f"{name}-{cap}"
        trainer, _, rollouts = trained(folder, name, steps=1, loss=loss)
        assert trainer.config.loss.tis_cap == wanted
        assert rollouts[-1]["versions"] == [1]


def test_log_probs_that_are_not_the_trainers_warn_or_refuse_the_run(
    plugin: str, tmp_path: Path
) -> None:
    listener = Listener()
    trained(tmp_path / "half", "off-half", listener=listener, steps=1)
    assert "'off-half' and of the trainer differ by 0.5 nats" in " ".join(listener.warned)
    with pytest.raises(ConfigError, match="differ by 3 nats per token"):
        trained(tmp_path / "far", "off-far")
    assert not (tmp_path / "far" / "run").exists()


def test_a_gap_that_explodes_stops_the_run() -> None:
    stopping = Stopping(
        build_config([{"environment": "letters", "stop": {"max_logprob_gap": 0.5}}])
    )
    reasons = [
        stopping.look({"step": step, "sampling/logprob_gap": gap, "reward/mean": 0.0})
        for step, gap in enumerate((0.1, 0.1, 0.6, 0.7, 0.8, 0.9))
    ]
    assert reasons[:5] == [None] * 5
    assert reasons[5] is not None
    assert "differed by 0.62 nats per token over 5 steps" in reasons[5]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"name": "my-engin"}, "my-engine"),
        ({"name": "my-engine", "settings": {"cash": 1}}, "sampler.settings.cache"),
        ({"settings": {"cache": False}}, "sampler.settings are for an engine that a plugin offers"),
    ],
)
def test_a_wrong_name_or_setting_is_one_line_before_the_model_is_loaded(
    plugin: str, tmp_path: Path, sampler: dict[str, Any], message: str
) -> None:
    settings = [f"--set=sampler.{key}={json.dumps(value)}" for key, value in sampler.items()]
    result = grpo(
        "run", "--env=arithmetic", "--model=nowhere/no-such-model", f"--out={tmp_path / 'run'}",
        *(text.replace('"', "") if "name" in text else text for text in settings),
    )  # fmt: skip
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "no-such-model" not in result.stderr
    assert not (tmp_path / "run").exists()
