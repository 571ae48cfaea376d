"""`grpo plugins` and `grpo plugins --check`, with distributions that do their worst."""

import json
from pathlib import Path
from typing import Any

import pytest

from .distributions import OFFERS_ONE, grpo, install_plugin, install_toy


def rows(output: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(output)}


def test_json_names_each_plugin_with_its_distribution_and_what_it_offers(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_toy(site)
    install_plugin(site, "bad", "raise ValueError")
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "bad")
    result = grpo("plugins", "--json")
    assert result.exit_code == 0
    assert rows(result.stdout)["bad"]["status"] == "disabled"
    row = rows(result.stdout)["toy"]
    expected = {"distribution": "grpo-env-toy", "version": "1.0", "status": "ok", "reason": None}
    assert {name: row[name] for name in expected} == expected
    assert row["offers"] == {"environment": ["toy"]}


def test_a_broken_plugin_is_listed_with_reason_and_fix_and_the_command_succeeds(site: Path) -> None:
    install_plugin(site, "bad", "import a_package_nobody_has")
    install_toy(site)
    result = grpo("plugins")
    assert result.exit_code == 0
    assert (
        "bad (grpo-env-bad 1.0): the package 'a_package_nobody_has' is not installed; install it"
        in result.stdout
    )
    assert "environment toy" in result.stdout


def test_few_names_are_listed_and_many_are_counted(site: Path) -> None:
    hook = "from grpo_core import Spec, hookimpl\n\n@hookimpl\ndef grpo_{}(): return [Spec(f'{{i:02}}', 'x:Y') for i in range({})]\n"
    install_plugin(site, "pack", hook.format("environments", 11) + hook.format("sandboxes", 10))
    table = grpo("plugins").stdout
    assert "11 environments; sandboxes 00, 01, 02, 03, 04, 05, 06, 07, 08, 09\n" in table
    assert "105 environments\n" in table
    assert "environments besiege/car, besiege/catapult, besiege/delivery; recipes besiege," in table
    listed = rows(grpo("plugins", "--json").stdout)["pack"]["offers"]
    assert listed["environment"] == [f"{i:02}" for i in range(11)]


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "aaa", "recipes", "--check"]])
def test_a_component_whose_name_belongs_to_another_plugin_is_a_failure(
    site: Path, arguments: list[str]
) -> None:
    hook = "from grpo_core import Spec, hookimpl\n\n@hookimpl\ndef grpo_recipes(): return [Spec('dapo', 'x:Y')]\n"
    install_plugin(site, "aaa", hook)
    result = grpo(*arguments)
    assert result.exit_code == (1 if "--check" in arguments else 0)
    assert (
        "aaa (grpo-env-aaa 1.0): it offers the recipe 'dapo', but this name belongs to the plugin 'recipes'"
        in result.stdout
    )


CHATTY = OFFERS_ONE.format(name="chatty", target="toy_environment:Toy")


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("print('noise')\n", ["plugins", "--json"]),
        ("import os; os.write(1, b'noise')\n", ["plugins", "chatty", "--json", "--check"]),
    ],
    ids=["prints", "writes past Python, which is checked"],
)
def test_what_a_plugin_writes_on_import_does_not_corrupt_json(
    site: Path, source: str, arguments: list[str]
) -> None:
    install_toy(site)
    install_plugin(site, "chatty", source + CHATTY)
    assert rows(grpo(*arguments).stdout)["chatty"]["status"] == "ok"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "loading crashed the interpreter with SIGSEGV"),
        ("import os; os._exit(0)", "loading ended the interpreter with status 0"),
        ("import time; time.sleep(60)", "loading took longer than 2 s"),
        ("raise ValueError('no luck')", "ValueError: no luck"),
    ],
)
def test_check_survives_a_plugin_that_does_not_and_exits_with_1(
    site: Path, source: str, reason: str
) -> None:
    install_plugin(site, "bad", source)
    timeout = "2" if "sleep" in source else "60"
    result = grpo("plugins", "bad", "--check", "--json", "--timeout", timeout)
    row = rows(result.stdout)["bad"]
    assert result.exit_code == 1
    assert row["status"] == "failed"
    assert reason in row["reason"]
    assert "GRPO_DISABLE_PLUGINS=bad" in row["fix"]


