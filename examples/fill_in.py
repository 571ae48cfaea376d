"""Masked fill-in from nothing on two CPU cores: a generator, a judge and an audit of a few characters' knowledge, then GRPO.

    python examples/fill_in.py --out runs/fill-in [--seed 0] [--noise]

The generator is a masked language model over characters, pretrained on short sentences. It fills all gaps of an input at once, each
character by itself, so its fills are often no words. Judge and audit are sequence classifiers that tell sentences from corrupted ones, made
from different seeds, in different sizes; training is paid by the judge and never sees the audit. Then `--recipe fill-in`, scaled to a
model of this size. --noise pays random numbers instead: then neither judge nor audit may rise. Needs the extra [train].
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import random
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, processors

from grpo_core import MASK, Judgement, JudgeRequest, NoConfig, Trainer, build_config
from grpo_core.plugins.host import PluginHost
from grpo_core.report.statistics import Gain, paired_gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_env_fillin.corpus import COUNTS, KINDS, WORK, from_file
from grpo_env_fillin.gaps import Gaps, cut

SPECIAL = PAD, UNKNOWN, START = "[PAD]", "[UNK]", "[CLS]"
LEAST_GAIN, MOST_KL = 0.1, 5.0


class Noise:
    """A judge that knows nothing: a number between 0 and 1 that each text fixes."""

    Config = NoConfig

    def __init__(self, config: NoConfig) -> None:
        """There is nothing to set."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        texts = [request.context + request.candidate + request.suffix for request in requests]
        return [
            Judgement(random.Random(hashlib.sha256(text.encode()).digest()).random())
            for text in texts
        ]

    def fingerprint(self) -> str:
        return "noise"

    async def close(self) -> None:
        """Nothing is open."""


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token for each character."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, MASK, *string.printable))}
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    found.decoder = decoders.Fuse()
    found.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocabulary[START])]
    )
    found.add_special_tokens([*SPECIAL, MASK])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=found,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START,
        mask_token=MASK,
        model_input_names=["input_ids", "attention_mask"],
    )


def shape(
    tokens: transformers.PreTrainedTokenizerFast, width: int
) -> transformers.ModernBertConfig:
    return transformers.ModernBertConfig(
        vocab_size=len(tokens),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=128,
        global_attn_every_n_layers=1,
        classifier_pooling="mean",
        num_labels=2,
        pad_token_id=tokens.pad_token_id,
        cls_token_id=tokens.cls_token_id,
        bos_token_id=None,
        eos_token_id=None,
        sep_token_id=None,
    )


def fitted(model: Any, steps: int, rate: float, loss: Callable[[], torch.Tensor]) -> Any:
    """The model after so many steps of AdamW down the losses, with a linear warm-up and decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for _ in range(steps):
        found = loss()
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


@functools.cache
def texts() -> Sequence[str]:
    """Short sentences about the people of the environment's own corpus, of which a fifth is held out."""
    return [
        f"the {kind} {person} {verb} {thing}."
        for person, (verbs, things, _) in WORK.items()
        for kind, verb, (one, several) in product(KINDS, verbs, things)
        for thing in (one, *(f"{count} {several}" for count in COUNTS))
    ]


@functools.cache
def shown(path: Path) -> Sequence[str]:
    """Those that training may see."""
    return from_file(path)["train"]


def gapped(path: Path, rng: random.Random, count: int) -> list[Gaps]:
    """Sentences with gaps of the sizes that the task has, and more of them."""
    return [
        cut(
            rng.choice(shown(path)),
            rng,
            unit="character",
            rate=rng.uniform(0.1, 0.5),
            span=rng.randint(2, 8),
        )
        for _ in range(count)
    ]


