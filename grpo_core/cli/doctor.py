"""Implement `grpo doctor`, which checks everything that a run needs on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_core import __version__
from grpo_core.calls.deadline import DeadlineError, wait_for, within
from grpo_core.calls.namespace import why_no_namespace
from grpo_core.cli.commands import command_tree
from grpo_core.cli.model_needs import needs_of
from grpo_core.cli.output import MESSAGE_LIMIT, print_json, print_line
from grpo_core.cli.plugin_commands import installed_commands
from grpo_core.config.modelcache import DEFAULT_MODEL, cache_folder, cached_models
from grpo_core.config.settings import ExecutorConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_executor
from grpo_core.plugins.statuses import all_statuses
from grpo_core.plugins.versions import Package, declared_extras, install_command, packages
from grpo_core.protocol.errors import ConfigError, MissingExtraError, UserError
from grpo_core.protocol.executor import Executor

app = typer.Typer()

CORE = "grpo-core"
COLLECTIONS = ("all", "test")
"""The extras that collect others, or that are for the project itself."""
DAEMON_SECONDS = 5.0
"""The timeout in seconds for the Docker daemon."""
EXECUTOR_SECONDS = 120.0
"""The timeout in seconds for looking at the places where an executor verifies."""
PLUGIN_SECONDS = 30.0
"""The timeout in seconds for loading one plugin."""
ROOM_MB = 2048
"""The free disk space in MiB below which a model and a run may not fit."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Describe one line of the output."""

    topic: str
    status: Literal["ok", "missing", "problem"]
    """"missing" is for something that only some tasks need; a "problem" must be fixed."""
    found: str
    """The version, the value or the error that was found."""


