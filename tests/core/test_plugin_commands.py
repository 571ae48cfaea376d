"""Commands of packages that live outside the project, found in their metadata alone."""

import json
from pathlib import Path

import pytest

from grpo_core.cli import plugin_commands

from .distributions import grpo, grpo_apart, install

COMMAND = '''
import typer

app = typer.Typer()


@app.command()
def {name}(run: str, often: int = 1) -> None:
    """{help}

    More of it.
    """
    print("in {name}", run, often)
'''


def offer(site: Path, distribution: str, commands: dict[str, str], **modules: str) -> None:
    """Install a distribution with commands, by their words, and the sources of its modules."""
    install(site, distribution, entry_points=commands, modules=modules, group="grpo.commands")


def command(name: str, help: str = "Count the answers of a run.") -> str:
    return COMMAND.format(name=name, help=help)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GRPO_CACHE", str(folder))
    return folder


def test_a_package_adds_commands_and_groups_and_the_help_imports_neither(site: Path) -> None:
    outside = "raise SystemExit('imported')"
    names = {"count": "tallying", "env count": "tallying.inner", "team board count": "boards"}
    offer(site, "grpo-tally", names, boards=command("count", "Count on a board."))
    (site / "tallying").mkdir()
    (site / "tallying" / "__init__.py").write_text(outside + command("count"))
    (site / "tallying" / "inner.py").write_text(command("count", "Count [bold]tasks[/bold]."))
    shown = grpo_apart("--help")
    assert shown.stderr == ""
    assert "count     Count the answers of a run." in shown.stdout
    assert "team      Commands of grpo-tally 1.0." in shown.stdout
    assert "Count [bold]tasks[/bold]." in grpo("env", "--help").output
    assert "Count on a board." in grpo("team", "board", "--help").output
    done = grpo("team", "board", "count", "runs/x", "--often", "3")
    assert (done.exit_code, done.stdout) == (0, "in count runs/x 3\n")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise OSError('no licence')", "OSError: no licence"),
        ("import nowhere_at_all", "the package 'nowhere_at_all' is not installed"),
        ("raise SystemExit(3)", "called sys.exit(3)"),
        ("app = None", "has no Typer `app` with a command 'mess'"),
        (command("other"), "has no Typer `app` with a command 'mess'"),
        ("import os\nos.environ['MY_TOKEN']", "KeyError: 'MY_TOKEN'"),
        ("def (", "its source cannot be read: SyntaxError"),
        (f"x = {'-' * 200_000}1", "its source cannot be read: "),
        (None, "its module broken is not installed"),
    ],
)
def test_a_broken_package_breaks_its_own_commands_alone(
    site: Path, source: str | None, why: str
) -> None:
    offer(
        site,
        "grpo-broken",
        {"env mess": "broken"},
        **({} if source is None else {"broken": source}),
    )
    offer(site, "grpo-sound", {"env sound": "sound"}, sound=command("sound"))
    refused = grpo("env", "mess", "x")
    assert refused.exit_code == 2
    assert "`grpo env mess` of grpo-broken 1.0 cannot be used" in refused.stderr
    assert why in " ".join(refused.stderr.split())
    assert grpo("env", "sound", "x").stdout == "in sound x 1\n"
    assert "sound" in grpo("env", "--help").output


def test_texts_of_packages_are_shown_as_they_are(site: Path) -> None:
    source = command("count", r"Split at \[/x] marks.")
    offer(site, "grpo-odd", {"team count": "odd", "plain": "odd:app"}, odd=source)
    metadata = site / "grpo_odd-1.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: grpo-odd\nVersion: 1.0[/x]\x1b[31m\n")
    assert r"Commands of grpo-odd 1.0[/x]\x1b[31m." in grpo("--help").output
    assert r"Split at \[/x] marks." in grpo("team", "--help").output
    assert "write the name of a module, without `:app`" in " ".join(grpo("plain").stderr.split())


def test_an_option_of_a_command_stays_its_own(site: Path) -> None:
    offer(site, "grpo-evil", {"run --env": "evil"}, evil="raise SystemExit('imported')")
    assert "imported" not in grpo("run", "--env", "no-such-environment").output


