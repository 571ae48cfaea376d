"""What environments/README.md says: steps that can be carried out, code that does what is said of it, and a reference that is current."""

import ast
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from grpo_core import Environment, Spec
from grpo_core.cli.app import app
from grpo_core.testing import check_environment
from grpo_kit.run import catalogue
from grpo_kit.scaffold.reference import with_reference

from .tutorial import DOCUMENT, END, ROOT, Shell, Step, TutorialError, carry_out, read_steps

TEXT = DOCUMENT.read_text(encoding="utf-8")
STEPS = read_steps(TEXT)
DRAFTS = [step for step in STEPS if step.language == "python"]
HOLES = ["task.split", "floor.listed"]
FOLLOWING = ["floor.suffix", "floor.near"]


NAMED = [shlex.split(command)[1:] for command in re.findall(r"`(grpo [^`|&]*)", TEXT)]


def environment(draft: Step, folder: Path) -> Environment[Any]:
    path = folder / "env.py"
    path.write_text(draft.text, encoding="utf-8")
    made: Environment[Any] = Spec("roman", f"{path}:RomanEnv").load()()
    return made


def test_the_tutorial_installs_makes_checks_trains_and_builds_in_this_order() -> None:
    text = "\n".join(step.text for step in STEPS if step.language == "bash")
    order = [
        "pip install",
        "grpo env new",
        "grpo env check",
        "grpo env show",
        "grpo env score",
        "grpo env play",
        "grpo run",
        "-m build",
    ]
    places = [text.index(command) for command in order]
    assert places == sorted(places)
    assert {step.language for step in STEPS} == {"bash", "python", "toml"}


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_every_command_and_option_that_is_named_exists(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, (
            f"no command {words[0]!r} in {sorted(command.commands)}"
        )
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.load().params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_first_draft_has_the_holes_that_the_tutorial_shows(tmp_path: Path) -> None:
    report = check_environment(
        environment(DRAFTS[0], tmp_path), only=[*HOLES, *FOLLOWING], isolation="inline"
    )
    assert [result.check for result in report.problems] == HOLES
    assert [result.check for result in report.consequences] == FOLLOWING
    check, _ = [step for step in STEPS if step.status]
    assert [text.removeprefix("fault ") for text in check.says] == HOLES


@pytest.mark.slow
def test_the_second_draft_has_no_hole_and_at_most_15_lines_in_its_methods(tmp_path: Path) -> None:
    report = check_environment(
        environment(DRAFTS[1], tmp_path),
        only=["task.split", "task.level", "floor", "verdict.reference"],
        isolation="inline",
    )
    assert report.problems == report.warnings == ()
    (found,) = [node for node in ast.parse(DRAFTS[1].text).body if isinstance(node, ast.ClassDef)]
    bodies = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    assert sum((node.end_lineno or 0) - node.body[0].lineno + 1 for node in bodies) <= 15


@pytest.mark.slow
def test_the_shortcut_of_the_tutorial_is_found_and_closed(tmp_path: Path, shell: Shell) -> None:
    *_, wrote, found, closed, none_left = STEPS
    carry_out(wrote, shell, seconds=10)
    for hunt in (found, none_left):
        words = shlex.split(hunt.text)[1:]
        words[words.index("remainder.py:Remainder")] = f"{shell.folder / 'remainder.py'}:Remainder"
        done = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
        assert done.exit_code == hunt.status, done.output
        assert all(text in " ".join(done.output.split()) for text in hunt.says)
        carry_out(closed, shell, seconds=10)


def test_every_check_that_is_named_exists() -> None:
    groups = {name.partition(".")[0] for name in catalogue()}
    named = set(re.findall(rf"`((?:{'|'.join(groups)})\.\w+)`", TEXT))
    assert len(named) > 15
    assert named <= catalogue().keys()


def test_the_plugin_reference_is_current() -> None:
    assert with_reference(TEXT) == TEXT, (
        "run: python -m grpo_kit.scaffold.reference environments/README.md"
    )


def test_a_block_without_its_number_is_told() -> None:
    with pytest.raises(TutorialError, match="step 1: TITLE"):
        read_steps(f"```bash\ntrue\n```\n{END}\n")
    with pytest.raises(TutorialError, match="must be number 1"):
        read_steps(f"<!-- step 2: late -->\n```bash\ntrue\n```\n{END}\n")
    with pytest.raises(TutorialError, match="path/of/the/file"):
        read_steps(f"<!-- step 1: nowhere -->\n```python\nx = 1\n```\n{END}\n")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def step(text: str, *, language: str = "bash", status: int = 0, says: tuple[str, ...] = ()) -> Step:
    return Step(1, "a step", language, text, status, says)


def test_steps_share_their_folder_and_their_variables(shell: Shell) -> None:
    carry_out(step("mkdir below && cd below\nexport WORD='two words'\n"), shell, seconds=10)
    carry_out(step("# file.toml\nx = 1\n", language="toml"), shell, seconds=10)
    carry_out(
        step('cat file.toml; basename "$PWD"; echo "$WORD"\n', says=("x = 1 below two words",)),
        shell,
        seconds=10,
    )


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (step("false\ntrue\n"), "ended with status 1, not 0"),
        (step("false | cat\n"), "ended with status 1, not 0"),
        (step("true\n", status=1), "ended with status 0, not 1"),
        (step("echo one\n", says=("two",)), "did not say 'two'"),
    ],
)
def test_a_step_that_does_not_do_what_it_says_is_told_with_its_block(
    failing: Step, reason: str, shell: Shell
) -> None:
    with pytest.raises(TutorialError, match=reason) as told:
        carry_out(failing, shell, seconds=10)
    assert failing.text in str(told.value)


def test_a_step_that_takes_too_long_is_ended_with_all_it_started(shell: Shell) -> None:
    with pytest.raises(TutorialError, match="takes longer than 600 s"):
        carry_out(step("(sleep 1; touch late) &\nwait\n"), shell, seconds=0.3)
    time.sleep(1.2)
    assert list(shell.folder.iterdir()) == []


def test_grpo_core_is_installed_from_this_checkout_and_only_there(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def kept(script: str, *, seconds: float) -> tuple[int, str]:
        ran.append(script)
        return 0, ""

    monkeypatch.setattr(shell, "run", kept)
    carry_out(
        step("pip install 'grpo-core[train]' grpo-core-extras\necho grpo-core\n"), shell, seconds=10
    )
    assert ran == [f"pip install '{ROOT}[train]' grpo-core-extras\necho grpo-core"]
