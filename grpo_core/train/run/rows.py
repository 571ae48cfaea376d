"""Look at the tasks of finite sets before the first step, so that no row ends a run later.

Tasks that cannot be asked are named: training leaves them out, and evaluations give the pass rate
over all tasks, too. Held-out prompts that are trained on are counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.types import TaskKey
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import epoch_order
from grpo_core.train.run.journal import Journal
from grpo_core.train.run.method import Method
from grpo_core.train.run.services import kept_random_states
from grpo_core.verify.held_out import eval_keys
from grpo_core.verify.judge.checks import size_of
from grpo_core.verify.sources import Source
from grpo_core.words import normalized_prompt, normalized_text
from grpo_core.words.unasked import NAMED, Unasked, name_unasked

SECONDS = 30.0
"""How long the tasks of a split are looked at; the others are looked at when they are drawn."""
_MOST = 200_000
"""Most tasks of a split that are looked at."""
_FIRST_CHUNK, _CHUNK = 4, 256
"""Tasks that are looked at between two looks at the clock, at first and at most: making a task may
take long."""
_SHOW_SECONDS = 5.0
"""Seconds between two messages about how far the look has come."""
_COMPARED, _TWINS = 200, 8
"""Most held-out tasks whose answers are compared with those of training tasks that have the same
prompt, and most such training tasks of each."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Holds what was seen of the tasks of a split."""

    prompts: dict[bytes, list[TaskKey]] = field(default_factory=dict)
    """The tasks that were looked at, by the digests of their normalized prompts."""
    unasked: list[Unasked] = field(default_factory=list)
    """Those of them that cannot be asked, if that was looked at."""

    @property
    def count(self) -> int:
        """Return how many tasks were looked at."""
        return sum(map(len, self.prompts.values()))


async def look_at_rows(method: Method, journal: Journal) -> None:
    """Look at the tasks of finite sets and at those that are evaluated, and say what is wrong.

    A requested stop ends the look early.

    Raises:
        ConfigError: no task of an environment can be asked.
        GrpoError: a task cannot be created.
    """
    with kept_random_states():
        for source in method.actor.sources:
            trained = await _look_at_training(method, source, journal)
            await _look_at_evaluated(method.actor, source, journal)
            await _look_at_held_out(method, source, trained, journal)


async def _look_at_training(method: Method, source: Source, journal: Journal) -> Looked | None:
    """Look at the training tasks of an environment, and name those that are left out.

    They come in the order of the first epoch, so that the run finds those that it draws first.
    """
    size = size_of(source.env, "train") if source.share else None
    if size is None:
        return None
    actor, seed = method.actor, method.actor.config.seed
    level = method.stream.curriculum.levels[source.name]
    order = epoch_order(source.name, seed, 0, size)
    keys = [TaskKey(source.name, "train", index, seed, level) for index in order[:_MOST]]
    examine = method.leaves_out_unasked
    looked = await _look_at(actor, keys, journal, examine=examine)
    if looked.count < size and not actor.stop.is_made:
        journal.announce(
            f"{looked.count} of {size} training tasks of {source.name!r} were looked at before the "
            "first step; the others are looked at when they are drawn"
        )
    if not looked.unasked:
        return looked
    if len(looked.unasked) == looked.count:
        raise ConfigError(
            f"none of {looked.count} training tasks of {source.name!r} can be asked, such as "
            f"{name_unasked(looked.unasked[:1])}"
        )
    _warn_of(
        looked.unasked,
        f"{len(looked.unasked)} of {looked.count} training tasks of {source.name!r} cannot be "
        "asked (training leaves them out)",
        journal,
    )
    actor.askable.tell(source.name)
    return looked


async def _look_at_evaluated(actor: Actor, source: Source, journal: Journal) -> None:
    """Name the held-out tasks that evaluations leave out."""
    if not actor.config.eval.tasks:  # an environment without evaluations need not have any
        return
    keys = eval_keys(source, actor.config.eval.tasks)
    asked, unasked = await actor.askable.split(actor.sources, keys)
    if not unasked:
        return
    if not asked:
        raise ConfigError(
            f"none of {len(keys)} held-out tasks of {source.name!r} can be asked, such as "
            f"{name_unasked(unasked[:1])}; eval.tasks=0 leaves evaluations out"
        )
    _warn_of(
        unasked,
        f"{len(unasked)} of {len(keys)} held-out tasks of {source.name!r} cannot be asked "
        "(eval/pass_rate/all counts them as not passed, other metrics leave them out)",
        journal,
    )


def _warn_of(unasked: Sequence[Unasked], text: str, journal: Journal) -> None:
    """Warn of tasks that cannot be asked; log.txt names all of them."""
    journal.warn(f"{text}: {name_unasked(unasked)}")
    if len(unasked) > NAMED:
        indices = ", ".join(str(index) for index in sorted(task.key.index for task in unasked))
        journal.keep([f"{text}, all of them: index {indices}"])