def test_a_folder_with_a_certain_file_chooses_the_command_that_continues_it(
    site: Path, tmp_path: Path
) -> None:
    source = command("run").replace("run: str", "resume: str = typer.Option()")
    source = source.replace("run, often)", "resume, often)")
    offer(site, "grpo-lists", {"run --resume list.json": "lists"}, lists=source)
    folder = str(tmp_path)
    assert "in run" not in grpo("run", "--resume", folder).output
    (tmp_path / "list.json").write_text("{}")
    for words in (["--resume", folder], [f"--resume={folder}"]):
        assert f"in run {folder} 1" in grpo("run", *words).output
    assert "in run" not in grpo("run", "--out", folder).output


def test_a_name_that_two_packages_offer_belongs_to_neither(site: Path) -> None:
    offer(site, "grpo-a", {"count": "tally_a"}, tally_a=command("count"))
    offer(site, "grpo-b", {"count": "tally_b"}, tally_b=command("count"))
    refused = grpo("count", "x")
    assert refused.exit_code == 2
    assert "2 distributions offer it: grpo-a, grpo-b; uninstall all but one" in refused.stderr
    assert "2 distributions offer it" in " ".join(grpo("--help").output.split())


def test_what_the_core_names_is_never_replaced_and_the_doctor_tells(site: Path) -> None:
    words = (
        "run",
        "env",
        "env show",
        "run fast",
        "--help",
        "no --option",
        "eval --endpoint",
        "run --help",
    )
    names = dict.fromkeys(words, "evil")
    offer(site, "grpo-evil", names, evil="raise SystemExit('imported')")
    assert "imported" not in grpo("--help").output + grpo("run", "--help").output
    assert "Train a model on an environment" in grpo("--help").output
    told = " ".join(grpo("plugins").output.split())
    for name, why in {
        "run": "the name belongs to grpo-core",
        "env": "'env' is a group of commands",
        "env show": "the name belongs to grpo-core",
        "run fast": "'run' is a command of grpo-core",
        "--help": "its name is not at most",
        "eval --endpoint": "the name belongs to grpo-core",
        "run --help": "--help is an option of every command",
        "no --option": "there is no command 'no'",
    }.items():
        assert f"`grpo {name}` of grpo-evil 1.0 cannot be used: {why}" in told


def test_an_option_chooses_another_package_for_a_command(site: Path) -> None:
    offer(
        site,
        "grpo-clusters",
        {"generate --cluster": "clusters"},
        clusters='''
import typer
from typing import Annotated

app = typer.Typer()


@app.command()
def generate(text: str, cluster: Annotated[str, typer.Option("--cluster")]) -> None:
    """Ask a cluster."""
    print("asking", cluster, text)
''',
    )
    assert grpo("generate", "why", "--cluster", "a").stdout == "asking a why\n"
    assert grpo("generate", "--cluster=b", "why").stdout == "asking b why\n"
    assert "--model" in grpo("generate", "--help").output


def test_help_lines_are_read_again_when_the_source_or_the_installation_changed(
    site: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = plugin_commands._read_metadata
    monkeypatch.setattr(plugin_commands, "_read_metadata", lambda: reads.append(1) or read())
    offer(site, "grpo-tally", {"count": "tallying"}, tallying=command("count"))

    def shown() -> str:
        return grpo("--help").output

    assert "Count the answers" in shown()
    assert "Count the answers" in shown()
    assert len(reads) == 1
    (site / "tallying.py").write_text(command("count", "Count something else."))
    assert "Count something else." in shown()
    offer(site, "grpo-more", {"more": "tallying_more"}, tallying_more=command("more"))
    assert "more " in shown()
    assert len(reads) == 3
    for file in own_cache.rglob("*.json"):
        file.write_text('{"key": 1')
    assert "Count something else." in shown()


def test_the_package_of_the_page_works_outside_the_project(toy: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "plugins" / "README.md").read_text(encoding="utf-8")
    source = page.split("# grpo_look/commands.py\n")[1].split("```")[0]
    offer(toy, "grpo-look", {"endings": "look", "env longest": "look"}, look=source)
    key = {"env": "toy", "split": "train", "index": 0, "seed": 0, "level": 0.0}
    line = {
        "step": 1,
        "draw": 0,
        "key": key,
        "attempt": 0,
        "tokens": 3,
        "messages": [],
        "verdict": None,
    }
    lines = [{**line, "finish": finish} for finish in ("stop", "length", "stop")]
    (tmp_path / "run").mkdir()
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "run" / "rollouts.jsonl").write_text(text)
    assert grpo("endings", "run").stdout.splitlines()[1:] == ["stop    2", "length  1"]
    assert "What is 0 * 0?" in grpo("env", "longest", "toy").stdout
