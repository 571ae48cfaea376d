"""A dataset of reasoning-gym as an environment, with its questions and its verifier as published.

The levels of its curriculum are the environment's levels. There is one part, `reward`: the score
that the dataset's score_answer gives to the text in the only <answer> block, or 0 without such a
block. An exception of a verifier is not caught here: the engine decides whether the answer or the
machine is to blame for it (`raises_at_answers`).

Some of these verifiers run the answer as Python: see `execution`. Some pay an answer that solves
nothing: see `faults`.

Tasks are drawn by a seed hashed from their key. A hash of a question's text decides, for all levels
and seeds, whether it is held out, so no held-out question is ever trained on; questions of the
other split are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from reasoning_gym.factory import DATASETS

from grpo_core import (
    ConfigError,
    Environment,
    Harmless,
    Message,
    NeedsConsent,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
    reaches,
)
from grpo_core.extract import NoAnswer, find_tag
from grpo_env_reasoning_gym.execution import (
    PARSED_BY_SYMPY,
    evaluate,
    evaluated_text,
    score_of_value,
)
from grpo_env_reasoning_gym.faults import faults_of
from grpo_env_reasoning_gym.finite import names_no_finite_number
from grpo_env_reasoning_gym.items import item
from grpo_env_reasoning_gym.ladder import ladder

SYSTEM = (
    "Solve the task. You may think first; then write your final answer, and nothing else, between "
    "<answer> and </answer>."
)
_EVAL_SHARE = 0.3
_DRAWS = 200  # questions drawn at most until one belongs to the task's split


@dataclass(frozen=True, slots=True)
class ReasoningGymConfig:
    """Settings of the environment."""

    settings: dict[Annotated[str, Harmless], Any] = field(default_factory=dict)
    """Settings of the dataset's own config, which override those of the level, as in
    --set env.settings.max_value=50."""
    execute_answers: Annotated[bool, NeedsConsent()] = False
    """Run answers as Python beside the verifier, without a sandbox, where the dataset scores them
    so. An answer can then read what the worker can, and change every later verdict."""
    allow_faulty: bool = False
    """Use the dataset even if its verifier is known to pay an answer that solves nothing."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the dataset."""

    step: int
    """Index of its config in the environment's ladder."""
    entry: Mapping[str, Any]
    """The item as the dataset made it, with question and answer."""


