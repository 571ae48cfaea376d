"""Try the declared ranges of versions: each cell is a virtual environment, what to install and what to run.

    python tests/versions.py            # all cells, one after the other; 1 if one of them fails
    python tests/versions.py CELL ...   # some of them
    python tests/versions.py --list

uv resolves and installs, from a folder of its own: `--resolution lowest-direct` gives every declared
dependency of an extra its lowest version; those of all extras together are in .ci/lowest.txt. An
environment is deleted as soon as it was tried, since torch from PyPI takes 5 GB with CUDA.

Python 3.14 is not among them: no machine here has it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOWEST = ROOT / ".ci" / "lowest.txt"
LIMIT_SECONDS = 1800.0
TOOLS = (
    *("pytest>=8.4,<9.2", "pytest-xdist>=3.6"),
    *("hypothesis>=6.100", "jsonschema>=4.20", "psutil"),
)
"""What the tests of all cells import besides what they test."""
STEP = ("python", "tests/one_step.py")
CPU_TORCH = ("torch==2.13.0",)
"""The release of which indexes have a CPU build, so that a cell costs no gigabytes."""


def tests(*paths: str) -> tuple[str, ...]:
    """Return the command that runs tests in one process."""
    return ("pytest", "-q", "-n", "0", "-p", "no:warnings", *paths)


CORE_TESTS = tests(
    *(f"tests/core/test_{name}.py" for name in ("plugins", "agreement", "extract", "overrides")),
    *(f"tests/core/test_{name}.py" for name in ("runlog", "cache", "versions")),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """Say what is installed on which Python, and what must succeed there."""

    name: str
    extras: str
    """The extras of grpo-core, separated by commas."""
    command: tuple[str, ...]
    lowest: bool = False
    """Whether every declared dependency has its lowest version; else the newest."""
    together: bool = False
    """Whether the lowest versions are those of .ci/lowest.txt."""
    python: str = "3.11"
    pins: tuple[str, ...] = ()
    """Versions to install, in the declared ranges."""
    beyond: tuple[str, ...] = ()
    """Requirements that take the place of declared ones."""


def both(cell: Cell) -> tuple[Cell, Cell]:
    """Return a cell with the lowest versions and one with the newest."""
    return (
        replace(cell, name=f"{cell.name}-lowest", lowest=True),
        replace(cell, name=f"{cell.name}-newest"),
    )


SMALL = (
    Cell("base", "", CORE_TESTS),
    Cell("besiege", "besiege", tests("tests/environments/test_besiege_simulation.py")),
    Cell("judge", "judge", tests("tests/plugins/test_judge_blame.py")),
    Cell("mcp", "judge,mcp", tests("tests/plugins/test_mcp.py")),  # whose fixtures need openai
    Cell(
        "sandbox", "sandbox", tests("tests/sandbox/test_backends.py", "tests/sandbox/test_pool.py")
    ),
    Cell("watch", "watch", ("python", "-c", "import grpo_report.terminal.dashboard")),
    Cell(
        "gsm8k",
        "gsm8k,datasets",
        tests("tests/environments/test_dataset_rows.py", "-k", "not tensor"),
    ),
    Cell("reasoning-gym", "reasoning-gym", tests("tests/environments/test_reasoning_gym.py")),
    Cell("ray", "judge,ray", tests("tests/plugins/test_ray.py")),
    Cell("inspect", "inspect", tests("tests/core/test_inspect_log.py")),
)
LARGE = "train,besiege,gsm8k,judge,mcp,ray,reasoning-gym,sandbox,serve,trackers,vllm,watch"
TRAIN_TESTS = tests(
    *(f"tests/train/test_{name}.py" for name in ("trackers", "constrained", "models", "sampler")),
    *(f"tests/plugins/test_{name}.py" for name in ("endpoint", "vllm")),
)
CELLS: tuple[Cell, ...] = (
    *(cell for small in SMALL for cell in both(small)),
    *both(Cell("train", "train", STEP, pins=CPU_TORCH)),
    Cell("all-lowest", LARGE, TRAIN_TESTS, lowest=True, together=True, pins=CPU_TORCH),
    Cell("all-newest", LARGE, TRAIN_TESTS, pins=CPU_TORCH),
    *(Cell(f"base-{python}", "", CORE_TESTS, python=python) for python in ("3.12", "3.13")),
    *(
        Cell(f"no-torch-{python}", "besiege,judge,mcp,sandbox,watch", CORE_TESTS, python=python)
        for python in ("3.12", "3.13")
    ),
    Cell("torch-2.10", "train", STEP, pins=("torch==2.10.*",)),
    # Beyond the range of [train], which ends where the CPU builds of torch do.
    Cell("torch-2.14", "train", STEP, beyond=("torch==2.14.*",)),
    # What an image for GPUs held in autumn 2026.
    Cell(
        "gpu-image-3.12",
        "train",
        STEP,
        python="3.12",
        pins=("torch==2.11.*", "transformers==5.17.*", "peft==0.20.*", "accelerate==1.14.*"),
    ),
)


def uv(folder: Path, *arguments: str) -> None:
    """Run uv with a cache in `folder`. Raise CalledProcessError if it fails."""
    variables = dict(os.environ)
    if links := variables.get("PIP_FIND_LINKS"):  # of pip, where a machine keeps wheels on its disk
        variables.setdefault("UV_FIND_LINKS", links)
    command = [sys.executable, "-m", "uv", "--quiet", "--cache-dir", str(folder / "cache")]
    run([*command, *arguments], variables)


def run(command: Sequence[str], variables: dict[str, str]) -> None:
    """Run a command in the checkout. Raise CalledProcessError with its output if it fails."""
    subprocess.run(
        command,
        cwd=ROOT,
        env=variables,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_SECONDS,
    )


def python(version: str) -> str:
    """Return the interpreter of a version: one of pyenv's, or what uv finds on the path."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    paths = sorted(root.glob(f"versions/{version}.*/bin/python"))
    return str(paths[-1]) if paths else version


