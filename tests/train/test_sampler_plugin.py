"""A run draws its completions with the sampler of a plugin, which lives outside of the repository: the one that `grpo new` writes."""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Trainer, build_config
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.weights import model_to_sample
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.run.stopping import Stopping

from ..core.distributions import grpo, install
from .arrange import run_config, tiny_policy
from .letters import Letters
from .runs import Heard, small_settings
from .tiny import save_tiny

ENGINES = """
from dataclasses import replace

from grpo_sampler_my_engine.sampler import MyEngineSampler


class Half(MyEngineSampler):
    'Claims log-probs that are off by a fixed amount.'

    by = 0.5

    async def generate(self, request):
        completion = await super().generate(request)
        return replace(completion, logprobs=tuple(x - self.by for x in completion.logprobs))


class Far(Half):
    by = 3.0


class Resting(MyEngineSampler):
    'Keeps nothing while the policy is trained.'

    rests = 0

    async def rest(self):
        type(self).rests += 1
        self._engine = None
"""
PLUGIN = """
from grpo_core import Spec, hookimpl


@hookimpl
def grpo_samplers():
    names = {"off-half": "Half", "off-far": "Far", "resting": "Resting"}
    own = Spec("my-engine", "grpo_sampler_my_engine.sampler:MyEngineSampler", summary=".")
    return [own, *(Spec(name, f"engines:{kind}", summary=".") for name, kind in names.items())]
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of an installed sampler."""
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(site)
        patch.syspath_prepend(site)
        assert grpo("new", "sampler", "my-engine", "--out", str(site / "project")).exit_code == 0
        patch.syspath_prepend(site / "project")
        install(
            site,
            "grpo-sampler-my-engine",
            entry_points={"my-engine": "plugin_my_engine"},
            modules={"plugin_my_engine": PLUGIN, "engines": ENGINES},
        )
        yield "my-engine"


def trained(
    folder: Path, name: str, *, observer: Observer | None = None, **more: Any
) -> tuple[Trainer, Sequence[dict[str, Any]], list[dict[str, Any]]]:
    """The trainer of a finished run, the lines of its steps and of its rollouts."""
    small = {
        "sampler": {"name": name},
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 4,
        "sampling": {"max_new_tokens": 5},
        "eval": {"tasks": 2},
        "optimizer": {"lr": 0.02},
    }
    config = build_config([small_settings(save_tiny(folder / "model")), small, more])
    run = folder / "run"
    trainer = Trainer(config, Letters(), folder=run, host=PluginHost(), observer=observer)
    trainer.run()
    lines = [line for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    return trainer, lines, list(RunFolder(run).rollout_lines())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("adapter", [True, False])
def test_each_step_is_drawn_with_the_weights_after_the_one_before(plugin, tmp_path, adapter):
    _, steps, rollouts = trained(tmp_path, plugin, lora={"enabled": adapter})
    assert max(line["sampling/logprob_gap"] for line in steps) < 1e-4  # weights move by 0.02 a step
    assert all(line["time/sync"] > 0 for line in steps)
    versions = {(line["step"], line["key"]["split"]): tuple(line["versions"]) for line in rollouts}
    train = {(step, "train"): (step - 1,) for step in (1, 2)}
    assert versions == {(0, "eval"): (0,), **train, (2, "eval"): (2,)}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["sampler"]["name"], config["loss"]["tis_cap"]) == (plugin, 2.0)
    assert "draws that a replay does not repeat" in (tmp_path / "run" / "log.txt").read_text()


def test_a_sampler_leaves_the_device_to_each_update(plugin: str, tmp_path: Path) -> None:
    """And a cap that was set stays."""
    trainer, steps, _ = trained(tmp_path, "resting", loss={"tis_cap": 1.5})
    assert importlib.import_module("engines").Resting.rests == len(steps) == 2
    assert max(line["sampling/logprob_gap"] for line in steps) < 1e-4
    assert trainer.config.loss.tis_cap == 1.5


def test_a_sampler_is_told_the_rank_of_the_adapter_that_the_model_has(tmp_path: Path) -> None:
    policy, rank = tiny_policy(), run_config().lora.r
    source = ModelSource("tiny", str(tmp_path))
    described = model_to_sample(run_config(lora={"r": rank + 1}), policy, source)
    assert described.adapter_rank == rank
    without = model_to_sample(run_config(), tiny_policy(adapter=False), source)
    assert without.adapter_rank is None


@pytest.mark.slow
def test_a_cap_of_0_stays_too_and_the_builtin_sampler_has_none(plugin: str, tmp_path: Path) -> None:
    for name, loss, cap in ((plugin, {"tis_cap": 0.0}, 0.0), ("builtin", {}, None)):
        trainer, _, rollouts = trained(tmp_path / name, name, steps=1, loss=loss)
        assert trainer.config.loss.tis_cap == cap
        assert rollouts[-1]["versions"] == [1]


def test_log_probs_that_are_not_the_trainers_warn_or_refuse_the_run(plugin, tmp_path):
    heard = Heard()
    trained(tmp_path / "half", "off-half", observer=heard, steps=1)
    assert "'off-half' and of the trainer differ by 0.5 nats" in " ".join(heard.warnings)
    with pytest.raises(ConfigError, match="differ by 3 nats per token"):
        trained(tmp_path / "far", "off-far")
    assert not (tmp_path / "far" / "run").exists()


def test_a_gap_that_explodes_stops_the_run() -> None:
    config = build_config([{"environment": "letters", "stop": {"max_logprob_gap": 0.5}}])
    stopping = Stopping(config)
    *before, reason = (
        stopping.look({"step": step, "sampling/logprob_gap": gap, "reward/mean": 0.0})
        for step, gap in enumerate((0.1, 0.1, 0.6, 0.7, 0.8, 0.9))
    )
    assert before == [None] * 5
    assert reason is not None
    assert "differed by 0.62 nats per token over 5 steps" in reason


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"name": "my-engin"}, "my-engine"),
        ({"name": "my-engine", "settings": {"cash": 1}}, "sampler.settings.cache"),
        ({"settings": {"cache": False}}, "sampler.settings are for an engine that a plugin offers"),
    ],
)
def test_a_wrong_name_or_setting_is_one_line_before_the_model_is_loaded(
    plugin, tmp_path, sampler, message
):
    settings = [f"--set=sampler.{key}={json.dumps(value)}" for key, value in sampler.items()]
    result = grpo(
        "run", "--env=arithmetic", "--model=nowhere/no-such-model", f"--out={tmp_path / 'run'}",
        *(text.replace('"', "") if "name" in text else text for text in settings),
    )  # fmt: skip
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "no-such-model" not in result.stderr
    assert not (tmp_path / "run").exists()
