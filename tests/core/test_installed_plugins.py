"""Plugins as pip installs them: wheels in a virtual environment of their own, hostile ones and a hundred good ones."""

import json
import os
import subprocess
import sysconfig
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

HOOK = "from grpo_core import Spec, hookimpl\n\n@hookimpl\n"
GOOD = (
    HOOK
    + "def grpo_environments(): return [Spec({name!r}, '{module}.env:Echo', summary='Echoes.')]\n"
)
ENVIRONMENT = '''
from grpo_core import Environment, Reward, Task, Verdict

class Echo(Environment):
    """Says what it was told."""
    def task(self, key):
        return Task(key, f"say {key.index}", str(key.index))
    def verify(self, task, rollout):
        return Verdict({"reward": Reward(float(rollout.text.strip() == task.data))})
'''
HOSTILE: Mapping[str, str] = {
    "raises": "raise ValueError('no luck')",
    "slow": "import time; time.sleep(60)\n",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}
SAFE = {"GRPO_DISABLE_PLUGINS": "crashes,slow"}
"""These two end or delay whoever loads them in his own process, as `grpo plugins` and `grpo envs` do."""
START_SECONDS = 0.5
LIBRARIES_SECONDS = 0.15
"""What `import typer, rich.table, pluggy` takes in a fresh interpreter of the two-core machine that START_SECONDS is meant for."""
MANY = 100


def wheel(folder: Path, plugin: str, source: str, *, distribution: str | None = None) -> Path:
    """A wheel that declares `plugin`; its package holds `source` and an environment."""
    name = (distribution or f"grpo-env-{plugin}").replace("-", "_")
    module, info = f"plugin_{name.removeprefix('grpo_env_')}", f"{name}-1.0.dist-info"
    files = {
        f"{module}/__init__.py": source,
        f"{module}/env.py": ENVIRONMENT,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[grpo]\n{plugin} = {module}\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


class Installation:
    """A throwaway virtual environment that sees this one's packages, with wheels in it."""

    def __init__(self, folder: Path, wheels: list[Path]) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self._cwd = folder
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "outer.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        for path in wheels:  # which hold nothing but what goes there
            with zipfile.ZipFile(path) as archive:
                archive.extractall(site)

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), "-c", code, *arguments],
            cwd=self._cwd,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"COLUMNS": "300"} | SAFE,
            check=True,
        )

    def grpo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("from grpo_core.cli import main; main()", *arguments)

    def loaded(self, *arguments: str) -> set[str]:
        """The modules that a command leaves loaded, which ends with status 0."""
        code = "import sys\nfrom grpo_core.cli import main\n"
        code += "try:\n    main()\nfinally:\n    print('LOADED', *sys.modules)"
        return set(self.run(code, *arguments).stdout.rpartition("LOADED")[2].split())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installed")
    good = [*(f"many{i:03}" for i in range(MANY)), "good", "chatty"]
    sources = {name: GOOD.format(name=name, module=f"plugin_{name}") for name in good}
    sources["chatty"] = "print('noise on import')\n" + sources["chatty"]
    wheels = [wheel(folder, name, source) for name, source in {**sources, **HOSTILE}.items()]
    usurper = GOOD.format(name="good", module="plugin_usurper")
    wheels.append(wheel(folder, "good", usurper, distribution="grpo-env-usurper"))
    return Installation(folder / "venv", wheels)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["env", "show", "good"],
        ["run", "--help"],
        ["env", "show", "arithmetic"],
        ["config", "show", "--env", "good"],
        ["model", "list"],
    ],
    ids=" ".join,
)
def test_a_command_imports_no_plugin_that_it_does_not_need(
    installed: Installation, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that crashes the interpreter or takes a minute disturbs it."""
    monkeypatch.setitem(SAFE, "GRPO_DISABLE_PLUGINS", "")
    started = time.monotonic()
    loaded = {module for module in installed.loaded(*arguments) if module.startswith("plugin_")}
    assert time.monotonic() - started < 40
    assert loaded <= {"plugin_good", "plugin_good.env"}


def test_envs_lists_what_works_and_counts_what_does_not(installed: Installation) -> None:
    done = installed.grpo("envs", "--json")
    rows = json.loads(done.stdout)
    others = [row["name"] for row in rows if row["distribution"] != "grpo-core"]
    assert {"chatty", "good"} <= set(others)
    assert len(others) == MANY + 2
    assert "arithmetic" in {row["name"] for row in rows}
    assert "2 of the installed plugins cannot be used" in done.stderr
    assert "noise on import" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["envs"]])
def test_starting_stays_fast_with_a_hundred_plugins(
    installed: Installation, arguments: list[str]
) -> None:
    """The best of several tries, against a machine of known speed: what a slow or busy one adds is not the command's."""
    main = "import os; os.environ['GRPO_DISABLE_PLUGINS'] = 'crashes,slow'\n"
    main += "from grpo_core.cli import main; main()"
    starts, imports = [], []
    for _ in range(8):
        imports.append(_seconds([str(installed.python), "-c", "import typer, rich.table, pluggy"]))
        starts.append(_seconds([str(installed.python), "-c", main, *arguments]))
        allowed = START_SECONDS * max(1.0, min(imports) / LIBRARIES_SECONDS)
        if min(starts) < allowed:
            break
    assert min(starts) < allowed, (
        f"a start took {min(starts):.2f} s, libraries {min(imports):.2f} s"
    )


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return time.perf_counter() - started


def test_a_start_loads_neither_torch_nor_plugins(installed: Installation) -> None:
    heavy = {"torch", "transformers", "peft", "accelerate", "docker", "datasets"}
    heavy |= {"matplotlib", "numpy", "pydantic", "asyncio"}
    shown = installed.loaded("--help")
    assert not shown & heavy
    assert not any(module.startswith("plugin_") for module in shown)
    listed = installed.loaded("envs")
    assert not listed & heavy
    many = {module for module in listed if module.startswith("plugin_many")}
    assert len(many) == MANY  # each package, none of the environments
