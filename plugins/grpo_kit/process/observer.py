"""Make the same tasks and verdicts in a fresh process, and report the verifier's side effects.

`python -m grpo_kit.process.observer PARENT_PID` is this process, started in other surroundings:
with another PYTHONHASHSEED, date, home folder and so on. It reads a request and writes its
report, both as JSON. An audit hook records what the verifier does with the network, with programs,
files and with the policy's text; at the end the process counts what was left behind.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from grpo_core import AgentEnvironment, Environment, Spec, Task, TaskKey
from grpo_core.api.calls import describe, prompt_digest
from grpo_core.api.plugins import build_environment
from grpo_core.api.settings import VerifyConfig
from grpo_core.api.verify import (
    IsolatedReplies,
    Verifier,
    check_reference,
    check_task,
    die_with_parent,
)
from grpo_core.words.hostile_texts import MARKER
from grpo_kit.answers.disguise import change_locale, rename_machine, shift_date
from grpo_kit.answers.verdict_growth import measure_growth_of
from grpo_kit.dialogues.agent_ends import AgentRuns, PlannedRun
from grpo_kit.dialogues.endings import leftovers_by_end
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.process.observed import SecondJudge
from grpo_kit.process.process_state import StateWatch, seeded_generators
from grpo_kit.process.read_variables import ReadVariables
from grpo_kit.process.watch import FileWatch, adopt_orphans, new_resources, open_resources
from grpo_kit.scaffold.recorded import Recorded, address

_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
"""Audit events of network use."""
_CODE_OPTIONS = ("-c", "-e", "/c", "-Command", "--eval", "-lc", "-ic")
"""Options of shells and interpreters that are followed by code."""
_REPLY_SECONDS = 5.0
"""The most seconds for a reply in a dialogue."""
_SETTLE_SECONDS = 0.3
"""How long threads and processes get to end before the leftovers are counted."""
_TASKS_SECONDS = 10.0
"""No further task, and no further reference, of the wide sample is made after this time."""
_VERDICTS_SECONDS = 40.0
"""No further attempt is judged after this time."""
_WIDE_SECONDS = 1.0
"""No further attempt of the wide sample is judged after this time."""
_MORE_BUILT = 2
"""Environments that are built before the one that is used: its number may be what decides."""
_BUILD_SECONDS = 0.3
"""No further environment is built after this time."""
_REPEATED = 2
"""Calls of tools, and attempts, that are repeated with other states of the global generators."""
_WITH_VARIABLES = 12
"""Tasks, and attempts, that are tried again with an environment variable that was not set."""
_MANY_LEFT = 20
"""With so many processes or files left behind, no more verdicts are made."""


def main() -> None:
    """Read the request from standard input and write the report to standard output."""
    die_with_parent(int(sys.argv[1]))
    adopt_orphans()
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the environment prints must not mix with the report
    if request["date_shift"]:
        shift_date(request["date_shift"])
    if request["machine"]:
        rename_machine(request["machine"])
    if request["locale"]:
        change_locale()
    side_effects, files = _SideEffects(), FileWatch(request["folders"])
    sys.addaudithook(files.record)
    try:
        env = _build(Spec(**request["boot"]["spec"]), request["boot"]["overrides"])
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        report = {"build_error": describe(error)}
    else:
        if not env.trusted:  # as in a worker; a trusted environment keeps the folder of the trainer
            os.chdir(request["working"])
            Path(MARKER).touch()  # verifiers may open what they find to be the name of a file
        report = asyncio.run(_observe(env, request, side_effects, files))
    json.dump(report, output)
    output.close()
    os._exit(0)  # without waiting for threads that were left behind


def _build(spec: Spec, overrides: Any) -> Environment[Any]:
    """Return an environment that is not the first of its class here, where building is quick."""
    started = time.monotonic()
    env = build_environment(spec, overrides)
    for _ in range(_MORE_BUILT):
        if time.monotonic() - started > _BUILD_SECONDS:
            break
        env = build_environment(spec, overrides)
    return env


async def _observe(
    env: Environment[Any], request: Mapping[str, Any], side_effects: _SideEffects, files: FileWatch
) -> dict[str, Any]:
    """Make the tasks and verdicts of `request`, and return the report."""
    keys = [TaskKey(**key) for key in request["keys"]]
    variables = ReadVariables(env)
    with variables.noted():
        made = _each(lambda key: check_task(env.task(key), key), keys)
    tasks = {address(task): task for task in made if isinstance(task, Task)}
    report = _told_of_tasks(env, made, references=request["references"])
    seconds = min(env.timeout_seconds, _REPLY_SECONDS)
    judge = SecondJudge(
        env,
        IsolatedReplies(env, settings=VerifyConfig(isolation="inline", timeout_seconds=seconds)),
        Recorded.unpack(request["recorded"]),
    )
    attempts = _known_attempts(request["attempts"], tasks)
    executable = _known_attempts(request["executable"], tasks)
    before = open_resources()
    files.begin()
    sys.addaudithook(side_effects.record)
    sys.meta_path.insert(0, side_effects)
    state = StateWatch()
    calls = _known_attempts(request["calls"], tasks)
    for task, text in calls:
        await judge.call(task, text)
        state.look()
    report["tool_effects"] = dict(side_effects.found)
    side_effects.found.clear()
    for task, text in executable:
        await judge.verdict(task, text)
        state.look()
    with variables.noted():
        report["verdicts"] = await _verdicts(
            judge, attempts, seconds=_VERDICTS_SECONDS, look=state.look
        )
    report["variable"] = await _variable(variables, judge, attempts[:_WITH_VARIABLES], keys)
    if request["brief"]:
        return report
    report["state"] = state.changes()
    report["seeded"] = await _seeded(judge, calls[:_REPEATED], attempts[:_REPEATED])
    report |= await _left_behind(
        judge,
        request["form"],
        references=request["references"],
        judged=attempts[: len(report["verdicts"])],
        wide=_known_attempts(request["wide"], tasks),
        watched=len(executable) + len(report["verdicts"]),
        before=before,
        files=files,
    )
    report["side_effects"] = dict(side_effects.found)
    report["episodes"] = await _left_of_episodes(env, attempts, files, seconds)
    if isinstance(env, AgentEnvironment) and request["agents"]:
        report["agents"] = await _agents(judge, env, request["agents"], tasks, side_effects, files)
    return report


def _told_of_tasks(
    env: Environment[Any], made: Sequence[object], *, references: bool
) -> dict[str, Any]:
    """Return the digest of each prompt, or why there is no task, and the references if wanted."""
    told = _each(
        lambda task: (
            join_turns(check_reference(env.reference(task))) if isinstance(task, Task) else None
        ),
        made if references else [],
    )
    return {
        "prompts": [prompt_digest(task) if isinstance(task, Task) else task for task in made],
        "references": told,
    }


async def _left_behind(
    judge: SecondJudge,
    form: Sequence[str],
    *,
    references: bool,
    judged: Sequence[tuple[Task[Any], str]],
    wide: Sequence[tuple[Task[Any], str]],
    watched: int,
    before: Mapping[str, list[str]] | None,
    files: FileWatch,
) -> dict[str, Any]:
    """Judge further answers, and return what all verdicts left behind.

    Where verdicts have left much already, no further ones are made.

    Args:
        judge: Makes the verdicts.
        form: What stands before and after an answer.
        references: Whether references may be computed.
        judged: Answers that were judged, of which the growth of the process is measured.
        wide: The further answers.
        watched: Number of verdicts that were made.
        before: What was open before them.
        files: Watches the files.
    """
    gc.collect()
    middle = open_resources()
    files.mark()
    report: dict[str, Any] = {"growth": None}
    left = 0 if middle is None else len(middle["processes"])
    if max(left, files.report()["count"]) < _MANY_LEFT:
        report["wide"] = await _verdicts(judge, wide, seconds=_WIDE_SECONDS)
        report["growth"] = growth = await measure_growth_of(
            judge, judged, form, references=references
        )
        watched += len(report["wide"]) + (0 if growth is None else growth["verdicts"])
    gc.collect()
    await asyncio.sleep(_SETTLE_SECONDS)
    return report | {
        "watched": watched,
        "leftovers": new_resources(before, middle, open_resources()),
        "files": files.report(),
    }


async def _variable(
    variables: ReadVariables,
    judge: SecondJudge,
    attempts: Sequence[tuple[Task[Any], str]],
    keys: Sequence[TaskKey],
) -> dict[str, str]:
    """Return a variable on which prompts, and one on which verdicts depend, as in SEED=7."""

    async def prompts(seconds: float) -> list[Any]:
        made = _each(
            lambda key: check_task(judge.env.task(key), key),
            keys[:_WITH_VARIABLES],
            seconds=seconds,
        )
        return [prompt_digest(task) if isinstance(task, Task) else task for task in made]

    async def verdicts(seconds: float) -> list[Any]:
        return await _verdicts(judge, attempts, seconds=seconds)

    return {
        "task": await variables.that_matters(prompts),
        "verdict": await variables.that_matters(verdicts) if judge.env.deterministic else "",
    }


async def _agents(
    judge: SecondJudge,
    env: AgentEnvironment[Any],
    runs: Mapping[str, Sequence[Any]],
    tasks: Mapping[Any, Task[Any]],
    side_effects: _SideEffects,
    files: FileWatch,
) -> dict[str, Any]:
    """Run agents, and return what they execute and leave behind, and why they fail.

    Args:
        judge: Judges what comes of the runs in which the policy says code.
        env: The environment.
        runs: The runs, by how they end.
        tasks: The tasks by their addresses.
        side_effects: Sees what agents and verdicts execute.
        files: Watches files.
    """
    by_kind = {
        kind: [
            PlannedRun(tasks[tuple(place)], text, access) for place, text, access in runs_of_kind
        ]
        for kind, runs_of_kind in runs.items()
    }
    agents = AgentRuns(env)
    side_effects.found.clear()
    for run in by_kind.pop("code"):
        await judge.verdict_on(run.task, agents.rollout(run))
    executed = dict(side_effects.found)
    left = await agents.leftovers_by_end(by_kind, files)
    return {"executed": executed, "left": left, "failure": agents.failures[-1:]}


async def _left_of_episodes(
    env: Environment[Any],
    attempts: Sequence[tuple[Task[Any], str]],
    files: FileWatch,
    seconds: float,
) -> dict[str, Any] | None:
    """Return what episodes leave behind; None if the environment has none."""
    if env.rung() != "episode":
        return None
    settings = VerifyConfig(isolation="inline", retries=0, timeout_seconds=seconds)
    async with Verifier(env, settings=settings, closes_env=False) as verifier:
        return await leftovers_by_end(verifier, attempts, files)


def _each(
    function: Callable[[Any], Any], items: Sequence[Any], *, seconds: float = _TASKS_SECONDS
) -> list[Any]:
    """Return the results for the first items; in place of a result {"error": why}.

    Args:
        function: Makes a result.
        items: What it makes them from.
        seconds: No further result is made after this time.
    """
    results, started = list[Any](), time.monotonic()
    for item in items:
        if time.monotonic() - started > seconds:
            break
        try:
            results.append(function(item))
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            results.append({"error": describe(error)})
    return results


def _known_attempts(
    attempts: Sequence[Any], tasks: Mapping[Any, Task[Any]]
) -> list[tuple[Task[Any], str]]:
    """Return the attempts of the request at tasks that could be made."""
    return [(tasks[tuple(address)], text) for address, text in attempts if tuple(address) in tasks]


async def _verdicts(
    judge: SecondJudge,
    attempts: Sequence[tuple[Task[Any], str]],
    *,
    seconds: float,
    look: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Return the verdicts on the first attempts, as many as there is time for.

    Args:
        judge: Judges them.
        attempts: The attempts.
        seconds: No further attempt is judged after this time.
        look: Is called after each verdict.
    """
    verdicts, started = list[Any](), time.monotonic()
    for task, text in attempts:
        if time.monotonic() - started > seconds:
            break
        verdicts.append(await judge.verdict(task, text))
        look()
    return verdicts