def make_generator(
    path: Path, tokens: transformers.PreTrainedTokenizerFast, seed: int, steps: int
) -> Any:
    """A masked language model of the training sentences."""
    torch.manual_seed(seed)
    rng = random.Random(f"generator {seed}")
    model = transformers.ModernBertForMaskedLM(shape(tokens, 128))

    def loss() -> torch.Tensor:
        chosen = gapped(path, rng, 32)
        asked = tokens([gaps.masked for gaps in chosen], return_tensors="pt", padding=True)
        wanted = tokens(
            [gaps.filled(gaps.golds) for gaps in chosen], return_tensors="pt", padding=True
        )["input_ids"]
        labels = wanted.masked_fill(asked["input_ids"] != tokens.mask_token_id, -100)
        found: torch.Tensor = model(**asked, labels=labels).loss
        return found

    return fitted(model, steps, 2e-3, loss)


@torch.no_grad()
def filled(
    generator: Any,
    tokens: transformers.PreTrainedTokenizerFast,
    chosen: Sequence[Gaps],
    temperature: float,
) -> list[str]:
    """The texts with what the generator puts in the gaps."""
    asked = tokens([gaps.masked for gaps in chosen], return_tensors="pt", padding=True)
    drawn = torch.distributions.Categorical(logits=generator(**asked).logits / temperature).sample()
    whole = torch.where(asked["input_ids"] == tokens.mask_token_id, drawn, asked["input_ids"])
    return [tokens.decode(row, skip_special_tokens=True) for row in whole]


def make_judge(
    path: Path,
    tokens: transformers.PreTrainedTokenizerFast,
    generator: Any,
    seed: int,
    width: int,
    steps: int,
) -> Any:
    """A classifier of sentences (1) and corrupted ones (0). First it learns which characters are wrong, which teaches it much faster."""
    torch.manual_seed(seed)
    rng, known = random.Random(f"judge {seed}"), frozenset(texts())
    detector = transformers.ModernBertForTokenClassification(shape(tokens, width))
    model = transformers.ModernBertForSequenceClassification(shape(tokens, width))

    def corrupted(count: int) -> list[tuple[str, str]]:
        """Sentences, each with one that is as long: a quarter has random characters in its gaps, the others what the generator says."""
        chosen = gapped(path, rng, count)
        random_ones = [
            gaps.filled([_scribble(rng, gold) for gold in gaps.golds])
            for gaps in chosen[: count // 4]
        ]
        by_model = filled(generator, tokens, chosen[count // 4 :], rng.choice((0.5, 0.8, 1.0)))
        found = [
            (gaps.filled(gaps.golds), text)
            for gaps, text in zip(chosen, [*random_ones, *by_model], strict=True)
        ]
        return [
            (true, text) for true, text in found if text not in known and len(text) == len(true)
        ]

    def wrong_characters() -> torch.Tensor:
        pairs = corrupted(32)
        asked = tokens([text for _, text in pairs], return_tensors="pt", padding=True)
        true = tokens([text for text, _ in pairs], return_tensors="pt", padding=True)["input_ids"]
        labels = (asked["input_ids"] != true).long().masked_fill(asked["attention_mask"] == 0, -100)
        logits, weight = (
            detector(**asked).logits,
            torch.tensor([1.0, 2.0]),
        )  # most characters are right
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), weight=weight
        )

    def wrong_texts() -> torch.Tensor:
        pairs = corrupted(24)
        labels = torch.tensor([1] * len(pairs) + [0] * len(pairs))
        asked = tokens(
            [true for true, _ in pairs] + [text for _, text in pairs],
            return_tensors="pt",
            padding=True,
        )
        found: torch.Tensor = model(**asked, labels=labels).loss
        return found

    fitted(detector, steps, 2e-3, wrong_characters)
    model.model.load_state_dict(detector.model.state_dict())
    return fitted(model, steps, 5e-4, wrong_texts)


def _scribble(rng: random.Random, text: str) -> str:
    return "".join(rng.choice(string.ascii_lowercase + " ") for _ in text)


def make_models(folder: Path, options: argparse.Namespace) -> None:
    """texts.txt, generator/, judge/ and audit/ in `folder`, unless they are there."""
    tokens, steps, path = tokenizer(), options.judge_steps, folder / "texts.txt"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts()) + "\n", encoding="utf-8")
    making: dict[str, Callable[[], Any]] = {
        "generator": lambda: make_generator(path, tokens, options.seed, options.generator_steps),
        "judge": lambda: make_judge(path, tokens, _generator(folder), options.seed, 128, steps),
        "audit": lambda: make_judge(
            path, tokens, _generator(folder), options.seed + 1000, 112, steps
        ),
    }
    for name, make in making.items():
        if not (folder / name / "config.json").exists():
            started = time.monotonic()
            model = make()
            model.save_pretrained(folder / name)
            tokens.save_pretrained(folder / name)
            print(
                f"{name}: {sum(p.numel() for p in model.parameters()):,} weights, made in {time.monotonic() - started:.0f} s",
                flush=True,
            )


