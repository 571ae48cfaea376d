"""Whole runs on a tiny model: learning, the run folder, resume, stopping, and what is said loudly."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import peft
import pytest
import torch
import transformers

from grpo_core import ConfigError, RunStoppedError, TaskKey, Trainer, build_config
from grpo_core.config.config import RunConfig
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.run.checkpoint import checkpoints

from .killing import killed
from .letters import Letters, Raising
from .runs import logged, small_settings, untimed
from .short_runs import make, run_until
from .short_runs import ran as run
from .tiny import save_tiny

PER_STEP = {
    "step", "reward/mean", "reward/std", "reward/share", "pass_rate", "advantage/mean", "advantage/std", "loss", "policy_loss", "kl",
    "kl/sequence", "kl_penalty", "beta", "entropy", "logprob/mean", "sampling/logprob_gap", "grad_norm", "lr", "clip_fraction",
    "completion_length/mean", "completion_length/clipped", "groups/mixed", "groups/best", "groups/distinct", "verify/error_rate", "verify/raised",
    "verify/seconds/share",
    "tokens/generated", "tokens/trained", "steps/skipped_nonfinite", "verify/cache_hit_rate", "time/sync", "time/rollout", "time/verify",
    "time/update", "time/step", "memory/peak_mb",
}  # fmt: skip
SEVERAL_UPDATES = {
    "schedule": {"name": "cosine"},
    "trainer": {"mu": 2, "minibatches": 2},
    "checkpoint": {"every": 2, "keep": 2},
    "log": {"samples_every": 3},
    "weights": {"share": 0.5},
}


def documented(names: Iterable[str]) -> list[str]:
    """Metrics that the table on the page of the trainer does not name."""
    page = (Path(__file__).parents[2] / "grpo_core" / "train" / "README.md").read_text()
    section = page.partition("## Metrics\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    known = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    pattern = "|".join(known).replace("PART", "[^/]+").replace("NAME", "[^/]+")
    return [name for name in names if not re.fullmatch(f"step|kind|{pattern}", name)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    own = {"steps": 6, "eval": {"tasks": 6}, "checkpoint": {"every": 2}}
    return {**small_settings(save_tiny(tmp_path_factory.mktemp("model") / "tiny")), **own}


@pytest.fixture(scope="module")
def finished(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run of six steps, whose folder no test changes."""
    return run({**settings, **SEVERAL_UPDATES}, tmp_path_factory.mktemp("finished") / "run")


def test_a_run_leaves_the_files_that_it_promises(finished):
    folder = finished.folder
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
    assert all(line["advantage"] is None for line in attempts if line["key"]["split"] == "eval")
    recorded = RunConfig.model_validate(folder.config())
    assert recorded.sampling.max_new_tokens == Letters.max_new_tokens
    assert recorded.env == {"fail_below": -1.0}
    assert recorded.provenance["versions"]["torch"] == torch.__version__
    given = {"env": {}, "provenance": {}, "sampling": finished.config.sampling}
    assert recorded.model_copy(update=given) == finished.config
    names = [path.name for path in checkpoints(folder.path / "checkpoints")]
    assert names == ["step-000004", "step-000006"]  # `checkpoint.keep` of them
    assert folder.finished


def test_a_part_counts_with_the_weight_that_is_set_and_a_rollout_line_replays_its_task(finished):
    lines = [line for line in finished.folder.rollout_lines() if line["verdict"]["total"]]
    for line in lines:
        share = line["verdict"]["rewards"]["share"]
        assert share["weight"] == 0.5
        assert line["verdict"]["total"] == pytest.approx(0.5 * share["value"])
    assert Letters().task(TaskKey(**lines[0]["key"])).prompt.startswith("letters ")
    json.dumps(lines[0])


def test_a_sampled_group_is_written_for_people_now_and_then(finished):
    log = (finished.folder.path / "log.txt").read_text()
    assert log.count("advantage") == 2 * finished.config.group_size


