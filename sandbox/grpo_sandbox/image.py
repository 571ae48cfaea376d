"""Images for the Docker back end: from a registry, from a Debian mirror where no registry can be reached, or from an archive."""

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
_NEEDLESS = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)


def from_registry(client: Any, tag: str, say: Callable[[str], None]) -> None:
    """python:3.12-slim, from whatever registry the daemon uses. Raises what the client raises."""
    say("building from python:3.12-slim ...")
    client.images.build(fileobj=io.BytesIO(DOCKERFILE.encode()), tag=tag, rm=True, pull=True)


def from_debian(
    client: Any, tag: str, say: Callable[[str], None], *, mirror: str | None = None
) -> None:
    """A minimal Debian with Python, made by debootstrap."""
    if shutil.which("debootstrap") is None:
        raise ConfigError(
            "debootstrap is not installed: apt install debootstrap, or pass the archive of a root folder"
        )
    mirror = mirror or apt_mirror()
    say(
        f"making a Debian root by debootstrap from {mirror or 'its own mirror'} (half a minute to two) ..."
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
            raise ConfigError(
                f"debootstrap failed: {reason[0]}; it needs root and a mirror (--mirror URL)"
            )
        for needless in _NEEDLESS:
            shutil.rmtree(root / needless, ignore_errors=True)
        archive = Path(folder, "root.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, arcname=".")
        from_archive(client, tag, say, archive)


def from_archive(client: Any, tag: str, say: Callable[[str], None], archive: Path) -> None:
    """A tar of a root folder with a python3 in it."""
    if not archive.is_file():
        raise ConfigError(f"{str(archive)!r} is no file; pass a tar archive of a root folder")
    say(f"importing {archive.name} ({archive.stat().st_size // 10**6} MB) ...")
    client.api.import_image_from_file(str(archive), repository=tag, tag="latest")


def apt_mirror() -> str | None:
    """The first Debian mirror in apt's sources, of either format; None: debootstrap has one of its own."""
    files = [
        file
        for place in SOURCES
        for file in (
            [place] if place.is_file() else sorted(place.glob("*")) if place.is_dir() else []
        )
    ]
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if found := re.match(
                r"(?:URIs:\s*|deb\s+(?:\[[^]]*\]\s*)?)(https?://\S+/debian)/?(?:\s|$)", line
            ):
                return found[1]
    return None
