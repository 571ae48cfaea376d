"""Learn from references of other tasks what an answer looks like, and nothing of what it says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.words import common_prefix
from grpo_kit.answers.forms import AnswerForm, form_of
from grpo_kit.dialogues.scripts import join_turns, split_turns

_FENCED = re.compile(
    r"(.*?)^(`{3,}|~{3,})([\w.+-]*)[^\n]*\n(.*?)\n?^\2\s*", re.DOTALL | re.MULTILINE
)
_TAGGED = re.compile(r"(.*<(\w+)>\s*)(.*?)(\s*</\2>.*)", re.DOTALL)
_TARGET = re.compile(r">\s*([\w./-]+)\s*$")
_PLAIN_LANGUAGES = ("", "json", "text", "txt", "xml", "yaml")
"""Labels of fences around texts."""
_LEAST = 3
"""With fewer different references there is no telling form and answer apart."""
_SHARED = 0.5
"""The share of references that have to name a file as their target."""

_NO_FORM = AnswerForm()


@dataclass(frozen=True, slots=True)
class ReferenceShape:
    """The form of references, and how often the same one is right."""

    form: AnswerForm = _NO_FORM
    """The text around the answer in its turn."""
    inner: AnswerForm = _NO_FORM
    """What all answers in that form have in common at both ends."""
    language: str | None = None
    """The label of the fence around the answer; None: there is no fence."""
    before: tuple[str, ...] = ()
    """The turns before the one with the answer."""
    after: tuple[str, ...] = ()
    """The turns behind it, which all references have."""
    answers: tuple[str, ...] = ()
    """The answer in each reference from which the shape was learned."""
    targets: tuple[str, ...] = ()
    """Files into which most references write."""

    def reply(self, answer: str) -> str:
        """Return an answer in the form of a reference, with all its turns."""
        return self.script(self.form.before + answer + self.form.after)

    def answer_in(self, reference: str) -> str | None:
        """Return the answer in a reference; None if it has too few turns."""
        turns = split_turns(reference)
        place = len(self.before)
        return _within(self.form, turns[place]) if place < len(turns) else None

    def script(self, turn: str) -> str:
        """Return a turn in the place of the one with the answer."""
        return join_turns((*self.before, turn, *self.after))

    @property
    def is_code(self) -> bool:
        """Return whether answers are programs, commands or queries, so that plain texts are not."""
        return self.language is not None and self.language not in _PLAIN_LANGUAGES

    @property
    def is_bare(self) -> bool:
        """Return whether an answer in the form is the answer alone."""
        return self.reply("x") == "x"

    @property
    def even_chance(self) -> float:
        """Return the chance of a guess among all answers seen, each as often, at most one half."""
        return 1 / max(2, len(set(self.answers)))


def learn_shape(references: Sequence[str]) -> ReferenceShape:
    """Return the shape of references, whose turns are joined."""
    if not references:
        return ReferenceShape()
    scripts = [split_turns(text) for text in references]
    place, before, after = _skeleton(scripts)
    turns = [script[place] for script in scripts]
    form, language = _form(turns)
    answers = [_within(form, turn) for turn in turns]
    return ReferenceShape(
        form=form,
        inner=_inner(answers),
        language=language,
        before=before,
        after=after,
        answers=tuple(answers),
        targets=_targets(answers),
    )


def _skeleton(
    scripts: Sequence[tuple[str, ...]],
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Return the place of the first turn that differs, and the turns around it that do not."""
    lengths = {len(script) for script in scripts}
    if len(lengths) > 1:
        last = {script[-1] for script in scripts}
        return 0, (), tuple(last) if len(last) == 1 else ()
    columns = [set(column) for column in zip(*scripts, strict=True)]
    place = next((i for i, column in enumerate(columns) if len(column) > 1), 0)
    if any(len(column) > 1 for column in columns[place + 1 :]):
        return place, scripts[0][:place], ()
    return place, scripts[0][:place], scripts[0][place + 1 :]


def _form(turns: Sequence[str]) -> tuple[AnswerForm, str | None]:
    """Return the text around the answers, and the label of the fence if they have one."""
    fences = [_FENCED.fullmatch(turn) for turn in turns]
    shown = [match for match in fences if match is not None]
    if len(shown) == len(turns):
        label = Counter(match[3] for match in shown).most_common(1)[0][0]
        head = min((match[1] for match in shown), key=len)
        mark = shown[0][2]
        return AnswerForm(f"{head}{mark}{label}\n", f"\n{mark}"), label.lower()
    tags = [_TAGGED.fullmatch(turn) for turn in turns]
    tagged = [match for match in tags if match is not None]
    if len(tagged) == len(turns) and len({match[2] for match in tagged}) == 1:
        shortest = min(tagged, key=lambda match: len(match[1]) + len(match[4]))
        return AnswerForm(shortest[1], shortest[4]), None
    if len(set(turns)) < _LEAST:
        return AnswerForm(), None
    before = common_prefix(turns)
    after = common_prefix([turn[len(before) :][::-1] for turn in turns])[::-1]
    return form_of(before, after), None


def _within(form: AnswerForm, turn: str) -> str:
    """Return the answer in a turn: what stands in the form, in its tags or in its fence."""
    if match := _FENCED.fullmatch(turn) or _TAGGED.fullmatch(turn):
        return match[4] if match.re is _FENCED else match[3]
    if turn.startswith(form.before) and turn.endswith(form.after):
        return turn[len(form.before) : len(turn) - len(form.after)]
    return turn


def _inner(answers: Sequence[str]) -> AnswerForm:
    """Return what all answers share at both ends, in whole words."""
    if len(set(answers)) < _LEAST:
        return AnswerForm()
    before = common_prefix(answers)
    after = common_prefix([answer[len(before) :][::-1] for answer in answers])[::-1]
    return AnswerForm(re.sub(r"\S*\Z", "", before), re.sub(r"\A\S*", "", after))


def _targets(answers: Sequence[str]) -> tuple[str, ...]:
    """Return the files into which most answers, if they are commands, write what they print."""
    counts = Counter(match[1] for answer in answers if (match := _TARGET.search(answer)))
    return tuple(name for name, count in counts.items() if count >= _SHARED * len(answers))
