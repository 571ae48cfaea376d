"""Whole runs on a tiny model: learning, the run folder, resume, stopping, and what is said loudly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import peft
import pytest
import torch
import transformers

from grpo_core import Message, Task, TaskKey
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError, RunStoppedError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.run.checkpoint import checkpoints
from grpo_core.train.trainer import Trainer

from .killing import killed
from .letters import Letters, Raising

TIMED = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")
PER_STEP = {
    "step", "reward/mean", "reward/std", "reward/share", "pass_rate", "advantage/mean", "advantage/std", "loss", "policy_loss", "kl",
    "kl/sequence", "kl_penalty", "beta", "entropy", "logprob/mean", "sampling/logprob_gap", "grad_norm", "lr", "clip_fraction",
    "completion_length/mean", "completion_length/clipped", "groups/mixed", "groups/best", "groups/distinct", "verify/error_rate", "verify/raised",
    "verify/seconds/share",
    "tokens/generated", "tokens/trained", "steps/skipped_nonfinite", "verify/cache_hit_rate", "time/sync", "time/rollout", "time/verify",
    "time/update", "time/step", "memory/peak_mb",
}  # fmt: skip


def documented(names: Iterable[str]) -> list[str]:
    """Metrics that the table on the page of the trainer does not name."""
    page = (Path(__file__).parents[2] / "grpo_core" / "train" / "README.md").read_text()
    section = page.partition("## Metrics\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    known = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    patterns = [
        re.compile(name.replace("PART", "[^/]+").replace("NAME", "[^/]+")) for name in known
    ]
    return [
        name
        for name in names
        if name not in ("step", "kind") and not any(p.fullmatch(name) for p in patterns)
    ]


class Recorder(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": 6, "eval": {"tasks": 12}, "checkpoint": {"every": 2}}


def make(
    settings: dict[str, Any], folder: Path, *, env: Letters | None = None, **more: Any
) -> Trainer:
    config = build_config([settings])
    return Trainer(config, env or Letters(), folder=RunFolder(folder), **more)


def run(settings: dict[str, Any], folder: Path, **more: Any) -> Trainer:
    trainer = make(settings, folder, **more)
    trainer.run()
    return trainer


def gain(trainer: Trainer) -> float:
    """Of the held-out reward, from before the run to after it."""
    lines = read_lines(trainer.folder.path / "metrics.jsonl")
    before, after = (line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line)
    return float(after - before)


def untimed(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if not k.startswith(TIMED)}
        for line in read_lines(path / "metrics.jsonl")
    ]


class Calculating(Letters):
    """Offers a tool, without a word of it in its prompt."""

    max_turns = 2

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, (Message("user", "letters"),), "a")

    def tools(self) -> list[Any]:
        return [add]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def test_tools_that_the_chat_template_would_drop_are_said_loudly(settings, tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for name, more in {
        "deaf": "",
        "able": "{% if tools %}{{ tools[0].function.name }}{% endif %}",
    }.items():
        heard = Recorder()
        model = {**settings["model"], "chat_template": template + more}
        run(
            {**settings, "model": model, "steps": 1, "eval": {"tasks": 0}},
            tmp_path / name,
            env=Calculating(),
            observer=heard,
        )
        assert any("no place for tools" in warning for warning in heard.warnings) == (
            name == "deaf"
        )


def test_a_run_leaves_the_files_that_it_promises(settings, tmp_path):
    trainer = run(settings, tmp_path / "run")
    folder = trainer.folder
    lines = list(read_lines(folder.path / "metrics.jsonl"))
    steps = [line for line in lines if "reward/mean" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert all(line.keys() >= PER_STEP for line in steps)
    assert documented(steps[0].keys()) == []
    assert {line["kind"] for line in steps} == {"step"}
    assert [line["kind"] for line in lines if line["step"] == 0] == ["evaluation"]
    assert [("time/load" in line) for line in steps] == [True] + [False] * 5
    assert [line["step"] for line in lines if "eval/reward/mean" in line] == [0, 6]
    attempts = list(folder.rollout_lines())
    trained = [line for line in attempts if line["key"]["split"] == "train"]
    assert len(trained) == 6 * 4 * 6
    assert all(line["verdict"]["rewards"]["share"]["weight"] == 1.0 for line in attempts)
    assert all(line["advantage"] is None for line in attempts if line["key"]["split"] == "eval")
    recorded = RunConfig.model_validate(folder.config())
    assert recorded.sampling.max_new_tokens == Letters.max_new_tokens
    assert recorded.env == {"fail_below": -1.0}
    assert recorded.provenance["versions"]["torch"] == torch.__version__
    assert (
        recorded.model_copy(
            update={"env": {}, "provenance": {}, "sampling": trainer.config.sampling}
        )
        == trainer.config
    )
    assert folder.finished


def test_the_final_adapter_is_loadable_by_peft_and_is_the_trained_one(
    settings, tmp_path, tiny_folder
):
    trainer = run(settings, tmp_path / "run")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "final")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trainer.actor.policy.model(ids).logits)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "final")("abc")[
        "input_ids"
    ]
    assert "grpo-core" in (tmp_path / "run" / "final" / "README.md").read_text()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2))]
)
def test_a_policy_learns_what_is_rewarded_and_nothing_from_shuffled_rewards(
    settings, tmp_path, seed
):
    learning = {
        **settings,
        "steps": 40,
        "seed": seed,
        "eval": {"tasks": 64},
        "checkpoint": {"every": 0},
    }
    assert gain(run(learning, tmp_path / "real")) > 0.4
    assert (
        gain(run({**learning, "trainer": {"shuffle_rewards": True}}, tmp_path / "shuffled")) < 0.2
    )


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
def test_a_resumed_run_is_bitwise_the_undisturbed_one(settings, tmp_path, optimizer):
    several = {"schedule": {"name": "cosine"}, "trainer": {"mu": 2, "minibatches": 2}}
    settings = {**settings, **several, "optimizer": {"name": optimizer, "lr": 0.01}}
    whole = run(settings, tmp_path / "whole")

    with killed(
        tmp_path / "parts", step=5
    ) as observer:  # step 5 is logged, the last checkpoint is of step 4
        make(settings, tmp_path / "parts", observer=observer).run()
    second = make(settings, tmp_path / "parts")
    assert second.resume() == 4
    second.run()
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")
    expected = dict(whole.actor.policy.trainable())
    assert all(
        torch.equal(expected[name], tensor) for name, tensor in second.actor.policy.trainable()
    )
    texts = [[line["messages"] for line in t.folder.rollout_lines()] for t in (whole, second)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_requested_stop_saves_and_the_run_can_go_on(settings, tmp_path):
    class StopAtThree(Observer):
        trainer: Trainer

        def step(self, step: int, total: int, metrics: Any) -> None:
            if step == 3:
                self.trainer.request_stop()

    observer = StopAtThree()
    trainer = observer.trainer = make(settings, tmp_path / "run", observer=observer)
    trainer.run()
    assert trainer.done == 3
    assert not trainer.folder.finished
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")][
        -1
    ] == "step-000003"
    again = make(settings, tmp_path / "run")
    assert again.resume() == 3
    again.run()
    assert again.folder.finished


def test_a_stop_is_obeyed_once_and_also_if_it_came_before_the_run(settings, tmp_path):
    trainer = make({**settings, "eval": {"tasks": 0}}, tmp_path / "run")
    trainer.request_stop()
    assert trainer.run() == {}
    assert trainer.done == 0
    trainer.run()
    assert trainer.folder.finished


@pytest.mark.slow
@pytest.mark.parametrize(("name", "isolation"), [("letters", "inline"), ("arithmetic", "process")])
def test_a_run_that_was_stopped_goes_on_in_the_same_process(
    settings, tmp_path, caplog, name, isolation
):
    """With workers and a cache of verdicts of its own; to the bit as if it had not been stopped."""
    own = {
        "environment": name,
        "steps": 4,
        "eval": {"tasks": 0},
        "verify": {"isolation": isolation, "cache": "memory"},
    }

    def trainer(folder: str) -> Trainer:
        return Trainer(
            build_config([settings, own]),
            Letters() if name == "letters" else None,
            folder=tmp_path / folder,
        )

    stopped = trainer("stopped")
    stopped.observer.step = lambda number, total, metrics: (
        stopped.request_stop() if number == 2 else None
    )
    stopped.run()
    assert stopped.done == 2
    stopped.run()
    assert stopped.folder.finished
    trainer("whole").run()
    found, whole = (untimed(tmp_path / folder) for folder in ("stopped", "whole"))
    assert found == whole
    assert not caplog.records


def test_a_run_without_environments_has_no_tasks_to_sample(settings, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "completion": "y"}\n')
    config = build_config(
        [
            {
                **settings,
                "environment": None,
                "method": "sft",
                "sft": {"data": str(tmp_path / "rows.jsonl")},
            }
        ]
    )
    with pytest.raises(ConfigError, match="has no environment to take tasks from"):
        Trainer(config, folder=tmp_path / "run").sample(2)


def test_what_is_saved_when_a_disk_is_full_goes_on_with_the_next_tasks(settings, tmp_path):
    """The line of that step in metrics.jsonl is what is missing."""
    trainer = make({**settings, "steps": 4, "eval": {"tasks": 0}}, tmp_path / "run")
    write = trainer.folder.metrics

    def full(values):
        if values["step"] == 2:
            raise RunStoppedError("no space left")
        write(values)

    trainer.folder.metrics = full
    with pytest.raises(RunStoppedError):
        trainer.run()
    again = Trainer.resumed(tmp_path / "run", Letters())
    assert (again.done, again.method.stream.position) == (2, 2 * again.config.prompts_per_step)
    again.run()
    keys = [
        (line["step"], line["key"]["index"]) for line in RunFolder(tmp_path / "run").rollout_lines()
    ]
    assert sorted(set(keys)) == [
        (1 + i // again.config.prompts_per_step, i)
        for i in range(4 * again.config.prompts_per_step)
    ]


def test_a_reward_part_with_the_name_of_a_number_of_the_run_is_refused(settings, tmp_path):
    class Taken(Letters):
        parts: ClassVar[dict[str, float]] = {"share": 1.0, "std": 0.0}

    with pytest.raises(
        ConfigError,
        match=r"'letters' has a reward part 'std', but reward/std is .* rename the part",
    ):
        make(settings, tmp_path / "run", env=Taken())
    assert not (tmp_path / "run").exists()


def test_checkpoints_beyond_keep_are_removed(settings, tmp_path):
    run({**settings, "checkpoint": {"every": 1, "keep": 2}}, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "step-000005",
        "step-000006",
    ]


def test_a_half_written_checkpoint_is_not_taken_for_one(settings, tmp_path):
    trainer = run(settings, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / ".step-000099.partial-0a1b2c3d").mkdir()
    assert make(settings, tmp_path / "run").resume() == trainer.method.total


def test_a_verifier_that_always_breaks_stops_the_run_with_its_reason_and_keeps_what_was_done(
    settings, tmp_path
):
    env = Letters(Letters.Config(fail_below=2.0))
    trainer = make({**settings, "verify": {"retries": 0}}, tmp_path / "run", env=env)
    with pytest.raises(RunStoppedError, match="the verifier broke"):
        trainer.run()
    assert (tmp_path / "run" / "config.json").is_file()
    assert "the verifier broke" in (tmp_path / "run" / "log.txt").read_text()


def test_attempts_that_cannot_be_judged_are_counted_and_carry_no_reward(settings, tmp_path):
    env = Letters(Letters.Config(fail_below=0.05))
    lenient = {**settings, "steps": 2, "verify": {"retries": 0, "max_error_rate": 1.0}}
    trainer = run(lenient, tmp_path / "run", env=env)
    steps = [
        line for line in read_lines(trainer.folder.path / "metrics.jsonl") if "reward/mean" in line
    ]
    assert all(0 < line["verify/error_rate"] < 1 for line in steps)
    for line in trainer.folder.rollout_lines():
        if line["verdict"]["error"] is not None:
            assert line["verdict"]["total"] is None
            assert line["advantage"] in (None, 0.0)


def test_answers_at_which_a_library_raises_are_counted_and_too_many_in_a_step_stop_the_run(
    settings, tmp_path, monkeypatch
):
    root = str(Path(__file__).parents[2])
    monkeypatch.syspath_prepend(root)  # so that workers find the environment, too
    lenient = {**settings, "steps": 2, "eval": {"tasks": 0}, "verify": {"max_raised_rate": 1.0}}
    trainer = run(lenient, tmp_path / "lenient", env=Raising())
    steps = [
        line for line in read_lines(trainer.folder.path / "metrics.jsonl") if "reward/mean" in line
    ]
    raised = [
        line["verdict"] for line in trainer.folder.rollout_lines() if line["verdict"].get("raised")
    ]
    assert sum(line["verify/raised"] for line in steps) == len(raised) > 0
    assert {(verdict["total"], verdict["error"]) for verdict in raised} == {(0.0, None)}
    assert all("what is a t?" in verdict["rewards"]["share"]["note"] for verdict in raised)
    strict = make(
        {**lenient, "verify": {"max_raised_rate": 0.01}}, tmp_path / "strict", env=Raising()
    )
    with pytest.raises(RunStoppedError, match=r"raises at \d+ of the 24 rollouts of step 1"):
        strict.run()
    assert "what is a t?" in (tmp_path / "strict" / "log.txt").read_text()


def test_reweighted_parts_change_the_reward(settings, tmp_path):
    trainer = run({**settings, "steps": 1, "weights": {"share": 0.5}}, tmp_path / "run")
    line = next(line for line in trainer.folder.rollout_lines() if line["verdict"]["total"])
    share = line["verdict"]["rewards"]["share"]
    assert share["weight"] == 0.5
    assert line["verdict"]["total"] == pytest.approx(0.5 * share["value"])


def test_a_sampled_group_is_written_for_people_now_and_then(settings, tmp_path):
    run({**settings, "log": {"samples_every": 3}}, tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("advantage") == 2 * settings["group_size"]


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(settings, tmp_path):
    whole = run(settings, tmp_path / "whole")

    with killed(tmp_path / "parts", step=1) as observer:
        run(settings, tmp_path / "parts", observer=observer)
    again = make(settings, tmp_path / "parts")
    assert again.resume() == 0
    again.run()
    assert untimed(tmp_path / "parts") == untimed(whole.folder.path)


@pytest.mark.slow
def test_a_stop_during_an_evaluation_writes_no_part_of_it(settings, tmp_path):
    class StopWhileEvaluating(Observer):
        trainer: Trainer

        def evaluating(self, done: int, total: int) -> None:
            if self.trainer.done == 6:
                self.trainer.request_stop()

    observer = StopWhileEvaluating()
    trainer = observer.trainer = make(
        {**settings, "eval": {"tasks": 100}}, tmp_path / "run", observer=observer
    )
    trainer.run()
    assert not trainer.folder.finished
    assert [
        line["step"]
        for line in read_lines(tmp_path / "run" / "metrics.jsonl")
        if "eval/reward/mean" in line
    ] == [0]
    again = make({**settings, "eval": {"tasks": 100}}, tmp_path / "run")
    assert again.resume() == 6
    assert again.run().keys() == {"reward", "pass_rate"}
    assert again.folder.finished


def test_a_chat_for_a_model_without_a_template_is_refused_before_anything_is_written(
    settings, tmp_path, tiny_folder
):
    (tiny_folder / "chat_template.jinja").unlink()

    class Chat(Letters):
        def task(self, key: Any) -> Any:
            return Task(key, (Message("user", "say a"),), "a")

    with pytest.raises(ConfigError, match=r"set model\.chat_template"):
        run(settings, tmp_path / "run", env=Chat())
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_leaves_no_room_is_refused_before_anything_is_written(settings, tmp_path):
    with pytest.raises(ConfigError, match="context of 1024"):
        run({**settings, "sampling": {"max_new_tokens": 1200}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_epochs_of_an_endless_environment_are_refused(settings, tmp_path):
    endless = {key: value for key, value in settings.items() if key != "steps"} | {"epochs": 1.0}
    with pytest.raises(ConfigError, match="generates tasks without end"):
        make(endless, tmp_path / "run")


def test_epochs_go_through_every_task_once_each(settings, tmp_path):
    class Twelve(Letters):
        def size(self, split: str) -> int:
            return 12

    config = {key: value for key, value in settings.items() if key != "steps"} | {"epochs": 2.0}
    trainer = run(config, tmp_path / "run", env=Twelve())
    assert trainer.method.total == 6
    asked = [
        line["key"]["index"]
        for line in trainer.folder.rollout_lines()
        if line["key"]["split"] == "train" and line["attempt"] == 0
    ]
    assert sorted(asked[:12]) == sorted(asked[12:]) == list(range(12))
    assert asked[:12] != asked[12:]


def test_a_rollout_line_replays_its_task(settings, tmp_path):
    trainer = run({**settings, "steps": 1}, tmp_path / "run")
    from grpo_core import TaskKey

    line = next(iter(trainer.folder.rollout_lines()))
    assert Letters().task(TaskKey(**line["key"])).prompt.startswith("letters ")
    json.dumps(line)
