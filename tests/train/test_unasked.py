"""Tasks that cannot be asked of a model are named before the first step, left out and counted; they end no run, resume or evaluation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core import ConfigError, Environment, GrpoError, TaskKey, Trainer
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config, nested
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer
from grpo_core.train.rollout.skips import Skips
from grpo_core.train.rollout.tasks import epoch_order
from grpo_core.train.run import rows as looking

from . import long_rows
from .killing import killed
from .letters import Letters
from .runs import Heard, small_settings
from .runs import untimed as metrics
from .tiny import save_tiny

HERE = Path(__file__).parent
REFUSES_SYSTEM = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no system message') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Environments = Environment[Any] | Mapping[str, Environment[Any]] | None


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = save_tiny(tmp_path_factory.mktemp("model") / "tiny")
    return {**small_settings(model), "group_size": 2}


def trainer(
    settings: dict[str, Any],
    env: Environments,
    folder: Path,
    *,
    observer: Observer | None = None,
    **more: Any,
) -> Trainer:
    own = {"environment": "rows", "steps": 6, "eval.tasks": 6, "checkpoint.every": 2, **more}
    if "mixture" in own:
        own["environment"] = None
    return Trainer(build_config([settings, nested(own)]), env, folder=folder, observer=observer)


def heard_of_a_step(
    settings: dict[str, Any], env: Environments, folder: Path, **more: Any
) -> Heard:
    """Return what a run of one step says."""
    heard = Heard()
    trainer(settings, env, folder, observer=heard, **{"steps": 1, **more}).run()
    return heard


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


def assert_same(folder: Path, whole: Path) -> None:
    assert metrics(folder) == metrics(whole)
    assert rollouts(folder) == rollouts(whole)


@pytest.fixture(scope="module")
def of_rows(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Heard]:
    """A run of six steps of `Rows`, and what it said."""
    folder = tmp_path_factory.mktemp("rows") / "run"
    return folder, heard_of_a_step(settings, long_rows.Rows(), folder, steps=6)


@pytest.fixture(scope="module")
def of_generated(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Heard]:
    """A run of six steps of `Generated`, and what it said."""
    folder = tmp_path_factory.mktemp("generated") / "run"
    return folder, heard_of_a_step(settings, long_rows.Generated(), folder, steps=6)


def test_rows_that_are_too_long_are_named_before_the_first_step_and_train_nothing(of_rows):
    folder, heard = of_rows
    (named,) = heard.about("training tasks")
    assert named.startswith("2 of 12 training tasks of 'rows' cannot be asked")
    for index in (2, 7):
        assert f"train index {index} ('train row {index}: xx" in named
    assert "tokens and 6 new ones exceed the model's context of 1024" in named
    assert "take a model with a larger context" in named
    assert "max_new_tokens" not in named  # which could not help
    assert heard.texts.index(named) < heard.texts.index(heard.about("memory: ")[0])
    assert named in (folder / "log.txt").read_text()
    good = [index for index in range(12) if index not in (2, 7)]
    dealt = [index for _, _, index, _ in trained(folder)]
    order = [i for epoch in range(3) for i in epoch_order("rows", 0, epoch, 12) if i in good]
    assert dealt == order[:24]  # each epoch has the other rows in the order that they had before
    left_out = [line.get("prompts/unasked", 0) for line in metrics(folder)]
    assert sum(left_out) in (4, 5)  # of two whole epochs, and perhaps of the third


def test_an_evaluation_in_a_run_names_such_tasks_and_gives_the_pass_rate_over_all(of_rows):
    folder, heard = of_rows
    (said,) = heard.about("held-out tasks of 'rows' cannot be asked")
    assert said.startswith("1 of 6 held-out tasks")
    assert "eval index 4 (" in said
    evaluations = [line for line in metrics(folder) if line["kind"] == "evaluation"]
    assert evaluations
    for line in evaluations:
        assert (line["eval/tasks"], line["eval/unasked"]) == (5, 1)
        assert line["eval/pass_rate"] == 1.0
        assert line["eval/pass_rate/all"] == pytest.approx(5 / 6)


def test_generated_tasks_that_are_too_long_are_replaced_by_the_next_ones_and_counted(of_generated):
    folder, heard = of_generated
    dealt = [index for _, _, index, _ in trained(folder)]
    env = long_rows.Generated()
    bad = [i for i in range(200) if "x" * 9 in str(env.task(TaskKey("rows", "train", i)).prompt)]
    assert dealt == [i for i in range(200) if i not in bad][:24]
    counted = sum(line.get("prompts/unasked", 0) for line in metrics(folder))
    assert counted == len([i for i in bad if i < dealt[-1]]) > 4
    (said,) = heard.about("the next one is taken in its place")
    assert f"train index {bad[0]} (" in said


def killed_and_resumed(
    settings: dict[str, Any], envs: Environments, folder: Path, *, step: int, **more: Any
) -> Path:
    """Return the folder of a run that was killed after a step, and went on from the checkpoint before it."""
    with killed(folder, step=step) as observer:
        trainer(settings, envs, folder, observer=observer, **more).run()
    again = Trainer.resumed(folder, envs)
    assert again.done == step - 1
    again.run()
    return folder


@pytest.mark.slow
def test_a_resumed_run_leaves_out_the_same_rows_to_the_bit(settings, of_rows, tmp_path):
    assert_same(
        killed_and_resumed(settings, long_rows.Rows(), tmp_path / "parts", step=5), of_rows[0]
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("refills", [0, 2])
def test_a_resumed_run_replaces_the_same_generated_tasks_to_the_bit(
    settings, of_generated, tmp_path, refills
):
    more, whole = {"sampling.refills": refills}, of_generated[0]
    if refills:
        whole = tmp_path / "whole"
        trainer(settings, long_rows.Generated(), whole, **more).run()
    parts = killed_and_resumed(settings, long_rows.Generated(), tmp_path / "parts", step=3, **more)
    assert_same(parts, whole)


@pytest.mark.slow
def test_a_mixture_with_a_curriculum_resumes_with_the_same_tasks_to_the_bit(settings, tmp_path):
    envs = {"finite": long_rows.Rows(), "harder": long_rows.Harder(), "letters": Letters()}
    more = {
        "mixture": {"finite": {}, "harder": {"share": 2}, "letters": {}},
        "group_size": 6,
        "curriculum.enabled": True,
        "curriculum.attempts": 6,
        "curriculum.low": 0.1,
        "curriculum.high": 0.2,
        "curriculum.step": 0.2,
    }
    trainer(settings, envs, tmp_path / "whole", **more).run()
    killed_and_resumed(settings, envs, tmp_path / "parts", step=5, **more)
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
def test_a_pipeline_deals_the_same_tasks_as_a_run_without_one(settings, of_generated, tmp_path):
    more, env = {"pipeline.max_staleness": 2}, long_rows.Generated()
    ahead = killed_and_resumed(settings, env, tmp_path / "ahead", step=3, **more)
    assert trained(ahead) == trained(of_generated[0])


def test_how_much_was_looked_at_before_the_first_step_changes_nothing_after_it(
    settings, of_rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(looking, "SECONDS", -1.0)
    heard = heard_of_a_step(settings, long_rows.Rows(), tmp_path / "unknown", steps=6)
    assert heard.about("0 of 12 training tasks of 'rows' were looked at")
    assert heard.about("the next one is taken in its place")
    assert_same(tmp_path / "unknown", of_rows[0])


def test_log_txt_names_all_rows_where_they_are_too_many_for_one_message(settings, tmp_path):
    (said,) = heard_of_a_step(settings, long_rows.Many(), tmp_path / "run").about("training tasks")
    assert said.startswith("20 of 40 training tasks")
    assert "and 10 more" in said
    assert "all of them: index 0, 2, 4, 6, 8, 10, 12," in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize(
    ("env", "more", "why"),
    [
        (
            long_rows.NoRow(),
            {},
            "none of 12 training tasks of 'rows' can be asked, such as train index 0 ",
        ),
        (
            long_rows.NoHeldOut(),
            {},
            r"none of 6 held-out tasks of 'rows' can be asked.*eval\.tasks=0",
        ),
        (
            long_rows.Never(),
            {"eval.tasks": 0},
            r"none of \d+ training tasks in a row of 'rows' can be asked",
        ),
        (
            Letters(),
            {"sampling.max_new_tokens": 1020},
            r"a prompt of \d+ tokens .*context of 1024.* lower sampling\.max_new_tokens to 10\d\d or less",
        ),
    ],
    ids=["no row", "no held-out row", "no generated task", "no room"],
)
def test_a_run_of_which_nothing_can_be_asked_ends_before_anything_is_written(
    settings, tmp_path, env, more, why
):
    with pytest.raises(ConfigError, match=why):
        trainer(settings, env, tmp_path / "run", **more).run()
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_without_such_tasks_says_and_logs_nothing_of_them(settings, tmp_path):
    heard = heard_of_a_step(settings, Letters(), tmp_path / "run")
    assert not heard.about("asked")
    assert not heard.about("held-out prompts")
    names = {key for line in metrics(tmp_path / "run") for key in line}
    assert not [key for key in names if "unasked" in key or key.endswith("/all")]


def test_a_row_that_the_chat_template_refuses_is_left_out_like_one_that_is_too_long(
    settings, tmp_path
):
    more = {"model.system_role": "keep", "model.chat_template": REFUSES_SYSTEM, "steps": 3}
    heard = heard_of_a_step(settings, long_rows.Odd(), tmp_path / "run", **more)
    (said,) = heard.about("training tasks")
    assert "1 of 12 training tasks of 'rows' cannot be asked" in said
    assert "train index 3 ('train row 3:': the model's chat template refuses" in said
    assert 3 not in {index for _, _, index, _ in trained(tmp_path / "run")}
    assert metrics(tmp_path / "run")[0]["eval/pass_rate/all"] == pytest.approx(5 / 6)


def test_sft_leaves_out_a_reference_whose_prompt_the_template_refuses(settings, tmp_path):
    more = {
        "model.system_role": "keep",
        "model.chat_template": REFUSES_SYSTEM,
        "method": "sft",
        "sft.batch_size": 12,
    }
    heard = heard_of_a_step(settings, long_rows.Odd(), tmp_path / "run", **more)
    assert heard.about("step 1: 1 of 12 examples are left out (reported once): the model's chat")


# Evaluations


def command(*words: str, env: str, settings: dict[str, Any]) -> Any:
    """Call a command with an environment of long_rows.py and the tiny model."""
    where = f"{HERE / 'long_rows.py'}:{env}"
    given = (where,) if words[0] == "env" else ("--env", where)
    model = ("--model", settings["model"]["name"], "--dtype", "float32")
    count = 2 if words[0] == "env" else 1
    return CliRunner().invoke(app, [*words[:count], *given, *model, *words[count:]])


EVAL = ("eval", "--tasks", "6", "--samples", "2")


def test_grpo_eval_names_such_tasks_and_prints_both_rates(settings: dict[str, Any]) -> None:
    done = command(*EVAL, "--json", env="Rows", settings=settings)
    result = json.loads(done.stdout)["results"][0]
    assert (result["tasks"], result["attempts"]) == (5, 10)
    assert result["statistics"]["pass rate"]["value"] == 1.0
    assert result["statistics"]["pass rate of all tasks"]["value"] == pytest.approx(5 / 6)
    assert result["statistics"]["pass rate of all tasks"]["tasks"] == 6
    (unasked,) = result["unasked"]
    assert (unasked["split"], unasked["index"]) == ("eval", 4)
    assert "exceed the model's context of 1024" in unasked["reason"]
    shown = " ".join(command(*EVAL, env="Rows", settings=settings).stdout.split())
    assert "pass rate of all tasks" in shown
    assert "cannot be asked: eval index 4 ('eval row 4: xx" in shown


def test_grpo_eval_of_tasks_that_can_all_be_asked_is_as_before(settings: dict[str, Any]) -> None:
    done = command(*EVAL, "--json", env="Repeated", settings=settings)
    result = json.loads(done.stdout)["results"][0]
    assert "unasked" not in result
    assert "pass rate of all tasks" not in result["statistics"]


def test_grpo_eval_of_tasks_none_of_which_can_be_asked_ends_with_one_error(settings):
    done = command("eval", env="NoHeldOut", settings=settings)
    assert done.exit_code == 2
    assert "none of 6 tasks can be asked, such as eval index 0" in " ".join(done.output.split())


def test_a_probe_leaves_such_tasks_out_and_says_so(settings: dict[str, Any]) -> None:
    more = ("--tasks", "12", "--samples", "2", "--json")
    report = json.loads(command("env", "probe", *more, env="Rows", settings=settings).stdout)
    assert [level["tasks"] for level in report["levels"]] == [10]
    assert "2 of 12 tasks cannot be asked (left out): train index" in report["warnings"][0]


# Held-out prompts that are trained on


def test_a_run_says_how_many_held_out_prompts_are_trained_on(settings, tmp_path):
    assert heard_of_a_step(settings, long_rows.Repeated(), tmp_path / "run").about(
        "2 of 6 held-out prompts of 'rows' are among the training prompts, such as eval index 0: "
        "the held-out scores mean nothing for these"
    )


def test_a_run_says_nothing_of_prompts_where_no_held_out_answer_is_trained_on(
    settings, of_rows, tmp_path
):
    assert not of_rows[1].about("held-out prompts")
    assert not heard_of_a_step(settings, long_rows.Ambiguous(), tmp_path / "run").about(
        "held-out prompts"
    )


def test_sft_says_how_many_held_out_prompts_are_among_its_examples(settings, tmp_path):
    data = tmp_path / "examples.jsonl"
    examples = [{"prompt": f"EVAL row {index}", "completion": "a"} for index in (0, 3, 77)]
    data.write_text("".join(json.dumps(example) + "\n" for example in examples))
    more = {"method": "sft", "sft.data": str(data), "environment": None, "eval.also": ["rows"]}
    heard = heard_of_a_step(settings, {"rows": long_rows.Sentences()}, tmp_path / "run", **more)
    assert heard.about("2 of 6 held-out prompts of 'rows' are among the examples that are learned")


def test_a_held_out_row_that_is_broken_and_not_evaluated_does_not_end_the_run(settings, tmp_path):
    heard = heard_of_a_step(settings, long_rows.Broken(), tmp_path / "run", **{"eval.tasks": 3})
    (said,) = heard.about("were not compared")
    assert "row 5 is broken" in said
    assert [step for step, *_ in trained(tmp_path / "run")] == [1] * 4


def test_a_training_row_that_cannot_be_made_is_found_before_the_first_step(settings, tmp_path):
    with pytest.raises(GrpoError, match="row 5 is broken"):
        trainer(settings, long_rows.BrokenRow(), tmp_path / "run", steps=1).run()
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
