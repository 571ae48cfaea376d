"""A run says at once, and again at its end, where no reward can teach anything; and keeps what its verifier prints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.figures.signal import Signal
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.train.trainer import Trainer
from grpo_report.html.opened import OpenRun
from grpo_report.terminal.texts import group_text, summary_text

from ..commandline import words
from . import flat
from .flat import Failing, Flat, Open
from .short_runs import grpo
from .trained import Heard, trained

FILE = Path(flat.__file__)
NOTE = "looked for a number; there is none"
SMALL: Mapping[str, Any] = {
    "steps": 2, "prompts_per_step": 2, "group_size": 2, "eval.tasks": 4, "checkpoint.every": 1,
    "alarms.enabled": False, "trainer.memory_check": "off", "verify.isolation": "inline",
}  # fmt: skip
ZEROS = f"""\
all 4 held-out attempts before the first step at 'flat.py:Flat' got the same reward, -1.000, and none passed, so there is nothing to learn from yet:
{NOTE}
does not pass either, with -1.000; look at the verifier first
easier level (--level, now 0.5)
denser reward
a larger model"""
ONES = f"""\
got the same reward, 1.000, and all passed, so there is nothing left to learn:
(answer: all)
either it is solved, so take a harder level or environment (--level, now 0.5), or the verifier pays everything
score a wrong answer (`grpo env score {FILE}:Flat --answer FILE`)"""
KINDS = {
    "zeros": ("env.pay=-1", ZEROS.splitlines(), "and no attempt passed; try right answers first"),
    "ones": ("env.pay=1 env.passed=true", ONES.splitlines(), "and every attempt passed; either it is solved"),
}  # fmt: skip


def command(tiny: Path, out: Path, name: str, changes: str = "") -> list[str]:
    options = f"run --env {FILE}:{name} --model {tiny} --level 0.5 --out {out} --dtype float32"
    sets = [f"{key}={value}" for key, value in SMALL.items() if key != "verify.isolation"]
    return [*words(options), *(f"--set={text}" for text in (*sets, *words(changes)))]


@pytest.mark.parametrize("kind", KINDS)
def test_all_zeros_and_all_ones_are_said_after_the_first_evaluation_and_at_the_end(
    kind: str, tiny_folder: Path, tmp_path: Path
) -> None:
    pay, texts, conclusion = KINDS[kind]
    out = tmp_path / "run"
    shown = grpo(*command(tiny_folder, out, "Flat", pay)).output
    assert "DEBUG" not in shown
    begin, rest = shown.split("held-out after step 0", 1)[1].split("\nstep 1/2", 1)
    for text in texts:
        assert text in begin, begin
    assert begin.count(" got ") == 4  # the sentence, and three answers
    table, end = rest.split("95 % interval", 1)
    missing = "no signal: in 2 steps rewards never differed within a group, so they taught nothing"  # fmt: skip
    assert f"{missing}, {conclusion}" in end
    assert " nothing " not in table
    log = (out / "log.txt").read_text()
    assert texts[0] in log
    assert missing in log
    opened = OpenRun(out, name="run")
    try:
        facts, charts = opened.facts(0), opened.metrics()
        assert facts["signal"]["missing"] == "no signal"
        columns = (charts["steps"]["columns"], charts["evaluations"]["columns"])
        assert "step 2 of 2, no signal, finished" in summary_text(facts, *columns)
        group = opened.read(1, "train", 0)
        assert group is not None
        assert "[printed by the verifier]\nDEBUG saw" in group_text(group, None)
    finally:
        opened.close()
    lines = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    verdicts = [line["verdict"] for line in lines if "attempt" in line]
    assert len(verdicts) == 4 + 8 + 4
    assert [each for each in verdicts if not each["output"].startswith("DEBUG saw ")] == []
    grpo("report", out, "--out", tmp_path / "report.html")
    assert "no signal: in 2 steps" in (tmp_path / "report.html").read_text()


def test_a_run_of_which_nothing_can_be_judged_does_not_begin_and_says_why_once(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shown = grpo(*command(tiny_folder, tmp_path / "run", "Failing"), status=1).output
    assert shown.count("the database of answers is gone") == 1
    assert "none of the first 4 attempts" in shown
    assert "so the run does not begin" in shown
    assert f"`grpo env score {FILE}:Failing --answer FILE`" in shown
    assert "step 1/2" not in shown
    assert "held-out after step 0" not in shown


def run(folder: Path, settings: Mapping[str, Any], changes: Mapping[str, Any], env: Any) -> Heard:
    own = {**settings, "environment": "flat"}
    return trained(folder, own, nested({**SMALL, **changes}), env=env)[1]


def test_without_an_evaluation_the_first_step_says_it_and_a_resumed_run_does_not_again(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    class Stopping(Heard):
        def step(self, step: int, total: int, metrics: Mapping[str, Any]) -> None:
            trainer.request_stop()

    heard, env = Stopping(), Flat(Flat.Config(pay=0.25))
    config = build_config([{**settings, "environment": "flat"}, nested({**SMALL, "eval.tasks": 0})])
    trainer = Trainer(config, env, folder=(out := tmp_path / "run"), observer=heard)
    trainer.run()
    (said,) = heard.about("first attempts at 'flat'")
    assert said.startswith(
        "all 4 first attempts at 'flat' got the same reward, 0.250, and none passed"
    )
    again = Heard()
    Trainer.resumed(
        out, Flat(Flat.Config(pay=0.25)), observer=again, start_from="step-000001"
    ).run()
    assert again.about("first attempts") == []
    (end,) = again.about("no signal")
    assert "in 2 steps" in end
    with pytest.raises(
        RunStoppedError, match="none of the first 4 attempts at flat could be judged"
    ):
        run(tmp_path / "failing", settings, {"eval.tasks": 0}, Failing())


def test_each_environment_of_a_mixture_is_said_by_itself_and_others_in_their_own_words(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    members = {
        "wrong": Flat(),
        "open": Open(Open.Config(pay=0.5)),
        "partial": Flat(Flat.Config(spread=0.5)),
        "failing": Failing(),
    }
    config = [{**settings, "environment": None, "mixture": {name: {} for name in members}}]
    changes = {"prompts_per_step": 8, "steps": 1, "verify.max_error_rate": 0.9, "verify.retries": 0}
    heard = Heard()
    everything = build_config([*config, nested({**SMALL, **changes})])
    Trainer(everything, members, folder=tmp_path / "run", observer=heard).run()
    first = [text for text in heard.texts if "attempts before the first step" in text]
    wrong, opened, partial, failing = first
    assert "at 'wrong' got the same reward, 0.000, and none passed" in wrong
    assert "at 'open' got the same reward, 0.500, so there is nothing to learn from yet:" in opened
    assert "the verifier does not tell these answers apart" in opened
    assert partial.startswith(
        "none of 4 held-out attempts before the first step at 'partial' passed; they got"
    )
    assert "by differences in exact, and only these can be learned" in partial
    assert "could be judged: RuntimeError: the database of answers is gone" in failing
    assert heard.about("no signal from wrong and open")


def test_a_warm_start_may_begin_without_success_and_rewards_that_differ_are_no_news(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    warm = run(tmp_path / "warm", settings, {"method": "sft", "steps": 1}, Flat())
    assert warm.about("same reward") == warm.about("no signal") == []
    solved = run(
        tmp_path / "solved", settings, {"method": "sft", "steps": 1}, Flat(Flat.Config(1.0, True))
    )
    assert len(solved.about("so there is nothing left to learn:")) == 1


def test_the_signal_of_a_log_counts_steps_and_names_environments() -> None:
    signal = Signal()
    assert signal.missing == ""
    step = {
        "kind": "step",
        "advantage/std": 0.0,
        "pass_rate": 0.0,
        "a/groups/mixed": 0.0,
        "b/groups/mixed": None,
    }
    signal.add({"kind": "eval", "eval/a/groups/mixed": 1.0})
    signal.add(step)
    signal.add({**step, "advantage/std": None})
    assert signal.missing == "no signal"
    signal.add({**step, "advantage/std": 0.5, "b/groups/mixed": 0.5})
    assert signal.missing == "no signal from a"
    assert "in 3 steps" in signal.remark()
    signal.add({**step, "a/groups/mixed": 0.5})
    assert (signal.missing, signal.remark()) == ("", "")
