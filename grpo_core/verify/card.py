"""Describe an environment on one page.

The card holds where the environment comes from, what it declares, and its floors: the rewards that
answers get which ignore the task.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from grpo_core.figures.floors import Floor
from grpo_core.plugins.host import Plugin
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.types import Message, Split, TaskKey
from grpo_core.verify.judge.checks import described_tools, size_of
from grpo_core.verify.sources import Source

FLAGS = (
    "deterministic",
    "stateful",
    "open_ended",
    "levels",
    "free_spelling",
    "answer_in_prompt",
    "trusted",
)
_HOME_LABELS = (
    "homepage",
    "home",
    "repository",
    "source",
    "source code",
    "github",
    "documentation",
)
"""Labels of project URLs that are taken as the home page, the preferred one first."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The distribution that an environment is installed with; None where metadata are missing."""

    distribution: str
    version: str
    license: str | None
    home_page: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One environment under one config."""

    name: str
    origin: Origin | None
    """The installed distribution; None for an environment that is not packaged."""
    summary: str
    """The first paragraph of the plugin's summary."""
    about: str
    """The first paragraph of the class's docstring."""
    fingerprint: str
    settings: Mapping[str, Any]
    """The environment's config by field."""
    parts: Mapping[str, float]
    """The weight of each reward part in this run."""
    reward_range: tuple[float, float]
    floor: float
    flags: Mapping[str, bool]
    """The values of `FLAGS`."""
    tolerance: float
    """How far a number may be from the right one, relative to max(1, |right|)."""
    answer_at: str | None
    """Where in a free text the answer counts, "start" or "end"; None where it has no such place."""
    waived: Mapping[str, str]
    """The checks that the environment waives, with the reasons."""
    needs: tuple[str, ...]
    """The services that the environment needs."""
    tasks: Mapping[Split, int | None]
    """The number of tasks of each split; None if it is endless."""
    turns: int
    """The most turns of the policy."""
    episodes: bool
    """Whether an attempt has state of its own."""
    replayable: bool
    """Whether a recorded attempt with state can be judged again."""
    max_new_tokens: int
    timeout_seconds: float
    """The deadline of a verdict."""
    seed: int
    """The seed of the tasks that are shown and measured."""
    level: float
    """The level of the tasks that are shown and measured."""
    prompt: str | tuple[Message, ...]
    """The prompt of the first task."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The functions that the policy may call, as chat templates get them."""
    floors: tuple[Floor, ...] = ()
    """The measured floors; empty where nothing was measured."""
    overlap_turns: bool | None = None
    """Whether turns of different attempts overlap in this run; None outside of a run."""
    unmeasured: str = ""
    """Why no floors were measured."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        prompt = self.prompt if isinstance(self.prompt, str) else _to_json(self.prompt)
        fields = {**asdict(self), "prompt": prompt}
        data: dict[str, Any] = json.loads(json.dumps(fields, default=str))
        return data


def _to_json(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [message.to_json() for message in messages]


async def make_card(source: Source, *, seed: int = 0, level: float | None = None) -> Card:
    """Return the card of an environment of a run, without floors, since those cost verdicts.

    Args:
        source: The environment with its settings in the run.
        seed: The seed of the tasks.
        level: The level of the tasks; by default that of the run.

    Raises:
        GrpoError: The environment cannot make its first task.
    """
    env, level = source.env, source.level if level is None else level
    sizes: dict[Split, int | None] = {"train": size_of(env, "train"), "eval": size_of(env, "eval")}
    # an environment that is only evaluated may have no training tasks
    splits = sizes if source.share else list(sizes)[::-1]
    keys = [TaskKey(source.name, split, 0, seed, level) for split in splits if sizes[split] != 0]
    first_tasks = await source.verifier.tasks(keys[:1])
    return Card(
        name=source.name,
        origin=None if source.offer is None else _origin(source.offer.plugin),
        summary="" if source.offer is None else _first_paragraph(source.offer.spec.summary),
        about=_first_paragraph(type(env).__doc__),
        fingerprint=fingerprint(env),
        settings=asdict(env.config) if is_dataclass(type(env.config)) else {},
        parts={**env.parts, **source.verifier.weights},
        reward_range=env.reward_range,
        floor=env.floor,
        flags={flag: getattr(env, flag) for flag in FLAGS},
        tolerance=env.tolerance,
        answer_at=env.answer_at,
        waived=dict(env.waived),
        needs=tuple(sorted(env.needs)),
        tasks=sizes,
        turns=env.max_turns,
        episodes=source.verifier.has_episodes,
        replayable=env.replayable,
        max_new_tokens=env.max_new_tokens,
        timeout_seconds=env.timeout_seconds,
        seed=seed,
        level=level,
        prompt=first_tasks[0].prompt if first_tasks else "",
        tools=tuple(described_tools(env)),
    )


def _origin(plugin: Plugin) -> Origin:
    """Return the distribution of a plugin, from its metadata."""
    metadata: Mapping[str, Any] = importlib.metadata.metadata(plugin.distribution).json
    return Origin(plugin.distribution, plugin.version, _license(metadata), _home_page(metadata))


def _license(metadata: Mapping[str, Any]) -> str | None:
    """Return the licence that the metadata of a distribution name, or None.

    It is the licence expression, else the first line of the licence field (which may hold a whole
    licence text), else the licence classifiers.
    """
    stated = (metadata.get("license_expression") or metadata.get("license") or "").strip()
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in metadata.get("classifier", ())
        if entry.startswith("License ::")
    ]
    return (stated.splitlines()[0] if stated else ", ".join(classified)) or None


def _home_page(metadata: Mapping[str, Any]) -> str | None:
    """Return the home page that the metadata of a distribution name, or None."""
    labelled_urls = (entry.partition(",") for entry in metadata.get("project_url", ()))
    urls = {label.strip().lower(): url.strip() for label, _, url in labelled_urls}
    return metadata.get("home_page") or next(
        (urls[label] for label in _HOME_LABELS if label in urls), None
    )


def _first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
