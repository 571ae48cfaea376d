"""Common parts of the learning runs with small models.

It makes models of random weights in ordinary folders, and starts, continues or only reads runs.
"""

from __future__ import annotations

import string
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_core.config.overrides import build_config
from grpo_core.protocol.sampler import Sampler
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.gains import logged_scores
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

SPECIAL = PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class EvaluationPrinter(Observer):
    """Prints a line for each evaluation."""

    def __init__(self, name: str) -> None:
        self.name, self.started = name, time.monotonic()

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    warn = say

    def alarm(self, title: str, text: str) -> None:
        self.say(f"ALARM: {title}: {text}")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        minutes = (time.monotonic() - self.started) / 60
        self.say(
            f"step {step}: {metrics['eval/pass_rate']:.1%} exact, "
            f"reward {metrics['eval/reward/mean']:.3f}, {minutes:.1f} min"
        )


def characters() -> Tokenizer:
    """Make a tokenizer with one token for each character."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *string.printable))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def pieces(texts: Iterable[str], count: int) -> Tokenizer:
    """Make a tokenizer of `count` tokens: frequent pieces of `texts`, and single digits."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=count,
            special_tokens=[*SPECIAL],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Save the tokenizer, with a chat template, in a model folder."""
    tokenizer.add_special_tokens([*SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="left",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def make_model(
    folder: Path, tokenizer: Tokenizer, seed: int, *, hidden: int = 256, layers: int = 4
) -> None:
    """Save a Llama of random weights, by default 3.2 million, with the tokenizer as a folder."""
    save_tokenizer(folder, tokenizer)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=hidden * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(START),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def train_or_read(
    layers: list[Mapping[str, Any]], folder: Path, *, sampler: Sampler | None = None
) -> list[dict[str, Any]]:
    """Start or continue the run in `folder`, unless it is finished, and return its metrics.

    Args:
        layers: its settings, later ones win.
        folder: where it is.
        sampler: draws the completions; the one that the settings name if left out.
    """
    if not (folder / "final").is_dir():
        observer = EvaluationPrinter(folder.name)
        if (folder / "config.json").exists():
            trainer = Trainer.resumed(folder, observer=observer, sampler=sampler)
        else:
            trainer = Trainer(
                build_config(layers), folder=folder, observer=observer, sampler=sampler
            )
        trainer.run()
    return list(read_lines(RunFolder.open(folder).path / "metrics.jsonl"))


def passed_tasks(run: Path) -> list[dict[str, float]]:
    """Return the pass rate of each held-out task at the start and at the end of a run."""
    folder = RunFolder.open(run)
    lines = read_lines(folder.path / "metrics.jsonl")
    last = max(line["step"] for line in lines if "eval/pass_rate" in line)
    return [
        {key: scores["pass_rate"] for key, scores in logged_scores(folder, [step])[step].items()}
        for step in (0, last)
    ]
