"""Train masked fill-in from scratch on two CPU cores: generator, judge and audit, then GRPO.

    python examples/fill_in.py --out runs/fill-in [--seed 0] [--noise]

The generator is a masked language model over characters, pretrained on short sentences. It fills
all gaps of an input at once, each character independently, so its fills are often not words. Judge
and audit are sequence classifiers that distinguish sentences from corrupted ones, made with
different seeds and sizes; the judge gives the rewards, and training never sees the audit. Then GRPO
runs with `--recipe fill-in`, scaled to a model of this size. With --noise the rewards are random
numbers instead: then neither judge nor audit may rise. Needs the extra [train].
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
from grpo_core.figures.gains import Gain, paired_gain
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_env_fillin.corpus import COUNTS, KINDS, WORK, from_file
from grpo_env_fillin.gaps import Gaps, cut

SPECIAL = PAD, UNKNOWN, START = "[PAD]", "[UNK]", "[CLS]"
LEAST_GAIN, MOST_KL = 0.1, 5.0


class Noise:
    """A judge that gives each text a random number from 0 to 1, always the same one."""

    Config = NoConfig

    def __init__(self, config: NoConfig) -> None:
        """Take no settings."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        texts = [request.context + request.candidate + request.suffix for request in requests]
        return [
            Judgement(random.Random(hashlib.sha256(text.encode()).digest()).random())
            for text in texts
        ]

    def fingerprint(self) -> str:
        return "noise"

    async def close(self) -> None:
        """Do nothing, since nothing is open."""


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each character."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, MASK, *string.printable))}
    characters = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    characters.decoder = decoders.Fuse()
    characters.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocabulary[START])]
    )
    characters.add_special_tokens([*SPECIAL, MASK])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters,
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


def fit(model: Any, steps: int, rate: float, loss: Callable[[], torch.Tensor]) -> Any:
    """Train a model by `steps` steps of AdamW with a linear warm-up and decay, and return it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for _ in range(steps):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


@functools.cache
def texts() -> Sequence[str]:
    """Return short sentences about the people of the environment's corpus; a fifth is held out."""
    return [
        f"the {kind} {person} {verb} {thing}."
        for person, (verbs, things, _) in WORK.items()
        for kind, verb, (singular, plural) in product(KINDS, verbs, things)
        for thing in (singular, *(f"{count} {plural}" for count in COUNTS))
    ]


@functools.cache
def training_texts(path: Path) -> Sequence[str]:
    """Return the texts of the file that training may see."""
    return from_file(path)["train"]