def test_the_final_adapter_is_loadable_by_peft_and_is_the_trained_one(finished):
    final = finished.folder.path / "final"
    name = finished.config.model.name
    base = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, final)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, finished.actor.policy.model(ids).logits)
    assert transformers.AutoTokenizer.from_pretrained(final)("abc")["input_ids"]
    assert "grpo-core" in (final / "README.md").read_text()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2))]
)
def test_a_policy_learns_what_is_rewarded_and_nothing_from_shuffled_rewards(
    settings, tmp_path, seed
):
    learning = {**settings, "steps": 40, "seed": seed, "eval": {"tasks": 64}}
    learning |= {"checkpoint": {"every": 0}, "alarms": {"enabled": False}}
    gains = []
    for shuffled in (False, True):
        trainer = {"shuffle_rewards": shuffled}
        folder = run({**learning, "trainer": trainer}, tmp_path / str(shuffled)).folder.path
        before, after = logged(folder, "eval/reward/mean")
        gains.append(after - before)
    assert gains[0] > 0.4
    assert gains[1] < 0.2


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("adamw8bit", marks=pytest.mark.slow)])
def test_a_resumed_run_is_bitwise_the_undisturbed_one(settings, finished, tmp_path, optimizer):
    settings = {**settings, **SEVERAL_UPDATES, "optimizer": {"name": optimizer, "lr": 0.01}}
    whole = finished if optimizer == "adamw" else run(settings, tmp_path / "whole")
    # Step 5 is logged, the last checkpoint is of step 4.
    with killed(tmp_path / "parts", step=5) as observer:
        make(settings, tmp_path / "parts", observer=observer).run()
    second = make(settings, RunFolder(tmp_path / "parts"))
    assert second.resume() == 4
    second.run()
    assert untimed(tmp_path / "parts") == untimed(whole.folder.path)
    expected = dict(whole.actor.policy.trainable())
    assert all(
        torch.equal(expected[name], tensor) for name, tensor in second.actor.policy.trainable()
    )
    texts = [[line["messages"] for line in t.folder.rollout_lines()] for t in (whole, second)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    settings, finished, tmp_path
):
    settings = {**settings, **SEVERAL_UPDATES}
    with killed(tmp_path / "parts", step=1) as observer:
        run(settings, tmp_path / "parts", observer=observer)
    again = make(settings, RunFolder(tmp_path / "parts"))
    assert again.resume() == 0
    again.run()
    assert untimed(tmp_path / "parts") == untimed(finished.folder.path)


def test_a_half_written_checkpoint_is_not_taken_for_one(settings, finished, tmp_path):
    shutil.copytree(finished.folder.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / ".step-000099.partial-0a1b2c3d").mkdir()
    assert make({**settings, **SEVERAL_UPDATES}, RunFolder(tmp_path / "run")).resume() == 6


def test_a_stop_is_obeyed_once_and_also_if_it_came_before_the_run(settings, tmp_path):
    trainer = make({**settings, "steps": 1, "eval": {"tasks": 0}}, tmp_path / "run")
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
    verify = {"isolation": isolation, "cache": "memory"}
    own = {"environment": name, "steps": 4, "eval": {"tasks": 0}, "verify": verify}
    env = Letters() if name == "letters" else None
    config = build_config([settings, own])
    stopped = Trainer(config, env, folder=tmp_path / "stopped")
    run_until(stopped, 2)
    assert stopped.done == 2
    stopped.run()
    assert stopped.folder.finished
    Trainer(config, env, folder=tmp_path / "whole").run()
    assert untimed(tmp_path / "stopped") == untimed(tmp_path / "whole")
    assert not caplog.records


@pytest.mark.slow
def test_a_stop_during_an_evaluation_writes_no_part_of_it(settings, tmp_path):
    class StopWhileEvaluating(Observer):
        trainer: Trainer

        def evaluating(self, done: int, total: int) -> None:
            if self.trainer.done == 6:
                self.trainer.request_stop()

    observer, settings = StopWhileEvaluating(), {**settings, "eval": {"tasks": 100}}
    trainer = observer.trainer = make(settings, tmp_path / "run", observer=observer)
    trainer.run()
    assert not trainer.folder.finished
    assert len(logged(tmp_path / "run", "eval/reward/mean")) == 1
    again = make(settings, RunFolder(tmp_path / "run"))
    assert again.resume() == 6
    assert again.run().keys() == {"reward", "pass_rate"}
    assert again.folder.finished


