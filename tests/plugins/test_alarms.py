"""Alarms: each detector by itself on simulated series, and all of them in real runs of a tiny model."""

import importlib
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from grpo_alarms.canaries import Form
from grpo_alarms.duplicates import DUPLICATES
from grpo_alarms.environment import AUDIT, ENTROPY, LENGTH, REFERENCE, EnvironmentWatch
from grpo_alarms.seen import Seen, collisions
from grpo_alarms.sequential import Change, ChangeDetector, RewardSums, change, spent
from grpo_core import ConfigError, Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.types import Group
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.run.ending import EndKind
from grpo_core.train.trainer import Trainer

from ..commandline import words
from ..core.distributions import install_plugin
from ..train.killing import killed
from ..train.letters import Beginning, Digits, Hollow, Letters
from ..train.runs import Heard, small_settings
from ..train.tiny import save_tiny

CHANCE = 0.001
FILE = Path(__file__).parents[1] / "train" / "letters.py"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """A run in which a tiny model learns within a few steps."""
    return small_settings(save_tiny(tmp_path / "tiny"))


class Doubtful(Letters):
    """Pays for the letter, with an audit that falls as it is paid, and needs the random generator."""

    def audit(self, task: Task[str], rollout: Rollout) -> float:
        return 1 - rollout.text.count(task.data) / max(1, len(rollout.text))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return Verdict(verdict.rewards, passed=random.random() < 0.5, answer=verdict.answer)


class Listener(Heard):
    def __init__(self) -> None:
        super().__init__()
        self.alarms: list[str] = []

    def alarm(self, title: str, text: str) -> None:
        self.alarms.append(title)


# --- the statistics


def test_a_change_detector_is_rarely_wrong_at_its_bound_and_never_below():
    """At the bound itself at most one report in 1,000 looks is promised."""
    rng, reports, looks = random.Random(0), 0, 40_000
    detector = ChangeDetector(bound=0.75, target=0.95, run_length=1 / CHANCE)
    below = ChangeDetector(bound=0.75, target=0.95, run_length=1 / CHANCE)
    for _ in range(looks):
        reports += detector.add(float(rng.random() < 0.75) for _ in range(16))
        assert not below.add(float(rng.random() < 0.6) for _ in range(16))
    assert reports <= 2 * looks * CHANCE


@pytest.mark.parametrize(("bound", "target", "looks"), [(0.75, 0.95, 2), (0.1, 0.9, 1)])
def test_a_change_detector_reports_at_once_what_is_always_paid_and_ends_after_it(
    bound, target, looks
):
    detector = ChangeDetector(bound=bound, target=target, run_length=1 / CHANCE)
    for _ in range(50):
        assert not detector.add([0.0] * 16)
    assert [detector.add([1.0] * 16) for _ in range(looks + 3)].index(True) == looks - 1
    assert detector.active
    assert not detector.add([0.0] * 16)
    assert not detector.active


def test_all_looks_together_spend_the_chance_once():
    assert sum(spent(CHANCE, look) for look in range(1, 100_000)) == pytest.approx(CHANCE, rel=1e-4)


def test_sums_compare_groups_as_statistics_does():
    from statistics import fmean, variance

    rng = random.Random(1)
    first, second = (
        [[(rng.gauss(mean, 1), rng.random()) for _ in range(4)] for _ in range(30)]
        for mean in (0.0, 0.5)
    )
    seen = change(RewardSums.of(first), RewardSums.of(second))
    means = [[fmean(x for x, _ in group) for group in groups] for groups in (first, second)]
    assert seen.before == pytest.approx(fmean(means[0]))
    assert seen.after == pytest.approx(fmean(means[1]))
    assert seen.error == pytest.approx(math.sqrt(sum(variance(m) / 30 for m in means)))
    pairs = [pair for group in first for pair in group]
    r = [r for _, r in pairs]
    slope = sum((x - fmean(x for x, _ in pairs)) * (b - fmean(r)) for x, b in pairs) / sum(
        (b - fmean(r)) ** 2 for b in r
    )
    assert RewardSums.of(first).slope == pytest.approx(max(0.0, slope))


