"""The hostile commands with which `kit.sessions` checks the sessions of a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FREE = "free"
"""What a command prints if its attack has worked."""
TRAPS = ("check", "dir/check")
"""The files that are written and read after the commands of each sequence."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """Commands that run one after the other in a session."""

    name: str
    """The name of the check."""
    commands: Sequence[str]
    """Lines for the shell."""
    statuses: Sequence[str] = ()
    """The statuses with which the first command may end; () allows all."""
    timeout: float | None = None
    """The wall time of each command in seconds; None: that of the limits."""
    judges: str = ""
    """A command of a verdict, whose output must be the same before and after the commands."""
    fills: bool = False
    """Whether they may leave no room for the files that are written afterwards."""


def _tries(*attempts: str) -> str:
    """Return a line that prints FREE for each attempt that succeeds."""
    return "\n".join(f"({attempt}) >/dev/null 2>&1 && echo {FREE}" for attempt in attempts)


HOSTILE_SESSIONS = (
    Hostile(
        "session daemons",
        (
            "(setsid sh -c 'while :; do echo x >> beat; sleep 0.1; done' &)\n"
            "nohup sh -c 'while :; do echo x >> beat; sleep 0.1; done' >/dev/null 2>&1 & sleep 0.3",
            f"wc -c < beat > one; sleep 0.4; wc -c < beat > two; cmp -s one two || echo {FREE}",
        ),
    ),
    Hostile("session fork bomb", ("f() { f | f & }; f; sleep 0.5", "echo")),
    Hostile(
        "session processes",
        (f"n=0; while [ $n -lt 50 ]; do sleep 3 & n=$((n+1)); done; echo {FREE}",),
    ),
    Hostile("session memory", (_tries("python3 -c 'bytearray(10**9)'"),)),
    Hostile(
        "session disk",
        (
            "i=0; while head -c 900000 /dev/zero > f$i; do i=$((i+1)); "
            f"[ $i -gt 2000 ] && echo {FREE} && exit; done",
        ),
        fills=True,
    ),
    Hostile(
        "session inodes",
        (f"i=0; while : > n$i; do i=$((i+1)); [ $i -gt 90000 ] && echo {FREE} && exit; done",),
        fills=True,
    ),
    Hostile("session symlinks", ("ln -s /etc/passwd check; ln -s / dir", "cat dir/check")),
    Hostile("session fifos", ("mkfifo check dir; echo x > check &", "echo")),
    Hostile(
        "session hard links",
        (_tries("ln /etc/passwd check", "ln /bin/sh check"), "echo x > a; ln -f a check"),
    ),
    Hostile("session folders", ("mkdir -p check/a/b; echo x > check/a/b/c; echo x > dir",)),
    Hostile(
        "session deep folders",
        ("i=0; while [ $i -lt 1500 ]; do mkdir d && cd d || exit; i=$((i+1)); done",),
    ),
    Hostile(
        "session odd names",
        (r"""touch -- '-rf' ' ' '*' '$(id)' "$(printf 'a\nb')" "$(printf '\377\376')"; ls""",),
    ),
    Hostile("session unreadable", ("mkdir -p dir/a; echo > check; chmod 000 dir/a dir check .",)),
    Hostile("session output", ("yes", "yes >&2"), statuses=("output_limit",)),
    Hostile("session sparse files", ("truncate -s 1000G check; truncate -s 900K check",)),
    Hostile(
        "session places",
        (
            _tries(
                *(
                    f"echo > {folder}/grpo-left"
                    for folder in ("", "/tmp", "/var/tmp", "/etc", "/usr", "/dev", "/dev/shm")
                )
            ),
        ),
    ),
    Hostile(
        "session supervisor",
        ("kill -STOP 1; kill -TERM 1; kill -9 1; kill -STOP $PPID; kill -9 $PPID; true", "echo"),
        timeout=1.0,
    ),
    Hostile("session kill -1", ("kill -9 -1; kill -STOP -1; echo", "echo")),
    Hostile("session its own end", ("kill -9 $$",), statuses=("signal",)),
    Hostile(
        "session other processes",
        (
            _tries(*(f"cat /proc/1/{name}" for name in ("environ", "mem", "maps", "stack")))
            + f"\ncat /proc/*/environ 2>/dev/null | grep -q GRPO_SANDBOX_CHECK && echo {FREE}",
        ),
    ),
    Hostile(
        "session mounts",
        (_tries("mount -t tmpfs x .", "mount --bind / .", "umount $HOME", "umount -l /"), "ls"),
    ),
    Hostile(
        "session namespaces", (_tries("unshare -Ur true", "unshare -m true", "chroot / true"),)
    ),
    Hostile(
        "session root",
        (
            "cp /bin/sh s; chmod 6777 s",
            _tries("test $(./s -p -c 'id -u') = 0", "sudo -n true", "chown 0 s"),
        ),
    ),
    Hostile(
        "session network",
        (
            _tries(
                "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 1)'",
                "python3 -c 'import socket; socket.socket()'",
                "ls /sys/class/net | grep -vx lo",
            ),
        ),
    ),
    Hostile(
        "session ignored signals",
        ("trap '' TERM INT HUP QUIT XCPU ALRM; while :; do sleep 1; done",),
        statuses=("timeout_wall",),
        timeout=1.0,
    ),
    Hostile("session CPU time", ("trap '' XCPU; while :; do :; done",), statuses=("timeout_cpu",)),
    Hostile(
        "session limits",
        (_tries("ulimit -f unlimited", "ulimit -v unlimited", "ulimit -n 100000"), "ulimit -f 0"),
    ),
    Hostile(
        "session environment",
        (
            "X=$(head -c 90000 /dev/zero | tr '\\0' x); export X A=$X B=$X C=$X D=$X; /bin/true",
            f'test -z "$X" || echo {FREE}',
        ),
    ),
    Hostile("session stdin", ("exec 3<&0; cat <&3; sleep 5 <&3 & cat; exec <&-; cat",)),
    Hostile(
        "session startup files",
        (
            f"for f in .profile .bashrc .shrc .bash_env; do echo 'echo {FREE}' > $f; done\n"
            f"for f in ls cat sh true; do printf '#!/bin/sh\\necho {FREE}' > $f; chmod 777 $f; "
            "done\n"
            "export ENV=.shrc BASH_ENV=.bash_env PATH=.",
            "ls > /dev/null; true",
        ),
    ),
    Hostile(
        "session Python startup files",
        (
            "for minor in 8 9 10 11 12 13 14 15; do\n"
            "site=.local/lib/python3.$minor/site-packages; mkdir -p $site\n"
            f"echo \"import os; os.write(1, b'{FREE}')\" > $site/a.pth\n"
            "for f in usercustomize sitecustomize; do cp $site/a.pth $site/$f.py; done; done\n"
            "for f in json random re os sitecustomize; do cp $site/a.pth $f.py; done\n"
            "cp $site/a.pth .pythonrc; export PYTHONSTARTUP=.pythonrc PYTHONPATH=.",
        ),
        judges="python3 -c 'import json, random, re; print(6 * 7)'; ls -A ~",
    ),
    Hostile("session clock", (_tries("date -s 2000-01-01", "test $(date +%Y) -lt 2020"),)),
    Hostile("session answers", (_tries("python3 -c 'import grpo_core'"),)),
)
