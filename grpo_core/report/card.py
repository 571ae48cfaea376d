"""What an environment is, on one page: where it comes from, what it declares, and what answers are paid that know nothing of the task."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from grpo_core.plugins.host import Plugin
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message, Rollout, Split, Task, TaskKey, Verdict
from grpo_core.verify.checks import size_of
from grpo_core.verify.sources import Source, Sources

FLAGS = ("deterministic", "stateful", "open_ended", "levels", "answer_in_prompt", "trusted")
COMMON_ANSWERS = ("0", "1", "yes", "no", "True", "A", "[]")
REFERENCES_TRIED = 8
"""How many references of other tasks are tried as constant answers, the commonest first: each costs a verdict for every task."""
_HOME_LABELS = (
    "homepage",
    "home",
    "repository",
    "source",
    "source code",
    "github",
    "documentation",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The distribution that an environment is installed with; None for what its metadata do not say."""

    distribution: str
    version: str
    license: str | None
    home_page: str | None


@dataclass(frozen=True, slots=True)
class Floor:
    """What one way of answering without looking at the task gets, as a mean over the `tasks` whose verdicts are there.

    note: which answer it was, or why there is no mean. unscored: how many attempts could not be judged.
    """

    answer: str
    reward: float | None = None
    pass_rate: float | None = None
    tasks: int = 0
    unscored: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One environment under one config.

    summary: the plugin's; about: the first paragraph of the class's docstring. parts: reward parts by their weights in this run.
    tasks: how many each split has, None without end. seed, level: of the tasks that are shown and measured. prompt: of the first
    one. floors: empty where nothing was measured, for the reason in `unmeasured`.
    """

    name: str
    origin: Origin | None
    summary: str
    about: str
    fingerprint: str
    settings: Mapping[str, Any]
    parts: Mapping[str, float]
    reward_range: tuple[float, float]
    floor: float
    flags: Mapping[str, bool]
    needs: tuple[str, ...]
    tasks: Mapping[Split, int | None]
    turns: int
    max_new_tokens: int
    timeout_seconds: float
    seed: int
    level: float
    prompt: str | tuple[Message, ...]
    floors: tuple[Floor, ...] = ()
    unmeasured: str = ""

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return data


async def make_card(source: Source, *, seed: int = 0, level: float | None = None) -> Card:
    """The card of an environment of a run, without measured floors, which cost verdicts; raises GrpoError if it makes no task. level: of
    the tasks; the run's, if left out."""
    env, level = source.env, source.level if level is None else level
    sizes: dict[Split, int | None] = {"train": size_of(env, "train"), "eval": size_of(env, "eval")}
    asked = (
        sizes if source.share else list(sizes)[::-1]
    )  # what is only evaluated may have no training tasks
    keys = [TaskKey(source.name, split, 0, seed, level) for split in asked if sizes[split] != 0]
    shown = await source.verifier.tasks(keys[:1])
    return Card(
        name=source.name,
        origin=None if source.offer is None else _origin(source.offer.plugin),
        summary="" if source.offer is None else _first_paragraph(source.offer.spec.summary),
        about=_first_paragraph(type(env).__doc__),
        fingerprint=fingerprint(env),
        settings=_settings(env),
        parts={**env.parts, **source.verifier.settings.weights},
        reward_range=env.reward_range,
        floor=env.floor,
        flags={flag: getattr(env, flag) for flag in FLAGS},
        needs=tuple(sorted(env.needs)),
        tasks=sizes,
        turns=env.max_turns,
        max_new_tokens=env.max_new_tokens,
        timeout_seconds=env.timeout_seconds,
        seed=seed,
        level=level,
        prompt=shown[0].prompt if shown else "",
    )


