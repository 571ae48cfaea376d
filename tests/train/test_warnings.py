"""Every warning fires where it should, after its patience and once, and none in a run that learns."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_core import Alarm, Message
from grpo_core.runs.lines import read_lines
from grpo_core.train.run.warnings import SIGNS, START, WINDOW, Watch, alarm_signs
from grpo_env_fillin.env import FillIn

from .letters import Letters
from .trained import trained

README = Path(__file__).parents[2] / "grpo_core" / "train" / "README.md"
HEALTHY = {
    "reward/mean": 0.4,
    "reward/std": 0.3,
    "reward/format": 0.6,
    "reward/exact": 0.2,
    "reward/constant_share": 0.2,
    "pass_rate": 0.2,
    "groups/mixed": 0.7,
    "completion_length/clipped": 0.05,
    "completion_length/mean": 100.0,
    "kl": 0.01,
    "entropy": 0.5,
    "sampling/logprob_gap": 0.001,
    "env/judge/over_reference": -0.5,
}
SICK = {
    "constant reward": ({"reward/std": 0.0, "groups/mixed": 0.0}, "grpo env score"),
    "constant success": (
        {"reward/std": 0.0, "groups/mixed": 0.0, "pass_rate": 1.0},
        "the verifier pays everything",
    ),
    "dead groups": ({"groups/mixed": 0.0}, "level"),
    "clipped completions": ({"completion_length/clipped": 0.9}, "--max-new-tokens"),
    "KL explodes": ({"kl": 0.5}, "optimizer.lr"),
    "entropy collapse": ({"entropy": 0.02}, "loss.entropy"),
    "groups die out": ({"groups/mixed": 0.2}, "sampling.refills"),
    "sampler and trainer disagree": ({"sampling/logprob_gap": 0.3}, "loss.tis_cap"),
    "rollouts too old": (
        {"sampling/truncated": 0.2, "staleness/max": 2.0, "sampling/logprob_gap": 0.3},
        "pipeline.max_staleness",
    ),
    "format learned, answers not": ({"reward/format": 0.97}, "weights"),
    "reward without contrast": ({"reward/constant_share": 0.9}, "weights"),
    "env/judge/over_reference": ({"env/judge/over_reference": 0.6}, "higher than the original"),
    "completions shrink": ({"completion_length/mean": 30.0}, "loss.aggregation"),
}


DECLARED = alarm_signs({"fillin": FillIn.alarms})


@pytest.mark.parametrize("sign", [*SIGNS, *DECLARED], ids=lambda sign: sign.name)
def test_a_sign_is_said_once_after_its_patience_and_again_only_after_it_went_away(sign):
    changed, advice = SICK[sign.name]
    watch = Watch(DECLARED)
    for _ in range(START + WINDOW):
        assert watch.look(HEALTHY) == []
    said = [watch.look({**HEALTHY, **changed}) for _ in range(2 * WINDOW)]
    (first,) = [step for step, texts in enumerate(said) if texts]
    assert first + 1 >= sign.patience
    assert first + 1 <= max(sign.patience, WINDOW)
    assert len(said[first]) == 1
    assert advice in said[first][0]
    for _ in range(3 * WINDOW):
        assert watch.look(HEALTHY) == []
    assert sum(len(watch.look({**HEALTHY, **changed})) for _ in range(2 * WINDOW)) == 1


def moved(course: dict[str, tuple[float, float]], step: int) -> dict[str, float]:
    """Return metrics that go from one value to another in 40 steps."""
    share = min(1.0, step / 40)
    return {name: first + (last - first) * share for name, (first, last) in course.items()}


def said_of(course: dict[str, tuple[float, float]]) -> list[tuple[int, str]]:
    """Return what is said, and when, while metrics change."""
    watch = Watch()
    looks = [(step, watch.look({**HEALTHY, **moved(course, step)})) for step in range(100)]
    return [(step, text) for step, texts in looks for text in texts]


def test_what_a_solved_task_looks_like_is_no_sign():
    solved = {
        "pass_rate": 0.97,
        "entropy": 0.01,
        "completion_length/mean": 20.0,
        "reward/constant_share": 0.9,
        "reward/format": 1.0,
    }
    assert said_of({name: (HEALTHY[name], value) for name, value in solved.items()}) == []


def test_entropy_that_falls_is_said_early_if_little_was_learned_for_it():
    """The values are those of runs of arithmetic: one that got stuck, and one that learned."""
    ((step, text),) = said_of({"entropy": (0.45, 0.06), "pass_rate": (0.1, 0.2)})
    assert step < 40
    assert text.startswith("the policy's entropy fell from 0.4")
    assert said_of({"entropy": (0.45, 0.11), "pass_rate": (0.1, 0.45)}) == []


def test_groups_that_die_out_are_said_with_their_share_unless_most_tasks_pass():
    ((step, text),) = said_of({"groups/mixed": (0.9, 0.3), "pass_rate": (0.1, 0.3)})
    assert step < 60
    assert text.startswith("the rewards of 3")
    assert said_of({"groups/mixed": (0.9, 0.3), "pass_rate": (0.1, 0.9)}) == []


def test_in_a_mixture_the_rewards_of_each_environment_are_looked_at_by_themselves():
    """Beside one that is solved, and would hide the other in the means over all attempts."""
    watch = Watch()
    names = ("reward/format", "reward/exact", "reward/constant_share", "pass_rate")
    sick = {"reward/format": 0.97, "reward/constant_share": 0.9}
    common = {name: value for name, value in HEALTHY.items() if name not in names}
    common |= {"pass_rate": 0.95} | {f"easy/{name}": 1.0 for name in names}
    said: list[str] = []
    for step in range(START + 3 * WINDOW):
        own = HEALTHY | (sick if step >= START + WINDOW else {})
        said += watch.look(common | {f"hard/{name}": own[name] for name in names})
    form, contrast = said
    assert form.startswith(
        "hard/reward/format rose to where nothing is left to gain while the pass rate stayed at 20%"
    )
    assert contrast.startswith("90% (hard) of the reward comes from parts")


def test_a_sign_of_one_environment_is_said_beside_that_of_another_and_counts_the_steps_that_it_was_asked_in():
    """The first has it from the start, the second later, and has no tasks in every second step."""
    watch = Watch()
    common = {name: value for name, value in HEALTHY.items() if name != "reward/constant_share"}
    common |= {"first/reward/constant_share": 0.9, "first/pass_rate": 0.2}
    said: list[tuple[int, str]] = []
    for step in range(100):
        share, rate = (0.85 if step >= 40 else 0.1, 0.2) if step % 2 else (math.nan, math.nan)
        line = {**common, "second/reward/constant_share": share, "second/pass_rate": rate}
        said += [(step, text) for text in watch.look(line)]
    (first, about_first), (second, about_second) = said
    assert about_first.startswith("90% (first) of the reward comes from parts")
    assert about_second.startswith("85% (second) of the reward comes from parts")
    assert first == START + 20 - 1
    assert second == 41 + 2 * 19


def test_an_environment_of_a_mixture_is_watched_in_its_own_metrics():
    alarms = {"calm": FillIn.alarms, "odd": [Alarm("height", 2.5, "{value:.1f} is too high")]}
    calm, odd = alarm_signs(alarms)
    assert (calm.metric, odd.metric) == ("calm/env/judge/over_reference", "odd/env/height")
    assert odd.threshold == "above 2.5 as a mean over 20 steps, for 10 steps"
    watch = Watch([calm, odd])
    line = {**HEALTHY, "calm/env/judge/over_reference": -1.0, "odd/env/height": 3.0}
    assert [watch.look(line) for _ in range(30)].index(["3.0 is too high"]) == 9


def test_an_alarm_with_a_mistake_in_its_advice_is_refused_where_it_is_written():
    with pytest.raises(KeyError, match="valeu"):
        Alarm("height", 1.0, "{valeu} is too high")


def test_a_kl_above_1_needs_no_history_and_what_was_not_measured_is_no_sign():
    watch = Watch()
    assert [len(watch.look({**HEALTHY, "kl": 1.5})) for _ in range(4)] == [0, 0, 1, 0]
    watch = Watch()
    assert all(not watch.look(dict.fromkeys(HEALTHY, None)) for _ in range(50))
    assert all(not watch.look({"loss": 1.0}) for _ in range(50))  # a warm start


@pytest.mark.slow
def test_a_run_that_learns_is_not_warned_about(settings, tmp_path):
    """A policy that writes six letters, a or b, learns to write a."""
    rng, data = random.Random(0), tmp_path / "rows.jsonl"
    texts = ["".join(rng.choices("ab", k=6)) for _ in range(400)]
    rows = [{"prompt": f"letters {i}:", "completion": text} for i, text in enumerate(texts)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {**settings, "eval": {"tasks": 0}, "sampling": {"max_new_tokens": 16}}
    warm = {"method": "sft", "steps": 40, "sft": {"data": str(data), "batch_size": 16}}
    trained(tmp_path / "warm", common, warm)
    run = {"model": {"name": str(tmp_path / "warm")}, "optimizer": {"lr": 0.002}, "steps": 60}
    trained(tmp_path / "run", common, run)
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert lines[0]["reward/mean"] < 0.6 < 0.8 < lines[-1]["reward/mean"]
    assert "warning" not in (tmp_path / "run" / "log.txt").read_text()
    assert max(line["sampling/logprob_gap"] for line in lines) < 1e-4
    in_all = lines[-1]["kl"] * lines[-1]["completion_length/mean"]
    assert lines[-1]["kl/sequence"] == pytest.approx(in_all)


def test_the_documentation_names_every_sign():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in README.read_text().splitlines()
        if line.startswith("| ")
    ]
    documented = {row[0]: (row[1].strip("`"), row[2]) for row in rows if len(row) == 3}
    for sign in SIGNS:
        assert documented[sign.name] == (sign.metric, sign.threshold)


class Tooled(Letters):
    """Offers a tool, without a word of it in its prompt, and declares an alarm that comes at once."""

    max_turns = 2
    alarms = (Alarm("height", 1.0, "{value:.1f} is too high"),)

    def tools(self):
        def look_up(word: str) -> str:
            return word

        return [look_up]

    def task(self, key):
        return replace(super().task(key), prompt=(Message("user", "aaa"),))

    def verify(self, task, rollout):
        return replace(super().verify(task, rollout), metrics={"height": 2.0})


def test_warnings_before_the_first_step_and_of_the_environment_are_said_once_and_stand_in_the_log(
    settings, tmp_path
):
    more = {"steps": 10, "group_size": 2, "eval": {"tasks": 0}, "lora": {"enabled": False}}
    short = {"sampling": {"max_new_tokens": 2}}
    _, heard = trained(tmp_path / "run", settings, more, short, env=Tooled())
    log = (tmp_path / "run" / "log.txt").read_text()
    for words in ("no place for tools", "optimizer.lr=0.01 suits LoRA"):
        (text,) = [text for text in heard.warnings if words in text]
        assert log.count(f"warning, step 0: {text}\n") == 1
    assert log.count("2.0 is too high") == 1


@pytest.mark.parametrize(
    "shows",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools[0].function.name }}{% endif %}",
        "chatml-tools",
    ],
)
def test_tools_that_the_chat_template_shows_are_not_warned_about(settings, tmp_path, shows):
    model = {**settings["model"], "chat_template": shows}
    more = {"model": model, "steps": 1, "eval": {"tasks": 0}}
    _, heard = trained(tmp_path / "run", settings, more, env=Tooled())
    assert not [text for text in heard.warnings if "no place for tools" in text]
