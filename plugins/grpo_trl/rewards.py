"""Give the reward parts of an environment to TRL's GRPOTrainer, a reward function for each part."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import ConfigError, Message, Rollout, TaskKey, Verdict
from grpo_core.api.protocol import chosen_tags, opens_thought
from grpo_core.api.runs import draw_number
from grpo_core.api.verify import ErrorRate
from grpo_core.engine.models import pieces
from grpo_core.protocol.ties import all_same
from grpo_trl.opened import OpenEnvironment
from grpo_trl.rows import KEY_COLUMN, refuse_other_prompts, task_keys

ROLLOUT_FIELD = "rollout"
"""The field in which the rollout function hands a rollout to the reward functions."""

LogMetric = Callable[[str, float], None]


def reward_functions(
    env: OpenEnvironment, *, end_ids: Collection[int] | None = None, tokenizer: Any = None
) -> tuple[list[RewardFunction], list[float]]:
    """Return the arguments `reward_funcs` and `reward_weights` of TRL's trainer and its config.

    There is one function for each reward part, in the order of the weights. All of them share one
    verdict for each completion, made as in a run. If a completion could not be judged, each of them
    returns None for it, which keeps it out of TRL's baseline and gives it no advantage. TRL logs
    each part as rewards/PART/mean, besides verdicts/passed, the share of judged completions that
    passed, and verdicts/unscored, the share that could not be judged.

    Args:
        env: the environment.
        end_ids: ids of the tokens that end a completion. One that does not end with such a token
            counts as cut off: its rollout has finish="length". None: none counts as cut off. It
            is not used for rollouts of `rollout_func`, which know how they ended.
        tokenizer: decodes completions as a run does, and splits off their thoughts by the tags of
            its chat template. None: their texts are those of TRL, in which special tokens are
            missing, so answers in tags that are special tokens earn nothing, and only thoughts
            between <think> and </think> are known.
    """
    batch = _Batch(env, None if end_ids is None else frozenset(end_ids), tokenizer)
    return [RewardFunction(part, batch) for part in env.weights], list(env.weights.values())


class RewardFunction:
    """Returns the value of one reward part for each completion; TRL calls it with keywords."""

    def __init__(self, part: str, batch: _Batch) -> None:
        self.__name__ = part
        """The name of the part, which TRL uses in its metrics."""
        self._batch = batch

    def __call__(
        self,
        completions: Sequence[str | Sequence[Mapping[str, Any]]],
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: LogMetric | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the value of the part, without its weight, for each completion.

        Where all completions of a task have the same value up to rounding, they get equal bits, so
        that TRL sees a group without a signal, too.

        Args:
            completions: (B,) texts, or lists of messages with role and content.
            completion_ids: (B, T) their tokens.
            trainer_state: has the number of the step as `global_step`, which selects the test
                inputs that a verifier draws; None: those of draw 0.
            log_metric: receives the name and value of a metric.
            **columns: (B,) values of further columns: `task_key` and, of dialogues, `rollout`.

        Raises:
            ConfigError: the rows do not belong to the environment.
            RunStoppedError: more completions could not be judged than verify.max_error_rate allows.
        """
        key_values = _column(columns, KEY_COLUMN)
        verdicts = self._batch.verdicts(
            self.__name__,
            key_values,
            columns.get(ROLLOUT_FIELD)
            or self._batch.single_turns(completions, completion_ids, columns.get("prompts")),
            step=None if trainer_state is None else trainer_state.global_step + 1,
            log_metric=log_metric,
        )
        values = [
            verdict.rewards[self.__name__].value if verdict.scored else None for verdict in verdicts
        ]
        return _settled_by_task(values, task_keys(key_values))