async def measured(
    card: Card, sources: Sources, *, tasks: int, tried: Callable[[], None] = lambda: None
) -> Card:
    """`card` with its floors over at most `tasks` training tasks, by the engine of `sources`.

    Constant answers and references of "another task" come from as many tasks of their own, so that no answer is tried on the task that
    it is right for; a small set of tasks is divided. tried: called after each answer.
    """
    size = card.tasks["train"]
    count = tasks if size is None else min(tasks, (size + 1) // 2)
    number = 2 * count if size is None else min(size, 2 * count)
    keys = [TaskKey(card.name, "train", index, card.seed, card.level) for index in range(number)]
    try:
        known = await sources.tasks(keys)
        references = await sources.references(known)
        floors = await _Trial(
            sources, known[:count], references[:count], references[count:], tried
        ).floors()
    except GrpoError as error:
        return replace(card, unmeasured=str(error))
    return replace(
        card, floors=floors, unmeasured="" if count else "there are no tasks to measure it on"
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """`tasks` with their own references, and the references of other tasks."""

    sources: Sources
    tasks: Sequence[Task[Any]]
    own: Sequence[str | None]
    others: Sequence[str | None]
    tried: Callable[[], None]

    async def floors(self) -> tuple[Floor, ...]:
        if not self.tasks:
            return ()
        return (
            await self._floor("nothing", [""] * len(self.tasks)),
            await self._floor("white space", [" \n\t "] * len(self.tasks)),
            await self._floor("the prompt echoed", [_text(task) for task in self.tasks]),
            await self._best_constant(),
            await self._floor("another task's reference", self.others),
            await self._floor("the reference", self.own),
        )

    async def _best_constant(self) -> Floor:
        """By reward, then by pass rate. The highest of several means is a little above what the same answer would get on new tasks."""
        tried = [
            await self._floor(
                "the best constant", [constant] * len(self.tasks), note=_short(constant)
            )
            for constant in self._constants()
        ]
        best = max(
            tried, key=lambda floor: (floor.tasks > 0, floor.reward or 0.0, floor.pass_rate or 0.0)
        )
        return replace(best, note=f"{best.note}, of {len(tried)} tried") if best.tasks else best

    def _constants(self) -> list[str]:
        commonest = Counter(text for text in self.others if text is not None).most_common(
            REFERENCES_TRIED
        )
        return list(dict.fromkeys([*(text for text, _ in commonest), *COMMON_ANSWERS]))

    async def _floor(self, name: str, answers: Sequence[str | None], *, note: str = "") -> Floor:
        """Of the tasks for which there is an answer."""
        pairs = [
            (task, answer)
            for task, answer in zip(self.tasks, answers, strict=False)
            if answer is not None
        ]
        if not pairs:
            return Floor(name, note="not measured: the environment gives no such answer")
        rollouts = [await self._said(task, answer) for task, answer in pairs]
        judged = await self.sources.verify(
            [task for task, _ in pairs], [[rollout] for rollout in rollouts]
        )
        self.tried()
        return _floor(name, [verdict for (verdict,) in judged], note=note)

    async def _said(self, task: Task[Any], answer: str) -> Rollout:
        """An attempt that says `answer` in every turn that it is given."""
        said: list[Message] = [Message("assistant", answer)]
        try:
            for _ in range(1, self.sources[task.key.env].env.max_turns):
                reply = await self.sources.reply(task, tuple(said))
                if reply is None:
                    break
                said += [*reply, Message("assistant", answer)]
        except GrpoError:  # the engine reports the attempt as one that could not be judged
            return Rollout(tuple(said), finish="error")
        return Rollout(tuple(said))


def _floor(name: str, verdicts: Sequence[Verdict], *, note: str) -> Floor:
    scored = [verdict for verdict in verdicts if verdict.scored]
    if not scored:
        return Floor(name, unscored=len(verdicts), note=f"not measured: {verdicts[0].error}")
    reward, rate = (
        fmean(verdict.total for verdict in scored),
        fmean(verdict.passed for verdict in scored),
    )
    return Floor(name, reward, rate, len(scored), len(verdicts) - len(scored), note)


def _origin(plugin: Plugin) -> Origin:
    metadata: Mapping[str, Any] = importlib.metadata.metadata(plugin.distribution).json
    return Origin(plugin.distribution, plugin.version, _license(metadata), _home_page(metadata))


def _license(metadata: Mapping[str, Any]) -> str | None:
    """The expression, else the first line of the field that may hold a whole licence, else the classifiers."""
    stated = (metadata.get("license_expression") or metadata.get("license") or "").strip()
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in metadata.get("classifier", ())
        if entry.startswith("License ::")
    ]
    return (stated.splitlines()[0] if stated else ", ".join(classified)) or None


def _home_page(metadata: Mapping[str, Any]) -> str | None:
    named = (entry.partition(",") for entry in metadata.get("project_url", ()))
    urls = {label.strip().lower(): url.strip() for label, _, url in named}
    return metadata.get("home_page") or next(
        (urls[label] for label in _HOME_LABELS if label in urls), None
    )


def _settings(env: Environment[Any]) -> dict[str, Any]:
    return (
        asdict(env.config)
        if dataclasses.is_dataclass(env.config) and not isinstance(env.config, type)
        else {}
    )


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def _text(task: Task[Any]) -> str:
    return (
        task.prompt
        if isinstance(task.prompt, str)
        else "\n".join(message.content for message in task.prompt)
    )


def _short(text: str, size: int = 50) -> str:
    shown = repr(text)
    return shown if len(shown) <= size else f"{shown[:size]}..."