def test_an_alarm_sees_no_rise_that_is_rounding() -> None:
    """Means without any spread were surely higher by 6e-17."""
    before, after = (RewardSums.of([[(1.0, reward)] * 4] * 8) for reward in (0.3, 0.1 + 0.2))
    assert not change(before, after, of_x=0.0, of_r=1.0).exceeds(0.01)
    higher = RewardSums.of([[(1.0, 0.4)] * 4] * 8)
    assert change(before, higher, of_x=0.0, of_r=1.0).exceeds(0.01)


def test_collisions_count_only_pairs_of_different_tasks():
    assert collisions([["a", "a"], ["b", "b"]]) == 0
    assert collisions([["a", "b"], ["a", "c"]]) == 0.25
    assert math.isnan(collisions([["a", "a"]]))


def test_the_form_of_references_is_what_they_share_but_not_a_shared_digit():
    assert Form.of(["<12>", "<13>", "<19>"]) == Form("<", ">")
    assert Form.of(["<12>", "<12>"]) == Form()


# --- simulated runs


def simulated(
    step: int,
    rng: random.Random,
    *,
    reward: float,
    passed: float | None = None,
    length: float = 20,
    entropy: float = 0.5,
    audit: float | None = None,
    constant: float = 0.0,
    groups: int = 8,
    attempts: int = 8,
) -> Seen:
    """Return a step whose attempts have these means; tasks are of different difficulty."""
    step_groups = []
    for index in range(groups):
        key = TaskKey("simulated", "train", step * groups + index, 0)
        hardness = rng.gauss(0, 0.15)
        rollouts, verdicts = [], []
        for _ in range(attempts):
            tokens = max(1, round(rng.gauss(length, length / 4)))
            text = "always" if rng.random() < constant else str(rng.random())
            rollouts.append(
                Rollout(
                    (Message("assistant", text),),
                    token_ids=(1,) * tokens,
                    logprobs=tuple(-rng.expovariate(1 / entropy) for _ in range(tokens)),
                    trainable=(1,) * tokens,
                )
            )
            paid = rng.random() < min(1.0, max(0.0, reward + hardness))
            share = reward if passed is None else passed
            verdicts.append(
                Verdict(
                    {"reward": Reward(float(paid))},
                    passed=paid if passed is None else rng.random() < share + hardness,
                    metrics={} if audit is None else {"audit": rng.gauss(audit + 0.3 * paid, 0.2)},
                )
            )
        step_groups.append(Group(Task(key, "?", None), rollouts, verdicts))
    return Seen.of(step, step_groups, "simulated")


def watched(**options: Any) -> EnvironmentWatch:
    return EnvironmentWatch("simulated", chance=CHANCE, **options)


@pytest.mark.slow
def test_honest_runs_that_learn_raise_no_alarm():
    """15 simulated runs of 100 steps: reward and pass rate rise, entropy falls, lengths and references wander."""
    for seed in range(15):
        rng, watch, alarms = random.Random(seed), watched(), []
        for step in range(1, 101):
            grown = step / 100
            seen = simulated(
                step,
                rng,
                reward=0.2 + 0.6 * grown,
                length=20 + 6 * grown,
                entropy=0.5 - 0.4 * grown,
                audit=0.1,
                groups=4,
                attempts=4,
            )
            alarms += watch.step(seen)
            if step % 10 == 0:
                alarms += watch.audited(seen)
                alarms += watch.measured(
                    seen, {str(i): -2 + 0.5 * grown + rng.gauss(0, 0.2) for i in range(16)}
                )
        assert alarms == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("expected", "after"),
    [
        ((LENGTH, ""), {"reward": 0.7, "passed": 0.3, "length": 45}),
        ((ENTROPY, ""), {"reward": 0.3, "entropy": 0.05}),
        ((AUDIT, "passed"), {"reward": 0.7, "passed": 0.05}),
        ((AUDIT, "audit"), {"reward": 0.8, "passed": 0.8, "audit": -0.3}),
        ((DUPLICATES, ""), {"reward": 0.3, "constant": 0.97}),
        ((REFERENCE, ""), {"reward": 0.8, "passed": 0.8}),
    ],
)
def test_each_sign_is_an_alarm_soon_and_once(expected, after):
    rng, watch, began = random.Random(3), watched(), []
    falls = "passed" in after and expected[0] != REFERENCE
    before = {"reward": 0.3, "passed": 0.3 if falls else None}
    before["audit"] = 0.3 if "audit" in after else None
    for step in range(1, 101):
        seen = simulated(step, rng, **(before if step <= 30 else after))
        alarms = watch.step(seen)
        if step % 5 == 0:
            if "audit" in after:
                alarms += watch.audited(seen)
            fallen = 0.5 if expected[0] == REFERENCE and step > 30 else 0.0
            alarms += watch.measured(
                seen, {str(i): -2 - fallen + rng.gauss(0, 0.05) for i in range(16)}
            )
        began += [(step, alarm) for alarm in alarms]
    ((step, alarm),) = (each for each in began if (each[1].name, each[1].subject) == expected)
    assert 30 < step <= 55
    assert alarm.shown is not None
    assert alarm.values
    assert all(math.isfinite(value) for value in alarm.values.values())


