"""Check that copies of the prompt earn nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from grpo_core.api.figures import Floor
from grpo_core.words import common_prefix, prompt_text
from grpo_kit.answers.floors import (
    DIFFERING,
    FOR_ECHO,
    MOST_TASKS,
    earned_by,
    find_form_parts,
    holds_form,
    must_rarely_pass,
    spoken,
)
from grpo_kit.answers.forms import whole_words
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError
from grpo_kit.subject import (
    MIN_TASKS_FOR_SHARE,
    Attempt,
    Subject,
    task_label,
)


@check("floor.echo", "fault", asks="Does the prompt as an answer fail, and earn little?")
async def check_echo(subject: Subject) -> str:
    """Check that the prompt as an answer rarely passes or pays."""
    candidates: dict[str, list[Attempt]] = {}
    for task in subject.sample:
        for number, text in enumerate(subject.answers.reply_variants(prompt_text(task))):
            candidates.setdefault(
                ("the prompt echoed", "the prompt in the form of an answer")[number], []
            ).append((task, text))
    parts = _parts_of_prompts(subject)
    differing = {kind: parts.pop(kind) for kind in (DIFFERING,) if kind in parts}
    summary = await must_rarely_pass(subject, candidates | parts)
    if differing:  # a text to correct may be paid by the share of its words that are right
        summary += f"; {await must_rarely_pass(subject, differing, unpaid=False)}"
    await _check_words_of_prompt(subject, candidates["the prompt echoed"])
    return summary


def _parts_of_prompts(subject: Subject) -> dict[str, list[Attempt]]:
    """Return parts of the prompts as answers, by their kind, but no references.

    They are the last message, where there are several, and what differs from prompt to prompt.
    """
    prompts = [prompt_text(task) for task in subject.sample]
    before = whole_words(common_prefix(prompts))
    rest = [prompt[len(before) :][::-1] for prompt in prompts]
    after = whole_words(common_prefix(rest))[::-1]
    right = {id(task): spoken(text).casefold() for task, text in subject.answered}
    parts: dict[str, list[Attempt]] = {}
    for task, prompt in zip(subject.sample, prompts, strict=True):
        differing = prompt[len(before) : len(prompt) - len(after)]
        own = dict[str, str]()
        if not subject.env.answer_in_prompt:
            own[DIFFERING] = differing.strip().rstrip("?.!,;:")
        if not isinstance(task.prompt, str) and len(task.prompt) > 1:
            own["the last message of the prompt"] = task.prompt[-1].content.strip()
        for kind, text in own.items():
            if text and spoken(text).casefold() != right.get(id(task)):
                parts.setdefault(kind, []).append((task, text))
    return {kind: pairs for kind, pairs in parts.items() if len(pairs) >= MIN_TASKS_FOR_SHARE}


async def _check_words_of_prompt(subject: Subject, echoes: Sequence[Attempt]) -> None:
    """Check that the prompt as an answer is not paid in most tasks, unless for its form."""
    form_parts = await find_form_parts(subject)
    right = Floor.of("", [verdict for verdict in subject.reference_verdicts if verdict.passed])
    if right.reward is None or subject.env.open_ended:
        return
    least = FOR_ECHO * (right.reward - subject.env.floor)
    others = subject.other_references
    if others and all(holds_form(subject, text) for _, text in echoes):  # an example of an answer
        answers = await subject.verdicts(others)
        wrong = [earned_by(subject, v, form_parts) for v in answers if v.scored and not v.passed]
        if wrong:  # what any answer in that form earns
            least += max(fmean(wrong), 0.0)
    verdicts = await subject.verdicts(echoes)
    earned = [earned_by(subject, verdict, form_parts) for verdict in verdicts]
    if sum(pay >= least for pay in earned) >= MOST_TASKS * len(earned):
        raise BrokenPromiseError(
            f"the prompt echoed is paid {earned[0]:g} at {task_label(echoes[0][0])}, and not much "
            "less elsewhere: its own words are paid; compare the answer only"
        )