async def _seeded(
    judge: SecondJudge,
    calls: Sequence[tuple[Task[Any], str]],
    attempts: Sequence[tuple[Task[Any], str]],
) -> list[str]:
    """Return the global generators that tools and verdicts seed."""

    async def judge_again() -> None:
        for task, text in calls:
            await judge.call(task, text)
        for task, text in attempts:
            await judge.verdict(task, text)

    return await seeded_generators(judge_again)


class _SideEffects:
    """The first side effect of judging of each kind."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Record an import that the policy's text names; the module is looked for elsewhere."""
        if MARKER in fullname:
            self.found.setdefault("eval", f"import of {fullname}"[:200])

    def record(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event, if it uses the network or executes the policy's text."""
        if event in _NETWORK and not (
            event == "socket.connect" and isinstance(arguments[1], str | bytes)
        ):
            # the first argument of these two events is the socket
            has_socket = event in ("socket.connect", "socket.sendto")
            address = arguments[1:] if has_socket else arguments[:2]
            self.found.setdefault("network", f"{event} {address}"[:200])
        elif event == "exec" and isinstance(arguments[0], CodeType) and _has_marker(arguments[0]):
            code = arguments[0]
            self.found.setdefault("eval", f"code of {code.co_filename} holds the name {MARKER}")
        elif event == "open" and MARKER in str(arguments[0]):
            self.found.setdefault("file", f"{arguments[0]!r}"[:200])
        elif event in ("os.system", "subprocess.Popen") and _runs_marker(event, arguments):
            self.found.setdefault("eval", f"{event} {arguments}"[:200])


def _runs_marker(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a process is started that runs one of the kit's executable texts.

    A program that only gets the text as an argument, such as a checker, does not run it.
    """
    if event == "os.system":
        return MARKER in str(arguments)
    command = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
    words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    return any(
        MARKER in word
        for option, word in zip(["", *words], words, strict=False)
        if len(words) == 1 or option in _CODE_OPTIONS or option.endswith("cmd.exe")
    )


def _has_marker(code: CodeType) -> bool:
    """Return whether `code` was made from one of the kit's executable texts."""
    return MARKER in code.co_names or any(
        _has_marker(constant) if isinstance(constant, CodeType) else MARKER in str(constant)
        for constant in code.co_consts
    )


if __name__ == "__main__":
    main()