@app.command(epilog="Examples: grpo doctor; grpo doctor --model Qwen/Qwen2.5-7B-Instruct")
def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Say instead which GPU this model needs to be trained: a hub id, of which only "
            "the config is downloaded, an alias, or a folder with a config.json."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array for programs.")
    ] = False,
) -> None:
    """Check versions, hardware, memory, disk, sandboxes, clusters and plugins.

    Exits with 1 if a problem must be fixed.
    """
    if model is None:
        findings = [finding for check in CHECKS for finding in _run_check(check)]
    else:
        findings = [DoctorFinding(topic, "ok", text) for topic, text in needs_of(model)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        colours = {
            "ok": typer.colors.GREEN,
            "missing": typer.colors.YELLOW,
            "problem": typer.colors.RED,
        }
        width = max(16, *(len(finding.topic) + 2 for finding in findings))
        for finding in findings:
            print_line(
                f"{finding.topic:<{width}}{finding.found}",
                lead=f"{finding.status:<8}",
                limit=MESSAGE_LIMIT,
                fg=colours[finding.status],
            )
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def _run_check(check: Callable[[], Iterator[DoctorFinding]]) -> list[DoctorFinding]:
    """Return the findings of a check; if it raises, return that as a problem."""
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        return [
            DoctorFinding(check.__name__.lstrip("_"), "problem", f"{type(error).__name__}: {error}")
        ]


def _python() -> Iterator[DoctorFinding]:
    yield DoctorFinding(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )


def _packages() -> Iterator[DoctorFinding]:
    """Compare each package of the base and of the installed extras with its range."""
    yield DoctorFinding(CORE, "ok", __version__)
    listed = {package.name: package for package in packages(CORE)}
    for extra in declared_extras(CORE):
        of_extra = packages(CORE, extra)
        missing = [package.name for package in of_extra if package.state == "missing"]
        listed |= {p.name: p for p in of_extra if not missing or p.state == "outside"}
        if missing and extra not in COLLECTIONS:
            text = f"{', '.join(missing)} not installed; pip install '{CORE}[{extra}]'"
            yield DoctorFinding(f"[{extra}]", "missing", text)
    for package in sorted(listed.values(), key=lambda package: package.name.lower()):
        yield _package(package)


def _package(package: Package) -> DoctorFinding:
    """Return the line about an installed package."""
    found = f"{package.version or 'its metadata has no version'} ({package.range or 'any'})"
    if package.state in ("outside", "missing"):
        return DoctorFinding(package.name, "problem", f"{found}; {install_command([package])}")
    if package.state == "unknown":
        command = f"pip install --force-reinstall '{package.requirement}'"
        return DoctorFinding(package.name, "problem", f"{found}; {command}")
    newer = " is newer than what was tried" if package.state == "newer" else ""
    return DoctorFinding(package.name, "ok", found + newer)


def _hardware() -> Iterator[DoctorFinding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield DoctorFinding("cores", "ok", str(cores))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield DoctorFinding(
            "memory",
            "ok",
            f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        )
    try:
        from grpo_core.engine.models.device import described
    except ModuleNotFoundError:
        return
    yield DoctorFinding("device", "ok", described())


def _disk() -> Iterator[DoctorFinding]:
    for topic, folder in (("disk, here", Path.cwd()), ("disk, models", cache_folder())):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**20
        writable = os.access(existing, os.W_OK)
        status: Literal["ok", "problem"] = "ok" if free > ROOM_MB and writable else "problem"
        yield DoctorFinding(
            topic,
            status,
            f"{free / 2**10:.1f} GiB free in {folder}"
            + ("" if writable else ", which cannot be written"),
        )


def _sandboxes() -> Iterator[DoctorFinding]:
    docker = shutil.which("docker")
    if docker is None:
        yield DoctorFinding(
            "docker daemon",
            "missing",
            "there is no docker command; tasks in which the model writes code need Docker "
            "or bubblewrap",
        )
    else:
        try:
            process = subprocess.run(
                [docker, "version", "--format", "{{.Server.Version}}"],
                capture_output=True,
                text=True,
                timeout=DAEMON_SECONDS,
            )
            answered = process.returncode == 0
            answer = process.stdout.strip() or process.stderr.strip() or "?"
        except subprocess.TimeoutExpired:
            answered, answer = False, f"did not answer within {DAEMON_SECONDS:g} s"
        yield DoctorFinding(
            "docker daemon", "ok" if answered else "missing", answer.splitlines()[0]
        )
    bwrap = shutil.which("bwrap")
    yield DoctorFinding(
        "bubblewrap",
        "ok" if bwrap else "missing",
        bwrap or "there is no bwrap command; bubblewrap is the alternative to Docker on Linux",
    )
    exposure = why_no_namespace("auto")
    yield DoctorFinding(
        "verifiers apart",
        "missing" if exposure else "ok",
        exposure or "worker processes of verifiers cannot see the trainer",
    )


def _executors() -> Iterator[DoctorFinding]:
    """Look at where verifiers can run besides this machine, with each executor's defaults."""
    host = PluginHost()
    for name in (offer.spec.name for offer in host.specs("executor")):
        topic = f"executor {name}"
        try:
            lines = wait_for(_examine(open_executor(host, ExecutorConfig(name=name))))
        except MissingExtraError as error:
            yield DoctorFinding(topic, "missing", str(error))
        except UserError as error:
            yield DoctorFinding(topic, "problem", str(error))
        else:
            for line in lines or ["nothing runs yet; a run starts what it needs"]:
                yield DoctorFinding(topic, "ok", line)


async def _examine(executor: Executor) -> Sequence[str]:
    """Return what an executor says about where it verifies."""
    try:
        return await within(_lines_of(executor), EXECUTOR_SECONDS)
    except DeadlineError:
        raise ConfigError(f"it did not answer within {EXECUTOR_SECONDS:g} s") from None
    finally:
        await executor.close()


async def _lines_of(executor: Executor) -> Sequence[str]:
    return await executor.examine()


def _models() -> Iterator[DoctorFinding]:
    names = ", ".join(model.name for model in cached_models())
    yield DoctorFinding(
        "models",
        "ok" if names else "missing",
        names or f"none is cached; the first run downloads one (`grpo model pull {DEFAULT_MODEL}`)",
    )


def _plugins() -> Iterator[DoctorFinding]:
    statuses = all_statuses(PluginHost(), timeout_seconds=PLUGIN_SECONDS)
    working = [status.name for status in statuses if status.status == "ok"]
    yield DoctorFinding("plugins", "ok", f"{len(working)} work: {', '.join(working)}")
    for status in statuses:
        if status.status == "failed":
            yield DoctorFinding(
                "plugin",
                "problem",
                f"{status.name} ({status.distribution} {status.version}): {status.reason}; "
                f"{status.fix}",
            )
    for problem in command_tree(installed_commands())[1]:
        yield DoctorFinding("command", "problem", problem)


CHECKS: tuple[Callable[[], Iterator[DoctorFinding]], ...] = (
    _python,
    _packages,
    _hardware,
    _disk,
    _sandboxes,
    _executors,
    _models,
    _plugins,
)
"""What is looked at, in this order."""
