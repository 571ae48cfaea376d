"""What the wheel holds, and that it works in an environment which has never seen the repository."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pluggy
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=120, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the wheel; only the dependencies are borrowed from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=sys.platform != "win32")
    (site,) = [*folder.glob("lib/python*/site-packages"), *folder.glob("Lib/site-packages")]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(f"{Path(pluggy.__file__).parents[1]}\n")
    return next(
        path
        for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe")
        if path.exists()
    )


def run(python: Path, code: str, *arguments: str) -> str:
    command = [str(python), "-I", "-c", code, *arguments]  # -I: no PYTHONPATH, no current folder
    result = subprocess.run(
        command, cwd=python.parents[1], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_holds_only_top_level_names_that_begin_with_grpo(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert "grpo_core" in tops
    assert {top for top in tops if not top.startswith("grpo_")} == set()


def test_every_package_in_the_wheel_is_marked_as_typed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert {package for package in packages if f"{package}/py.typed" not in names} == set()


def test_every_bundled_package_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = [ROOT / root for root in ("environments", "plugins", "sandbox")]
    bundled = {
        package.name
        for root in roots
        if root.is_dir()
        for package in root.iterdir()
        if (package / "__init__.py").exists()
    }
    assert {package for package in bundled if f"{package}/__init__.py" not in names} == set()


def test_all_bundled_plugins_load_from_a_clean_environment(clean_python: Path) -> None:
    code = """
import importlib.metadata
import json
import os
import re
import grpo_core
from grpo_core.plugins.host import PluginHost
host = PluginHost()
ours = [plugin.name for plugin in host.plugins.values() if plugin.distribution == "grpo-core"]
print(json.dumps([grpo_core.__file__, {name: [s.name for specs in host.offers(name).values() for s in specs] for name in ours}]))
"""
    file, offers = json.loads(run(clean_python, code))
    assert Path(file).is_relative_to(clean_python.parents[1])
    assert "arithmetic" in offers["arithmetic"]
    assert all(offers.values())


@pytest.mark.slow
def test_the_targets_of_all_bundled_environments_can_be_imported_from_a_clean_environment(
    clean_python: Path,
) -> None:
    code = """
from grpo_core.plugins.host import PluginHost
host = PluginHost()
for offer in host.specs("environment"):
    if offer.plugin.distribution == "grpo-core":
        print(host.load("environment", offer.spec.name).__module__)
"""
    assert "grpo_env_arithmetic.env" in run(clean_python, code).split()


def test_the_console_script_runs_from_a_clean_environment(clean_python: Path) -> None:
    code = """
import sys
from importlib.metadata import entry_points
(script,) = [e for e in entry_points(group="console_scripts") if e.name == "grpo"]
sys.exit(script.load()())
"""
    rows = json.loads(run(clean_python, code, "envs", "--json"))
    assert "arithmetic" in {row["name"] for row in rows}


def test_the_version_of_the_distribution_is_the_one_the_package_tells(clean_python: Path) -> None:
    code = "import grpo_core as g, importlib.metadata as m; print(g.__version__, m.version('grpo-core'))"
    told, installed = run(clean_python, code).split()
    assert told == installed


def test_the_source_roots_are_no_import_names(clean_python: Path) -> None:
    code = "import importlib.util; print([n for n in ('environments', 'plugins', 'sandbox', 'tests') if importlib.util.find_spec(n)])"
    assert run(clean_python, code).strip() == "[]"


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Collect a distribution and all that it needs without extras."""
    distribution = importlib.metadata.distribution(name)
    key = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    if key in found:
        return
    found[key] = distribution
    for requirement in map(Requirement, distribution.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed(requirement.name, found)


def test_the_base_install_is_below_60_mb_and_brings_nothing_heavy() -> None:
    found: dict[str, importlib.metadata.Distribution] = {}
    needed("grpo-core", found)
    assert {"pydantic", "pluggy", "typer", "rich"} <= found.keys()
    assert not found.keys() & {"torch", "transformers", "numpy", "docker", "matplotlib"}
    paths = {
        Path(str(path.locate()))
        for distribution in found.values()
        for path in distribution.files or []
    }
    size = sum(path.stat().st_size for path in paths if path.is_file()) + sum(
        p.stat().st_size for p in (ROOT / "grpo_core").rglob("*.py")
    )
    assert 1e6 < size < 60e6


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="there is one process")
def test_the_tests_of_a_file_share_one_process(request: pytest.FixtureRequest) -> None:
    """Its fixtures are made once."""
    assert request.node.nodeid.endswith("@test_packaging")
