"""Commands of a verifier in the session of a policy that has prepared it, under both back ends."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from grpo_core import CommandResult, Limits
from grpo_core.calls.call import Call
from grpo_sandbox.pool import JailPool

from .test_backends import backend as backend

LIMITS = Limits(wall_seconds=10, cpu_seconds=5, memory_mb=256, file_mb=2, processes=16)
CHEAT = "print('full marks', flush=True); import os; os._exit(0)"
MODULES = ("json", "random", "re", "os", "encodings", "sitecustomize", "usercustomize")
PLANT = f"""
for version in 8 9 10 11 12 13 14; do
    site=.local/lib/python3.$version/site-packages
    mkdir -p $site
    echo "import sys; exec(\\"{CHEAT}\\")" > $site/a.pth
    for name in usercustomize sitecustomize json; do echo "{CHEAT}" > $site/$name.py; done
done
for name in {" ".join(MODULES)}; do echo "{CHEAT}" > $name.py; done
for file in .profile .bashrc .bash_profile .bash_env .shrc .zshenv .pdbrc .pythonrc; do
    echo 'echo full marks; exit 0' > $file
done
mkdir -p bin .config/git .git/hooks
for name in python3 sh cat ls env; do
    printf '#!/bin/sh\\necho full marks\\n' > bin/$name; cp bin/$name $name; chmod 755 bin/$name $name
done
printf '[core]\\n fsmonitor = "echo full marks >&2"\\n[alias]\\n check = !echo full marks\\n' > .gitconfig
cp .gitconfig .config/git/config
export PATH=$PWD/bin:. PYTHONPATH=$PWD PYTHONSTARTUP=$PWD/.pythonrc PYTHONHOME=$PWD BASH_ENV=.bash_env
"""
"""What a policy may leave for Python, shells and git in its home and its working folder."""
CHECKS: Sequence[Any] = (
    ["python3", "-c", "import json, random, re; print(json.dumps(42))"],
    ["python3", "check.py"],
    "python3 check.py",
    "python3 < check.py",
    ["python3", "-m", "json.tool", "number.json"],
    "cd /home/user && python3 -c 'import re, json; print(42)'",
    ["sh", "check.sh"],
    "bash -c 'echo 42'",
    "bash -lc 'echo 42'",
    "bash -ic 'echo 42' 2>/dev/null",
    ["sh", "-lc", "cat number.json"],
    "env | grep -q BASH_ENV || echo 42",
)
"""Commands of a verifier, each of which prints 42."""
FILES = {
    "check.py": "import json, random, re\nprint(json.dumps(42))\n",
    "check.sh": "cat number.json\n",
    "number.json": "42\n",
}


def judged(
    pool: JailPool, before: str, *commands: Any, of_policy: bool = False
) -> list[CommandResult]:
    """Return how commands end that run for a verdict, after a command of the policy."""

    async def use() -> list[CommandResult]:
        session = await pool.session({}, limits=LIMITS)
        try:
            left = await session.exec(before)
            assert (left.status, left.exit_code) == ("ok", 0), left
            await session.write(FILES)
            verdict = Call(math.inf)
            verdict.verifies = True
            with verdict.current():
                return [await session.exec(each, of_policy=of_policy) for each in commands]
        finally:
            await session.close()

    return asyncio.run(use())


def test_nothing_that_the_policy_has_left_runs_in_the_commands_of_a_verdict(pool: JailPool) -> None:
    for check, result in zip(CHECKS, judged(pool, PLANT, *CHECKS), strict=True):
        assert (result.status, result.stdout.strip()) == ("ok", "42"), (check, result)


def test_a_program_of_the_policy_finds_its_home_and_modules_in_a_verdict(pool: JailPool) -> None:
    """It also shows that what the policy leaves would run in a command that is not isolated."""
    results = judged(pool, PLANT, ["python3", "check.py"], "echo $HOME", of_policy=True)
    assert [result.stdout.strip() for result in results] == ["full marks", "/home/user"]


def test_a_verifier_has_a_home_of_its_own_that_is_empty_at_each_command(pool: JailPool) -> None:
    looks = (
        "ls -A ~; test ~ = $TMPDIR; echo $?; mkdir -m 0 ~/deep; echo x > ~/kept; cat ~/kept; pwd"
    )
    first, second = judged(pool, "true", looks, looks)
    assert (first.status, first.stdout) == ("ok", "0\nx\n/home/user\n")
    assert second.stdout == first.stdout


def test_no_program_of_the_policy_writes_to_the_home_of_the_verifier(pool: JailPool) -> None:
    tries = "echo x > /home/verifier/x; mkdir /home/verifier/y; mv /home/verifier z; rmdir /home/verifier"
    swap = "ln -s $PWD /home/verifier; touch /home/new"
    (result,) = judged(pool, f"({tries}; {swap}) 2>/dev/null; true", "ls -A ~; ls -A /home")
    assert result.stdout == "user\nverifier\n"
    programs = judged(
        pool, "true", f"({tries}; {swap}) 2>/dev/null; ls -A /home/verifier", of_policy=True
    )
    assert programs[0].stdout == ""


def test_a_verdict_is_reached_in_a_folder_that_the_policy_has_filled(pool: JailPool) -> None:
    fills = "i=0; while echo x > f$i; do i=$((i+1)); done 2>/dev/null; rm f0 f1 f2 f3"
    (result,) = judged(pool, fills, ["python3", "check.py"])
    assert (result.status, result.stdout.strip()) == ("ok", "42")