def _generator(folder: Path) -> Any:
    return transformers.ModernBertForMaskedLM.from_pretrained(folder / "generator").eval()


def settings(folder: Path, options: argparse.Namespace) -> Mapping[str, Any]:
    """The recipe's, scaled to the model: a rate of 3e-4 instead of 1e-5."""
    judges = {
        name: {"name": "scorer", "settings": {"model": str(folder / name)}}
        for name in ("judge", "audit")
    }
    judges = {"default": judges["judge"], "audit": judges["audit"]} if not options.noise else judges
    if options.noise:
        judges["default"] = {"name": f"{Path(__file__).absolute()}:Noise"}
    return {
        "steps": options.steps,
        "seed": options.seed,
        "level": 0.4,
        "model": {"name": str(folder / "generator"), "dtype": "float32"},
        "env": {"path": str(folder / "texts.txt"), "unit": "character"},
        "judges": judges,
        "optimizer": {"lr": 3e-4},
        "eval": {"tasks": options.tasks},
    }


def gains(folder: Path, *, noise: bool) -> tuple[Gain, Gain]:
    """Of the judge and of the audit on the held-out inputs, from the run's log."""
    found: dict[tuple[str, int], dict[Any, float]] = {}
    for line in read_lines(folder / "rollouts.jsonl"):
        if line["key"]["split"] == "eval":
            verdict, key = line["verdict"], line["key"]["index"]
            judged = (
                verdict["metrics"]["judge/judge"] if noise else verdict["rewards"]["judge"]["value"]
            )
            found.setdefault(("judge", line["step"]), {})[key] = judged
            found.setdefault(("audit", line["step"]), {})[key] = verdict["metrics"]["judge/audit"]
    last = max(step for _, step in found)
    judge, audit = (paired_gain(found[name, 0], found[name, last]) for name in ("judge", "audit"))
    assert judge is not None
    assert audit is not None
    return judge, audit


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/fill-in"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", action="store_true", help="the control: pay random numbers")
    parser.add_argument("--steps", type=int, default=700, help="of GRPO")
    parser.add_argument("--generator-steps", type=int, default=300)
    parser.add_argument(
        "--judge-steps", type=int, default=200, help="of each of a judge's two trainings"
    )
    parser.add_argument("--tasks", type=int, default=256, help="held-out inputs")
    options = parser.parse_args()
    folder = options.out / f"seed-{options.seed}"
    make_models(folder, options)
    run = folder / ("noise" if options.noise else "grpo")
    if not (run / "final").is_dir():
        recipe: Mapping[str, Any] = PluginHost().load("recipe", "fill-in")
        Trainer(build_config([recipe, settings(folder, options)]), folder=run).run()
    lines = list(read_lines(RunFolder.open(run).path / "metrics.jsonl"))
    judge, audit = gains(run, noise=options.noise)
    divergence = max(line["kl/sequence"] for line in lines if "kl/sequence" in line)
    minutes = sum(line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in lines) / 60
    for name, gain in (("judge", judge), ("audit", audit)):
        print(
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, 95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )
    print(
        f"KL to the start at most {divergence:.2f} nats an attempt; {options.steps} steps in {minutes:.1f} minutes"
    )
    if options.noise:
        return (
            0 if max(judge.mean, audit.mean) < LEAST_GAIN and min(judge.low, audit.low) <= 0 else 1
        )
    return (
        0
        if min(judge.mean, audit.mean) >= LEAST_GAIN
        and min(judge.low, audit.low) > 0
        and divergence < MOST_KL
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