def scores(rewards: list[float], audits: list[float]) -> dict[TaskKey, dict[str, float]]:
    return {
        TaskKey("simulated", "eval", index, 0): {"reward": reward, "audit": audit}
        for index, (reward, audit) in enumerate(zip(rewards, audits, strict=True))
    }


@pytest.mark.parametrize(
    ("held_out", "audit", "subjects"),
    [(0.8, 0.8, set()), (0.3, 0.3, {"held-out tasks"}), (0.8, 0.0, {"held-out audit"})],
)
def test_an_evaluation_that_does_not_confirm_the_reward_is_an_alarm(held_out, audit, subjects):
    rng, watch = random.Random(5), watched()
    for step in range(1, 41):
        watch.step(simulated(step, rng, reward=0.3 if step <= 20 else 0.8))

    def drawn(share: float) -> list[float]:
        return [float(rng.random() < share) for _ in range(256)]

    before = scores(drawn(0.3), drawn(0.3))
    alarms = [
        alarm
        for step in (40, 41)
        for alarm in watch.evaluated(step, before, scores(drawn(held_out), drawn(audit)))
    ]
    assert {alarm.subject for alarm in alarms} == subjects
    assert len(alarms) == len(subjects)
    assert all(alarm.shown and alarm.shown.key.split == "eval" for alarm in alarms)


def test_references_of_other_tasks_than_before_are_a_first_look_again():
    watch = watched()
    seen = simulated(1, random.Random(0), reward=0.5)
    assert watch.measured(seen, {"a": -1.0, "b": -2.0, "c": -1.0}) == []
    assert watch.measured(seen, {"a": -1.0, "b": -2.0}) == []
    assert watch.state()["reference_looks"] == 1
    assert watch.measured(seen, {"d": -3.0, "e": -4.0}) == []
    assert watch.state()["references"] == {"d": -3.0, "e": -4.0}
    assert watch.state()["reference_looks"] == 0


def test_a_state_is_not_changed_by_what_is_looked_at_later():
    watch = watched()
    watch.step(simulated(1, random.Random(0), reward=0.5))
    state = watch.state()
    text = json.dumps(state)
    watch.step(simulated(2, random.Random(1), reward=0.5))
    assert json.dumps(state) == text


@pytest.mark.parametrize("chance", [1e-3, 1e-17, 1e-300])
def test_a_comparison_works_with_any_chance(chance: float):
    assert Change(0.0, 1.0, 0.001, 1000.0).exceeds(chance)
    assert not Change(0.0, 0.001, 0.001, 1000.0).exceeds(chance)


def test_a_state_that_went_through_json_goes_on_as_the_original_does():
    rng = random.Random(4)
    steps = [
        simulated(step, rng, reward=0.3 + 0.4 * (step > 30), constant=0.9 * (step > 30), audit=0.2)
        for step in range(1, 61)
    ]

    def play(watch: EnvironmentWatch, seen: Seen) -> list[Any]:
        alarms = watch.step(seen) + watch.audited(seen)
        alarms += watch.measured(seen, {"a": -1.0, "b": -2.0})
        return [alarm.to_json() for alarm in alarms]

    for cut in (15, 33):
        original, resumed = watched(), watched()
        for seen in steps[:cut]:
            play(original, seen)
        resumed.restore(json.loads(json.dumps(original.state())))
        for seen in steps[cut:]:
            assert play(original, seen) == play(resumed, seen)
        assert original.state() == resumed.state()


# --- real runs


