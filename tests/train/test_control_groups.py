"""Limits of control groups, at the root of their file system or below it, of both versions."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from grpo_core.engine.models.control_groups import free_in_groups

V1 = Path("/sys/fs/cgroup/memory")
MIB = 2**20
V2_FILES = {"memory.current": f"{300 * MIB}", "memory.stat": f"anon 1\ninactive_file {50 * MIB}\n"}


def group(folder: Path, limit: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**V2_FILES, "memory.max": limit}.items():
        (folder / name).write_text(text)


# The path of /proc/self/cgroup, the root of the mount, and the limits of groups below it in MiB
PLACES: Mapping[str, tuple[str, str, Mapping[str, str], list[int]]] = {
    "a container": ("/", "/", {"": f"{1000 * MIB}"}, [750]),
    "SLURM and systemd": (
        "/system.slice/job_7/step_0", "/",
        {"system.slice": "max", "system.slice/job_7": f"{1500 * MIB}", "system.slice/job_7/step_0": "max"}, [1250],
    ),
    "two limits": ("/a/b", "/", {"a": f"{900 * MIB}", "a/b": f"{800 * MIB}"}, [550, 650]),
    "a mount of the container's group alone": ("/docker/abc", "/docker/abc", {"": f"{400 * MIB}"}, [150]),
    "a path of the whole machine": ("/docker/abc", "/elsewhere", {"": f"{400 * MIB}"}, [150]),
    "no limit": ("/a", "/", {"a": "max"}, []),
    "no files": ("/gone", "/", {}, []),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_limits_of_version_2_are_found_where_the_process_is(tmp_path: Path, place: str) -> None:
    path, root, limits, left = PLACES[place]
    mount = tmp_path / "cgroup"
    mount.mkdir()
    for name, limit in limits.items():
        group(mount / name, limit)
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(f"1:name=systemd:/x\n0::{path}\n")
    (proc / "mountinfo").write_text(
        f"30 23 0:26 / /sys rw - sysfs sysfs rw\n31 23 0:27 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    assert [free // MIB for free in free_in_groups(proc)] == left


@contextlib.contextmanager
def limited(mib: int) -> Iterator[Path]:
    """A group of version 1 below this process's, with a limit."""
    (own,) = (
        line.split(":")[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.split(":")[1] == "memory"
    )
    folder = V1 / own.lstrip("/") / f"grpo-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(mib * MIB))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.skipif(
    not os.access(V1, os.W_OK), reason="needs control groups of version 1, and root"
)
def test_a_limit_of_version_1_below_the_root_is_seen_by_the_process_in_it() -> None:
    code = "from grpo_core.engine.models.control_groups import free_in_groups; print(min(free_in_groups()) // 2**20)"
    with limited(700) as folder:
        join = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
        done = subprocess.run(
            [sys.executable, "-c", join + code], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert 500 < int(done.stdout) <= 700
