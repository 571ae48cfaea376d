"""An environment made of rows, one task for each row.

Example: `grpo run --data rows.jsonl --reward number`, or `--reward rewards.py:f`.

The rewards of `graders` compare the completion's answer with that of the row. Functions of your own
may be written in the form of this environment, `f(text, row)`, or in those of TRL, verifiers and
verl (`forms`). Each of several rewards is a part of its own. If a function returns None, it does
not apply to the row, and its part is 0. If it raises, or returns something else that is not a
number, the verdict is an error and no reward. The field that `answer` names holds the reference
answer, so that `grpo env check` knows what is right; `--set env.answer=` says that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpo_core import ConfigError, Message, Reward, Rollout, Task, Verdict, reaches
from grpo_core.extract import NoAnswer
from grpo_env_dataset.answers import BadAnswerError, answers_of
from grpo_env_dataset.base import RowTasks
from grpo_env_dataset.forms import RowAttempt
from grpo_env_dataset.grader import AnswerGrader
from grpo_env_dataset.graders import GRADERS
from grpo_env_dataset.options import listed, options_of
from grpo_env_dataset.own_reward import OwnReward
from grpo_env_dataset.rows import Row, has_field, plain_row, value_at

_USUAL_FORMS = (
    "<reasoning>\n...\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "<think>\n...\n</think>\n<answer>\n{}\n</answer>",
    "\\boxed{{{}}}",
    "#### {}",
)
"""Forms in which functions that were written for other trainers want an answer."""


class Dataset(RowTasks):
    """Pays by graders that compare answers, and by functions of the user's own."""

    def _prepare(self, rows: Sequence[Row]) -> None:
        self._rewards = self._load_rewards()
        rewards = self._rewards.items()
        self._graders = {name: each for name, each in rewards if isinstance(each, AnswerGrader)}
        self._functions = {name: each for name, each in rewards if isinstance(each, OwnReward)}
        common = set(rows[0]).intersection(*map(set, rows))
        shown = ", ".join(dict.fromkeys(key for row in rows[:1000] for key in row))
        for function in self._functions.values():
            function.check_fields(common, shown=shown)
        self._declare()

    def _load_rewards(self) -> dict[str, AnswerGrader | OwnReward]:
        """Return what `reward` names, in this order, by the names of the parts.

        Raises:
            ConfigError: one is not known, or two have the same name.
        """
        names, rewards = self.config.reward, dict[str, AnswerGrader | OwnReward]()
        messages = {"auto": None, "text": False, "messages": True}[self.config.completions]
        for name in names:
            reward: AnswerGrader | OwnReward = (
                GRADERS[name]()
                if name in GRADERS
                else OwnReward(name, messages=messages, known=tuple(GRADERS))
            )
            rewards[name.rpartition(":")[2]] = reward
        if len(rewards) < len(names) or not names:
            raise ConfigError(
                f"env.reward is {', '.join(names) or 'empty'}; name at least one reward, and each "
                "under a name of its own"
            )
        # The part of a single one is called as in every environment with one part.
        return rewards if len(names) > 1 else {"reward": reward}

    def _declare(self) -> None:
        """Set what the rewards decide: parts, range, and which part says that an attempt passes."""
        parts = dict.fromkeys(self._rewards, 1.0)
        self._passes = self.config.passes or next(iter(parts))
        if self._passes not in parts:
            raise ConfigError(
                f"env.passes={self._passes!r} is none of the parts {', '.join(parts)}"
            )
        # Functions in the forms of other trainers pay what they like, and which of two right
        # answers they pay more cannot be told.
        is_bounded = all(function.is_bounded for function in self._functions.values())
        vars(self).update(
            parts=parts,
            reward_range=(0.0, float(len(parts))) if is_bounded else (-math.inf, math.inf),
            open_ended=not is_bounded or len(parts) > 1,
            raises_at_answers=any(grader.raises for grader in self._graders.values()),
        )

    def _ask(self, text: str, row: Row) -> str:
        options = options_of(row) if "choice" in self.config.reward else {}
        return f"{text}\n\n{listed(options)}" if options else text

    def _instruction(self, messages: Sequence[Message]) -> str:
        tag = self.config.tag
        is_told = any(f"<{tag}>" in message.content for message in messages)
        if not self._graders or not tag or is_told:
            return ""
        asked = next(iter(self._graders.values())).asks
        return f"Reply with <{tag}>{asked or '...'}</{tag}>."

    def verify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        answer = self._extract_answer(rollout.text)
        given = None if isinstance(answer, NoAnswer) else answer
        rewards = {name: self._graded(name, answer, task.data) for name in self._graders}
        if self._functions:
            attempt = self._attempt(task, rollout.text, rollout.raw)
            where = self._where(task)
            for name, function in self._functions.items():
                rewards[name] = function.reward(attempt, where=where)
            given = rollout.text.strip() if given is None else given
        return Verdict(
            {name: rewards[name] for name in self.parts},
            passed=reaches(rewards[self._passes].value),
            answer=given,
            metrics=attempt.metrics if self._functions else {},
        )

    def reference(self, task: Task[Row]) -> str | None:
        """Return the answer of the row, the first of several, in the tag where there is one.

        With functions of your own it may also be the answer alone, in another usual form, or
        another of several, if only that is paid in full. It is None if the row has no answer, or
        none that the function which says what passes would pay.
        """
        answers = self._answers(task.data)
        if answers is None:
            return None
        first = next(iter(self._graders.values()), None)
        if first is not None:
            answers = tuple(first.as_answer(answer, task.data) for answer in answers)
        tagged = [self._tagged(answer) for answer in answers]
        decides = self._functions.get(self._passes)
        if decides is not None:
            formed = [form.format(answer) for answer in answers for form in _USUAL_FORMS]
            for text in dict.fromkeys([*tagged, *answers, *formed]):
                if decides.pays(self._attempt(task, text, text)):
                    return text
            if not decides.is_bounded:
                return None
        return tagged[0]

    def cheats(self, task: Task[Row]) -> Sequence[str]:
        """Return completions that give no answer."""
        empty = f"<{self.config.tag}></{self.config.tag}>"
        return ("", empty) if self.config.tag and not self._functions else ("",)

    def _source_of_rewards(self) -> str:
        return str([function.source() for function in self._functions.values()])

    def _where(self, task: Task[Row]) -> str:
        """Return the place of a task's row, for messages."""
        return self._rows[task.key.split].where(task.key.index)

    def _attempt(self, task: Task[Row], text: str, raw: str) -> RowAttempt:
        """Return what functions are told of a completion."""
        row = task.data
        return RowAttempt(
            prompt=self._messages(row),
            text=text,
            raw=raw,
            row=plain_row(row),
            answer=self._plain_answer(row),
            source=self._rows[task.key.split].source,
            has_messages=not isinstance(self._prompt.fill(row), str),
        )

    def _plain_answer(self, row: Row) -> Any:
        """Return the reference answer for a function: cut out, or as it stands in the row."""
        if not self._field or not has_field(row, self._field):
            return None
        if self.config.answer_pattern:
            return (self._answers(row) or (None,))[0]
        return plain_row({"answer": value_at(row, self._field)})["answer"]

    def _graded(self, name: str, answer: str | NoAnswer, row: Row) -> Reward:
        """Return 1 if an answer agrees with one of those of the row, else 0."""
        if isinstance(answer, NoAnswer):
            return Reward(0.0, note=answer.reason)
        grader, references = self._graders[name], self._answers(row) or ()
        if any(grader.is_right(answer, right, row) for right in references):
            return Reward(1.0)
        return Reward(0.0, note=grader.why_unread(answer, row))

    def _check_answer(self, row: Row) -> None:
        answers, field = self._answers(row) or (), self._field or "answer"
        for grader in self._graders.values():
            for answer in answers:
                grader.check(answer, row, field)
        for answer in answers if self._graders else ():
            if isinstance(self._extract_answer(self._tagged(answer)), NoAnswer):
                raise BadAnswerError(
                    f"the field {field!r} holds a tag of env.tag, so that no reply could be right"
                )

    def _answers(self, row: Row) -> tuple[str, ...] | None:
        """Return the reference answers of a row; None if functions of the user's need none.

        Raises:
            BadAnswerError: a row has none, but needs one.
        """
        if not self._graders and not self._field:
            return None
        field = self._field or "answer"
        objects = "json_schema" in self.config.reward
        try:
            answers = answers_of(
                row, field=field, pattern=self.config.answer_pattern, objects=objects
            )
        except BadAnswerError as error:
            if self._graders or error.is_of_pattern:
                raise
            return None
        return answers

    def _tagged(self, answer: str) -> str:
        tag = self.config.tag
        return f"<{tag}>{answer}</{tag}>" if tag else answer
