"""Tasks that cannot be asked of a model are named before the first step, left out and counted; they end no run, resume or evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core import TaskKey
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config, nested
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.rollout.skips import Skips
from grpo_core.train.rollout.tasks import epoch_order
from grpo_core.train.run import rows as looking
from grpo_core.train.trainer import Trainer

from .killing import killed
from .letters import Letters
from .long_rows import (
    Ambiguous,
    Broken,
    BrokenRow,
    Generated,
    Harder,
    Many,
    Never,
    NoHeldOut,
    NoRow,
    Odd,
    Repeated,
    Rows,
    Sentences,
)

HERE = Path(__file__).parent
TIMED = ("time/", "verify/seconds/", "memory/", "seconds")
REFUSES_SYSTEM = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no system message') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Heard(Observer):
    """Keeps what a run says and warns of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)

    def warn(self, text: str) -> None:
        self.texts.append(text)

    def about(self, words: str) -> list[str]:
        return [text for text in self.texts if words in text]


def trainer(
    settings: dict[str, Any],
    env: Any,
    folder: Path,
    *,
    observer: Observer | None = None,
    **more: Any,
) -> Trainer:
    own = {"environment": "rows", "steps": 6, "eval.tasks": 6, "checkpoint.every": 2, **more}
    if "mixture" in own:
        own["environment"] = None
    return Trainer(build_config([settings, nested(own)]), env, folder=folder, observer=observer)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if not any(word in key for word in TIMED)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def trained(folder: Path) -> list[tuple[int, str, int, float]]:
    """The step, environment, index and level of each group that was trained on, in order."""
    lines = RunFolder.open(folder).rollout_lines()
    keys = [(line["step"], line["key"]) for line in lines if line["key"]["split"] == "train"]
    return list(dict.fromkeys((step, key["env"], key["index"], key["level"]) for step, key in keys))


def rollouts(folder: Path) -> list[dict[str, Any]]:
    """What was sampled, with its rewards and advantages."""
    return [
        {key: value for key, value in line.items() if key not in ("verdict", "time")}
        for line in RunFolder.open(folder).rollout_lines()
    ]


def test_rows_that_are_too_long_are_named_before_the_first_step_and_train_nothing(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Rows(), tmp_path / "run", observer=heard).run()
    (named,) = heard.about("training tasks")
    assert named.startswith("2 of 12 training tasks of 'rows' cannot be asked")
    for index in (2, 7):
        assert f"train index {index} ('train row {index}: xx" in named
    assert "tokens and 6 new ones exceed the model's context of 1024" in named
    assert "take a model with a larger context" in named
    assert "max_new_tokens" not in named  # which could not help
    assert heard.texts.index(named) < heard.texts.index(heard.about("memory: ")[0])
    assert named in (tmp_path / "run" / "log.txt").read_text()
    good = [index for index in range(12) if index not in (2, 7)]
    dealt = [index for _, _, index, _ in trained(tmp_path / "run")]
    order = [i for epoch in range(3) for i in epoch_order("rows", 0, epoch, 12) if i in good]
    assert dealt == order[:24]  # each epoch has the other rows in the order that they had before
    left_out = [line.get("prompts/unasked", 0) for line in metrics(tmp_path / "run")]
    assert sum(left_out) in (4, 5)  # of two whole epochs, and perhaps of the third


