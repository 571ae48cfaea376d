"""Check that an episode leaves nothing behind, however it ends."""

from __future__ import annotations

from grpo_core.api.verify import Verifier
from grpo_kit.check import check
from grpo_kit.dialogues.endings import ATTEMPTS, ENDS, end
from grpo_kit.dialogues.episode_files import Watched
from grpo_kit.dialogues.episodes import require_episodes
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.sandboxes.watched_sandbox import with_watched_sandboxes
from grpo_kit.subject import Subject

LEAST_LEFT = 4
"""So many leftovers come from every episode; fewer may be a cache or a pool."""
_ADVICE = "release in close() what the episode holds, also if open() or reply() was cut off"


@check(
    "episode.close",
    "fault",
    asks=(
        "Is nothing left after close(), also when a reply was cancelled, and when the policy "
        "had no turn?"
    ),
    second_process=True,
)
async def check_close(process: SecondProcess, subject: Subject) -> str:
    """Check that nothing is left of episodes that end in one of several ways."""
    require_episodes(subject)
    if subject.env.needs:
        return await _check_sessions(subject)
    report = (await process.report())["episodes"]
    if report is None:
        raise NotCheckedError("this platform does not tell what a process holds")
    for how, leftovers in report.items():
        for kind, found in leftovers.items():
            if found["late"] >= LEAST_LEFT:
                raise BrokenPromiseError(
                    f"{ATTEMPTS} episodes that {ENDS[how]} left {found['late']} {kind} behind, "
                    f"such as {found['first'][0]!r}; {_ADVICE}"
                )
    return f"episodes left nothing behind that {', that '.join(ENDS[how] for how in report)}"


async def _check_sessions(subject: Subject) -> str:
    """Check that the sessions of a sandbox are closed with their episodes."""
    if "sandbox" not in subject.env.needs:
        raise NotCheckedError("its services are not told what an episode leaves behind")
    env, sandboxes = with_watched_sandboxes(subject.env)
    count = 0
    async with Verifier(env, settings=subject.inline_verifier.settings) as verifier:
        watched = Watched(verifier, sandboxes)
        for how in ENDS:
            for task, text in subject.answered[:2]:
                await end(verifier, task, text, how)
            if left := [session for session in watched.sessions if session.is_open]:
                for session in left:
                    await session.session.close()
                raise BrokenPromiseError(
                    f"of 2 episodes that {ENDS[how]} {len(left)} left a session of the sandbox "
                    f"open; {_ADVICE}"
                )
        count = len(watched.sessions)
    if not count:
        raise NotCheckedError("no episode with a reference opened a session")
    return f"{count} sessions of the sandbox were closed with their episodes"
