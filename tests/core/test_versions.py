"""Installed versions outside the declared ranges: what is said, by which command, and before what is loaded."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grpo_core.plugins.versions import VersionError, check_versions, packages

from .distributions import OFFERS_ONE, grpo, grpo_apart, install, install_plugin

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRAINING = [
    ["run", "--env", "arithmetic", "--model", "nothing"],
    ["sft", "--data", "answers.jsonl", "--model", "nothing"],
    ["eval", "--env", "arithmetic", "--model", "nothing"],
    ["generate", "--model", "nothing", "1 + 1"],
    ["model", "pull", "nothing"],
]


def have(site: Path, name: str, version: str, *needs: str) -> None:
    """Install a package whose import ends the process, so that a check that comes late shows."""
    source = f"raise SystemExit('{name} was loaded')"
    install(site, name, version=version, entry_points={}, modules={name: source})
    (metadata,) = site.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA")
    lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
    metadata.write_text(metadata.read_text() + lines)


def state(site: Path, range_: str, version: str) -> str:
    """Return how an installed version of a package stands to a range."""
    have(site, "thing", version)
    have(site, "author", "1", f"thing{range_}")
    (package,) = packages("author")
    return package.state


@pytest.mark.parametrize(
    ("range_", "version", "expected"),
    [
        (">=2.10,<2.14", "2.13.0+cpu", "ok"),
        (">=2.10,<2.14", "2.10.0a0+ecf3bae40a.nv25.11", "ok"),
        (">=2.10,<2.14", "2.14.0a0+nv26", "newer"),
        (">=2.10,<2.14", "3.0", "outside"),
        (">=2.10,<2.14", "2.9.1", "outside"),
        (">=5.10.1,<6", "6.0.0rc1", "outside"),
        ("==0.1.25", "0.1.26", "outside"),
        (">=7.1", "a build of mine", "unknown"),
        ("", "0.0.1", "ok"),
    ],
)
def test_a_version_is_compared_by_its_release(
    site: Path, range_: str, version: str, expected: str
) -> None:
    assert state(site, range_, version) == expected


def test_what_is_not_installed_or_has_no_version_is_left_to_its_import(site: Path) -> None:
    assert state(site, ">=2", "1") == "outside"
    (site / "thing-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\n")
    assert [package.state for package in packages("author")] == ["unknown"]
    have(site, "seeker", "1", "nowhere-to-be-found>=3")
    for distribution in ("author", "seeker", "never-installed"):
        assert check_versions("a test", distribution=distribution) is None


def test_only_requirements_that_hold_here_and_belong_to_the_extra_are_compared(site: Path) -> None:
    have(site, "thing", "1")
    elsewhere = ['thing>=2; sys_platform == "none"', 'thing>=2; extra == "other"']
    old = 'thing>=2; extra == "old-ones" and python_version >= "3"'
    have(site, "author", "1", *elsewhere, old, "not a requirement at all ==")
    assert packages("author") == ()
    assert [package.state for package in packages("author", "old_ones")] == ["outside"]


def test_the_extras_that_a_requirement_names_are_compared_too(site: Path) -> None:
    have(site, "thing", "1")
    have(site, "base", "1", 'thing>=2; extra == "more"', 'base[more]; extra == "more"')
    have(site, "author", "1", "base[more]>=1")
    said = r"^it needs thing>=2 \(1 is installed\): pip install 'thing>=2'$"
    with pytest.raises(VersionError, match=said):
        check_versions("it", distribution="author")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", TRAINING, ids=lambda command: command[0])
def test_a_command_that_trains_says_in_one_line_what_is_too_old(
    site: Path, command: list[str]
) -> None:
    have(site, "transformers", "5.5.0")
    have(site, "torch", "2.9.1+cu128")
    (site / "answers.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
    result = grpo_apart(*command, cwd=site)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("loading "))
    assert re.search(
        r"needs torch>=2\.10,<2\.14 \(2\.9\.1\+cu128 is installed\) and "
        r"transformers>=5\.10\.1,<6 \(5\.5\.0 is installed\): "
        r"pip install 'torch>=2\.10,<2\.14' 'transformers>=5\.10\.1,<6'$",
        line,
    )


def test_a_release_that_is_newer_than_the_cap_of_torch_is_said_and_used(site: Path) -> None:
    have(site, "torch", "2.14.1+cu130")
    result = grpo_apart(*TRAINING[0], cwd=site)
    assert "torch>=2.10,<2.14 (2.14.1+cu130 is installed); if it fails: pip" in result.stderr
    assert "torch was loaded" in result.stderr


def test_a_package_that_is_always_needed_is_compared_before_a_command_is_loaded(site: Path) -> None:
    have(site, "pydantic", "2.5.1")
    result = grpo_apart("envs", cwd=site)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "error: grpo needs pydantic>=2.12,<3 (2.5.1 is installed): pip install 'pydantic>=2.12,<3'"
    ]
    assert grpo_apart("--help", cwd=site).returncode == 0


def test_a_check_with_a_sandbox_says_that_its_package_is_too_old(site: Path) -> None:
    have(site, "docker", "6.1.3")
    result = grpo_apart("env", "check", "fizzbuzz", "--set", "sandbox.name=docker", cwd=site)
    assert result.returncode == 2
    said = "'docker' needs docker>=7.1 (6.1.3 is installed): pip install 'docker>=7.1'"
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert "was loaded" not in result.stderr


def test_the_extra_of_a_plugin_is_compared_with_the_metadata_of_the_plugin(site: Path) -> None:
    source = OFFERS_ONE.format(name="odd", target="odd_environment:Odd").replace(
        "summary=", "extra='heavy', summary="
    )
    install_plugin(site, "odd", source)
    metadata = site / "grpo_env_odd-1.0.dist-info" / "METADATA"
    needs = "Provides-Extra: heavy\nRequires-Dist: thing>=2; extra == 'heavy'\n"
    metadata.write_text(metadata.read_text() + needs)
    have(site, "thing", "1.5")
    result = grpo("env", "check", "odd")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: 'odd' needs thing>=2 (1.5 is installed): pip install 'thing>=2'"
    ]


def test_the_doctor_lists_every_package_of_the_base_and_of_installed_extras(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "all")  # which it would load
    have(site, "docker", "6.1.3")
    have(site, "pluggy", "1.7.0")
    (site / "pluggy-1.7.0.dist-info" / "METADATA").write_text("Name: pluggy\n")
    lines = {line["topic"]: line for line in json.loads(grpo("doctor", "--json").stdout)}
    base = {Requirement(text).name for text in PROJECT["dependencies"]}
    assert base <= lines.keys()
    assert lines["docker"]["status"] == "problem"
    assert lines["docker"]["found"] == "6.1.3 (>=7.1); pip install 'docker>=7.1'"
    assert lines["pluggy"]["status"] == "problem"
    assert re.fullmatch(r"\S+ \(>=2\.12,<3\)", lines["pydantic"]["found"])


def declared() -> list[Requirement]:
    """Return every dependency that a user may install."""
    extras = PROJECT["optional-dependencies"]
    texts = [t for e in extras if e != "test" for t in extras[e]]
    return [Requirement(text) for text in [*PROJECT["dependencies"], *texts]]


def test_the_constraints_are_the_lowest_version_of_each_declared_dependency() -> None:
    text = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8")
    listed = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    lowest = {
        one.name: next(s.version for s in one.specifier if s.operator in (">=", "=="))
        for one in declared()
        if one.name != "grpo-core"
    }
    assert listed.pop("torch") == "2.13.0"  # the release with a CPU build
    assert lowest.pop("torch") == "2.10"
    assert listed == lowest


def test_a_dependency_has_one_range_in_every_extra() -> None:
    ranges: dict[str, set[str]] = {}
    for requirement in declared():
        ranges.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}
