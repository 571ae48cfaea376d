"""Grade school word problems: GSM8K as published, or problems made from templates.

The policy answers in a <reasoning> and an <answer> block. Parts: xmlcount, soft_format,
strict_format, integer, correctness. In the reward set `fixed` the format is worth 0.2 of 1, and an
answer is correct only if the right number stands in the only answer block, behind the only
reasoning block. The reward set `legacy` reproduces the original demo, bug for bug.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from grpo_core import ConfigError, Environment, Message, Rollout, Services, Task, TaskKey, Verdict
from grpo_core.extract import xml_tag
from grpo_core.rubric import Rubric
from grpo_env_gsm8k import fixed, legacy
from grpo_env_gsm8k.records import WordProblem, from_folder, from_hub
from grpo_env_gsm8k.templates import word_problem

SYSTEM = (
    "Respond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>"
)
MAX_WORDS = 20_000
"""Words of the reasoning that the metrics look at."""
FIXED: Mapping[str, float] = {
    "xmlcount": 0.05,
    "soft_format": 0.05,
    "strict_format": 0.05,
    "integer": 0.05,
    "correctness": 0.8,
}
LEGACY: Mapping[str, float] = dict.fromkeys(FIXED, 1.0)
LOWEST = -3000.0
"""The reward that legacy's `xmlcount` gives to a completion of 3 million characters."""


@dataclass(frozen=True, slots=True)
class GSM8KConfig:
    """Settings of the environment."""

    source: Literal["published", "templates"] = "published"
    """published: GSM8K. templates: problems made by this package, harder with the level."""
    path: str = ""
    """Folder with the published train.jsonl and test.jsonl; "" loads them from the hub."""
    rewards: Literal["fixed", "legacy"] = "fixed"
    """Which of the two sets of reward functions is used."""
    dotall: bool = True
    """false gives the first version of `legacy`, in which the patterns stop at the end of a
    line."""
    example: bool = False
    """Whether a solved problem precedes the question, for models that do not know the format."""


class GSM8K(Environment[WordProblem]):
    """Asks word problems; the published ones of test.jsonl are held out and have no levels."""

    Config = GSM8KConfig
    # `parts`, `reward_range` and `levels` belong to each instance, because the reward sets differ.
    parts: Mapping[str, float] = FIXED  # type: ignore[misc]
    reward_range: tuple[float, float]  # type: ignore[misc]
    levels: bool  # type: ignore[misc]  # the published problems have none
    max_new_tokens = 512
    trusted = True

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: GSM8KConfig = GSM8KConfig() if config is None else config
        if given.path and given.source == "templates":
            raise ConfigError(
                "env.path is for the published problems, but env.source=templates makes its own; "
                "remove one of them"
            )
        path = str(Path(given.path).expanduser().resolve()) if given.path else ""
        super().__init__(replace(given, path=path), services)
        self.parts = LEGACY if given.rewards == "legacy" else FIXED
        self._rubric = Rubric(self._functions(), weights=self.parts)
        self.reward_range = (LOWEST, 4.0) if given.rewards == "legacy" else (0.0, 1.0)
        self.levels = given.source == "templates"
        self._problems: Mapping[str, Sequence[WordProblem]] = {}
        if given.source == "published":
            self._problems = {
                split: from_folder(Path(path), split) if path else from_hub(split)
                for split in ("train", "eval")
            }

    def _functions(self) -> dict[str, Any]:
        if self.config.rewards == "fixed":
            return {
                "xmlcount": lambda text, gold: fixed.xmlcount(text),
                "soft_format": lambda text, gold: fixed.soft_format(text),
                "strict_format": lambda text, gold: fixed.strict_format(text),
                "integer": lambda text, gold: fixed.integer(text),
                "correctness": fixed.correctness,
            }
        dotall = self.config.dotall
        return {
            "xmlcount": lambda text, gold: legacy.xmlcount(text),
            "soft_format": lambda text, gold: legacy.soft_format(text, dotall=dotall),
            "strict_format": lambda text, gold: legacy.strict_format(text, dotall=dotall),
            "integer": lambda text, gold: legacy.integer(text),
            "correctness": legacy.correctness,
        }

    def size(self, split: Literal["train", "eval"]) -> int | None:
        return len(self._problems[split]) if self._problems else None

    def task(self, key: TaskKey) -> Task[WordProblem]:
        if self._problems:
            problem = self._problems[key.split][key.index]
        else:
            problem = word_problem(key.rng("problem"), key.level, held_out=key.split == "eval")
        return Task(
            key,
            (Message("system", SYSTEM), *self._example(), Message("user", problem.question)),
            problem,
        )

    def verify(self, task: Task[WordProblem], rollout: Rollout) -> Verdict:
        gold, is_legacy = task.data.answer, self.config.rewards == "legacy"
        text = rollout.raw if is_legacy else rollout.text  # the demo reads thoughts as well
        rewards = self._rubric.rewards(text, gold)
        answer = (legacy if is_legacy else fixed).extract_answer(text)
        metrics = {
            "accuracy/strict": fixed.correctness(rollout.text, gold)[0],
            "accuracy/lenient": fixed.lenient(rollout.text, gold),
            **_reasoning_metrics(rollout.text),
        }
        return Verdict(
            rewards,
            passed=rewards["correctness"].value > 0,
            answer=None if answer is None else answer[:100],
            metrics=metrics,
        )

    def reference(self, task: Task[WordProblem]) -> str:
        return _format_answer(task.data.reasoning, task.data.answer)

    def cheats(self, task: Task[WordProblem]) -> Sequence[str]:
        """Return completions with the right number, but not in the answer block.

        The format is rewarded, too, so only completions without it get the lowest reward.
        """
        return (
            (task.data.answer, f"The answer is {task.data.answer}.", f"#### {task.data.answer}")
            if self.config.rewards == "fixed"
            else ()
        )

    def fingerprint(self) -> str:
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(
            f"{super().fingerprint()} {self._problems}".encode() + sources
        ).hexdigest()[:16]

    def _example(self) -> tuple[Message, ...]:
        if not self.config.example:
            return ()
        solved = WordProblem(
            "Tom has 3 red marbles and twice as many blue ones. How many marbles does Tom have?",
            "9",
            "Tom has 3 * 2 = 6 blue marbles.\n3 + 6 = 9 marbles.",
        )
        return Message("user", solved.question), Message(
            "assistant", _format_answer(solved.reasoning, solved.answer)
        )


def _format_answer(reasoning: str, answer: str) -> str:
    return f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"


def _reasoning_metrics(text: str) -> dict[str, float]:
    """Return the reasoning's number of words, and the share of its trigrams that are distinct."""
    block = xml_tag(text, tag="reasoning")
    words = block.content.split()[:MAX_WORDS] if block is not None else []
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return {
        "reasoning/words": float(len(words)),
        **({"reasoning/distinct_3": len(set(trigrams)) / len(trigrams)} if trigrams else {}),
    }
