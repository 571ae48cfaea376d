"""Test what the documentation says.

The pages are the front page, the chapters (README.md of each folder) and the other documents in the
root. Their commands, options, settings with defaults, code, links, named tests and generated tables
must be those of the code.
"""

import ast
import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from inspect import isabstract
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

from grpo_core import AgentEnvironment, Environment, Rollout, TaskKey
from grpo_core.cli.app import app
from grpo_core.cli.run_config import read_config
from grpo_core.config.overrides import known_keys
from grpo_core.figures.floors import PAID_SHARE
from grpo_core.testing import play_turns
from grpo_kit.answers import answer_times, balance, floors
from grpo_kit.answers.failing_verdicts import verify_directly
from grpo_kit.run import catalogue
from grpo_kit.tasks import held_out, leaks, variety

from .docs_tables import PAGES as GENERATED
from .docs_tables import with_tables
from .train.tiny import save_tiny

ROOT = Path(__file__).parents[1]
CHAPTERS = (
    "environments/README.md",
    "examples/README.md",
    "examples/benchmarks/README.md",
    "plugins/grpo_trl/README.md",
    "grpo_core/cli/README.md",
    "grpo_core/engine/README.md",
    "plugins/grpo_kit/README.md",
    "grpo_core/protocol/README.md",
    "plugins/grpo_report/README.md",
    "grpo_core/train/README.md",
    "plugins/README.md",
    "sandbox/README.md",
)
PAGES = ("README.md", *CHAPTERS, "QUESTIONS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]
ALL = "\n".join(TEXTS.values())
TRAIN = "python3 -m venv .venv && .venv/bin/pip install '.[train]' && .venv/bin/grpo run --env arithmetic"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"
MAX_BYTES = 8000


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in shell blocks and in the first column of tables."""
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    lines += re.findall(r"^\| `(grpo [^`]*)`", text, flags=re.MULTILINE)
    for line in lines:
        for simple in re.split(r"&&|\|", line):
            words = shlex.split(simple)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if "grpo" in words and words[0] == "torchrun":
                words = words[words.index("grpo") :]
            if words:
                yield words


def grpo_commands() -> list[list[str]]:
    return [words[1:] for words in commands(ALL) if words[0].removeprefix(".venv/bin/") == "grpo"]


def distinct_commands() -> list[list[str]]:
    return [list(words) for words in dict.fromkeys(map(tuple, grpo_commands()))]


def script_commands() -> list[list[str]]:
    """Return the words after `python` of each command that runs a file of this repository."""
    return [
        words[1:]
        for words in commands(ALL)
        if words[0].removeprefix(".venv/bin/") in ("python", "python3") and words[1].endswith(".py")
    ]


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows below the heading of a section, without head and rule."""
    _, found, rest = TEXTS[page].partition(f"\n## {heading}\n")
    assert found, f"{page} has no section {heading!r}"
    section = rest.partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def headings(text: str) -> list[str]:
    """Return the headings of a page, without those that are comments in code."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """Return the anchor by which a link leads to a heading."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def code_that_begins(page: str, language: str, beginning: str) -> str:
    """Return the only block of the page that begins so."""
    (block,) = [
        text for text in blocks(TEXTS[page], language) if text.lstrip().startswith(beginning)
    ]
    return block


def test_the_pages_are_all_readmes_of_the_shipped_folders() -> None:
    folders = ("environments", "examples", "grpo_core", "plugins", "sandbox")
    found = {
        str(path.relative_to(ROOT)) for name in folders for path in (ROOT / name).rglob("README.md")
    }
    assert found == set(CHAPTERS)


def test_the_front_page_is_short() -> None:
    assert len(README.encode()) <= MAX_BYTES


def test_the_two_set_up_commands_are_there_each_on_one_line_of_its_own() -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines()]
    assert [line for line in lines if "pip install" in line] == [TRAIN, TEST]


def test_the_extras_of_the_set_up_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = set(re.findall(r"'(?:\.|grpo-core)\[(\w+)\]'", ALL)) - {"roman"}
    assert {"train", "test"} <= named
    assert named <= extras.keys()