def draw_gaps(path: Path, rng: random.Random, count: int) -> list[Gaps]:
    """Draw sentences with gaps of the task's sizes, and with more gaps than the task has."""
    return [
        cut(
            rng.choice(training_texts(path)),
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
    """Train a masked language model on the training sentences."""
    torch.manual_seed(seed)
    rng = random.Random(f"generator {seed}")
    model = transformers.ModernBertForMaskedLM(shape(tokens, 128))

    def loss() -> torch.Tensor:
        batch = draw_gaps(path, rng, 32)
        inputs = tokens([gaps.masked for gaps in batch], return_tensors="pt", padding=True)
        targets = tokens(
            [gaps.filled(gaps.golds) for gaps in batch], return_tensors="pt", padding=True
        )["input_ids"]
        labels = targets.masked_fill(inputs["input_ids"] != tokens.mask_token_id, -100)
        batch_loss: torch.Tensor = model(**inputs, labels=labels).loss
        return batch_loss

    return fit(model, steps, 2e-3, loss)


@torch.no_grad()
def fill_gaps(
    generator: Any,
    tokens: transformers.PreTrainedTokenizerFast,
    batch: Sequence[Gaps],
    temperature: float,
) -> list[str]:
    """Return the texts with gaps filled by the generator."""
    inputs = tokens([gaps.masked for gaps in batch], return_tensors="pt", padding=True)
    logits = generator(**inputs).logits / temperature
    sampled = torch.distributions.Categorical(logits=logits).sample()
    filled = torch.where(inputs["input_ids"] == tokens.mask_token_id, sampled, inputs["input_ids"])
    return [tokens.decode(row, skip_special_tokens=True) for row in filled]


def make_judge(
    path: Path,
    tokens: transformers.PreTrainedTokenizerFast,
    generator: Any,
    seed: int,
    width: int,
    steps: int,
) -> Any:
    """Train a classifier that distinguishes sentences (1) from corrupted ones (0).

    It first learns to detect which characters are wrong, which makes training much faster.
    """
    torch.manual_seed(seed)
    rng, known = random.Random(f"judge {seed}"), frozenset(texts())
    detector = transformers.ModernBertForTokenClassification(shape(tokens, width))
    model = transformers.ModernBertForSequenceClassification(shape(tokens, width))

    def corrupted(count: int) -> list[tuple[str, str]]:
        """Return pairs of a sentence and a corrupted one of the same length.

        A quarter has random characters in the gaps, the others have the generator's fills.
        """
        batch = draw_gaps(path, rng, count)
        random_fills = [
            gaps.filled([_random_text(rng, gold) for gold in gaps.golds])
            for gaps in batch[: count // 4]
        ]
        model_fills = fill_gaps(generator, tokens, batch[count // 4 :], rng.choice((0.5, 0.8, 1.0)))
        pairs = [
            (gaps.filled(gaps.golds), text)
            for gaps, text in zip(batch, [*random_fills, *model_fills], strict=True)
        ]
        return [
            (true, text) for true, text in pairs if text not in known and len(text) == len(true)
        ]

    def detection_loss() -> torch.Tensor:
        pairs = corrupted(32)
        inputs = tokens([text for _, text in pairs], return_tensors="pt", padding=True)
        true = tokens([text for text, _ in pairs], return_tensors="pt", padding=True)["input_ids"]
        is_wrong = (inputs["input_ids"] != true).long()
        labels = is_wrong.masked_fill(inputs["attention_mask"] == 0, -100)
        logits = detector(**inputs).logits
        weight = torch.tensor([1.0, 2.0])  # most characters are right
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), weight=weight
        )

    def classification_loss() -> torch.Tensor:
        pairs = corrupted(24)
        labels = torch.tensor([1] * len(pairs) + [0] * len(pairs))
        inputs = tokens(
            [true for true, _ in pairs] + [text for _, text in pairs],
            return_tensors="pt",
            padding=True,
        )
        batch_loss: torch.Tensor = model(**inputs, labels=labels).loss
        return batch_loss

    fit(detector, steps, 2e-3, detection_loss)
    model.model.load_state_dict(detector.model.state_dict())
    return fit(model, steps, 5e-4, classification_loss)


def _random_text(rng: random.Random, text: str) -> str:
    return "".join(rng.choice(string.ascii_lowercase + " ") for _ in text)


def make_models(folder: Path, options: argparse.Namespace) -> None:
    """Make texts.txt, generator/, judge/ and audit/ in `folder`, unless they exist."""
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
            weights = sum(p.numel() for p in model.parameters())
            seconds = time.monotonic() - started
            print(f"{name}: {weights:,} weights, made in {seconds:.0f} s", flush=True)


def _generator(folder: Path) -> Any:
    return transformers.ModernBertForMaskedLM.from_pretrained(folder / "generator").eval()


def settings(folder: Path, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the recipe's settings scaled to the model: learning rate 3e-4 instead of 1e-5."""
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
    """Return the gains of the judge's and the audit's score on the held-out inputs of a run."""
    scores: dict[tuple[str, int], dict[Any, float]] = {}
    for line in RunFolder(folder).rollout_lines():
        if line["key"]["split"] == "eval":
            verdict, key = line["verdict"], line["key"]["index"]
            score = (
                verdict["metrics"]["judge/judge"] if noise else verdict["rewards"]["judge"]["value"]
            )
            scores.setdefault(("judge", line["step"]), {})[key] = score
            scores.setdefault(("audit", line["step"]), {})[key] = verdict["metrics"]["judge/audit"]
    last = max(step for _, step in scores)
    judge, audit = (paired_gain(scores[name, 0], scores[name, last]) for name in ("judge", "audit"))
    assert judge is not None
    assert audit is not None
    return judge, audit


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/fill-in"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", action="store_true", help="the control: random rewards")
    parser.add_argument("--steps", type=int, default=700, help="steps of GRPO")
    parser.add_argument("--generator-steps", type=int, default=300)
    parser.add_argument(
        "--judge-steps", type=int, default=200, help="steps of each of a judge's two trainings"
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
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, "
            f"95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )
    print(
        f"KL to the start at most {divergence:.2f} nats a completion; "
        f"{options.steps} steps in {minutes:.1f} minutes"
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
