"""`grpo env new`: each kind of project is complete, tested by itself, and fit to be trained on; a bad request writes nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml

from grpo_core import TaskKey
from grpo_core.kit import new
from grpo_core.kit.new import Kind, project_files
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.types import Split
from grpo_core.runs.folder import RunFolder

from ..commandline import words
from ..train.tiny import save_tiny
from .distributions import grpo, install, install_plugin, install_project, pytest_apart

KINDS = get_args(Kind)
FREE = ("text", "dialogue", "episode", "dataset")
"""Kinds that borrow nothing."""
MOST_LINES = 15
JUDGE = """
from grpo_core.runs.folder import RunFolder
from grpo_core import Judgement, NoConfig, Spec, hookimpl


class Same:
    Config = NoConfig

    def __init__(self, config):
        pass

    async def judge(self, requests):
        return [Judgement(float(request.candidate == request.reference)) for request in requests]

    def fingerprint(self):
        return "same"

    async def close(self):
        pass


@hookimpl
def grpo_judges():
    return [Spec("same", "plugin_same:Same")]
"""


@pytest.fixture
def project(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the environment `word-sums` of a kind, and installs it as pip would in editable mode."""

    def made(kind: str) -> Path:
        result = grpo("env", "new", "word-sums", "--kind", kind)
        assert result.exit_code == 0, result.stderr
        folder = site / "grpo-env-word-sums"
        install_project(site, folder, monkeypatch)
        return folder

    return made


