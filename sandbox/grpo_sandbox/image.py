"""Makes images for the Docker back end: from a registry, a Debian mirror or an archive."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import ConfigError

DOCKERFILE = "FROM python:3.12-slim\n"
SUITE = "bookworm"
SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
_UNNEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)


def from_registry(client: Any, tag: str, say: Callable[[str], None]) -> None:
    """Build from python:3.12-slim, from the registry that the daemon uses.

    Raises:
        docker.errors.DockerException: The image could not be built.
    """
    say("building from python:3.12-slim ...")
    client.images.build(fileobj=io.BytesIO(DOCKERFILE.encode()), tag=tag, rm=True, pull=True)


def from_debian(
    client: Any, tag: str, say: Callable[[str], None], *, mirror: str | None = None
) -> None:
    """Build a minimal Debian with Python by debootstrap.

    Raises:
        ConfigError: debootstrap is missing or fails.
    """
    if shutil.which("debootstrap") is None:
        raise ConfigError(
            "debootstrap is not installed: apt install debootstrap, or pass the archive of a root "
            "folder"
        )
    mirror = mirror or apt_mirror()
    say(
        f"making a Debian root by debootstrap from {mirror or 'its own mirror'} "
        "(half a minute to two) ..."
    )
    with tempfile.TemporaryDirectory(prefix="grpo-image-") as folder:
        root = Path(folder, "root")
        command = [
            "debootstrap",
            "--variant=minbase",
            "--include=python3",
            SUITE,
            str(root),
            *([mirror] if mirror else []),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            reason = (result.stderr or result.stdout).strip().splitlines()[-1:] or [
                "no reason given"
            ]
            raise ConfigError(
                f"debootstrap failed: {reason[0]}; it needs root and a mirror (--mirror URL)"
            )
        for unneeded in _UNNEEDED:
            shutil.rmtree(root / unneeded, ignore_errors=True)
        archive = Path(folder, "root.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, arcname=".")
        from_archive(client, tag, say, archive)


def from_archive(client: Any, tag: str, say: Callable[[str], None], archive: Path) -> None:
    """Import a tar archive of a root folder that contains a python3.

    Raises:
        ConfigError: The archive is not a file.
    """
    if not archive.is_file():
        raise ConfigError(f"{str(archive)!r} is not a file; pass a tar archive of a root folder")
    say(f"importing {archive.name} ({archive.stat().st_size // 10**6} MB) ...")
    client.api.import_image_from_file(str(archive), repository=tag, tag="latest")


def apt_mirror() -> str | None:
    """Return the first Debian mirror in apt's sources, of either format, or None without one.

    debootstrap then uses its own.
    """
    files = [
        file
        for place in SOURCES
        for file in (
            [place] if place.is_file() else sorted(place.glob("*")) if place.is_dir() else []
        )
    ]
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := re.match(
                r"(?:URIs:\s*|deb\s+(?:\[[^]]*\]\s*)?)(https?://\S+/debian)/?(?:\s|$)", line
            ):
                return match[1]
    return None