def install(cell: Cell, folder: Path) -> Path:
    """Make the environment of a cell in `folder`; return the folder of its programs."""
    uv(folder, "venv", "--python", python(cell.python), str(folder / "env"))
    programs = folder / "env" / "bin"
    project = f"{ROOT}[{cell.extras}]" if cell.extras else str(ROOT)
    (folder / "beyond.txt").write_text("\n".join(cell.beyond), encoding="utf-8")
    arguments = ["--python", str(programs / "python"), "--overrides", str(folder / "beyond.txt")]
    if cell.lowest:
        arguments += ["--resolution", "lowest-direct"]
    if cell.together:
        arguments += ["--constraints", str(LOWEST)]
    uv(folder, "pip", "install", *arguments, project, *cell.pins)
    # Of the command, not of the extra: any version that leaves the others as they are.
    uv(folder, "pip", "install", "--python", str(programs / "python"), *TOOLS)
    return programs


def versions_of(programs: Path, cell: Cell) -> str:
    """Return the versions by which a cell is known."""
    code = (
        "import importlib.metadata as m, sys; "
        "have = {d.metadata['Name'].lower(): d.version for d in m.distributions()}; "
        "print(*(f'{n} {have[n]}' for n in sys.argv[1:] if n in have), sep=', ')"
    )
    names = ["pydantic", "torch", "transformers", "peft", "accelerate", *cell.extras.split(",")]
    listed = subprocess.run(
        [str(programs / "python"), "-c", code, *names], capture_output=True, text=True, check=True
    )
    return listed.stdout.strip()


def attempt(cell: Cell) -> bool:
    """Try one cell and print its line, with the end of the output if something failed."""
    started, versions = time.monotonic(), "not installed"
    with tempfile.TemporaryDirectory(prefix=f"grpo-{cell.name}-") as name:
        try:
            programs = install(cell, Path(name))
            versions = versions_of(programs, cell)
            variables = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
            run([str(programs / cell.command[0]), *cell.command[1:]], variables)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            output = error.output if isinstance(error.output, str) else ""
            print(f"{cell.name}: {error}\n{output[-4000:]}", file=sys.stderr, flush=True)
            result = "FAILED"
        else:
            result = "passed"
    seconds = time.monotonic() - started
    print(f"| {cell.name} | {cell.python} | {versions} | {result} | {seconds:.0f} s |", flush=True)
    return result == "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cells", nargs="*", metavar="CELL", help="names of cells; default: all")
    parser.add_argument("--list", action="store_true", help="name the cells and their commands")
    options = parser.parse_args()
    known = {cell.name: cell for cell in CELLS}
    if unknown := [name for name in options.cells if name not in known]:
        parser.error(f"no cell {', '.join(unknown)}; there are {', '.join(known)}")
    if options.list:
        for cell in CELLS:
            print(f"{cell.name:<22}{cell.python}  [{cell.extras}]  {' '.join(cell.command)}")
        return 0
    print("| cell | Python | versions | result | took |\n| --- | --- | --- | --- | --- |")
    results = [attempt(known[name]) for name in options.cells or known]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