def test_check_says_how_long_the_import_took(site: Path) -> None:
    install_toy(site)
    install_plugin(site, "chatty", f"import time; time.sleep(0.3)\n{CHATTY}")
    result = grpo("plugins", "chatty", "--check", "--json")
    assert 0.3 <= rows(result.stdout)["chatty"]["import_seconds"] < 5


OFFERS = """
from grpo_core import Spec, hookimpl

@hookimpl
def grpo_{kind}():
    return [{spec}]
"""
WRONG_TARGETS = [
    ("judges", "nowhere:Judge", "does not exist (there is no module 'nowhere')"),
    ("judges", "plugin_bad.inner:Judge", "its target 'plugin_bad.inner:Judge' does not exist"),
    ("judges", "lacking:Judge", "No module named 'a_package_nobody_has'; install the missing"),
    ("sandboxes", "plugin_bad:Jail", "module 'plugin_bad' has no attribute 'Jail'"),
    ("algorithms", "plugin_bad:__name__", "and that is 'plugin_bad', not callable"),
    ("algorithms", "shlex:join", "takes (split_command), and is called with (rewards, config)"),
    ("samplers", "shlex:join", "takes (split_command), and is called with (settings, model)"),
    ("executors", "textwrap:indent", "predicate=None), and is called with (settings)"),
    ("trackers", "textwrap:indent", "predicate=None), and is called with (run_dir)"),
    ("recipes", "plugin_bad:hookimpl", "not a mapping of settings"),
    ("recipes", "grpo_core:bad.toml", "'bad.toml' of 'grpo_core' cannot be read"),
    ("environments", "plugin_bad:Spec", "not a subclass of grpo_core.Environment"),
]


def wrong_line(site: Path, kind: str, spec: str) -> str:
    """Return what the check says of a plugin that offers one component."""
    (site / "lacking.py").write_text("import a_package_nobody_has")
    install_plugin(site, "bad", OFFERS.format(kind=kind, spec=spec))
    assert grpo("plugins", "bad").exit_code == 0
    result = grpo("plugins", "bad", "--check")
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("bad (")]
    assert line.startswith("bad (grpo-env-bad 1.0): the ")
    return line


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "target", "reason"), WRONG_TARGETS)
def test_check_imports_every_target_and_says_in_one_line_what_is_wrong(
    site: Path, kind: str, target: str, reason: str
) -> None:
    line = wrong_line(site, kind, f"Spec('bad', {target!r})")
    assert reason in line
    assert "correct it in grpo-env-bad" in line


def test_check_names_the_extra_that_a_target_lacks(site: Path) -> None:
    line = wrong_line(site, "judges", "Spec('bad', 'lacking:Judge', extra='models')")
    assert "the extra 'models' is missing ('a_package_nobody_has' is not installed)" in line
    assert "pip install 'grpo-env-bad[models]'" in line


def test_check_names_a_fault_of_many_components_once(site: Path) -> None:
    specs = ", ".join(f"Spec('bad/{i}', 'nowhere:Judge')" for i in range(20))
    install_plugin(site, "bad", OFFERS.format(kind="judges", spec=specs))
    reason = rows(grpo("plugins", "bad", "--check", "--json").stdout)["bad"]["reason"]
    assert reason.startswith("the judges 'bad/0', 'bad/1', 'bad/2' and 17 more: ")


def test_only_the_named_plugins_are_checked(site: Path) -> None:
    install_plugin(site, "bad", "raise ValueError")
    install_toy(site)
    result = grpo("plugins", "toy", "--check", "--json")
    assert (result.exit_code, list(rows(result.stdout))) == (0, ["toy"])
    unknown = grpo("plugins", "tooy", "--check")
    assert (unknown.exit_code, "did you mean 'toy'?" in unknown.stderr) == (2, True)
