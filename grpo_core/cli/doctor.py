"""`grpo doctor`: everything that decides whether a run works here, on one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_core.cli.output import MESSAGE_LIMIT, print_json, print_line

PACKAGES = ("grpo-core", "torch", "transformers", "peft", "accelerate", "bitsandbytes")
DAEMON_SECONDS = 5.0
PLUGIN_SECONDS = 30.0
ROOM_MB = 2048
"""Free disk below which a model and a run may not fit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. status: "missing" is something that only some tasks need; "problem" needs mending."""

    topic: str
    status: Literal["ok", "missing", "problem"]
    found: str


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog="Example: grpo doctor")(doctor)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array for programs.")
    ] = False,
) -> None:
    """Look at versions, hardware, memory, disk, sandboxes and plugins; exit with 1 if something needs mending."""
    findings = [
        finding
        for look in (_python, _packages, _hardware, _disk, _sandboxes, _models, _plugins)
        for finding in _safely(look)
    ]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        colours = {
            "ok": typer.colors.GREEN,
            "missing": typer.colors.YELLOW,
            "problem": typer.colors.RED,
        }
        for finding in findings:
            text = f"{finding.topic:<16}{finding.found}"
            print_line(
                text, lead=f"{finding.status:<8}", limit=MESSAGE_LIMIT, fg=colours[finding.status]
            )
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


def _safely(look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What is broken here must not hide the other lines."""
    try:
        return list(look())
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        return [Finding(look.__name__.lstrip("_"), "problem", f"{type(error).__name__}: {error}")]


def _python() -> Iterator[Finding]:
    import platform

    yield Finding(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )


def _packages() -> Iterator[Finding]:
    import importlib.metadata

    for name in PACKAGES:
        try:
            yield Finding(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "missing", "not installed; pip install 'grpo-core[train]'")


def _hardware() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", "ok", str(cores))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield Finding(
            "memory",
            "ok",
            f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        )
    try:
        from grpo_core.train.models.device import described
    except ModuleNotFoundError:
        return
    yield Finding("device", "ok", described())


def _disk() -> Iterator[Finding]:
    import shutil

    from grpo_core.config.modelcache import cache_folder

    for topic, folder in (("disk, here", Path.cwd()), ("disk, models", cache_folder())):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**20
        writable = os.access(existing, os.W_OK)
        status: Literal["ok", "problem"] = "ok" if free > ROOM_MB and writable else "problem"
        yield Finding(
            topic,
            status,
            f"{free / 2**10:.1f} GiB free in {folder}"
            + ("" if writable else ", which cannot be written"),
        )


def _sandboxes() -> Iterator[Finding]:
    import shutil
    import subprocess

    docker = shutil.which("docker")
    if docker is None:
        yield Finding(
            "docker daemon",
            "missing",
            "no docker command; tasks whose model writes code need it (or bubblewrap)",
        )
    else:
        try:
            asked = subprocess.run(
                [docker, "version", "--format", "{{.Server.Version}}"],
                capture_output=True,
                text=True,
                timeout=DAEMON_SECONDS,
            )
            answered, said = (
                asked.returncode == 0,
                (asked.stdout.strip() or asked.stderr.strip()).splitlines()[:1],
            )
        except subprocess.TimeoutExpired:
            answered, said = False, [f"did not answer within {DAEMON_SECONDS:g} s"]
        yield Finding("docker daemon", "ok" if answered else "missing", (said or ["?"])[0])
    bwrap = shutil.which("bwrap")
    yield Finding(
        "bubblewrap",
        "ok" if bwrap else "missing",
        bwrap or "no bwrap command; the alternative to Docker on Linux",
    )


def _models() -> Iterator[Finding]:
    from grpo_core.config.modelcache import DEFAULT_MODEL, cached_models

    names = [model.name for model in cached_models()]
    if names:
        yield Finding("models", "ok", ", ".join(names))
    else:
        yield Finding(
            "models",
            "missing",
            f"none is cached; the first run fetches one (`grpo model pull {DEFAULT_MODEL}`)",
        )


def _plugins() -> Iterator[Finding]:
    from grpo_core.kit.plugins import all_statuses
    from grpo_core.plugins.host import PluginHost

    statuses = all_statuses(PluginHost(), timeout_seconds=PLUGIN_SECONDS)
    working = [status.name for status in statuses if status.status == "ok"]
    yield Finding("plugins", "ok", f"{len(working)} work: {', '.join(working)}")
    for status in statuses:
        if status.status == "failed":
            yield Finding(
                "plugin",
                "problem",
                f"{status.name} ({status.distribution} {status.version}): {status.reason}; {status.fix}",
            )