class ReasoningGym(Environment[Item]):
    """Base class of all datasets; `grpo_env_reasoning_gym.catalogue` has a class for each.

    Raises:
        ConfigError: the dataset executes answers, or pays answers that solve nothing, and the
            config does not accept that; or a setting of the dataset is unknown or refused.
    """

    Config = ReasoningGymConfig
    dataset: ClassVar[str]
    max_new_tokens = 1024

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        if refusal := why_refused(self.dataset, self.config):
            raise ConfigError(refusal)
        self._ladder = ladder(self.dataset, self.config.settings)
        self._datasets: dict[int, Any] = {}

    def task(self, key: TaskKey) -> Task[Item]:
        step = self._step(key.level)
        for draw in range(_DRAWS):
            seed = key.rng("item", draw).getrandbits(31)
            entry = item(self.dataset, self._dataset_at(step), seed)
            if entry is not None and _is_held_out(entry["question"]) == (key.split == "eval"):
                return Task(
                    key,
                    (Message("system", SYSTEM), Message("user", entry["question"])),
                    Item(step, entry),
                )
        raise ConfigError(
            f"none of {_DRAWS} questions at level {key.level:g} is for {key.split}; change "
            "env.settings so that there are more different questions"
        )

    def verify(self, task: Task[Item], rollout: Rollout) -> Verdict:
        block = find_tag(rollout.text, tag="answer")
        if isinstance(block, NoAnswer):
            return Verdict({"reward": Reward(self.floor, note=block.reason)})
        answer = block.content.strip()
        if names_no_finite_number(answer, task.data.entry["answer"]):
            note = f"a number in the answer is not finite: {answer!r:.60}"
            return Verdict({"reward": Reward(self.floor, note=note)}, answer=answer)
        dataset = self._dataset_at(task.data.step)
        return _verdict_of(dataset.score_answer(answer=answer, entry=task.data.entry), answer)

    def reference(self, task: Task[Item]) -> str | None:
        """Return the dataset's answer; None where it gives none because many are right."""
        answer = task.data.entry["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"

    def fingerprint(self) -> str:
        files = sorted(
            file for file in Path(__file__).parent.iterdir() if file.suffix in (".py", ".toml")
        )
        text = " ".join([super().fingerprint(), self.dataset, version("reasoning-gym")])
        return hashlib.sha256(
            text.encode() + b"".join(file.read_bytes() for file in files)
        ).hexdigest()[:16]

    def _step(self, level: float) -> int:
        if not 0 <= level <= 1:
            raise ConfigError(f"level {level:g} is outside 0..1; 0 is the easiest")
        return min(int(level * len(self._ladder)), len(self._ladder) - 1)

    def _dataset_at(self, step: int) -> Any:
        if step not in self._datasets:
            self._datasets[step] = DATASETS[self.dataset][0](self._ladder[step])
        return self._datasets[step]


class Sandboxed(ReasoningGym):
    """Base class of the datasets whose answers a sandbox evaluates, unless the config says no."""

    timeout_seconds = 60.0  # a verdict may wait for the sandbox

    @classmethod
    def needed(cls, config: Any) -> frozenset[Literal["sandbox", "judge", "endpoint"]]:
        return frozenset() if config.execute_answers else frozenset({"sandbox"})

    def rung(self) -> Literal["verify", "averify"]:  # type: ignore[override]  # settings decide
        """Return "averify", or "verify" where answers are to run in the worker."""
        return "verify" if self.config.execute_answers else "averify"

    async def averify(self, task: Task[Item], rollout: Rollout) -> Verdict:
        block = find_tag(rollout.text, tag="answer")
        if isinstance(block, NoAnswer):
            return Verdict({"reward": Reward(self.floor, note=block.reason)})
        answer, entry = block.content.strip(), task.data.entry
        dataset = self._dataset_at(task.data.step)
        text, score = evaluated_text(dataset, answer, entry)
        if text is None:
            return _verdict_of(score, answer)
        outcome = await evaluate(self.services.sandbox(), text)
        if outcome.status != "ok":
            note = f"evaluating the answer failed ({outcome.status}: {outcome.error})"
            return _verdict_of(score, answer, note=note)
        return _verdict_of(score_of_value(dataset, answer, entry, outcome.value), answer)


def why_refused(dataset: str, config: ReasoningGymConfig) -> str:
    """Return why a dataset cannot be used with these settings; "" if it can."""
    name = f"'reasoning-gym/{dataset}'"
    if dataset in PARSED_BY_SYMPY and not config.execute_answers:
        return (
            f"{name} scores an answer by running it as Python beside the verifier (sympy's parser "
            "does), where it can read secrets and change later verdicts; choose another dataset, "
            "or accept that by --set env.execute_answers=true"
        )
    faults = faults_of(dataset)
    # Whoever lets answers run as Python has accepted more than a constant that is paid.
    if faults and not config.allow_faulty and dataset not in PARSED_BY_SYMPY:
        return (
            f"the verifier of {name} pays answers that solve nothing ({faults[0].sentence}); "
            "choose another dataset, or accept that by --set env.allow_faulty=true"
        )
    return ""


def _verdict_of(score: Any, answer: str, *, note: str = "") -> Verdict:
    reward = float(score)
    return Verdict({"reward": Reward(reward, note=note)}, passed=reaches(reward), answer=answer)


def _is_held_out(question: str) -> bool:
    """Return whether the question is held out; its case and spacing make no difference."""
    digest = hashlib.sha256(" ".join(question.casefold().split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < _EVAL_SHARE * 2**64
