"""What a jail of bubblewrap holds: an interpreter, its standard library, and nothing that could hold an answer."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Program
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.interpreter import Interpreter
from grpo_sandbox.reach import forbidden_packages

from .test_backends import opened

LISTING = """
import os
def f(x):
    walked = [(folder, [*folders, *names]) for folder, folders, names in os.walk('/') if folder.count('/') < 3]
    return sorted(os.path.join(folder, name) for folder, names in walked for name in names)
"""


def value(pool: Any, source: str) -> Any:
    async def whole() -> Any:
        try:
            ((outcome,),) = await pool.run([Program(source, "f", [(1,)])])
            return outcome.value if outcome.status == "ok" else outcome
        finally:
            await pool.close()

    return asyncio.run(whole())


def test_a_jail_holds_the_interpreter_its_library_and_nothing_else_of_the_machine() -> None:
    paths = value(opened("bubblewrap", 1), LISTING)
    system = {path.split("/")[1] for path in paths}
    assert system <= {"bin", "dev", "lib", "lib32", "lib64", "sbin", "usr", "work"}
    programs = [path for path in paths if path.startswith("/usr/bin/")]
    assert [Path(path).name.startswith("python") for path in programs] == [True]
    assert not any("dist-packages" in path or "site-packages" in path for path in paths)


MODULES = "ssl sqlite3 ctypes zoneinfo decimal lzma bz2 zlib hashlib unicodedata uuid"


def test_the_whole_standard_library_is_there() -> None:
    source = f"import {MODULES.replace(' ', ', ')}\ndef f(x): return lzma.__name__, uuid.__name__"
    assert value(opened("bubblewrap", 1), source) == ("lzma", "uuid")


def test_another_interpreter_comes_without_the_packages_that_are_installed_in_it() -> None:
    """That of the tests has its folder of packages inside its library."""
    interpreter = Interpreter.of(str(Path(sys.executable).resolve()))
    packages = [folder / "site-packages" for folder in interpreter.folders]
    packages = [folder for folder in packages if folder.is_dir()]
    assert list(interpreter.hidden) == packages
    options = " ".join(interpreter.options())
    for path in packages:
        assert f"--tmpfs {path} --remount-ro {path}" in options


def test_a_jail_that_shows_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the project is installed into the system's own folders, say."""
    opened("bubblewrap", 1)
    options = Interpreter.options
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "grpo_env_fizzbuzz")
        package.mkdir()
        (package / "__init__.py").touch()
        Path(folder).chmod(0o755)  # a jail's user is not the one of the tests
        bind = ["--ro-bind", folder, "/usr/share/elsewhere"]
        monkeypatch.setattr(Interpreter, "options", lambda self: [*options(self), *bind])
        with pytest.raises(ConfigError) as refused:
            Bubblewrap(BubblewrapConfig(jails=1))
    said = "its jails show /usr/share/elsewhere/grpo_env_fizzbuzz; use an image or a Python"
    assert said in str(refused.value)


def test_an_environment_that_is_called_like_a_part_of_the_library_is_not_mistaken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are asyncio/tasks.py, logging/config.py and email/utils.py."""
    opened("bubblewrap", 1)
    monkeypatch.setattr(
        "grpo_sandbox.bubblewrap.forbidden_packages", lambda: ("tasks", "config", "utils", "client")
    )
    assert value(Bubblewrap(BubblewrapConfig(jails=1)), "def f(x): return x") == 1


def test_what_offers_a_component_is_forbidden_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    targets = ("secrets_of_mine.sub:offer", "json")
    points = [EntryPoint("mine", target, "grpo") for target in targets]
    monkeypatch.setattr("grpo_sandbox.reach.entry_points", lambda *, group: points)
    # And no standard module.
    assert forbidden_packages() == ("grpo_core", "grpo_sandbox", "secrets_of_mine")


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false"])
def test_a_python_that_cannot_be_used_is_one_line_that_names_the_setting(python: str) -> None:
    opened("bubblewrap", 1)
    with pytest.raises(ConfigError, match=r"cannot use the Python .*; set sandbox.settings.python"):
        Bubblewrap(BubblewrapConfig(python=python))


def test_the_work_folder_is_limited_in_size_and_in_files() -> None:
    source = """
def f(x):
    made = written = 0
    try:
        for made in range(5000): open(f'n{made}', 'w').close()
    except OSError: pass
    import os
    for name in os.listdir('.'): os.unlink(name)
    try:
        with open('a', 'wb') as a, open('b', 'wb') as b, open('c', 'wb') as c:
            for written in range(100):
                for file in (a, b, c): file.write(bytes(100_000)); file.flush()
    except OSError: pass
    return made, written
"""
    made, written = value(opened("bubblewrap", 1), source)
    assert made < 1100
    assert written < 60


def test_memory_that_is_in_no_file_and_in_no_process_is_refused() -> None:
    source = "import os\ndef f(x): return os.memfd_create('a')"
    outcome = value(opened("bubblewrap", 1), source)
    said = "PermissionError: [Errno 1] Operation not permitted"
    assert (outcome.status, outcome.error) == ("exception", said)
