"""Carries out the tutorial of environments/README.md in a fresh folder, and stops at the first step that does not do what it says.

    python tests/tutorial.py

Every block of bash, Python and TOML above the tutorial's end has a line `<!-- step N: what it does -->` before it, with `; exits 1` for a
command that has to fail and `; says TEXT | TEXT` for what the output must hold. Blocks of bash run in order, with the folder and the
variables that the one before left; Python and TOML are written to the file that their first line names. `grpo-core` in a `pip install`
is this checkout.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "environments" / "README.md"
END = "<!-- end of the tutorial -->"
LIMIT_SECONDS = 600.0
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- step (\d+): ([^;>]+)(?:; exits (\d+))?(?:; says ([^;>]+))? -->\n\Z")
_CHECKOUT = re.compile(r"(?<![\w-])grpo-core(?![\w-])")
_HIDDEN = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "GRPO_DISABLE_PLUGINS")
"""Variables of whoever runs this that a reader does not have."""


class TutorialError(Exception):
    """The document, or what it says, is not right."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block with the line before it. path: the file to write, of a block that is no shell."""

    number: int
    title: str
    language: str
    text: str
    status: int
    says: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.text.splitlines()[0].removeprefix("# ")


def read_steps(document: str) -> list[Step]:
    """The tutorial's steps, in order. Raises TutorialError for a block without a number, or with a wrong one."""
    tutorial, end, _ = document.partition(END)
    if not end:
        raise TutorialError(f"the line {END} is missing")
    steps: list[Step] = []
    for fence in _FENCE.finditer(tutorial):
        language, text = fence.groups()
        if language not in ("bash", "python", "toml"):
            continue
        mark = _MARK.search(tutorial[: fence.start()])
        if mark is None:
            raise TutorialError(
                f"no line <!-- step {len(steps) + 1}: TITLE --> stands directly before this block:\n{text}"
            )
        number, title, status, says = mark.groups()
        if int(number) != len(steps) + 1:
            raise TutorialError(f"step {number}, {title!r}, must be number {len(steps) + 1}")
        if language != "bash" and not re.match(r"# [\w./-]+\n", text):
            raise TutorialError(
                f"the first line of step {number} must be `# path/of/the/file`:\n{text}"
            )
        wanted = tuple(part.strip() for part in (says or "").split("|") if part.strip())
        steps.append(Step(int(number), title, language, text, int(status or 0), wanted))
    return steps


class Shell:
    """bash in a folder of its own; what one script leaves, its folder and its variables, the next one finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self._variables = folder / "variables"
        self._variables.touch()
        self._place = folder / "place"

    def run(self, script: str, *, seconds: float) -> tuple[int, str]:
        """Status and output. Raises subprocess.TimeoutExpired, and then nothing of it goes on."""
        leave = f"trap 'export -p > {shlex.quote(str(self._variables))}; pwd > {shlex.quote(str(self._place))}' EXIT"
        whole = f". {shlex.quote(str(self._variables))}\n{leave}\nset -eo pipefail\n{script}"
        variables = {name: value for name, value in os.environ.items() if name not in _HIDDEN} | {
            "COLUMNS": "160"
        }
        process = subprocess.Popen(
            ["bash", "-c", whole],
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        self.folder = Path(self._place.read_text(encoding="utf-8").rstrip("\n"))
        return process.returncode, output


def carry_out(step: Step, shell: Shell, *, seconds: float) -> None:
    """Raises TutorialError if it does not do what it says."""
    if step.language != "bash":
        (shell.folder / step.path).write_text(step.text, encoding="utf-8")
        return
    script = "\n".join(
        _CHECKOUT.sub(str(ROOT), line) if line.startswith("pip install") else line
        for line in step.text.splitlines()
    )
    try:
        status, output = shell.run(script, seconds=seconds)
    except subprocess.TimeoutExpired:
        raise TutorialError(
            f"the tutorial takes longer than {LIMIT_SECONDS:.0f} s; this block was running:\n{step.text}"
        ) from None
    said = " ".join(output.split())
    lacking = [text for text in step.says if text not in said]
    if status != step.status:
        raise TutorialError(
            f"this block ended with status {status}, not {step.status}:\n{step.text}\nIt said:\n{output}"
        )
    if lacking:
        raise TutorialError(
            f"this block did not say {', '.join(map(repr, lacking))}:\n{step.text}\nIt said:\n{output}"
        )


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the shell ends as after Ctrl-C
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grpo-tutorial-") as folder:
        shell = Shell(Path(folder))
        for step in read_steps(DOCUMENT.read_text(encoding="utf-8")):
            begun = time.monotonic()
            try:
                carry_out(step, shell, seconds=LIMIT_SECONDS - (begun - started))
            except TutorialError as error:
                print(f"step {step.number}, {step.title}: {error}", file=sys.stderr)
                return 1
            print(
                f"{step.number:>3}  {step.title:<50} {time.monotonic() - begun:6.1f} s", flush=True
            )
        print(
            f"{'':>3}  {'the whole tutorial':<50} {time.monotonic() - started:6.1f} s", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
