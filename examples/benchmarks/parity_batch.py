"""Make what trl_parity.py trains: a tiny Llama, the weights that it moves to, and a batch."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import small
import torch
from parity_float64 import Weights, weights_of
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from grpo_core.protocol.types import Group, Reward, Rollout, Task, TaskKey, Verdict

PROMPTS, GROUP, BUDGET = 4, 4, 10
ROWS = PROMPTS * GROUP
VOCABULARY = 60
END_ID = small.SPECIAL.index(small.END)
STRAY = (0.0, 0.06, 0.09, 0.12)
"""How far each set of weights is from those that sampled, as a share of their own spread."""
SAMPLER_NOISE = 0.7
"""Standard deviation of what the sampler's log-probs differ by."""


@dataclass(frozen=True)
class Batch:
    """Hold the completions of a batch with the parts of their rewards."""

    rollouts_PG: list[list[Rollout]]
    part_KB: list[list[float | None]]
    """Each part's value for each completion; None where it could not be scored."""
    weight_K: list[float]

    @property
    def rollouts(self) -> list[Rollout]:
        """Return the completions in one list."""
        return [rollout for group in self.rollouts_PG for rollout in group]

    def totals(self) -> list[float | None]:
        """Return the reward of each completion."""
        return [
            None
            if None in parts
            else sum(w * float(v or 0) for w, v in zip(self.weight_K, parts, strict=True))
            for parts in zip(*self.part_KB, strict=True)
        ]

    def lengths(self) -> list[int]:
        """Return the number of trainable tokens of each completion."""
        return [sum(rollout.trainable) for rollout in self.rollouts]

    def groups(self) -> list[Group[None]]:
        """Return the groups with the verdicts that an environment would give."""
        verdicts = [
            Verdict(error="not scored")
            if None in parts
            else Verdict(
                {
                    f"part_{k}": Reward(float(value or 0), self.weight_K[k])
                    for k, value in enumerate(parts)
                }
            )
            for parts in zip(*self.part_KB, strict=True)
        ]
        task = Task(TaskKey("parity", "train", 0), "?", None)
        return [
            Group(task, rollouts, verdicts[i * GROUP : (i + 1) * GROUP])
            for i, rollouts in enumerate(self.rollouts_PG)
        ]

    def for_trl(self) -> dict[str, Any]:
        """Return the batch as trl_parity_side.py reads it."""
        fields: dict[str, Any] = {
            "prompts": [str(p) for p in range(PROMPTS) for _ in range(GROUP)],
            "prompt_ids": [rollout.prompt_ids for rollout in self.rollouts],
            "completion_ids": [rollout.token_ids for rollout in self.rollouts],
            "logprobs": [rollout.logprobs for rollout in self.rollouts],
            "rewards": self.part_KB,
        }
        if any(0 in rollout.trainable for rollout in self.rollouts):
            fields["env_mask"] = [rollout.trainable for rollout in self.rollouts]
        return fields


def make_model(folder: Path) -> tuple[LlamaForCausalLM, list[Weights]]:
    """Save a reference model, and return it with the weights of the policy in each update.

    The first are those that sample; they differ from the reference.
    """
    disable_progress_bar()
    tokenizer = small.characters()
    tokenizer.add_special_tokens([*small.SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=small.END, pad_token=small.PAD, padding_side="left"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=END_ID,
        pad_token_id=small.SPECIAL.index(small.PAD),
        dtype=torch.float64,
    )
    model = LlamaForCausalLM(config).double().eval()
    model.save_pretrained(folder)
    sampling = _moved(weights_of(model), 0.08)
    return model, [_moved(sampling, share) for share in STRAY]


def _moved(weights: Weights, share: float) -> Weights:
    """Return the weights with noise of `share` of their root mean square."""
    return {
        name: tensor + share * tensor.pow(2).mean().sqrt() * torch.randn_like(tensor)
        for name, tensor in weights.items()
    }


def make_batch(model: LlamaForCausalLM) -> Batch:
    """Return random completions with rewards; `model` has the weights that sampled.

    Prompts and completions are ragged, some are truncated, and one group has equal rewards.
    """
    rng = random.Random(0)
    prompts = [_draw(rng, rng.randint(3, 8)) for _ in range(PROMPTS)]
    rollouts_PG = [[_rollout(rng, model, prompt) for _ in range(GROUP)] for prompt in prompts]
    # Multiples of 1/16: TRL holds rewards in float32.
    rewards = [rng.randrange(17) / 16 for _ in range(ROWS)]
    rewards[GROUP : 2 * GROUP] = [0.5] * GROUP
    return Batch(rollouts_PG, [rewards], [1.0])


def _draw(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(len(small.SPECIAL), VOCABULARY) for _ in range(length))


def _rollout(rng: random.Random, model: LlamaForCausalLM, prompt: tuple[int, ...]) -> Rollout:
    truncated = rng.random() < 0.25
    tokens = _draw(rng, BUDGET) if truncated else (*_draw(rng, rng.randint(0, 8)), END_ID)
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    log_TV = torch.log_softmax(logits_TV[len(prompt) - 1 : -1], dim=-1)
    drawn = [
        float(log_TV[t, token]) + rng.gauss(0, SAMPLER_NOISE) for t, token in enumerate(tokens)
    ]
    finish = "length" if truncated else "stop"
    return Rollout((), finish, prompt, tokens, tuple(drawn), (1,) * len(tokens))


def of_dialogues(batch: Batch) -> Batch:
    """Return the batch with some tokens written by the environment, in one row all of them."""
    rng = random.Random(1)

    def masked(row: int, rollout: Rollout) -> Rollout:
        written = [int(row > 0 and rng.random() < 0.6) for _ in rollout.token_ids]
        return replace(rollout, trainable=tuple(written))

    rows = [masked(row, rollout) for row, rollout in enumerate(batch.rollouts)]
    return replace(batch, rollouts_PG=[rows[i : i + GROUP] for i in range(0, ROWS, GROUP)])


def partly_scored(batch: Batch) -> Batch:
    """Return the batch with two completions that could not be scored."""
    return replace(
        batch,
        part_KB=[
            [None if b in (1, 9) else v for b, v in enumerate(part)] for part in batch.part_KB
        ],
    )


def of_two_parts(batch: Batch) -> Batch:
    """Return the batch with a second part of the reward, of another weight."""
    rng = random.Random(2)
    second: list[float | None] = [rng.randrange(5) / 4 for _ in range(ROWS)]
    return replace(batch, part_KB=[*batch.part_KB, second], weight_K=[1.0, 0.25])


CHANGES = {change.__name__: change for change in (of_dialogues, partly_scored, of_two_parts)}


def changed(batch: Batch, change: str) -> Batch:
    """Return the batch as the named function changes it; "" leaves it as it is."""
    return CHANGES[change](batch) if change else batch
