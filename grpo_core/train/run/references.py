"""Check before the first step that a policy could write the environment's own reference answers.

A reference answer is encoded as the policy would have drawn it, read back as its completions are,
and compared. Where the texts differ, the verifier decides how bad that is. If no reference answer
of the tasks that are tried is right any more once it was read back, the run is refused: it could
not be paid for right answers. Otherwise it warns, as one odd row is no reason to end a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.errors import ConfigError, GrpoError, RunStoppedError
from grpo_core.protocol.ties import same_reward
from grpo_core.protocol.types import Rollout, Script, Task, TaskKey, Verdict
from grpo_core.train.actor import Actor
from grpo_core.train.run.services import kept_random_states
from grpo_core.verify.episodes.playing import play, turns_of
from grpo_core.words import fit

_TASKS = 4
"""How many tasks of each environment are tried."""
_COMPARED_CHARS = 2_000
_NAMED_CHANGES = 3


@dataclass(frozen=True, slots=True)
class _Lost:
    """Holds a reference answer that its tokens do not give back."""

    task: Task[Any]
    written: Script
    read: Script
    changes: str
    """What became of it, in words."""


async def check_references(
    actor: Actor, keys: Sequence[TaskKey], *, warn: Callable[[str], None], refuse: bool
) -> None:
    """Warn of reference answers that the model's tokenizer changes; call it in every process.

    Args:
        actor: the policy and the environments, which are open.
        keys: tasks to try, of which the first ones of each environment are taken.
        warn: receives a warning.
        refuse: whether a reference answer that is worth less once it was read back is an error,
            where its environment is trained on.

    Raises:
        ConfigError: there is such a reference answer, and `refuse` is set.
    """
    warnings: list[str] = []
    faults: list[str] = []
    if actor.ranks.first:
        with kept_random_states():
            for source in actor.sources:
                chosen = [key for key in dict.fromkeys(keys) if key.env == source.name][:_TASKS]
                of_trained = faults if source.share > 0 else warnings
                try:
                    await _check_environment(actor, chosen, warnings=warnings, faults=of_trained)
                except RunStoppedError:
                    raise
                except GrpoError as error:
                    warnings.append(
                        f"the reference answers of {source.name!r} could not be tried with the "
                        f"model's tokenizer: {error}"
                    )
    warnings, faults = actor.ranks.gather_values((warnings, faults))[0]
    if faults and refuse:
        raise ConfigError(faults[0])
    for text in (*faults, *warnings):
        warn(text)


async def _check_environment(
    actor: Actor, keys: Sequence[TaskKey], *, warnings: list[str], faults: list[str]
) -> None:
    """Add at most one text to `warnings` or `faults`, about the first reference that is changed.

    A requested stop ends the check.
    """
    tasks = await actor.sources.tasks(keys)
    references = await actor.sources.references(tasks)
    answers = [
        (task, answer) for task, answer in zip(tasks, references, strict=True) if answer is not None
    ]
    changed = [lost for task, answer in answers if (lost := _lost(actor, task, answer)) is not None]
    judged = []
    for lost in changed:
        if actor.stop.is_made:  # a verifier may be slow
            return
        judged.append((lost, *await _verdicts(actor, lost)))
    wrong = [each for each in judged if _is_wrong(*each[1:])]
    if wrong and len(wrong) == len(answers):
        faults.append(_fault(*wrong[0], tried=len(answers)))
    elif wrong or judged:
        warnings.append(_warning(*(wrong or judged)[0], changed=len(changed), tried=len(answers)))


def _lost(actor: Actor, task: Task[Any], reference: Script) -> _Lost | None:
    """Return what becomes of a reference answer in its tokens; None if nothing changes.

    Raises:
        ConfigError: it cannot be encoded.
    """
    policy = actor.policy
    turns = turns_of(reference)
    prompt_ids = (
        ()
        if actor.sources[task.key.env].verifier.has_agents  # whose prompts only a request knows
        else policy.encode(task.prompt, tools=actor.budgets[task.key.env].tools)
    )
    encoded = [policy.encode_answer(task.prompt, turn) for turn in turns]
    read = tuple(_read_back(policy, prompt_ids, token_ids) for token_ids in encoded)
    if read == turns:
        return None
    changes = "; ".join(
        change for pair in zip(turns, read, strict=True) for change in _changes(*pair)
    )
    hidden = {token for ids in encoded for token in ids[:-1] if token in policy.hidden_ids}
    if hidden:
        names = ", ".join(map(repr, policy.tokenizer.convert_ids_to_tokens(sorted(hidden))))
        changes += f"; {names} in an answer ends the turn or is padding"
    return _Lost(task, reference, read[0] if isinstance(reference, str) else read, changes)


def _read_back(policy: Policy, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Return a reference answer as its tokens give it, behind the end of an opened thought."""
    turn = policy.turn(prompt_ids, token_ids)
    is_closed_first = any(turn.thought_marks) and not (turn.thoughts or turn.thought_marks[0])
    if is_closed_first:
        return turn.content
    if prompt_ids or policy.thought_tags is None:
        return turn.raw
    # Whether an agent's request opens a thought is known only once it is there.
    return turn.raw.removeprefix(f"{policy.thought_tags[1]}\n\n")