async def _look_at_held_out(
    method: Method, source: Source, trained: Looked | None, journal: Journal
) -> None:
    """Say how many held-out prompts of an environment are trained on."""
    examples = method.example_texts()
    if trained is None and examples is None:
        return
    try:
        size = size_of(source.env, "eval")
        if not size:
            return
        indices = range(min(size, _MOST))
        keys = [TaskKey(source.name, "eval", index, 0, source.level) for index in indices]
        held_out = await _look_at(method.actor, keys, journal, examine=False)
    except GrpoError as error:  # a task that no evaluation of this run may need
        journal.warn(
            f"the held-out prompts of {source.name!r} were not compared with those that are "
            f"trained on: {error}"
        )
        return
    what, shared = "the training prompts", list[TaskKey]()
    if examples is not None:
        what = "the examples that are learned from"
        digests = {_digest(normalized_text(text)) for text in examples}
        shared = [key for digest in digests for key in held_out.prompts.get(digest, ())]
    elif trained is not None and len(trained.prompts) > 1:  # else what differs is hidden
        shared = await _with_trained_answers(method.actor, trained, held_out)
    if shared:
        first = min(key.index for key in shared)
        journal.warn(
            f"{len(shared)} of {held_out.count} held-out prompts of {source.name!r} are among "
            f"{what}, such as eval index {first}: the held-out scores mean nothing for these; "
            "take them out of one of the two sets"
        )


async def _look_at(
    actor: Actor, keys: Sequence[TaskKey], journal: Journal, *, examine: bool
) -> Looked:
    """Look at tasks until the time is over; each process looks at its share.

    Args:
        actor: has the policy and the environments.
        keys: the tasks.
        journal: says how far the look has come, if it takes long.
        examine: whether to examine if the tasks can be asked.

    Raises:
        GrpoError: a task cannot be created.
    """
    own_keys, rows = actor.ranks.share(keys), list[tuple[TaskKey, bytes, Unasked | None]]()
    started = shown = time.monotonic()
    failure = ""
    chunk = _FIRST_CHUNK
    while left := own_keys[len(rows) : len(rows) + chunk]:
        now = time.monotonic()
        if now - started > SECONDS or actor.stop.is_made:
            break
        if now - shown > _SHOW_SECONDS:
            shown = now
            done = len(rows) * actor.ranks.size
            journal.say(f"looking at the prompts before the first step: {done} of {len(keys)}")
        try:
            tasks = await actor.sources.tasks(left)
        except GrpoError as error:  # which all processes have to hear of
            failure = str(error)
            break
        for task in tasks:
            unasked = actor.askable.examine(task) if examine else None
            rows.append((task.key, _digest(normalized_prompt(task)), unasked))
        chunk = min(2 * chunk, _CHUNK)
    return _merged(actor, rows, failure)


def _merged(
    actor: Actor, own_rows: Sequence[tuple[TaskKey, bytes, Unasked | None]], failure: str
) -> Looked:
    """Return what all processes have seen.

    Args:
        actor: is told of the tasks that cannot be asked.
        own_rows: the tasks that this process has looked at, with the digests of their prompts.
        failure: why a task could not be created; "" if all were.

    Raises:
        GrpoError: a task could not be created, in any process.
    """
    parts = actor.ranks.gather_values((own_rows, failure))
    if failures := [text for _, text in parts if text]:
        raise GrpoError(failures[0])
    looked = Looked()
    for key, digest, unasked in (row for rows, _ in parts for row in rows):
        looked.prompts.setdefault(digest, []).append(key)
        if unasked is not None:
            looked.unasked.append(actor.askable.unasked.setdefault(key, unasked))
    looked.unasked.sort(key=lambda task: task.key.index)
    return looked


async def _with_trained_answers(actor: Actor, trained: Looked, held_out: Looked) -> list[TaskKey]:
    """Return the held-out tasks of which a training task has the prompt and the answer.

    The same prompt may have several answers: a gap in a text may stand for different words.
    """
    pairs = [
        (key, trained.prompts[digest][:_TWINS])
        for digest, keys in held_out.prompts.items()
        if digest in trained.prompts
        for key in keys
    ]
    shared = [key for key, _ in pairs[_COMPARED:]]
    for key, twins in pairs[:_COMPARED]:
        try:
            tasks = await actor.sources.tasks([key, *twins])
            answer, *answers = await actor.sources.references(tasks)
        except GrpoError:  # an environment that cannot tell is checked by `grpo env check`
            answer, answers = None, []
        if answer is None or answer in answers:
            shared.append(key)
    return shared


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
