"""Real installed distributions for tests: a dist-info folder and a module are all that Python asks for."""

import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner, Result

from grpo_core.cli.app import app

OFFERS_ONE = """
from grpo_core import Spec, hookimpl

@hookimpl
def grpo_environments():
    return [Spec({name!r}, {target!r}, summary="Adds {name}.")]
"""

TOY_ENVIRONMENT = '''
from dataclasses import dataclass

from grpo_core import Environment, Message, Reward, Task, Verdict


@dataclass(frozen=True)
class Config:
    bonus: float = 0.5


class Toy(Environment[int]):
    """Asks for the square of a number."""

    Config = Config
    parts = {"exact": 1.0, "bonus": 1.0}
    reward_range = (0.0, 1.5)
    trusted = True

    def size(self, split):
        return 10

    def task(self, key):
        print("noise of a task")
        n = key.index
        return Task(key, (Message("system", "Answer with a number."), Message("user", f"What is {n} * {n}?")), n * n)

    def reference(self, task):
        return str(task.data)

    def verify(self, task, rollout):
        text = rollout.text.strip()
        if text == "crash":
            raise RuntimeError("the verifier has a bug")
        print("noise of a verifier")
        right = text == str(task.data)
        rewards = {"exact": Reward(float(right)), "bonus": Reward(self.config.bonus * right, note="for style" if right else "")}
        return Verdict(rewards, passed=right, answer=text)
'''


def install(
    folder: Path,
    distribution: str,
    *,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
    group: str = "grpo",
) -> None:
    """Put a distribution into `folder`, which then has to be on sys.path."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entry_points.items())
    )
    for name, source in (modules or {}).items():
        (folder / f"{name}.py").write_text(dedent(source))
    importlib.invalidate_caches()


def install_plugin(
    folder: Path, name: str, source: str = "", *, target: str = "nowhere:Nothing"
) -> None:
    """Install the plugin `name` as distribution `grpo-env-<name>`, module `plugin_<name>`; without source it offers one environment."""
    module = f"plugin_{name}"
    modules = {module: source or OFFERS_ONE.format(name=name, target=target)}
    install(folder, f"grpo-env-{name}", entry_points={name: module}, modules=modules)


def install_project(site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a project that `grpo new` wrote into `site`, as pip would in editable mode."""
    about = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = about["entry-points"]["grpo"]
    install(site, about["name"], entry_points=points, version=about["version"])
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))


def install_toy(folder: Path) -> None:
    """Install the environment `toy`."""
    install_plugin(folder, "toy", target="toy_environment:Toy")
    (folder / "toy_environment.py").write_text(TOY_ENVIRONMENT)


def grpo(*arguments: str, stdin: str = "") -> Result:
    """The command `grpo` in this process."""
    return CliRunner().invoke(app, arguments, input=stdin)


def grpo_apart(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command `grpo` in a process of its own."""
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def pytest_apart(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The tests of a folder in a process of its own, without plugins of pytest, which take a second to import."""
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environ
    )