@pytest.mark.slow
def test_a_resumed_run_leaves_out_the_same_rows_to_the_bit(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer(settings, Rows(), tmp_path / "whole").run()
    with killed(tmp_path / "parts", step=5) as observer:
        trainer(settings, Rows(), tmp_path / "parts", observer=observer).run()
    again = Trainer.resumed(tmp_path / "parts", Rows())
    assert again.done == 4
    again.run()
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert rollouts(tmp_path / "parts") == rollouts(tmp_path / "whole")


def test_generated_tasks_that_are_too_long_are_replaced_by_the_next_ones_and_counted(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Generated(), tmp_path / "run", observer=heard).run()
    dealt = [index for _, _, index, _ in trained(tmp_path / "run")]
    env = Generated()
    bad = [i for i in range(200) if "x" * 9 in str(env.task(TaskKey("rows", "train", i)).prompt)]
    assert dealt == [i for i in range(200) if i not in bad][:24]
    counted = sum(line.get("prompts/unasked", 0) for line in metrics(tmp_path / "run"))
    assert counted == len([i for i in bad if i < dealt[-1]]) > 4
    (said,) = heard.about("the next one is taken in its place")
    assert f"train index {bad[0]} (" in said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("refills", [0, 2])
def test_a_resumed_run_replaces_the_same_generated_tasks_to_the_bit(
    settings: dict[str, Any], tmp_path: Path, refills: int
) -> None:
    more = {"sampling.refills": refills}
    trainer(settings, Generated(), tmp_path / "whole", **more).run()
    with killed(tmp_path / "parts", step=3) as observer:
        trainer(settings, Generated(), tmp_path / "parts", observer=observer, **more).run()
    again = Trainer.resumed(tmp_path / "parts", Generated())
    assert again.done == 2
    again.run()
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert rollouts(tmp_path / "parts") == rollouts(tmp_path / "whole")


@pytest.mark.slow
def test_a_mixture_with_a_curriculum_resumes_with_the_same_tasks_to_the_bit(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    envs = {"finite": Rows(), "harder": Harder(), "letters": Letters()}
    more = {
        "mixture": {"finite": {}, "harder": {"share": 2}, "letters": {}},
        "curriculum.enabled": True,
        "curriculum.attempts": 6,
        "curriculum.low": 0.1,
        "curriculum.high": 0.2,
        "curriculum.step": 0.2,
    }
    heard = Heard()
    trainer(settings, envs, tmp_path / "whole", observer=heard, **more).run()
    with killed(tmp_path / "parts", step=5) as observer:
        trainer(settings, dict(envs), tmp_path / "parts", observer=observer, **more).run()
    Trainer.resumed(tmp_path / "parts", envs).run()
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    dealt = trained(tmp_path / "whole")
    assert trained(tmp_path / "parts") == dealt
    assert len({level for _, name, _, level in dealt if name == "harder"}) > 1
    assert {index for _, name, index, _ in dealt if name == "finite"} <= {*range(12)} - {2, 7}
    shares = [name for _, name, _, _ in dealt]
    assert shares.count("harder") == 2 * shares.count("finite") == 12
    last = metrics(tmp_path / "whole")[-1]
    assert last["eval/unasked"] == last["eval/finite/unasked"] + last["eval/harder/unasked"]
    assert "eval/letters/unasked" not in last


@pytest.mark.slow
def test_a_pipeline_deals_the_same_tasks_as_a_run_without_one(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer(settings, Generated(), tmp_path / "plain").run()
    more = {"pipeline.max_staleness": 2}
    with killed(tmp_path / "ahead", step=3) as observer:
        trainer(settings, Generated(), tmp_path / "ahead", observer=observer, **more).run()
    Trainer.resumed(tmp_path / "ahead", Generated()).run()
    assert trained(tmp_path / "ahead") == trained(tmp_path / "plain")


def test_how_much_was_looked_at_before_the_first_step_changes_nothing_after_it(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(settings, Rows(), tmp_path / "known").run()
    monkeypatch.setattr(looking, "SECONDS", -1.0)
    heard = Heard()
    trainer(settings, Rows(), tmp_path / "unknown", observer=heard).run()
    assert heard.about("0 of 12 training tasks of 'rows' were looked at")
    assert heard.about("the next one is taken in its place")
    assert metrics(tmp_path / "unknown") == metrics(tmp_path / "known")
    assert rollouts(tmp_path / "unknown") == rollouts(tmp_path / "known")


def test_log_txt_names_all_rows_where_they_are_too_many_for_one_message(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Many(), tmp_path / "run", observer=heard, steps=1).run()
    (said,) = heard.about("training tasks")
    assert said.startswith("20 of 40 training tasks")
    assert "and 10 more" in said
    assert "all of them: index 0, 2, 4, 6, 8, 10, 12," in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize(
    ("env", "more", "why"),
    [
        (NoRow(), {}, r"none of 12 training tasks of 'rows' can be asked, such as train index 0 "),
        (NoHeldOut(), {}, r"none of 6 held-out tasks of 'rows' can be asked.*eval\.tasks=0"),
        (Never(), {"eval.tasks": 0}, r"none of \d+ training tasks in a row of 'rows' can be asked"),
        (
            Letters(),
            {"sampling.max_new_tokens": 1020},
            r"a prompt of \d+ tokens .* lower sampling\.max_new_tokens to 10\d\d or less",
        ),
    ],
    ids=["no row", "no held-out row", "no generated task", "no room"],
)
def test_a_run_of_which_nothing_can_be_asked_ends_before_anything_is_written(
    settings: dict[str, Any], tmp_path: Path, env: Any, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        trainer(settings, env, tmp_path / "run", **more).run()
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_without_such_tasks_says_and_logs_nothing_of_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Letters(), tmp_path / "run", observer=heard, steps=2).run()
    assert not heard.about("asked")
    assert not [key for line in metrics(tmp_path / "run") for key in line if "unasked" in key]
    assert not [key for line in metrics(tmp_path / "run") for key in line if key.endswith("/all")]


def test_a_row_that_the_chat_template_refuses_is_left_out_like_one_that_is_too_long(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    more = {"model.chat_template": REFUSES_SYSTEM}
    trainer(settings, Odd(), tmp_path / "run", observer=heard, **more).run()
    (said,) = heard.about("training tasks")
    assert "1 of 12 training tasks of 'rows' cannot be asked" in said
    assert "train index 3 ('train row 3:': the model's chat template refuses" in said
    assert 3 not in {index for _, _, index, _ in trained(tmp_path / "run")}
    assert metrics(tmp_path / "run")[0]["eval/pass_rate/all"] == pytest.approx(5 / 6)


def test_odd_rows_of_a_file_are_named_not_paid_and_the_run_and_its_resume_end_well(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Two prompts beyond the context; what is no valid text is refused when the file is read."""
    rows = [{"question": f"What is {n} plus 1?", "answer": str(n + 1)} for n in range(200)]
    rows[17]["question"] = "lorem ipsum " * 150 + "What is 17 plus 1?"
    rows[40]["question"] = "dolor sit " * 180 + "What is 40 plus 1?"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = tmp_path / "held.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in [*rows[10:20], *rows[35:45]]))
    more = {
        "environment": "dataset",
        "env.path": str(path),
        "env.eval_path": str(held_out),
        "env.reward": "number",
        "sampling.max_new_tokens": 4,
        "steps": 60,
        "eval.tasks": 20,
        "group_size": 2,
        "checkpoint.every": 30,
    }
    heard = Heard()
    with killed(tmp_path / "run", step=45) as observer:
        observer.warn = heard.warn  # type: ignore[method-assign]
        trainer(settings, None, tmp_path / "run", observer=observer, **more).run()
    again = Trainer.resumed(tmp_path / "run", trust=True)
    assert again.done == 30
    again.run()
    assert again.done == 60
    (said,) = heard.about("training tasks")
    assert said.startswith("2 of 200 training tasks of 'dataset' cannot be asked")
    assert "train index 17 ('lorem ipsum" in said
    assert "train index 40 (" in said
    assert heard.about("20 of 20 held-out prompts of 'dataset' are among the training prompts")
    indices = [index for _, _, index, _ in trained(tmp_path / "run")]
    assert set(indices) == {*range(200)} - {17, 40}
    last = metrics(tmp_path / "run")[-1]
    assert (last["eval/unasked"], last["eval/tasks"]) == (2, 18)
    assert last["eval/pass_rate/all"] == pytest.approx(last["eval/pass_rate"] * 18 / 20)


def test_sft_leaves_out_a_reference_whose_prompt_the_template_refuses(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    more = {"model.chat_template": REFUSES_SYSTEM, "method": "sft", "sft.batch_size": 12}
    trainer(settings, Odd(), tmp_path / "run", observer=heard, steps=1, **more).run()
    assert heard.about("step 1: 1 of 12 examples are left out (reported once): the model's chat")


# Evaluations


def test_an_evaluation_in_a_run_names_such_tasks_and_gives_the_pass_rate_over_all(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Rows(), tmp_path / "run", observer=heard, steps=1).run()
    (said,) = heard.about("held-out tasks of 'rows' cannot be asked")
    assert said.startswith("1 of 6 held-out tasks")
    assert "eval index 4 (" in said
    for line in metrics(tmp_path / "run"):
        if line["kind"] == "evaluation":
            assert (line["eval/tasks"], line["eval/unasked"]) == (5, 1)
            assert line["eval/pass_rate"] == 1.0
            assert line["eval/pass_rate/all"] == pytest.approx(5 / 6)


def measured(name: str, model: Path, *more: str) -> Any:
    done = CliRunner().invoke(
        app,
        [
            *("eval", "--env", f"{HERE / 'long_rows.py'}:{name}", "--model", str(model)),
            *("--dtype", "float32", "--tasks", "6", "--samples", "2", *more),
        ],
    )
    assert done.exit_code == 0, done.output
    return done


def test_grpo_eval_names_such_tasks_and_prints_both_rates(tiny_folder: Path) -> None:
    result = json.loads(measured("Rows", tiny_folder, "--json").stdout)["results"][0]
    assert (result["tasks"], result["attempts"]) == (5, 10)
    assert result["statistics"]["pass rate"]["value"] == 1.0
    assert result["statistics"]["pass rate of all tasks"]["value"] == pytest.approx(5 / 6)
    assert result["statistics"]["pass rate of all tasks"]["tasks"] == 6
    (unasked,) = result["unasked"]
    assert (unasked["split"], unasked["index"]) == ("eval", 4)
    assert "exceed the model's context of 1024" in unasked["reason"]
    shown = " ".join(measured("Rows", tiny_folder).stdout.split())
    assert "pass rate of all tasks" in shown
    assert "cannot be asked: eval index 4 ('eval row 4: xx" in shown


def test_grpo_eval_of_tasks_that_can_all_be_asked_is_as_before(tiny_folder: Path) -> None:
    result = json.loads(measured("Repeated", tiny_folder, "--json").stdout)["results"][0]
    assert "unasked" not in result
    assert "pass rate of all tasks" not in result["statistics"]
    assert "asked" not in measured("Repeated", tiny_folder).stdout


def test_grpo_eval_of_tasks_none_of_which_can_be_asked_ends_with_one_error(
    tiny_folder: Path,
) -> None:
    done = CliRunner().invoke(
        app,
        ["eval", "--env", f"{HERE / 'long_rows.py'}:NoHeldOut", "--model", str(tiny_folder)],
    )
    assert done.exit_code == 2
    assert "none of 6 tasks can be asked, such as eval index 0" in " ".join(done.output.split())


def test_a_probe_leaves_such_tasks_out_and_says_so(tiny_folder: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            *("env", "probe", f"{HERE / 'long_rows.py'}:Rows", "--model", str(tiny_folder)),
            *("--tasks", "12", "--samples", "2", "--json"),
        ],
    )
    report = json.loads(done.stdout)
    assert [level["tasks"] for level in report["levels"]] == [10]
    assert "2 of 12 tasks cannot be asked (left out): train index" in report["warnings"][0]


# Held-out prompts that are trained on


def test_a_run_says_how_many_held_out_prompts_are_trained_on(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    trainer(settings, Repeated(), tmp_path / "run", observer=heard, steps=1).run()
    assert heard.about(
        "2 of 6 held-out prompts of 'rows' are among the training prompts, such as eval index 0: "
        "the held-out scores mean nothing for these"
    )


@pytest.mark.parametrize(
    "env", [Rows(), Ambiguous(), Letters()], ids=lambda env: type(env).__name__
)
def test_a_run_says_nothing_of_prompts_where_no_held_out_answer_is_trained_on(
    settings: dict[str, Any], tmp_path: Path, env: Any
) -> None:
    heard = Heard()
    trainer(settings, env, tmp_path / "run", observer=heard, steps=1).run()
    assert not heard.about("held-out prompts")


def test_sft_says_how_many_held_out_prompts_are_among_its_examples(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    data = tmp_path / "examples.jsonl"
    examples = [{"prompt": f"EVAL row {index}", "completion": "a"} for index in (0, 3, 77)]
    data.write_text("".join(json.dumps(example) + "\n" for example in examples))
    heard = Heard()
    more = {"method": "sft", "sft.data": str(data), "environment": None, "eval.also": ["rows"]}
    env = {"rows": Sentences()}
    trainer(settings, env, tmp_path / "run", observer=heard, steps=1, **more).run()
    assert heard.about("2 of 6 held-out prompts of 'rows' are among the examples that are learned")


def test_a_held_out_row_that_is_broken_and_not_evaluated_does_not_end_the_run(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    run = trainer(
        settings, Broken(), tmp_path / "run", observer=heard, steps=1, **{"eval.tasks": 3}
    )
    run.run()
    assert run.done == 1
    (said,) = heard.about("were not compared")
    assert "row 5 is broken" in said


def test_a_training_row_that_cannot_be_made_is_found_before_the_first_step(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(GrpoError, match="row 5 is broken"):
        trainer(settings, BrokenRow(), tmp_path / "run", steps=1).run()
    assert not (tmp_path / "run" / "config.json").exists()


# Numbers


def test_skips_number_what_is_left_as_a_list_without_the_left_out_would() -> None:
    left_out = [0, 3, 4, 5, 11, 12, 30]
    kept = [number for number in range(100) if number not in left_out]
    skips = Skips()
    for number in (4, 0, 30, 12, 3, 11, 5):
        skips.add("a", number)
    assert [skips.nth("a", place) for place in range(60)] == kept[:60]
    assert [skips.nth("b", place) for place in range(3)] == [0, 1, 2]
    assert skips.total == 7
    for dealt in range(40):
        expected = [number for number in left_out if dealt and number < kept[dealt - 1]]
        assert skips.state({"a": dealt}) == ({"a": expected} if dealt else {})
    again = Skips(skips.state({"a": 40}))
    assert [again.nth("a", place) for place in range(60)] == kept[:60]
    skips.add("a", 31)
    assert (skips.series("a"), again.series("a"), again.series("b")) == (2, 1, 0)