def own_tests(folder: Path, *options: str) -> str:
    done = pytest_apart(*options, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def logic(source: str) -> list[str]:
    """The lines inside of functions, without docstrings, comments and blank lines."""
    lines = source.splitlines()
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            numbers |= set(range(body[0].lineno, (node.end_lineno or 0) + 1))
    return [
        line
        for number in sorted(numbers)
        if (line := lines[number - 1].strip()) and not line.startswith("#")
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_is_listed_and_passes_its_own_tests(
    kind: str, project: Callable[[str], Path]
) -> None:
    folder = project(kind)
    assert "word-sums" in grpo("envs").stdout
    assert " passed" in own_tests(
        folder, "-k", "declared or pure or split or level or reference or cheats"
    )


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_passes_every_check(
    kind: str, project: Callable[[str], Path], site: Path
) -> None:
    assert " passed" in own_tests(project(kind))
    checked = grpo(
        "env",
        "check",
        "word-sums",
        "--json",
        *(judged_by_equality(site) if kind == "judge" else ()),
    )
    assert checked.exit_code == 0, checked.stdout
    found = {result["check"]: result["status"] for result in json.loads(checked.stdout)["results"]}
    assert "fault" not in found.values()
    assert list(found.values()).count("valid") >= 18, found


def test_the_tests_of_a_judged_project_fail_without_its_guards(
    project: Callable[[str], Path],
) -> None:
    source = project("judge") / "grpo_env_word_sums" / "env.py"
    text = source.read_text()
    guarded = "fault = GUARDS.fault(text, reference=gap.missing, context=gap.before + gap.after)"
    assert guarded in text
    source.write_text(text.replace(guarded, "fault = None"))
    done = pytest_apart("-k", "floor", cwd=source.parents[1])
    assert (done.returncode, "test_conformance[floor.cheats]" in done.stdout) == (1, True), (
        done.stdout
    )


@pytest.mark.parametrize("kind", ["text", "dialogue"])
def test_both_splits_hold_every_last_digit(kind: str, project: Callable[[str], Path]) -> None:
    """A policy that never had to write an odd number would not do so on held-out tasks."""
    project(kind)
    env = PluginHost().load("environment", "word-sums")()
    for split in get_args(Split):
        tasks = [env.task(TaskKey("word-sums", split, index)) for index in range(400)]
        assert {str(task.data)[-1] for task in tasks} == set("0123456789")
        shown = {
            number[-1]
            for task in tasks
            for number in re.findall(r"[0-9]+", task.prompt[-1].content)
        }
        assert shown == set("0123456789")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", FREE)
def test_a_project_asks_a_task_whose_reference_passes(
    kind: str, project: Callable[[str], Path]
) -> None:
    project(kind)
    shown = grpo("env", "show", "word-sums", "--reference", "--level", "0.5").stdout
    reference = shown.rpartition("[reference]\n")[2].strip()
    scored = grpo("env", "score", "word-sums", "--answer", "-", "--level", "0.5", stdin=reference)
    assert "not passed" not in scored.stdout
    assert "passed" in scored.stdout


def test_rows_may_hold_separators_of_lines_and_end_in_a_blank_one(
    project: Callable[[str], Path],
) -> None:
    rows = project("dataset") / "grpo_env_word_sums" / "train.jsonl"
    text = rows.read_text(encoding="utf-8")
    rows.write_text(text + '{"question": "a\u2028b", "answer": "c\u0085"}\n\n', encoding="utf-8")
    env = PluginHost().load("environment", "word-sums")()
    assert env.size("train") == len(text.splitlines()) + 1
    assert (
        env.task(TaskKey("word-sums", "train", env.size("train") - 1)).prompt[-1].content
        == "a\u2028b"
    )


def test_the_guesses_of_a_dialogue_can_find_every_number_at_every_level(
    project: Callable[[str], Path],
) -> None:
    project("dialogue")
    env = PluginHost().load("environment", "word-sums")()
    for index in range(300):
        asked = (
            env.task(TaskKey("word-sums", "train", index, level=float(index % 2)))
            .prompt[-1]
            .content
        )
        low, high = map(int, re.findall(r"[0-9]+", asked))
        assert 1 <= high - low - 1 <= 2**env.max_turns - 1


def test_a_project_can_be_trained_on_at_once(
    project: Callable[[str], Path], tmp_path: Path
) -> None:
    train("text", project, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_so_can_one_of_each_kind(kind: str, project: Callable[[str], Path], tmp_path: Path) -> None:
    train(kind, project, tmp_path)


def judged_by_equality(folder: Path) -> list[str]:
    install(
        folder,
        "grpo-judge-same",
        entry_points={"same": "plugin_same"},
        modules={"plugin_same": JUDGE},
    )
    return ["--set", "judges.default.name=same"]


def train(kind: str, project: Callable[[str], Path], tmp_path: Path) -> None:
    project(kind)
    model = str(save_tiny(tmp_path / "tiny"))
    small = words("--prompts-per-step 2 --group-size 2 --max-new-tokens 4 --set eval.tasks=2")
    if kind == "judge":
        small += judged_by_equality(tmp_path)
    done = grpo(
        *words(f"run --env word-sums --model {model} --steps 2"),
        *small,
        "--out",
        str(tmp_path / "run"),
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "final" / "adapter_config.json").exists()
    rows = list(RunFolder(tmp_path / "run").rollout_lines())
    assert [row["step"] for row in rows if row["key"]["split"] == "train"] == [1] * 4 + [2] * 4
    assert {row["verdict"]["error"] for row in rows} == {None}


@pytest.mark.parametrize("kind", KINDS)
def test_the_environment_has_at_most_15_lines_of_logic_a_reference_and_cheats(kind: Kind) -> None:
    source = project_files("word-sums", kind=kind)["grpo_env_word_sums/env.py"]
    assert 5 < len(logic(source)) <= MOST_LINES, "\n".join(logic(source))
    if kind != "code":  # whose base class has both
        assert "def reference(self" in source
        assert "def cheats(self" in source


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_project_is_well_formed_and_tidy(kind: Kind, tmp_path: Path) -> None:
    files = project_files("word-sums", kind=kind)
    assert {
        "README.md",
        ".gitignore",
        "pyproject.toml",
        "tests/test_env.py",
        "grpo_env_word_sums/py.typed",
    } <= files.keys()
    assert [
        path
        for path, text in files.items()
        if "$" in text.replace("${{ matrix", "").replace('"$(grpo', "")
    ] == []
    assert tomllib.loads(files["pyproject.toml"])["project"]["dependencies"] == [
        f"grpo-core>={new.__version__}"
    ]
    steps = yaml.safe_load(files[".github/workflows/test.yml"])["jobs"]["test"]["steps"]
    last = (
        ["pytest"] if kind == "judge" else ["pytest", "grpo env check word-sums"]
    )  # there is no judge in CI but that of the tests
    assert [step["run"] for step in steps if "run" in step][-len(last) :] == last
    for path, text in files.items():
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (["check", "--select", "E,F,W,I,UP,B"], ["format", "--check"]):
        tidy = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", "."]
        done = subprocess.run(tidy, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_what_to_do_next_is_printed_in_order(site: Path) -> None:
    lines = [
        line.strip()
        for line in grpo("env", "new", "word-sums", "--out", "a folder").stdout.splitlines()
    ]
    assert lines[2:] == [
        "cd 'a folder'",
        "pip install -e '.[test]'",
        "pytest",
        "grpo env check word-sums",
        "grpo run --env word-sums --steps 2",
    ]


@pytest.fixture
def here(site: Path) -> Iterator[Path]:
    """A folder in which nothing may be written."""
    before = sorted(site.rglob("*"))
    yield site
    assert [path for path in sorted(site.rglob("*")) if path not in before] == []


@pytest.mark.parametrize(
    "name",
    ["", "Word", "word_sums", "word sums", "7up", "-x", "x-", "a--b", "../x", "wörter", "x\n"],
)
def test_a_name_that_is_no_lowercase_identifier_with_dashes_is_refused(
    name: str, here: Path
) -> None:
    result = grpo("env", "new", "--", name)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "write lowercase letters and digits with dashes between" in result.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("import", "'import' is a keyword of Python"),
        ("arithmetic", "the name 'arithmetic' is taken by grpo-core"),
        ("docker", "the name 'docker' is taken by grpo-core"),
        ("besiege", "the name 'besiege' is taken by grpo-core"),
    ],
)
def test_a_name_that_something_has_already_is_refused(name: str, reason: str, here: Path) -> None:
    result = grpo("env", "new", name)
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert reason in result.stderr


def test_the_name_of_an_installed_plugin_is_refused_even_if_it_is_broken_or_switched_off(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(site, "rhymes", "raise ValueError")
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "rhymes")
    assert "taken by grpo-env-rhymes 1.0" in grpo("env", "new", "rhymes").stderr


def test_the_name_of_a_package_that_can_be_imported_is_refused(site: Path) -> None:
    (site / "grpo_env_rhymes.py").write_text("")
    assert "a package 'grpo_env_rhymes' is installed already" in grpo("env", "new", "rhymes").stderr


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_what_exists_is_left_as_it_is(make: Callable[[Path], None], site: Path) -> None:
    make(site / "mine")
    before = _seen(site / "mine")
    result = grpo("env", "new", "rhymes", "--out", "mine")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: mine exists already; choose another name, or another folder with --out\n",
    )
    assert _seen(site / "mine") == before


def _seen(path: Path) -> tuple[int, ...]:
    """All but the time of access: to look is allowed."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


def test_a_place_where_nothing_can_be_written_is_one_line(here: Path) -> None:
    result = grpo("env", "new", "rhymes", "--out", "/dev/null/rhymes")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot be written: Not a directory" in result.stderr


def test_a_project_whose_writing_fails_half_way_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text

    def full(self: Path, data: str, encoding: str | None = None) -> int:
        if self.name == "pyproject.toml":
            raise OSError(28, "No space left on device")
        return written(self, data, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full)
    result = grpo("env", "new", "rhymes")
    assert (result.exit_code, "No space left on device" in result.stderr) == (2, True)
