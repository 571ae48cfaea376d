"""What the README and CONTRIBUTING.md say exists: commands, options, settings with their defaults, code, links and tests."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

from grpo_core.cli.app import app
from grpo_core.cli.training import read_config
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import known_keys

from .train.tiny import save_tiny

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TRAIN = "python3 -m venv .venv && .venv/bin/pip install '.[train]' && .venv/bin/grpo run --env arithmetic"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"


def blocks(text: str, language: str) -> list[str]:
    """The fenced code of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command in the shell blocks and of each command in the first column of a table."""
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    lines += re.findall(r"^\| `(grpo [^`]*)`", text, flags=re.MULTILINE)
    for line in lines:
        for simple in re.split(r"&&|\|", line):
            yield shlex.split(simple)


def grpo_commands() -> list[list[str]]:
    return [
        words[1:] for words in commands(README) if words[0].removeprefix(".venv/bin/") == "grpo"
    ]


def table(heading: str) -> list[list[str]]:
    """The rows below the heading of a section, without head and rule."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_two_set_up_commands_are_there_each_on_one_line_of_its_own() -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines()]
    assert [line for line in lines if "pip install" in line] == [TRAIN, TEST]


def test_the_extras_of_the_set_up_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = set(re.findall(r"'\.\[(\w+)\]'", README + CONTRIBUTING))
    assert named
    assert named <= extras.keys()


@pytest.mark.parametrize("words", grpo_commands(), ids=" ".join)
def test_every_command_is_one_that_the_command_line_understands(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    path = ["grpo"]
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{' '.join(path)} has no command {words[0]!r}"
        command, path, words = command.commands[words[0]], [*path, words[0]], words[1:]
    command.make_context(
        " ".join(path), list(words)
    )  # raises for unknown options, missing arguments and wrong types


def test_every_set_of_a_command_changes_a_setting_that_exists() -> None:
    seen = 0
    for words in grpo_commands():
        given = {
            wanted: [value for option, value in pairwise(words) if option == wanted]
            for wanted in ("--env", "--set")
        }
        real = [text for text in given["--set"] if text != "KEY=VALUE"]
        read_config(
            given["--env"] or ["arithmetic"], [], {}, real
        )  # raises for what does not exist
        seen += len(real)
    assert seen > 3


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """With a tiny model in place of the real one."""
    small = {
        "environment": "arithmetic",
        "steps": 1,
        "prompts_per_step": 2,
        "group_size": 2,
        "env": {"shots": 1},
        "eval": {"tasks": 4},
    }
    settings = {**small, "model": {"name": str(save_tiny(tmp_path / "tiny"))}}
    code, count = re.subn(
        r"build_config\(\[.*\]\)",
        lambda _: f"build_config([{settings!r}])",
        blocks(README, "python")[2],
    )
    assert count == 1
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs").glob("arithmetic-*/final/adapter_config.json"))


def test_the_settings_of_the_table_exist_with_these_defaults() -> None:
    defaults = RunConfig(environment="arithmetic").model_dump(mode="json")
    rows = table("Settings")
    assert len(rows) > 10
    for name, told, _ in rows:
        key = name.strip("`")
        assert key in set(known_keys())
        value: Any = defaults
        for part in key.split("."):
            value = value[part]
        shown = "unset" if value is None else value if isinstance(value, str) else json.dumps(value)
        assert told.strip("`") == shown, key


def test_every_dotted_setting_that_is_named_anywhere_exists() -> None:
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    named = set(re.findall(rf"`((?:{'|'.join(sections)})\.\w+)(?:=[^`]*)?`", README)) - {
        "log.txt",
        "model.generate",
    }  # no settings
    assert named
    assert named <= set(known_keys())


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(document: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / document).read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_every_test_that_the_readme_names_exists() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = re.findall(r"`(test_\w+)`", README)
    assert named
    assert [name for name in named if f"def {name}(" not in sources] == []


def test_the_measured_table_has_three_seeds_and_the_control() -> None:
    assert [row[0] for row in table("Measured")] == [
        "seed 0",
        "seed 1",
        "seed 2",
        "shuffled control",
    ]


def the_class(source: str) -> ast.ClassDef:
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return found


def test_the_environment_of_the_readme_is_the_one_of_the_example_and_has_at_most_15_lines() -> None:
    shown = blocks(README, "python")[0]
    example = (ROOT / "examples" / "02_write_an_environment.py").read_text(encoding="utf-8")
    assert ast.dump(the_class(shown)) == ast.dump(the_class(example))
    node = the_class(shown)
    lines = shown.splitlines()[node.lineno - 1 : node.end_lineno]
    assert len([line for line in lines if line.strip()]) <= 15


@pytest.fixture
def readers_package(tmp_path: Path) -> dict[str, str]:
    """The package of the README, installed beside grpo-core; the variables of a process that sees it."""
    environment, offers = blocks(README, "python")[:2]
    project = tomllib.loads(blocks(README, "toml")[0])["project"]
    package = tmp_path / "grpo_env_reverse"
    package.mkdir()
    (package / "env.py").write_text(environment, encoding="utf-8")
    (package / "__init__.py").write_text(offers, encoding="utf-8")
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entry_points = "".join(
        f"{name} = {target}\n" for name, target in project["entry-points"]["grpo"].items()
    )
    (info / "entry_points.txt").write_text(f"[grpo]\n{entry_points}")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))),
    }


def grpo(*arguments: str, env: dict[str, str], stdin: str = "") -> Any:
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", *arguments, "--json"]
    result = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_package_of_the_readme_is_found_asks_and_scores(
    readers_package: dict[str, str],
) -> None:
    assert "reverse" in {row["name"] for row in grpo("envs", env=readers_package)}
    key = ("reverse", "--split", "eval", "--index", "3")
    shown = grpo("env", "show", *key, "--reference", env=readers_package)
    assert shown["reference"][::-1] in shown["prompt"][0]["content"]
    scored = grpo(
        "env", "score", *key, "--answer", "-", env=readers_package, stdin=shown["reference"] + "\n"
    )
    assert (scored["total"], scored["passed"]) == (1.0, True)