class _Batch:
    """Judges the completions of a batch once for all reward functions."""

    def __init__(
        self, env: OpenEnvironment, end_ids: frozenset[int] | None, tokenizer: Any
    ) -> None:
        self._env = env
        self._end_ids = end_ids
        self._tokenizer = tokenizer
        template = getattr(tokenizer, "chat_template", None)
        self._tags = chosen_tags(env.config.model.thought_tags, template)
        self._error_rate = ErrorRate(stop_above=env.config.verify.max_error_rate)
        self._lock = threading.Lock()
        self._judged: object = None
        """The keys, rollouts and draws of the verdicts."""
        self._verdicts: list[Verdict] = []
        self._served: set[str] = set()
        """The parts that have been returned for the present verdicts."""

    def verdicts(
        self,
        part: str,
        key_values: Sequence[Mapping[str, Any]],
        rollouts: Sequence[Rollout],
        *,
        step: int | None,
        log_metric: LogMetric | None,
    ) -> list[Verdict]:
        """Return a verdict for each rollout.

        They are those of the call before if the batch is the same and `part` was not asked for yet;
        a part that is asked for again wants new verdicts.

        Args:
            part: the reward part that is asked for.
            key_values: (B,) the column `task_key`.
            rollouts: (B,) the rollouts.
            step: number of the training step, from 1; None: no step.
            log_metric: receives the metrics of new verdicts.
        """
        keys = task_keys(key_values)
        draws = [self._draw(key, step) for key in keys]
        batch = (keys, list(rollouts), draws)
        with self._lock:
            if self._judged != batch or part in self._served:
                self._verdicts = self._judge(key_values, *batch)
                self._judged, self._served = batch, set()
                self._report(log_metric)
            self._served.add(part)
            return self._verdicts

    def single_turns(
        self,
        completions: Sequence[str | Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]] | None,
        prompts: Sequence[Any] | None,
    ) -> list[Rollout]:
        """Return completions that TRL generated as rollouts of one turn.

        Args:
            completions: texts, or lists of messages.
            completion_ids: their tokens.
            prompts: texts, or lists of messages; None: unknown, so none opens a thought.

        Raises:
            ConfigError: the environment holds dialogues, of which TRL only knows the tokens.
        """
        if self._env.turns > 1:
            raise ConfigError(
                f"{self._env.name!r} holds dialogues, which TRL cannot play by itself; give "
                "GRPOTrainer rollout_func=grpo_trl.rollout_func(env)"
            )
        ids = completion_ids or [()] * len(completions)
        opened = self._opened(prompts or [""] * len(completions))
        return [
            Rollout(
                (Message.turn(self._text(completion, tokens), self._tags, opened=opens),),
                finish="length" if self._is_cut_off(tokens) else "stop",
                token_ids=tuple(tokens),
                trainable=(1,) * len(tokens),
            )
            for completion, tokens, opens in zip(completions, ids, opened, strict=True)
        ]

    def _opened(self, prompts: Sequence[Any]) -> list[bool]:
        """Return of each prompt whether it opens a thought; a chat is rendered at most once."""
        opened: dict[str, bool] = {}
        for prompt in prompts:
            if (name := repr(prompt)) not in opened:
                opened[name] = opens_thought(self._prompt_text(prompt), self._tags)
        return [opened[repr(prompt)] for prompt in prompts]

    def _prompt_text(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a prompt; "" for a chat whose template shows no thoughts."""
        if isinstance(prompt, str):
            return prompt
        template = getattr(self._tokenizer, "chat_template", None)
        if self._tags is None or self._tags[0] not in str(template):
            return ""
        from grpo_core.engine.models import chat

        frame = chat.ChatFrame(arguments=self._env.config.model.chat_template_args)
        messages = tuple(Message(turn["role"], turn["content"]) for turn in prompt)
        return chat.render(self._tokenizer, messages, frame)

    def _text(self, completion: str | Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> str:
        """Return the text of a completion: that of its tokens, or else the one that TRL gives."""
        if self._tokenizer is None or not tokens:
            return _text(completion)
        hidden = pieces.hidden_ids(self._tokenizer, self._end_ids or ())
        return pieces.decode(self._tokenizer, tokens, hidden=hidden)

    def _is_cut_off(self, tokens: Sequence[int]) -> bool:
        return self._end_ids is not None and (not tokens or tokens[-1] not in self._end_ids)

    def _draw(self, key: TaskKey, step: int | None) -> int:
        """Return the draw of a task: that of a run's step, or 0 for held-out tasks."""
        if key.split == "eval" or step is None:
            return 0
        return draw_number(self._env.config.seed, step)

    def _judge(
        self,
        key_values: Sequence[Mapping[str, Any]],
        keys: Sequence[TaskKey],
        rollouts: Sequence[Rollout],
        draws: Sequence[int],
    ) -> list[Verdict]:
        for key in keys:
            if key.env != self._env.name:
                raise ConfigError(
                    f"the data set has tasks of {key.env!r}, but the reward functions are those of "
                    f"{self._env.name!r}"
                )
        distinct_keys = list(dict.fromkeys(keys))
        tasks_by_key = dict(zip(distinct_keys, self._env.tasks(distinct_keys), strict=True))
        tasks = [
            replace(tasks_by_key[key], draw=draw) for key, draw in zip(keys, draws, strict=True)
        ]
        refuse_other_prompts(key_values, tasks)
        return self._env.verdicts(tasks, rollouts)

    def _report(self, log_metric: LogMetric | None) -> None:
        """Log what became of the present verdicts.

        Raises:
            RunStoppedError: too many completions could not be judged.
        """
        errors = [verdict.error for verdict in self._verdicts if verdict.error is not None]
        passed = [float(verdict.passed) for verdict in self._verdicts if verdict.scored]
        if errors:
            logging.getLogger(__name__).warning(
                "%d of %d completions could not be judged, the first because: %s",
                len(errors),
                len(self._verdicts),
                errors[0],
            )
        if log_metric is not None and self._verdicts:
            log_metric("verdicts/unscored", len(errors) / len(self._verdicts))
            if passed:
                log_metric("verdicts/passed", sum(passed) / len(passed))
        self._error_rate.add(self._verdicts)


def _settled_by_task(values: Sequence[float | None], keys: Sequence[TaskKey]) -> list[float | None]:
    """Return the values with one value for all completions of a task where theirs are equal."""
    values_by_task: dict[TaskKey, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            values_by_task.setdefault(key, []).append(value)
    common = {key: min(group) for key, group in values_by_task.items() if all_same(group)}
    return [
        None if value is None else common.get(key, value)
        for key, value in zip(keys, values, strict=True)
    ]


def _column(columns: Mapping[str, Any], name: str) -> Any:
    """Return a column that the reward functions need.

    Raises:
        ConfigError: the data set does not have it, or the trainer has dropped it.
    """
    if columns.get(name) is None:
        raise ConfigError(
            f"the data set has no column {name!r}; make it with grpo_trl.dataset, and "
            "leave remove_unused_columns=False in GRPOConfig, its default"
        )
    return columns[name]


def _text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a completion, which is a text or a list of messages."""
    if isinstance(completion, str):
        return completion
    return "".join(message.get("content") or "" for message in completion)