def _changes(written: str, read: str) -> list[str]:
    """Return the first changes from one text to another, in words."""
    matcher = SequenceMatcher(
        None, written[:_COMPARED_CHARS], read[:_COMPARED_CHARS], autojunk=False
    )
    pairs = dict.fromkeys(
        (written[start:end], read[other_start:other_end])
        for kind, start, end, other_start, other_end in matcher.get_opcodes()
        if kind != "equal"
    )
    shown = [_change(before[:40], after[:40]) for before, after in list(pairs)[:_NAMED_CHANGES]]
    more = len(pairs) - len(shown)
    return [*shown, f"and {more} more"] if more > 0 else shown


def _change(before: str, after: str) -> str:
    """Return in words what became of a few characters."""
    if not before:
        return f"{after!r} is added"
    return f"{before!r} becomes {after!r}" if after else f"{before!r} vanishes"


async def _verdicts(actor: Actor, lost: _Lost) -> tuple[Verdict, Verdict]:
    """Return the verdicts on a reference answer as it was written and as it was read back."""
    source = actor.sources[lost.task.key.env]
    scripts = (lost.written, lost.read)
    if source.env.max_turns == 1 and not (
        source.verifier.has_agents or source.verifier.has_episodes
    ):
        rollouts = [[Rollout.of(turns_of(script)[0])] for script in scripts]
        ((before,), (after,)) = await actor.sources.verify([lost.task] * 2, rollouts)
        return before, after
    played = [
        await play(actor.sources, lost.task, script, max_turns=source.env.max_turns, judge=True)
        for script in scripts
    ]
    unknown = Verdict.failed("no verdict")
    return played[0].verdict or unknown, played[1].verdict or unknown


def _is_wrong(before: Verdict, after: Verdict) -> bool:
    """Return whether a right answer is no longer one, or one that never passes is worth less."""
    if before.error or after.error:
        return False
    if before.passed:
        return not after.passed
    return after.total < before.total and not same_reward(after.total, before.total)


def _fault(lost: _Lost, before: Verdict, after: Verdict, *, tried: int) -> str:
    others = f", and the same is true of the {tried} tasks that were tried" if tried > 1 else ""
    return (
        f"{_subject(lost)}: {lost.changes}. {_rewards(before, after)}{others}, so right answers "
        "cannot be paid; take a model whose tokenizer has these characters, or change what the "
        "environment asks for"
    )


def _warning(lost: _Lost, before: Verdict, after: Verdict, *, changed: int, tried: int) -> str:
    return (
        f"{_subject(lost)}: {lost.changes}. {_rewards(before, after)}. That is so for {changed} of "
        f"the {tried} tasks that were tried; the policy cannot write such answers as they stand"
    )


def _rewards(before: Verdict, after: Verdict) -> str:
    if before.error or after.error:
        return "What it is worth could not be verified"
    return (
        f"As it was written it is worth {before.total:.3g}, and as it was read back "
        f"{after.total:.3g}"
    )


def _subject(lost: _Lost) -> str:
    key = lost.task.key
    return (
        f"the reference answer of {key.env!r} to task {key.index} does not survive the model's "
        f"tokenizer (written {_shown(lost.written)}, read back {_shown(lost.read)})"
    )


def _shown(script: Script) -> str:
    return repr(fit(" ".join(turns_of(script)), 80))
