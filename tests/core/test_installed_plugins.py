"""Plugins as pip installs them: wheels in a virtual environment of their own, hostile ones and a hundred good ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ..commandline import words

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
HOSTILE: Mapping[str, tuple[str, str]] = {
    "raises": ("raise ValueError('no luck')", "ValueError: no luck"),
    "lacks": ("import a_package_nobody_has", "the package 'a_package_nobody_has' is not installed"),
    "exits": ("import sys; sys.exit(3)", "called sys.exit(3)"),
    "typo": ("def f(:", "SyntaxError"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "recurses": ("def f(): f()\nf()", "RecursionError"),
    "none": (HOOK + "def grpo_environments(): pass", "returned None; return a list of Spec"),
    "argument": (HOOK + "def grpo_environments(surprise): return []", "surprise"),
    "hook": (HOOK + "def grpo_environments(): raise OSError('in a hook')", "OSError: in a hook"),
}
SLOW = {"slow": "import time; time.sleep(60)\n" + GOOD.format(name="slow", module="plugin_slow")}
CHATTY = {
    "chatty": "print('noise on import')\n" + GOOD.format(name="chatty", module="plugin_chatty")
}
CRASHES = {"crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"}
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
    """A throwaway virtual environment that sees this one's packages, with wheels that pip installs."""

    def __init__(self, folder: Path, wheels: list[Path]) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self._cwd = folder
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "outer.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        command = [
            sys.executable,
            *words(f"-m pip --python {self.python} install -q --no-index --no-deps"),
            *map(str, wheels),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def grpo(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-c", "from grpo_core.cli import main; main()", *arguments]
        environment = (
            {k: v for k, v in os.environ.items() if k != "GRPO_DISABLE_PLUGINS"}
            | {"COLUMNS": "300"}
            | dict(environ or {})
        )
        return subprocess.run(
            command,
            cwd=self._cwd,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )

    def loaded(self, *arguments: str) -> set[str]:
        """The modules that a command leaves loaded, which ends with status 0."""
        code = (
            "import sys\nfrom grpo_core.cli import main\nsys.argv[1:] = "
            + repr(list(arguments))
            + "\n"
            "try:\n    main()\nfinally:\n    print('LOADED', *sys.modules)"
        )
        done = subprocess.run(
            [str(self.python), "-c", code],
            cwd=self._cwd,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("hostile")
    wheels = [wheel(folder, name, source) for name, (source, _) in HOSTILE.items()]
    wheels += [
        wheel(folder, name, source) for name, source in {**CHATTY, **SLOW, **CRASHES}.items()
    ]
    wheels.append(wheel(folder, "good", GOOD.format(name="good", module="plugin_good")))
    wheels.append(
        wheel(
            folder,
            "good",
            GOOD.format(name="good", module="plugin_usurper"),
            distribution="grpo-env-usurper",
        )
    )
    return Installation(folder / "venv", wheels)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("many")
    names = [f"many{i:03}" for i in range(MANY)]
    return Installation(
        folder / "venv",
        [wheel(folder, name, GOOD.format(name=name, module=f"plugin_{name}")) for name in names],
    )


SAFE = {"GRPO_DISABLE_PLUGINS": "crashes,slow"}
"""These two end or delay whoever loads them in his own process, as `grpo plugins` and `grpo envs` do."""


@pytest.mark.slow
def test_each_broken_plugin_is_named_with_reason_and_fix_and_the_good_ones_work(
    hostile: Installation,
) -> None:
    done = hostile.grpo("plugins", "--json", environ=SAFE)
    assert done.returncode == 0, done.stderr
    rows = {(row["name"], row["distribution"]): row for row in json.loads(done.stdout)}
    for name, (_, reason) in HOSTILE.items():
        row = rows[name, f"grpo-env-{name}"]
        assert row["status"] == "failed"
        assert reason in row["reason"]
        assert f"grpo-env-{name}" in row["fix"]
    assert (
        rows["good", "grpo-env-good"]["status"]
        == rows["chatty", "grpo-env-chatty"]["status"]
        == "ok"
    )
    assert "the name is taken by grpo-env-good 1.0" in rows["good", "grpo-env-usurper"]["reason"]
    assert "noise on import" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["env", "show", "good"],
        ["env", "show", "arithmetic"],
        ["config", "show", "--env", "good"],
        ["model", "list"],
    ],
)
def test_no_other_command_imports_a_plugin_that_it_does_not_need(
    hostile: Installation, arguments: list[str]
) -> None:
    """Not even one that crashes the interpreter or takes a minute disturbs them."""
    started = time.monotonic()
    loaded = {module for module in hostile.loaded(*arguments) if module.startswith("plugin_")}
    assert time.monotonic() - started < 40
    assert loaded <= {"plugin_good", "plugin_good.env"}


