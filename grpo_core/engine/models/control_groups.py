"""Read how much memory the control groups of this process leave it.

Containers, SLURM and systemd limit a group that is not always at the root of /sys/fs/cgroup:
/proc/self/cgroup names it, and /proc/self/mountinfo where its files are. Both versions are read, at
once where a machine has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Files:
    """Names the files of a version."""

    limit: str
    used: str
    reclaimable: str
    """The line in memory.stat that counts cached file pages, which the kernel can take back."""


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def free_in_groups(proc: Path = Path("/proc/self")) -> list[int]:
    """Return the bytes that are left under each limit of this process's groups and those above.

    The list is empty without a limit. Cached file pages count as free, since the kernel can reclaim
    them.

    Args:
        proc: the folder with the files `cgroup` and `mountinfo`.
    """
    return [free for folder, files in _groups(proc) if (free := _free(folder, files)) is not None]


def _groups(proc: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folder of each group that may limit this process, its own one first."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:  # no control groups here
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        if not is_v2 and "memory" not in controllers.split(","):
            continue
        for root, mount in _mounted(mounts, is_v2=is_v2):
            folder = mount / _below(PurePosixPath(path), PurePosixPath(root))
            yield folder, _V2 if is_v2 else _V1
            while folder != mount and mount in folder.parents:
                folder = folder.parent
                yield folder, _V2 if is_v2 else _V1


def _mounted(mounts: list[str], *, is_v2: bool) -> Iterator[tuple[str, Path]]:
    """Yield root and place of each mount of the memory controller."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        fields = before.split(" ")
        if (kind == "cgroup2" and is_v2) or (
            kind == "cgroup" and not is_v2 and "memory" in options.split()[-1].split(",")
        ):
            yield fields[3], Path(fields[4])


def _below(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """Return where a group is below the group that is mounted; "." if it is that one.

    In a container without a namespace of its own the mount shows the container's group alone, and
    the path is that of the whole machine.
    """
    return path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()


def _free(folder: Path, files: _Files) -> int | None:
    """Return what is left under a group's limit; None if it has none."""
    try:
        limit = (folder / files.limit).read_text().strip()
        used = int((folder / files.used).read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root of version 2 has no such files
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(counts.get(files.reclaimable, 0))
