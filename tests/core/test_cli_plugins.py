"""`grpo plugins` and `grpo plugins --check`, with distributions that do their worst."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .distributions import OFFERS_ONE, grpo, install_plugin, install_toy


def rows(output: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(output)}


def test_json_names_each_plugin_with_its_distribution_and_what_it_offers(site: Path) -> None:
    install_toy(site)
    result = grpo("plugins", "--json")
    row = rows(result.stdout)["toy"]
    assert result.exit_code == 0
    assert (row["distribution"], row["version"], row["status"], row["reason"]) == (
        "grpo-env-toy",
        "1.0",
        "ok",
        None,
    )
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


def test_a_disabled_plugin_is_listed_as_such(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(site, "bad", "raise ValueError")
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "bad")
    result = grpo("plugins", "--json")
    assert rows(result.stdout)["bad"]["status"] == "disabled"


@pytest.mark.parametrize(
    "arguments", [["plugins", "--json"], ["plugins", "chatty", "--json", "--check"]]
)
def test_prints_on_import_do_not_corrupt_json(site: Path, arguments: list[str]) -> None:
    install_toy(site)
    install_plugin(
        site,
        "chatty",
        "print('noise')\n" + OFFERS_ONE.format(name="chatty", target="toy_environment:Toy"),
    )
    result = grpo(*arguments)
    assert rows(result.stdout)["chatty"]["status"] == "ok"


def test_check_keeps_its_json_whole_beside_a_plugin_that_writes_past_python(site: Path) -> None:
    install_toy(site)
    install_plugin(
        site,
        "chatty",
        "import os; os.write(1, b'noise')\n"
        + OFFERS_ONE.format(name="chatty", target="toy_environment:Toy"),
    )
    result = grpo("plugins", "chatty", "--json", "--check")
    assert rows(result.stdout)["chatty"]["status"] == "ok"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "loading crashed the interpreter with SIGSEGV",
        ),
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
    install_plugin(
        site,
        "slow",
        "import time; time.sleep(0.3)\n"
        + OFFERS_ONE.format(name="slow", target="toy_environment:Toy"),
    )
    result = grpo("plugins", "slow", "--check", "--json")
    assert 0.3 <= rows(result.stdout)["slow"]["import_seconds"] < 5


@pytest.mark.slow
def test_check_of_working_plugins_exits_with_0(site: Path) -> None:
    install_toy(site)
    result = grpo("plugins", "--check")
    assert result.exit_code == 0
    assert "environment toy" in result.stdout


OFFERS = """
from grpo_core import Spec, hookimpl

@hookimpl
def {hook}():
    return [{spec}]
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("hook", "spec", "reason", "fix"),
    [
        (
            "grpo_judges",
            "Spec('bad', 'nowhere:Judge')",
            "its target 'nowhere:Judge' does not exist (there is no module 'nowhere')",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_judges",
            "Spec('bad', 'plugin_bad.inner:Judge', extra='judge')",
            "its target 'plugin_bad.inner:Judge' does not exist",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_sandboxes",
            "Spec('bad', 'plugin_bad:Jail')",
            "module 'plugin_bad' has no attribute 'Jail'",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_algorithms",
            "Spec('bad', 'plugin_bad:__name__')",
            "and that is 'plugin_bad', not callable",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_algorithms",
            "Spec('bad', 'shlex:join')",
            "its target 'shlex:join' takes (split_command), and is called with (rewards, config)",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_samplers",
            "Spec('bad', 'shlex:join')",
            "takes (split_command), and is called with (settings, model)",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_executors",
            "Spec('bad', 'textwrap:indent')",
            "takes (text, prefix, predicate=None), and is called with (settings)",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_trackers",
            "Spec('bad', 'textwrap:indent')",
            "takes (text, prefix, predicate=None), and is called with (run_dir)",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_trackers",
            "Spec('bad', 'plugin_bad:__doc__')",
            "and that is None, not callable",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_recipes",
            "Spec('bad', 'plugin_bad:hookimpl')",
            "not a mapping of settings",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_recipes",
            "Spec('bad', 'grpo_core:bad.toml')",
            "'bad.toml' of 'grpo_core' cannot be read",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_environments",
            "Spec('bad', 'plugin_bad:Spec')",
            "not a subclass of grpo_core.Environment",
            "correct it in grpo-env-bad",
        ),
        (
            "grpo_judges",
            "Spec('bad', 'lacking:Judge', extra='models')",
            "the extra 'models' is missing ('a_package_nobody_has' is not installed)",
            "pip install 'grpo-env-bad[models]'",
        ),
        (
            "grpo_judges",
            "Spec('bad', 'lacking:Judge')",
            "No module named 'a_package_nobody_has'; install the missing package",
            "correct it in grpo-env-bad",
        ),
    ],
)
def test_check_imports_every_target_and_says_in_one_line_what_is_wrong(
    site: Path, hook: str, spec: str, reason: str, fix: str
) -> None:
    (site / "lacking.py").write_text("import a_package_nobody_has")
    install_plugin(site, "bad", OFFERS.format(hook=hook, spec=spec))
    assert grpo("plugins", "bad").exit_code == 0
    result = grpo("plugins", "bad", "--check")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("bad (")]
    assert result.exit_code == 1
    assert line.startswith("bad (grpo-env-bad 1.0): the ")
    assert reason in line
    assert fix in line


def test_check_names_a_fault_of_many_components_once(site: Path) -> None:
    specs = ", ".join(f"Spec('bad/{i}', 'nowhere:Judge')" for i in range(20))
    install_plugin(site, "bad", OFFERS.format(hook="grpo_judges", spec=specs))
    reason = rows(grpo("plugins", "bad", "--check", "--json").stdout)["bad"]["reason"]
    assert reason.startswith("the judges 'bad/0', 'bad/1', 'bad/2' and 17 more: ")


def test_only_the_named_plugins_are_checked(site: Path) -> None:
    install_plugin(site, "bad", "raise ValueError")
    install_toy(site)
    result = grpo("plugins", "toy", "--check", "--json")
    assert (result.exit_code, list(rows(result.stdout))) == (0, ["toy"])
    unknown = grpo("plugins", "tooy", "--check")
    assert (unknown.exit_code, "did you mean 'toy'?" in unknown.stderr) == (2, True)
