"""`grpo env check` with verifiers that run what the policy left in a session, under both back ends."""

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Services, TaskKey
from grpo_core.config.settings import VerifyConfig
from grpo_core.testing import check_environment
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play
from grpo_core.verify.examining import CheckResult
from grpo_sandbox.pool import JailPool

from .test_backends import backend as backend

sys.path.insert(0, str(Path(__file__).parent))  # other processes import the environment, too

from desk_envs import Config, Desks

COMMANDS: dict[str, Any] = {
    "beside the script": ["python3", "check.py"],
    "in a shell": "python3 check.py",
    "in a module": "cat out > copy && python3 -c 'exec(open(\"check.py\").read())'",
    "isolated": ["python3", "-I", "check.py"],
    "in a login shell": "bash -lc 'python3 check.py'",
}
"""Commands of a verifier that run nothing of the policy's."""
FAULTY: dict[str, Any] = {
    "on the path of modules": "PYTHONPATH=. python3 check.py",
    "with the old home": "HOME=/home/user PYTHONNOUSERSITE= python3 check.py",
    "with its shell's file": ". ./.profile; python3 check.py",
    "without the protection": "env -u PYTHONSAFEPATH python3 check.py",
    "with an import of the folder": "python3 -c 'import sys; sys.path.insert(0, \"\"); import json'; echo True",
}
"""Commands of a verifier that run files of the policy's."""


def checked(pool: JailPool, command: Any, *, of_policy: bool = False) -> CheckResult:
    env = Desks(Config(command, of_policy), Services(sandboxes={"default": pool}))
    report = check_environment(env, tasks=4, only=("episode.startup",))
    (result,) = (result for result in report.results if result.check == "episode.startup")
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_verdict_that_runs_nothing_of_the_policys_is_valid(pool: JailPool, name: str) -> None:
    result = checked(pool, COMMANDS[name])
    assert result.status == "valid", result.message
    assert "commands of verdicts ran none of" in result.message


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTY)
def test_a_verdict_that_runs_a_file_of_the_policys_is_a_fault_which_names_both(
    pool: JailPool, name: str
) -> None:
    result = checked(pool, FAULTY[name])
    assert result.status == "invalid", result.message
    assert repr(FAULTY[name])[1:20] in result.message


class NotIsolating:
    """A sandbox whose sessions know nothing of verdicts, as one of a plugin may be."""

    def __init__(self, sandbox: JailPool) -> None:
        self._sandbox = sandbox

    async def run(self, programs: Any) -> Any:
        return await self._sandbox.run(programs)

    async def session(self, *arguments: Any, **options: Any) -> Any:
        session: Any = await self._sandbox.session(*arguments, **options)
        run = session.exec

        async def exec_as_before(*arguments: Any, **options: Any) -> Any:
            return await run(*arguments, **{**options, "of_policy": True})

        session.exec = exec_as_before
        return session

    async def close(self) -> None:
        """It is borrowed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["beside the script", "in a module"])
def test_a_sandbox_that_does_not_isolate_the_commands_of_a_verdict_is_found(
    pool: JailPool, name: str
) -> None:
    sandbox: Any = NotIsolating(pool)
    found, sound = checked(sandbox, COMMANDS[name]), checked(sandbox, COMMANDS["isolated"])
    assert found.status == "invalid", found.message
    assert sound.status == "valid", sound.message


@pytest.mark.slow
def test_a_program_of_the_policys_may_run_what_the_policy_has_left(pool: JailPool) -> None:
    result = checked(pool, ["python3", "check.py"], of_policy=True)
    assert result.status == "valid", result.message


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize(("of_policy", "passes"), [(False, False), (True, True)])
async def test_a_module_beside_the_check_pays_only_where_the_verdict_runs_a_program_of_the_policys(
    pool: JailPool, isolation: Any, of_policy: bool, passes: bool
) -> None:
    config = Config(("python3", "check.py"), of_policy)
    env = Desks(config, Services(sandboxes={"default": pool}))
    settings = VerifyConfig(isolation=isolation, workers=1)
    async with Verifier(env, settings=settings) as verifier:
        (task,) = await verifier.tasks([TaskKey("desks", "train", 0)])
        turns = ("echo 'print(True); raise SystemExit' > json.py", "done")
        talk = await play(verifier, task, turns, max_turns=3, judge=True)
    assert talk.verdict is not None
    assert talk.verdict.error is None
    assert talk.verdict.passed is passes
