"""Play dialogues and tool calls of an environment inside TRL's GRPOTrainer.

The trainer's own engine writes the policy's turns, by transformers or vLLM as its config says. No
token is tokenised again: a later turn continues the very tokens of the earlier ones, and those of
the environment are masked out of the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import ConfigError, Message, Rollout
from grpo_core.api.protocol import chosen_tags
from grpo_core.api.verify import Transcript
from grpo_core.engine.models import pieces
from grpo_trl.opened import OpenEnvironment
from grpo_trl.rewards import ROLLOUT_FIELD
from grpo_trl.rows import key_value, task_keys

RolloutFunc = Callable[[Sequence[Any], Any], dict[str, Any]]
"""Takes prompts and the trainer, and returns the fields of the rollouts, one for each prompt."""


def rollout_func(env: OpenEnvironment) -> RolloutFunc | None:
    """Return the argument `rollout_func` of TRL's trainer.

    It is None where rollouts have a single turn, which TRL generates by itself. A turn has at most
    the environment's `max_new_tokens`, and a dialogue, with what the environment says, at most
    `max_completion_length` of TRL's config.

    Args:
        env: the environment.
    """
    return _Dialogues(env) if env.turns > 1 else None


@dataclass(slots=True)
class _Dialogue:
    """Holds a dialogue in progress."""

    transcript: Transcript
    """The messages after the prompt."""
    prompt: tuple[Message, ...]
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    """The tokens after the prompt."""
    trainable: list[int] = field(default_factory=list)
    """1 for each token of the policy, 0 for those of the environment."""
    logprobs: list[float] | None = field(default_factory=list)
    """The log-probability of each token; None if the engine does not give them."""

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None, *, trainable: int) -> None:
        """Append tokens; `trainable` is 1 for those of the policy, else 0."""
        self.token_ids += ids
        self.trainable += [trainable] * len(ids)
        if self.logprobs is not None:
            self.logprobs = None if logprobs is None else [*self.logprobs, *logprobs]

    def rollout(self) -> Rollout:
        """Return the dialogue as verifiers take it."""
        return Rollout(
            tuple(self.transcript.messages),
            finish=self.transcript.finish,
            prompt_ids=tuple(self.prompt_ids),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs or ()),
            trainable=tuple(self.trainable),
            error=self.transcript.error,
        )


class _Dialogues:
    """Plays a dialogue for each prompt that the trainer hands over."""

    def __init__(self, env: OpenEnvironment) -> None:
        self._env = env

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return the tokens of the dialogues, and the rollouts for the reward functions.

        Args:
            prompts: (B,) lists of messages, as the trainer repeats them for each group.
            trainer: TRL's GRPOTrainer.

        Raises:
            ConfigError: the trainer cannot do this, or a prompt is too long.
        """
        _refuse_what_cannot_play(trainer)
        tokens = _Tokens(trainer, self._env)
        dialogues = self._begun(prompts, tokens)
        active = dialogues
        while active:
            self._take_turns(active, tokens)
            replies = self._env.replies(dialogue.transcript for dialogue in active)
            active = [
                dialogue
                for dialogue, reply in zip(active, replies, strict=True)
                if reply is not None and tokens.add_reply(dialogue, reply)
            ]
        logprobs = [dialogue.logprobs for dialogue in dialogues]
        return {
            "prompt_ids": [dialogue.prompt_ids for dialogue in dialogues],
            "completion_ids": [dialogue.token_ids for dialogue in dialogues],
            "logprobs": None if None in logprobs else logprobs,
            "env_mask": [dialogue.trainable for dialogue in dialogues],
            ROLLOUT_FIELD: [dialogue.rollout() for dialogue in dialogues],
        }

    def _begun(self, prompts: Sequence[Any], tokens: _Tokens) -> list[_Dialogue]:
        """Return a dialogue without turns for each prompt."""
        keys = task_keys([key_value(prompt[-1]) for prompt in prompts])
        distinct_keys = list(dict.fromkeys(keys))
        tasks = dict(zip(distinct_keys, self._env.tasks(distinct_keys), strict=True))
        dialogues = []
        for key, prompt in zip(keys, prompts, strict=True):
            messages = tuple(Message(turn["role"], turn["content"]) for turn in prompt)
            transcript = self._env.transcript(tasks[key])
            dialogue = _Dialogue(transcript, messages, tokens.of_prompt(messages))
            if tokens.remaining(dialogue) == 0:
                raise ConfigError(
                    f"a prompt of {len(dialogue.prompt_ids)} tokens leaves no room for an answer "
                    f"in the model's context of {tokens.context} tokens"
                )
            dialogues.append(dialogue)
        return dialogues

    def _take_turns(self, dialogues: Sequence[_Dialogue], tokens: _Tokens) -> None:
        """Sample the policy's next turn in each dialogue."""
        limits = [tokens.remaining(dialogue) for dialogue in dialogues]
        prefixes = [dialogue.prompt_ids + dialogue.token_ids for dialogue in dialogues]
        turns, logprobs = tokens.generate(prefixes, max(limits))
        for place, (dialogue, limit) in enumerate(zip(dialogues, limits, strict=True)):
            ids = turns[place][:limit]
            turn = tokens.turn(ids, after=prefixes[place])
            dialogue.add(ids, None if logprobs is None else logprobs[place][:limit], trainable=1)
            ended = bool(ids) and ids[-1] in tokens.end_ids
            dialogue.transcript.add_turn(turn, "stop" if ended else "length")