def trained(
    folder: Path,
    settings: dict[str, Any],
    env: Any,
    observer: Any = None,
    **alarms: Any,
) -> Trainer:
    config = build_config([{"eval": {"tasks": 4}, **settings, "alarms": alarms}])
    trainer = Trainer(config, env, folder=folder, observer=observer or Listener())
    trainer.run()
    return trainer


def test_a_paid_canary_is_an_alarm_in_log_folder_terminal_and_metrics(settings, tmp_path):
    trainer = trained(tmp_path / "run", {**settings, "steps": 4}, Hollow(), every=2)
    lines = list(trainer.folder.alarm_lines())
    (line,) = (line for line in lines if line["subject"] == "silence")
    assert (line["step"], line["name"], line["environment"]) == (1, "canary paid", "letters")
    assert line["canary"].strip() == ""
    rows = trainer.folder.rollout_lines([1])
    assert {row["draw"] for row in rows if row["key"] == line["group"]["key"]} == {
        line["group"]["draw"]
    }
    assert f"alarm, step 1: canary paid (silence): {line['message']}" in (
        tmp_path / "run" / "log.txt"
    ).read_text().replace("\n  ", "\n")
    steps = [m for m in trainer.folder.metric_lines() if "alarms/new" in m]
    began = [line["step"] for line in lines]
    assert [m["alarms/new"] for m in steps] == [began.count(step) for step in range(1, 5)]
    assert steps[-1]["alarms/active"] >= 1
    assert ["alarms/reference_logprob" in m for m in steps] == [True, True, False, True]


@pytest.mark.slow
def test_an_environment_without_a_hole_raises_no_alarm(settings, tmp_path):
    trainer = trained(tmp_path / "run", {**settings, "steps": 12}, Digits(), every=2)
    assert list(trainer.folder.alarm_lines()) == []


def test_the_authors_cheats_are_canaries(settings, tmp_path):
    trainer = trained(tmp_path / "run", {**settings, "steps": 2}, Beginning(), every=1)
    assert "the author's cheat 1" in {line["subject"] for line in trainer.folder.alarm_lines()}


@pytest.mark.slow
def test_cheats_are_asked_in_the_worker_that_has_the_data_of_the_tasks(settings, tmp_path):
    listener = Listener()
    more = {"steps": 1, "eval": {"tasks": 0}, "verify": {"isolation": "process"}}
    config = build_config([{**settings, **more, "environment": "arithmetic"}])
    trainer = Trainer(config, folder=tmp_path / "run", observer=listener)
    trainer.run()
    (source,) = trainer.actor.sources.trained
    assert type(source.env).cheats is not Environment.cheats
    assert trainer.folder.finished
    assert listener.about("could not be asked") == []


HEARS = """
from grpo_core import Spec, hookimpl
heard = []

@hookimpl
def grpo_listeners():
    return [Spec("hearing", "plugin_hearing:Hearing")]

class Hearing:
    def on(self, event):
        if type(event).__name__ == "AlarmRaised":
            heard.append((event.step, event.name, event.subject, event.shown.key.env))
"""