@pytest.mark.parametrize("words", distinct_commands(), ids=" ".join)
def test_every_command_is_one_that_the_command_line_understands(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    path = ["grpo"]
    if words[0].startswith("--"):  # an option of grpo itself
        assert words[0] in {option for parameter in command.params for option in parameter.opts}
        return
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{' '.join(path)} has no command {words[0]!r}"
        name, group, words = words[0], command, words[1:]
        command, path = group.commands[name], [*path, name]
        for option in set(getattr(group, "variants", {}).get(name, ())) & {*words}:
            command = group.variant(name, option)
    command.load().make_context(
        " ".join(path), list(words)
    )  # raises for unknown options, missing arguments and wrong types


@pytest.mark.parametrize("words", script_commands(), ids=" ".join)
def test_every_script_of_a_command_exists_and_knows_its_options(words: list[str]) -> None:
    source = (ROOT / words[0]).read_text(encoding="utf-8")
    options = [word for word in words[1:] if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in source] == []


def test_every_set_of_a_command_changes_a_setting_that_exists() -> None:
    seen = 0
    for words in grpo_commands():
        if words[0] == "judge":
            continue  # its --set takes settings of the judge
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


@pytest.mark.parametrize("page", ["README.md", "grpo_core/train/README.md"])
def test_the_python_that_trains_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a tiny model in place of the real one."""
    given = {
        "steps": 1,
        "prompts_per_step": 2,
        "group_size": 2,
        "settings": {"env.shots": 1, "eval.tasks": 4},
    }
    given["model"] = str(save_tiny(tmp_path / "tiny"))
    code, count = re.subn(
        r"""(Trainer\("arithmetic", )steps=20.*?\)(?=\.run|\n)""",
        lambda found: f"{found[1]}**{given!r})",
        code_that_begins(page, "python", "from grpo_core import Trainer"),
    )
    assert count == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    assert list((tmp_path / "runs").glob("arithmetic-*/final/adapter_config.json"))


@pytest.mark.parametrize(
    "code", [code for text in TEXTS.values() for code in blocks(text, "python")]
)
def test_every_python_block_is_valid_and_imports_names_that_exist(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            module = import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


EXAMPLES = blocks(TEXTS["grpo_core/protocol/README.md"], "python")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_of_the_reference_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"reference_example_{number}"
    (tmp_path / f"{name}.py").write_text(EXAMPLES[number], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for value in vars(import_module(name)).values():
        if isinstance(value, type) and issubclass(value, Environment) and not isabstract(value):
            env = value()
            task = env.task(TaskKey("example", "train", 0))
            answer = env.reference(task) or str(task.data)
            rollout = (
                play_turns(env, task, answer)
                if env.rung() == "episode" or isinstance(env, AgentEnvironment)
                else Rollout.of(str(answer))
            )
            assert asyncio.run(verify_directly(env, task, rollout)).passed


@pytest.mark.parametrize("page", GENERATED)
def test_the_generated_tables_are_current(page: str) -> None:
    assert with_tables(TEXTS[page]) == TEXTS[page], "run: python tests/docs_tables.py --write"


def test_every_dotted_setting_that_is_named_anywhere_exists() -> None:
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    files = {"alarms.jsonl", "log.txt", "sft.py", "trainer.py"}
    attributes = {f"rollout.{name}" for name in ("messages", "raw", "returned", "text")}
    named = set(re.findall(rf"`((?:{'|'.join(sections)})\.\w+)(?:=[^`]*)?`", ALL))
    named -= {*files, *attributes, "model.generate"}
    assert len(named) > 20
    assert named <= set(known_keys())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXTS[page])
    assert links
    for link in links:
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        assert not Path(file).is_absolute(), link
        assert target.resolve().is_relative_to(ROOT), link
        if heading:
            known = {anchor(text) for text in headings(target.read_text(encoding="utf-8"))}
            assert heading in known, link


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_begins_with_a_list_of_its_sections_in_their_order(page: str) -> None:
    before, _, _ = TEXTS[page].partition("\n## ")
    listed = re.findall(r"\(#([\w-]+)\)", before)
    sections = [anchor(line) for line in re.findall(r"^## (.+)$", TEXTS[page], flags=re.MULTILINE)]
    assert listed == sections


def test_every_test_that_is_named_exists() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = re.findall(r"`(test_\w+)`", ALL)
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in sources] == []


def test_the_front_page_names_a_test_for_each_of_its_three_promises() -> None:
    section = README.partition("\n## Three promises\n")[2].partition("\n## ")[0]
    promises = re.findall(r"^\* ", section, flags=re.MULTILINE)
    assert len(promises) == len(re.findall(r"`test_\w+`", section)) == 3


def test_the_measured_table_has_three_seeds_and_the_control() -> None:
    assert [row[0] for row in table("examples/benchmarks/README.md", "Measured")] == [
        "seed 0",
        "seed 1",
        "seed 2",
        "shuffled control",
    ]


def test_the_race_is_shown_as_it_was_measured() -> None:
    folder = ROOT / "examples" / "benchmarks" / "results"
    measured = json.loads((folder / "race.json").read_text(encoding="utf-8"))
    shown = {
        row[0]: (row[1], row[4])
        for row in table("examples/benchmarks/README.md", "A race of settings")
    }
    assert shown == {
        run["candidate"]: (f"{run['after']:.1%}", f"{run['highest_kl']:.2f}") for run in measured
    }


def the_class(source: str) -> ast.ClassDef:
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return found


def shown_environment() -> str:
    return code_that_begins("README.md", "python", "from itertools import count\nfrom string")


def test_the_environment_of_the_readme_is_the_one_of_the_example_and_has_at_most_15_lines() -> None:
    shown = shown_environment()
    example = (ROOT / "examples" / "02_write_an_environment.py").read_text(encoding="utf-8")
    assert ast.dump(the_class(shown)) == ast.dump(the_class(example))
    node = the_class(shown)
    lines = shown.splitlines()[node.lineno - 1 : node.end_lineno]
    assert len([line for line in lines if line.strip()]) <= 15


@pytest.fixture
def readers_package(tmp_path: Path) -> dict[str, str]:
    """Write the package that the pages show, and return the variables of a process that sees it."""
    page = "environments/README.md"
    offers = code_that_begins(page, "python", "# grpo_env_reverse/__init__.py")
    project = tomllib.loads(code_that_begins(page, "toml", "[project]"))["project"]
    package = tmp_path / "grpo_env_reverse"
    package.mkdir()
    (package / "env.py").write_text(shown_environment(), encoding="utf-8")
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


@pytest.mark.slow
def test_the_package_of_the_pages_is_found_asks_and_scores(
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


def test_the_numbers_of_what_the_checks_count_are_those_of_the_checks() -> None:
    rows = {
        name: text
        for cells in table("plugins/grpo_kit/README.md", "What the checks count")
        for name, text in [cells]
    }
    shares = {
        "`floor.junk`": [floors.MOST_TASKS, floors._MOST_FOR_FORM],
        "`floor.echo`, `floor.other`": [
            *(floors.MOST_TASKS, PAID_SHARE, floors.MOST_TASKS),
            *(floors.FOR_ECHO, floors.MOST_TASKS),
        ],
        "`floor.constant`": [balance._ELSEWHERE, balance._NEARLY_ALL],
        "`floor.balance`": [balance._MOST_COMMON],
        "`task.secret`": [leaks._MOST_PROMPTS],
        "`task.split`": [
            *(held_out._BY_CHANCE, held_out._PARAPHRASED, held_out._PARAPHRASED_WIDE),
            *(held_out._ONE_QUESTION, held_out._TURNED_ROUND),
        ],
        "`cost.time`": [answer_times._USUAL_SHARE],
    }
    for name, expected in shares.items():
        assert [
            float(number) / 100 for number in re.findall(r"([\d.]+) %", rows[name])
        ] == expected, name
    assert f"by {100 * leaks._BY_CHANCE:.0f} points" in rows["`task.secret`"]
    assert [int(number) for number in re.findall(r"\d+", rows["`task.variety`"])] == [
        variety._FEW,
        variety._FEW_OF_A_LEVEL,
        variety._FEW_DIALOGUES,
    ]
    named = set(re.findall(r"`(\w+\.\w+)`", " ".join(rows)))
    assert named <= catalogue().keys()