def test_a_run_without_environments_has_no_tasks_to_sample(settings, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "completion": "y"}\n')
    sft = {"method": "sft", "sft": {"data": str(tmp_path / "rows.jsonl")}}
    config = build_config([{**settings, "environment": None, **sft}])
    with pytest.raises(ConfigError, match="has no environment to take tasks from"):
        Trainer(config, folder=tmp_path / "run").sample(2)


def test_a_reward_part_with_the_name_of_a_number_of_the_run_is_refused(settings, tmp_path):
    class Taken(Letters):
        parts: ClassVar[dict[str, float]] = {"share": 1.0, "std": 0.0}

    wanted = r"'letters' has a reward part 'std', but reward/std is .* rename the part"
    with pytest.raises(ConfigError, match=wanted):
        make(settings, tmp_path / "run", env=Taken())
    assert not (tmp_path / "run").exists()


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
    lenient = {"steps": 1, "eval": {"tasks": 0}, "verify": {"retries": 0, "max_error_rate": 1.0}}
    trainer = run({**settings, **lenient}, tmp_path / "run", env=env)
    (rate,) = logged(tmp_path / "run", "verify/error_rate")
    assert 0 < rate < 1
    for line in trainer.folder.rollout_lines():
        if line["verdict"]["error"] is not None:
            assert line["verdict"]["total"] is None
            assert line["advantage"] in (None, 0.0)


@pytest.mark.slow
def test_answers_at_which_a_library_raises_are_counted_and_too_many_in_a_step_stop_the_run(
    settings, tmp_path, monkeypatch
):
    root = str(Path(__file__).parents[2])
    monkeypatch.syspath_prepend(root)  # so that workers find the environment, too
    lenient = {**settings, "steps": 1, "eval": {"tasks": 0}, "verify": {"max_raised_rate": 1.0}}
    trainer = run(lenient, tmp_path / "lenient", env=Raising())
    verdicts = [line["verdict"] for line in trainer.folder.rollout_lines()]
    raised = [verdict for verdict in verdicts if verdict.get("raised")]
    assert logged(tmp_path / "lenient", "verify/raised") == [len(raised)]
    assert {(verdict["total"], verdict["error"]) for verdict in raised} == {(0.0, None)}
    assert all("what is a t?" in verdict["rewards"]["share"]["note"] for verdict in raised)
    settings = {**lenient, "verify": {"max_raised_rate": 0.01}}
    strict = make(settings, tmp_path / "strict", env=Raising())
    with pytest.raises(RunStoppedError, match=r"raises at \d+ of the 24 rollouts of step 1"):
        strict.run()
    assert "what is a t?" in (tmp_path / "strict" / "log.txt").read_text()


def test_epochs_of_an_endless_environment_are_refused(settings, tmp_path):
    endless = {key: value for key, value in settings.items() if key != "steps"} | {"epochs": 1.0}
    with pytest.raises(ConfigError, match="generates tasks without end"):
        make(endless, tmp_path / "run")


def test_epochs_go_through_every_task_once_each(settings, tmp_path):
    class Twelve(Letters):
        def size(self, split: str) -> int:
            return 12

    config = {key: value for key, value in settings.items() if key != "steps"}
    config |= {"epochs": 2.0, "group_size": 2, "eval": {"tasks": 0}}
    trainer = run(config, tmp_path / "run", env=Twelve())
    assert trainer.method.total == 6
    lines = [line for line in trainer.folder.rollout_lines() if line["attempt"] == 0]
    asked = [line["key"]["index"] for line in lines]
    assert sorted(asked[:12]) == sorted(asked[12:]) == list(range(12))
    assert asked[:12] != asked[12:]