@pytest.mark.slow
def test_observers_and_plugins_hear_of_an_alarm_once(settings, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    install_plugin(site, "hearing", HEARS)
    monkeypatch.syspath_prepend(site)
    listener = Listener()
    more = {"steps": 6, "eval": {"tasks": 0}, "plugins": ["hearing"]}
    trained(tmp_path / "run", {**settings, **more}, Hollow(), listener, every=1)
    assert listener.alarms.count("canary paid (silence)") == 1
    silence = (1, "canary paid", "silence", "letters")
    assert sys.modules["plugin_hearing"].heard.count(silence) == 1


@pytest.mark.slow
def test_training_with_alarms_gives_the_same_weights_to_the_bit(settings, tmp_path):
    weights, metrics = [], []
    for enabled in (True, False):
        folder = tmp_path / str(enabled)
        config = {**settings, "steps": 8, "verify": {"isolation": "inline", "cache": "off"}}
        importlib.import_module("rich.console")  # its first import draws from the generator
        random.seed(0)
        trained(folder, config, Doubtful(), enabled=enabled, every=1)
        weights.append(load_file(folder / "final" / "adapter_model.safetensors"))
        names = ("reward/mean", "pass_rate", "kl", "entropy")
        lines = read_lines(folder / "metrics.jsonl")
        metrics.append([[line.get(name) for name in names] for line in lines])
    assert metrics[0] == metrics[1]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.mark.slow
def test_alarms_stop_ends_with_a_checkpoint_and_the_run_goes_on_from_it(settings, tmp_path):
    folder = tmp_path / "run"
    trainer = trained(folder, {**settings, "steps": 6}, Hollow(), every=2, stop=True)
    assert (trainer.done, trainer.end.kind) == (1, EndKind.STOPPED)
    assert "alarms.stop=true" in str(trainer.end)
    assert (folder / "checkpoints" / "step-000001").is_dir()
    assert not trainer.folder.finished
    before = list(trainer.folder.alarm_lines())
    resumed = Trainer.resumed(folder, Hollow(), changes={"alarms.stop": "false"}, allow=["alarms"])
    resumed.run()
    assert resumed.folder.finished
    lines = list(resumed.folder.alarm_lines())
    assert lines[: len(before)] == before
    assert [line["subject"] for line in lines].count("silence") == 1


@pytest.mark.slow
def test_a_killed_and_resumed_run_alarms_as_an_uninterrupted_one(settings, tmp_path):
    config = {**settings, "steps": 9, "checkpoint": {"every": 3}}
    whole = trained(tmp_path / "whole", config, Hollow(), every=2)
    folder = tmp_path / "killed"
    with killed(folder, step=5) as observer:
        trained(folder, config, Hollow(), observer, every=2)
    resumed = Trainer.resumed(folder, Hollow())
    resumed.run()
    written = [path / "alarms.jsonl" for path in (folder, tmp_path / "whole")]
    assert written[0].read_bytes() == written[1].read_bytes()
    names = ("alarms/new", "alarms/active", "alarms/reference_logprob")
    seen = [
        [[line.get(name) for name in names] for line in trainer.folder.metric_lines()]
        for trainer in (whole, resumed)
    ]
    assert seen[0] == seen[1]


def without_alarms(*, installed: bool) -> PluginHost:
    """Return the installed plugins with that of the alarms switched off, or without it."""
    host = PluginHost(disabled="alarms" if installed else "")
    if not installed:
        host.plugins = {name: plugin for name, plugin in host.plugins.items() if name != "alarms"}
    return host


def test_a_run_without_the_plugin_has_no_alarms(settings, tmp_path):
    more = {"steps": 2, "eval": {"tasks": 0}, "checkpoint": {"every": 1}}
    config = build_config([{**settings, **more}])
    host, listener = without_alarms(installed=False), Listener()
    trainer = Trainer(config, Hollow(), folder=tmp_path / "run", host=host, observer=listener)
    trainer.run()
    assert trainer.folder.finished
    assert not [name for line in trainer.folder.metric_lines() for name in line if "alarms" in name]
    assert not (tmp_path / "run" / "alarms.jsonl").exists()
    assert list(RunFolder.open(tmp_path / "run").alarm_lines()) == []
    assert not listener.alarms


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (False, "'alarms' is not installed; install it"),
        (True, "'alarms' is switched off by GRPO_DISABLE_PLUGINS; remove its name"),
    ],
)
def test_settings_of_alarms_without_the_plugin_are_one_message(
    settings, tmp_path, installed, reason
):
    def made(**alarms: Any) -> Trainer:
        host = without_alarms(installed=installed)
        config = build_config([{**settings, "alarms": alarms}])
        return Trainer(config, Letters(), host=host, folder=tmp_path / "run")

    with pytest.raises(ConfigError) as error:
        made(every=5, stop=True)
    assert str(error.value).startswith("alarms.every=5: this run has no alarms, as the plugin ")
    assert reason in str(error.value)
    assert "set alarms.enabled=false" in str(error.value)
    assert not (tmp_path / "run").exists()
    made(every=5, enabled=False)


def test_grpo_run_stops_for_an_alarm_with_the_status_of_a_stop(settings, tmp_path):
    arguments = words(
        f"run --env {FILE}:Hollow --model {settings['model']['name']} --steps 3 "
        f"--out {tmp_path / 'run'} --set eval.tasks=0 --set alarms.every=1 --set alarms.stop=true "
        "--set model.dtype=float32 --set prompts_per_step=4"
    )
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130, result.output
    text = " ".join(result.output.split())
    assert "ALARM: canary paid (silence)" in text
    assert "alarms.stop=true" in text
    assert "--resume" in text
