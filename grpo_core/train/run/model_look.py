"""Say before the first step what the model reads, and what in it will hinder the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_core.engine.models import pieces
from grpo_core.engine.models.system_role import folds_system
from grpo_core.engine.models.vocabulary import tokens_without_rows
from grpo_core.protocol.types import Task
from grpo_core.train.actor import Actor
from grpo_core.train.run.journal import Journal

FIRST_PROMPT = "the first prompt, as the model reads it"
"""How the line with the first prompt begins."""
THOUGHT_TOKENS = 256
"""Fewer new tokens than this rarely hold a thought and an answer."""
_HEAD, _TAIL = 300, 150
"""How many characters are shown of the beginning and of the end of a prompt."""


def look_at_model(
    actor: Actor,
    tasks: Sequence[Task[Any]],
    prompts: Sequence[tuple[int, ...]],
    journal: Journal,
) -> None:
    """Show the first prompt as the model reads it, and warn of problems that are known by now.

    Args:
        actor: has the model.
        tasks: the first tasks.
        prompts: the tokens of their prompts.
        journal: is told.
    """
    policy = actor.policy
    if prompts:
        journal.announce(_first_prompt(actor, prompts[0]))
    if policy.fills:
        return
    if not policy.end_ids and not actor.config.sampling.stop:
        journal.warn(
            f"neither the tokenizer nor the config of {actor.config.model.name!r} has an end "
            "token, so every completion will be cut off at sampling.max_new_tokens, and raising "
            "that cannot help; set eos_token in its tokenizer_config.json, or sampling.stop"
        )
    if beyond := tokens_without_rows(policy.model, policy.tokenizer):
        journal.warn(
            f"{len(beyond)} added tokens of the tokenizer have no row in the model's embedding "
            f"({beyond[0]!r:.40} is one); a prompt that holds one cannot be computed"
        )
    _tell_folded_system(actor, tasks, journal)
    _tell_opened_thoughts(actor, tasks, prompts, journal)


def _first_prompt(actor: Actor, prompt_ids: tuple[int, ...]) -> str:
    """Return the line that shows a prompt, with all its special tokens."""
    text = pieces.decode(actor.policy.tokenizer, prompt_ids, begins=True)
    if len(text) > _HEAD + _TAIL:
        left_out = len(text) - _HEAD - _TAIL
        shown = f"{text[:_HEAD]!r} [... {left_out:,} characters ...] {text[-_TAIL:]!r}"
    else:
        shown = repr(text)
    return f"{FIRST_PROMPT} ({len(prompt_ids):,} tokens): {shown}"


def _tell_folded_system(actor: Actor, tasks: Sequence[Task[Any]], journal: Journal) -> None:
    """Say that system messages become a part of the first user message, where some do."""
    frame, setting = actor.policy.frame, actor.config.model.system_role
    has_system = frame.system_prompt or (
        frame.system_prompt is None
        and any(
            not isinstance(task.prompt, str) and task.prompt[0].role == "system" for task in tasks
        )
    )
    if (
        setting == "auto"
        and has_system
        and folds_system(actor.policy.tokenizer, frame.system_role, frame.arguments)
    ):
        journal.announce(
            "the model's chat template takes no system message, so it stands at the beginning of "
            'the first user message (model.system_role=fold); model.system_prompt="" removes it'
        )


def _tell_opened_thoughts(
    actor: Actor,
    tasks: Sequence[Task[Any]],
    prompts: Sequence[tuple[int, ...]],
    journal: Journal,
) -> None:
    """Say what the verifier sees where a prompt opens a thought, and whether it can be closed."""
    policy = actor.policy
    tags = policy.thought_tags
    opened = {
        task.key.env: actor.budgets[task.key.env].turn
        for task, prompt_ids in zip(tasks, prompts, strict=True)
        if pieces.opens_thought(policy.tokenizer, prompt_ids, tags)
    }
    if not opened or tags is None:
        return
    names = " and ".join(map(repr, opened))
    journal.announce(
        f"the prompts of {names} end with {tags[0]}: completions begin as thoughts, and the "
        f"verifier sees what follows {tags[1]}; without that there is no answer"
    )
    fewest = min(opened.values())
    if fewest < THOUGHT_TOKENS:
        journal.warn(
            f"{fewest} new tokens rarely hold a thought and an answer; set "
            f"sampling.max_new_tokens to {THOUGHT_TOKENS} or more, or switch thoughts off, as many "
            "templates do with --set 'model.chat_template_args={\"enable_thinking\": false}'"
        )
