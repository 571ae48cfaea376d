"""`grpo env new`: each kind of project is complete, tested by itself, and fit to be trained on; a bad request writes nothing."""

import ast
import asyncio
import importlib.util
import itertools
import json
import random
import re
import string
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from grpo_core import Environment, Services, Task, TaskKey, Verdict
from grpo_core.api.settings import VerifyConfig
from grpo_core.api.verify import Verifier
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.types import Split
from grpo_core.runs.folder import RunFolder
from grpo_core.testing import FakeJudge, play_turns
from grpo_kit.scaffold import new
from grpo_kit.scaffold.new import Kind, project_files

from ..commandline import words
from ..sandbox.test_backends import opened
from ..train.tiny import save_tiny
from .distributions import grpo, install_plugin, pytest_apart
from .scaffolds import assert_tidy, make_project, own_tests

KINDS = get_args(Kind)
QUICK = ("text", "dialogue", "judge", "dataset")
"""Those that need neither a sandbox nor an attempt of its own for each verdict."""
INLINE = VerifyConfig(isolation="inline", retries=0)
MOST_LINES = 15
JUDGE = """
from grpo_core import Judgement, NoConfig


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
"""


@pytest.fixture
def project(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the environment `word-sums` of a kind, and installs it as pip would in editable mode."""

    return lambda kind: make_project(
        ("env", "new", "word-sums", "--kind", kind), site / "grpo-env-word-sums", monkeypatch
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_is_listed_and_passes_its_own_tests(
    kind: str, project: Callable[[str], Path]
) -> None:
    folder = project(kind)
    assert "word-sums" in grpo("envs").stdout
    own_tests(folder, "-k", "declared or pure or split or level or reference or cheats")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_passes_every_check(
    kind: str, project: Callable[[str], Path], site: Path
) -> None:
    own_tests(project(kind))
    judged = judged_by_equality(site) if kind == "judge" else ()
    checked = grpo("env", "check", "word-sums", "--json", *judged)
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
    assert done.returncode == 1, done.stdout
    assert "test_conformance[floor.cheats]" in done.stdout


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


def test_rows_may_hold_separators_of_lines_and_end_in_a_blank_one(
    project: Callable[[str], Path],
) -> None:
    rows = project("dataset") / "grpo_env_word_sums" / "train.jsonl"
    text = rows.read_text(encoding="utf-8")
    rows.write_text(text + '{"question": "a\u2028b", "answer": "c\u0085"}\n\n', encoding="utf-8")
    env = PluginHost().load("environment", "word-sums")()
    assert env.size("train") == len(text.splitlines()) + 1
    last = env.task(TaskKey("word-sums", "train", env.size("train") - 1))
    assert last.prompt[-1].content == "a\u2028b"


def test_the_guesses_of_a_dialogue_can_find_every_number_at_every_level(
    project: Callable[[str], Path],
) -> None:
    project("dialogue")
    env = PluginHost().load("environment", "word-sums")()
    for index in range(300):
        task = env.task(TaskKey("word-sums", "train", index, level=float(index % 2)))
        low, high = map(int, re.findall(r"[0-9]+", task.prompt[-1].content))
        assert 1 <= high - low - 1 <= 2**env.max_turns - 1


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_can_be_trained_on_at_once(
    kind: str, project: Callable[[str], Path], tmp_path: Path
) -> None:
    """The default run trains on one in test_new_plugin.py."""
    project(kind)
    judged = judged_by_equality(tmp_path) if kind == "judge" else []
    small = words("--prompts-per-step 2 --group-size 2 --max-new-tokens 4 --set eval.tasks=2")
    command = words(f"run --env word-sums --model {save_tiny(tmp_path / 'tiny')} --steps 2")
    done = grpo(*command, *small, *judged, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "final" / "adapter_config.json").exists()
    rows = list(RunFolder(tmp_path / "run").rollout_lines())
    assert [row["step"] for row in rows if row["key"]["split"] == "train"] == [1] * 4 + [2] * 4
    assert {row["verdict"]["error"] for row in rows} == {None}


def judged_by_equality(folder: Path) -> list[str]:
    (folder / "judge.py").write_text(JUDGE)
    return ["--set", f"judges.default.name={folder / 'judge.py'}:Same"]


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
    wanted = {"README.md", ".gitignore", "pyproject.toml", "tests/test_env.py"}
    assert wanted | {"grpo_env_word_sums/py.typed"} <= files.keys()
    needed = tomllib.loads(files["pyproject.toml"])["project"]["dependencies"]
    assert needed == [f"grpo-core>={new.__version__}"]
    # there is no judge in CI but that of the tests
    check = [] if kind == "judge" else ["grpo env check word-sums"]
    assert_tidy(files, tmp_path, last_steps=["pytest", *check])


def test_what_to_do_next_is_printed_in_order(site: Path) -> None:
    shown = grpo("env", "new", "word-sums", "--out", "a folder").stdout
    assert [line.strip() for line in shown.splitlines()][2:] == [
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


SPELLING = "write lowercase letters and digits with dashes between"
NAMES = ("", "Word", "word_sums", "7up", "-x", "x-", "a--b", "../x", "wörter", "x\n")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        *((("env", "new", "--", name), SPELLING) for name in NAMES),
        (("env", "new", "import"), "'import' is a keyword of Python"),
        (("env", "new", "arithmetic"), "the name 'arithmetic' is taken by grpo-core"),
        (("new", "judge", "docker"), "the name 'docker' is taken by grpo-core"),
        (("new", "judge", "import"), "'import' is a keyword of Python"),
        (("new", "judge", "My_Judge"), "cannot name a judge; write lowercase letters"),
        (("env", "new", "x", "--out", "/dev/null/x"), "cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    command: tuple[str, ...], reason: str, here: Path
) -> None:
    result = grpo(*command)
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert reason in result.stderr


def test_the_name_of_what_is_installed_is_refused_even_if_it_is_broken_or_switched_off(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(site, "rhymes", "raise ValueError")
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "rhymes")
    assert "taken by grpo-env-rhymes 1.0" in grpo("env", "new", "rhymes").stderr
    (site / "grpo_env_echoes.py").write_text("")
    assert "a package 'grpo_env_echoes' is installed already" in grpo("env", "new", "echoes").stderr


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


def named_environments(
    kind: Kind, count: int, folder: Path, sandboxes: Mapping[str, Any]
) -> Iterator[Environment[Any]]:
    """The environment of a kind under random names, on which its tasks depend."""
    rng = random.Random(kind)
    judge = FakeJudge(lambda request: 0.4 + 0.6 * (request.candidate == request.reference))
    for _ in range(count):
        name = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9)))
        package = folder / f"grpo_env_{name}"
        for path, text in project_files(name, kind=kind).items():
            if path.startswith(package.name):
                (folder / path).parent.mkdir(exist_ok=True)
                (folder / path).write_text(text)
        spec = importlib.util.spec_from_file_location(package.name + ".env", package / "env.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        services = Services(judges={"default": judge}, sandboxes=sandboxes)
        yield getattr(module, f"{name.capitalize()}Env")(services=services)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 4) for kind in QUICK),
        *(
            pytest.param(kind, 200 if kind in (*QUICK, "episode") else 20, marks=pytest.mark.slow)
            for kind in KINDS
        ),
    ],
)
def test_references_pass_and_cheats_get_the_floor_whatever_the_name(
    kind: Kind, count: int, tmp_path: Path
) -> None:
    """The name decides which tasks are drawn: with 7 of 11 one was drawn in which a cheat was paid."""
    needs_sandbox = kind in ("code", "terminal")
    sandboxes = {"default": opened("bubblewrap", 2)} if needs_sandbox else {}
    each = 20 if kind in QUICK else 1

    async def judged(env: Environment[Any], task: Task[Any], turns: Any) -> Verdict:
        rollout = await asyncio.to_thread(play_turns, env, task, turns)
        async with Verifier(env, settings=INLINE, closes_env=False) as verifier:
            return (await verifier.verify([task], [[rollout]]))[0][0]

    async def whole() -> None:
        for env in named_environments(kind, count, tmp_path, sandboxes):
            name = type(env).__qualname__
            for split, index in itertools.product(get_args(Split), range(each)):
                if index >= (env.size(split) or each):
                    continue
                task = env.task(TaskKey(name, split, index, level=index % 2))
                verdict = await judged(env, task, env.reference(task))
                assert verdict.passed, (name, task.key, verdict)
                for cheat in env.cheats(task):
                    verdict = await judged(env, task, cheat)
                    assert (verdict.passed, verdict.total) == (False, env.floor), (name, cheat)
        for sandbox in sandboxes.values():
            await sandbox.close()

    asyncio.run(whole())
