"""Read the right answers of tasks from references and verdicts, and the form that they have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from grpo_core import Environment, Task, Verdict
from grpo_core.words import common_prefix
from grpo_kit.answers.forms import (
    AnswerForm,
    are_cut,
    form_of,
    is_answer,
    json_parts,
    tagged_parts,
    with_leading_zeros,
    without_cut_words,
)
from grpo_kit.dialogues.scripts import split_turns

_LONGEST_ANSWER = 100
"""Environments truncate the answer of a verdict; one of this length or more may be truncated."""


class KnownAnswers:
    """Know the right answers of tasks, and what stands around them.

    Args:
        env: the environment.
        answered: tasks with their references; the turns of a dialogue are joined by `join_turns`.
        verdicts: the verdict on each reference; empty if none could be made.
    """

    def __init__(
        self,
        env: Environment[Any],
        answered: Sequence[tuple[Task[Any], str]],
        verdicts: Sequence[Verdict],
    ) -> None:
        self._env = env
        self._answered = answered
        self._verdicts = verdicts

    @cached_property
    def bare_answers(self) -> list[str | None]:
        """Return the answer that the verifier extracts from each reference.

        None where it is not known, not known to be a part of the reference, or blank.
        """
        return [answer if answer and answer.strip() else None for answer in self._bare_answers()]

    def _bare_answers(self) -> list[str | None]:
        """Return what `bare_answers` does, and blank answers as well."""
        verdicts = self._verdicts or [Verdict()] * len(self._answered)
        answers: list[str | None] = []
        for text, verdict in zip(self.last_turns, verdicts, strict=True):
            answer = verdict.answer or ""
            untruncated = len(answer) < _LONGEST_ANSWER or answer == text.strip()
            known = answer and untruncated and answer in text
            answers.append(with_leading_zeros(answer, text) if known else None)
        whole = all(
            a is None or a == t.strip() for a, t in zip(answers, self.last_turns, strict=True)
        )
        if whole and (in_tags := tagged_parts(self.last_turns)):
            return list(in_tags)
        if None in answers and (in_json := json_parts(self.last_turns)):
            return list(in_json)
        if are_cut(answers, self.last_turns) or self._end_alike:
            return [None] * len(answers)
        return answers

    @property
    def _end_alike(self) -> bool:
        """Return whether references of several turns all end by the same one, as by "done"."""
        texts = [text for _, text in self._answered]
        several = any(len(split_turns(text)) > 1 for text in texts)
        return several and len(texts) > 2 and len(set(self.last_turns)) == 1

    @cached_property
    def last_turns(self) -> list[str]:
        """Return the last turn of each reference, in which its answer stands."""
        return [split_turns(text)[-1] for _, text in self._answered]

    @cached_property
    def form(self) -> AnswerForm:
        """Return the text that all references have around their answer.

        It is empty where there are too few different references to tell.
        """
        texts = self.last_turns
        surroundings = {
            text.rpartition(answer)[::2]
            for text, answer in zip(texts, self.bare_answers, strict=True)
            if answer is not None
        }
        if len(surroundings) == 1:
            return AnswerForm(*surroundings.pop())
        if len(set(texts)) < 3:
            return AnswerForm()
        before = common_prefix(texts)
        after = common_prefix([text[len(before) :][::-1] for text in texts])[::-1]
        return form_of(before, after)

    @cached_property
    def frame(self) -> AnswerForm:
        """Return all that references have in common at both ends, also a part of their answers.

        It is empty where there are too few different references to tell.
        """
        texts = self.last_turns
        if len(set(texts)) < 3:
            return AnswerForm()
        before = common_prefix(texts)
        return without_cut_words(
            before, common_prefix([t[len(before) :][::-1] for t in texts])[::-1]
        )

    @cached_property
    def shared_form(self) -> AnswerForm:
        """Return what all references have around what differs in them, whatever their answer is."""
        texts = self.last_turns
        if self.form != AnswerForm() or len(set(texts)) < 3:
            return self.form
        before = re.sub(r"[\w.+-]*\Z", "", common_prefix(texts))
        rest = [text[len(before) :][::-1] for text in texts]
        return form_of(before, common_prefix(rest)[::-1])

    def reply_variants(self, text: str) -> list[str]:
        """Return `text` as a whole reply, and in the form of an answer where that differs."""
        return list(dict.fromkeys([text, self.form.before + text + self.form.after]))

    def replace_answer(self, index: int, text: str) -> str | None:
        """Return the reference number `index` with `text` as its answer.

        None where the answer in the reference is not known.
        """
        reference, answer = self._answered[index][1], self.bare_answer(index)
        if answer is not None:
            head, _, tail = reference.rpartition(answer)
            return head + text + tail
        return None

    @cached_property
    def _whole_references(self) -> bool:
        """Return whether the references are bare answers: lines that differ, of few words."""
        texts = set(self.last_turns)
        return len(texts) >= 3 and all(map(is_answer, texts))

    def bare_answer(self, index: int) -> str | None:
        """Return the answer in the reference number `index`; None if not known."""
        answer, reference = self.bare_answers[index], self.last_turns[index]
        if answer is not None or (self.form == AnswerForm() and not self._whole_references):
            return answer
        return self.without_form(reference)

    def split_answer(self, answer: str) -> tuple[str, str, str]:
        """Return what stands before the part of an answer that counts, the part, and what follows.

        By the declared `answer_at` it is the first or the last word of a free text, without the
        marks behind it; otherwise it is the whole answer.
        """
        words = list(re.finditer(r"[^\s.,;:!?]+(?:[.,:][^\s.,;:!?]+)*", answer))
        if self._env.answer_at is None or len(words) < 2:
            return "", answer, ""
        word = words[0 if self._env.answer_at == "start" else -1]
        return answer[: word.start()], word[0], answer[word.end() :]

    def commits_to_right(self, task: Task[Any], text: str) -> bool:
        """Return whether `text` has the right answer where the environment says that it counts."""
        right = next(
            (
                self.bare_answer(index)
                for index, (answered, _) in enumerate(self._answered)
                if answered is task
            ),
            None,
        )
        if not right or self._env.answer_at is None:
            return False
        words = text.strip()
        return words.startswith(right) if self._env.answer_at == "start" else words.endswith(right)

    def without_form(self, reference: str) -> str:
        """Return what stands in the form of a reference; all of it where it has another form."""
        return reference.removeprefix(self.form.before).removesuffix(self.form.after)