class _Tokens:
    """Turns messages into tokens and back, and generates turns, with the trainer's means."""

    def __init__(self, trainer: Any, env: OpenEnvironment) -> None:
        # It needs jinja2, which comes with transformers and not with the base install.
        from grpo_core.api.training import ChatFrame

        self._trainer = trainer
        processor = trainer.processing_class
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._frame = ChatFrame(arguments=trainer.chat_template_kwargs, tools=env.tools)
        self._turn = env.env.max_new_tokens
        self.end_ids = frozenset(trainer.eos_token_ids)
        self._hidden_ids = pieces.hidden_ids(self._tokenizer, self.end_ids)
        self._tags = chosen_tags(env.config.model.thought_tags, self._tokenizer.chat_template)
        config = trainer.model.config
        self.context: int = getattr(config, "text_config", config).max_position_embeddings
        """Most tokens of prompt and dialogue."""

    def remaining(self, dialogue: _Dialogue, *, more: int = 0) -> int:
        """Return how many tokens the policy may write in its next turn.

        Args:
            dialogue: the dialogue so far.
            more: number of tokens that come between it and that turn.
        """
        written = len(dialogue.token_ids) + more
        total: int = self._trainer.max_completion_length
        left = min(total - written, self.context - len(dialogue.prompt_ids) - written)
        return max(0, min(self._turn, left))

    def of_prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """Return the tokens of a prompt, up to where the policy's turn begins."""
        from grpo_core.engine.models import chat

        return list(chat.encode(self._tokenizer, messages, self._frame))

    def turn(self, ids: Sequence[int], *, after: Sequence[int]) -> Message:
        """Return a turn of the policy behind the tokens `after`, its thoughts apart."""
        text = pieces.decode(self._tokenizer, ids, hidden=self._hidden_ids, after=after)
        opened = pieces.opens_thought(self._tokenizer, after, self._tags)
        return Message.turn(text, self._tags, opened=opened)

    def add_reply(self, dialogue: _Dialogue, reply: Sequence[Message]) -> bool:
        """Append the environment's turn; return False if it leaves no room for another turn."""
        from grpo_core.engine.models import chat

        last = dialogue.token_ids[-1]
        ids = chat.encode_reply(
            self._tokenizer,
            dialogue.prompt,
            dialogue.transcript.messages,
            reply,
            self._frame,
            end_id=last if last in self.end_ids else None,
        )
        if self.remaining(dialogue, more=len(ids)) == 0:
            dialogue.transcript.finish = "length"
            return False
        dialogue.add(ids, [0.0] * len(ids), trainable=0)
        dialogue.transcript.messages += reply
        return True

    def generate(
        self, prefixes: Sequence[Sequence[int]], limit: int
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Return at most `limit` tokens after each prefix, and their log-probs if known."""
        with _limited(self._trainer, limit):
            turns, logprobs = self._trainer._generate_single_turn(
                [list(prefix) for prefix in prefixes], None, {}, 1
            )
        return turns, logprobs


@contextlib.contextmanager
def _limited(trainer: Any, limit: int) -> Iterator[None]:
    """Limit the completions of the trainer's engine to `limit` tokens inside the block."""
    target, name = (
        (trainer.vllm_generation, "max_completion_length")
        if trainer.use_vllm
        else (trainer.generation_config, "max_new_tokens")
    )
    before = getattr(target, name)
    setattr(target, name, limit)
    try:
        yield
    finally:
        setattr(target, name, before)


def _refuse_what_cannot_play(trainer: Any) -> None:
    """Refuse a trainer that cannot generate turns of dialogues one by one.

    Raises:
        ConfigError: it is of another version than 1.16, or its processes generate together, where
            those whose dialogues have ended would keep the others waiting for ever.
    """
    if not hasattr(trainer, "_generate_single_turn"):
        from importlib.metadata import version

        raise ConfigError(
            f"rollout_func is written for TRL 1.16, and this is {version('trl')}; "
            "pip install 'trl==1.16.*'"
        )
    together = (
        (trainer.use_vllm and trainer.vllm_mode == "server")
        or (trainer.use_vllm and trainer.vllm_tensor_parallel_size > 1)
        or trainer.is_fsdp_enabled
        or trainer.is_deepspeed_enabled
    )
    if together and trainer.accelerator.num_processes > 1:
        raise ConfigError(
            "dialogues cannot be played in several processes that generate together (FSDP, "
            "DeepSpeed, a vLLM server or tensor parallelism); use one process, or DDP with "
            'transformers or vllm_mode="colocate"'
        )