def test_envs_lists_what_works_and_counts_what_does_not(hostile: Installation) -> None:
    done = hostile.grpo("envs", "--json", environ=SAFE)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows if row["distribution"] != "grpo-core"] == ["chatty", "good"]
    assert "arithmetic" in {row["name"] for row in rows}
    assert f"{len(HOSTILE) + 1} of the installed plugins cannot be used" in done.stderr


@pytest.mark.slow
def test_a_broken_plugin_that_is_asked_for_says_why_with_status_2(hostile: Installation) -> None:
    for name, (_, reason) in HOSTILE.items():
        done = hostile.grpo("env", "show", name)
        assert done.returncode == 2
        assert reason in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_check_times_imports_and_survives_a_segmentation_fault(hostile: Installation) -> None:
    done = hostile.grpo(
        *("plugins", "crashes", "slow", "lacks", "good", "exits"),
        *("--json", "--check", "--timeout", "6"),
        environ={"GRPO_DISABLE_PLUGINS": "lacks"},
    )
    assert done.returncode == 1
    rows = {(row["name"], row["distribution"]): row for row in json.loads(done.stdout)}
    assert (
        rows["crashes", "grpo-env-crashes"]["reason"]
        == "loading crashed the interpreter with SIGSEGV"
    )
    assert rows["slow", "grpo-env-slow"]["reason"] == "loading took longer than 6 s"
    assert rows["lacks", "grpo-env-lacks"]["status"] == "disabled"
    assert 0 <= rows["good", "grpo-env-good"]["import_seconds"] < 5
    assert rows["exits", "grpo-env-exits"]["reason"] == "called sys.exit(3)"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["envs"]])
def test_starting_stays_fast_with_a_hundred_plugins(
    many: Installation, arguments: list[str]
) -> None:
    """The best of several tries, against a machine of known speed: what a slow or busy one adds is not the command's."""
    starts, imports = [], []
    for _ in range(8):
        imports.append(_seconds([str(many.python), "-c", "import typer, rich.table, pluggy"]))
        starts.append(
            _seconds([str(many.python), "-c", "from grpo_core.cli import main; main()", *arguments])
        )
        allowed = START_SECONDS * max(1.0, min(imports) / LIBRARIES_SECONDS)
        if min(starts) < allowed:
            break
    assert min(starts) < allowed, (
        f"the fastest of {len(starts)} starts took {min(starts):.2f} s, {min(imports):.2f} s of it for libraries"
    )


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return time.perf_counter() - started


def test_a_start_loads_neither_torch_nor_plugins(many: Installation) -> None:
    heavy = {
        "torch",
        "transformers",
        "peft",
        "accelerate",
        "docker",
        "datasets",
        "matplotlib",
        "numpy",
        "pydantic",
        "asyncio",
    }
    assert not many.loaded("--help") & heavy
    listed = many.loaded("envs")
    assert not listed & heavy
    assert (
        len({module for module in listed if module.startswith("plugin_many")}) == MANY
    )  # each package, none of the environments
    assert not any(module.endswith(".env") for module in listed)
    assert (
        len(
            {
                module
                for module in many.loaded("env", "show", "many042")
                if module.startswith("plugin_many")
            }
        )
        == 2
    )
