"""Compare a step of grpo-core with a step of TRL's GRPOTrainer.

    python3 -m venv TRL && TRL/bin/pip install trl==1.16 peft
    python examples/benchmarks/vs_trl.py --trl-python TRL/bin/python [--setting short|long]
        [--shape 8x16:512+1024] [--steps 5] [--out FILE.json]

Model, prompts, rewards, LoRA, precision and number of tokens are the same. Both are loaded once and
take their steps in turn, so that a noisy machine disturbs both; the results are medians after a
step of warm-up. Every completion has the full length (end tokens are ignored). TRL computes without
gradient checkpointing, which is faster for it, in micro-batches of --trl-micro-batch rows. Peak
memory is that of each process, or what it allocated on the GPU. Exits with 1 if a bar of the
setting is missed; a shape of its own has none.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workload
from sides import Side, machine

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Hold what is compared, and the bars."""

    prompts: int = 4
    """Prompts of a step."""
    group: int = 8
    """Completions of each prompt."""
    prompt_tokens: int
    new_tokens: int
    """Tokens of each completion."""
    trl_micro_batch: int
    """Rows of a forward pass of TRL."""
    times_faster: float = 0.0
    """Least ratio of the times of a step; 0: no bar."""
    share_of_memory: float = math.inf
    """Largest ratio of the peaks of memory."""

    @property
    def tokens(self) -> int:
        """Return the number of new tokens of a step."""
        return self.prompts * self.group * self.new_tokens


SETTINGS = {
    "short": Setting(
        prompt_tokens=57, new_tokens=24, trl_micro_batch=32, times_faster=7, share_of_memory=1
    ),
    "long": Setting(
        prompt_tokens=512, new_tokens=64, trl_micro_batch=16, times_faster=7, share_of_memory=0.5
    ),
}


def shape(text: str) -> Setting:
    """Return the setting of a text like 8x16:512+1024, without a bar.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    if (match := re.fullmatch(r"(\d+)x(\d+):(\d+)\+(\d+)", text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape; write PROMPTSxGROUP:PROMPT_TOKENS+NEW_TOKENS, "
            "such as 8x16:512+1024"
        )
    prompts, group, prompt_tokens, new_tokens = map(int, match.groups())
    return Setting(
        prompts=prompts,
        group=group,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        trl_micro_batch=group,
    )


class Turns(workload.Watching):
    """Observer of the run of grpo-core: waits for its turn, and prints a step's measurements."""

    def __init__(self) -> None:
        self.started = self.computed = 0.0

    def wait(self) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self.started, self.computed = time.perf_counter(), time.process_time()

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        seconds, peak = time.perf_counter() - self.started, metrics["memory/peak_mb"]
        print(
            "@"
            + json.dumps(
                {
                    "seconds": seconds,
                    "cpu": time.process_time() - self.computed,
                    "rollout": metrics["time/rollout"],
                    "update": metrics["time/update"],
                    "peak_mb": peak,
                }
            ),
            flush=True,
        )
        if step < total:
            self.wait()


def our_side(given: str) -> None:
    from grpo_core.config.overrides import build_config
    from grpo_core.train.trainer import Trainer

    settings = json.loads(given)
    workload.Prompts.prompts = settings["prompts"]
    config = build_config(
        [
            workload.settings(
                {
                    "name": settings["model"],
                    "dtype": settings["dtype"],
                    "device": settings["device"],
                },
                prompts_per_step=settings["prompts_per_step"],
                group_size=settings["group_size"],
                new_tokens=settings["max_new_tokens"],
                steps=settings["steps"],
            ),
            settings["ours"],
        ]
    )
    turns = Turns()
    trainer = Trainer(
        config, workload.Prompts(), folder=Path(settings["out"]) / "ours", observer=turns
    )
    trainer.actor.policy.end_ids = ()
    turns.wait()
    trainer.run()


def settings_of(options: argparse.Namespace, setting: Setting, folder: str) -> dict[str, Any]:
    """Return what both sides are given, except for what only TRL reads.

    Args:
        options: the arguments model, dtype, device, steps and set.
        setting: what is compared.
        folder: folder for the runs.
    """
    from transformers import AutoTokenizer

    from grpo_core.config.overrides import nested
    from grpo_core.engine.models.device import pick_device, pick_dtype
    from grpo_core.engine.models.load import resolve
    from grpo_core.engine.models.source import local_folder

    model = local_folder(resolve(options.model))
    tokenizer = AutoTokenizer.from_pretrained(model)
    count = setting.prompts * (options.steps + 1)
    prompts = workload.prompts(tokenizer, count, setting.prompt_tokens)
    dtype = pick_dtype(options.dtype, pick_device(options.device))
    return {
        "model": model,
        "dtype": str(dtype).removeprefix("torch."),
        "device": options.device,
        "prompts_per_step": setting.prompts,
        "group_size": setting.group,
        "max_new_tokens": setting.new_tokens,
        "steps": options.steps + 1,
        "prompts": [tokenizer.decode(ids) for ids in prompts],
        "out": folder,
        "ours": nested(dict(pair.split("=", 1) for pair in options.set)),
    }


def report(
    sides: Mapping[str, Side],
    settings: Mapping[str, Any],
    setting: Setting,
    out: Path | None,
) -> None:
    """Print and save the medians and their ratios; exit with 1 if a bar is missed."""
    medians = {name: side.medians() for name, side in sides.items()}
    ours, theirs = medians["grpo-core"], medians["trl"]
    ratios = {
        name: theirs[name] / ours[name] for name in ("seconds", "rollout", "update", "peak_mb")
    }
    for name, values in medians.items():
        print(
            f"{name}: {values['seconds']:.2f} s a step, "
            f"rollout {setting.tokens / values['rollout']:.0f} tokens/s, "
            f"update {setting.tokens / values['update']:.0f} tokens/s, "
            f"peak {values['peak_mb']:.0f} MB"
        )
    faster = ", ".join(
        f"{name} {ratios[key]:.2f}"
        for name, key in (("step", "seconds"), ("rollout", "rollout"), ("update", "update"))
    )
    print(f"times faster: {faster}; memory 1/{ratios['peak_mb']:.2f}")
    if out:
        kept = {
            key: value for key, value in settings.items() if key not in ("prompts", "out", "model")
        }
        out.write_text(
            json.dumps(
                {
                    "machine": machine(settings["dtype"]),
                    "settings": kept,
                    "medians": medians,
                    "ratios": ratios,
                },
                indent=2,
            )
            + "\n"
        )
    if ratios["seconds"] < setting.times_faster or 1 / ratios["peak_mb"] > setting.share_of_memory:
        print(
            f"missed: the bar is {setting.times_faster:g} times faster with at most "
            f"{setting.share_of_memory:g} times the memory"
        )
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trl-python", required=True, help="Python of the environment in which TRL is installed"
    )
    parser.add_argument("--setting", choices=SETTINGS, default="short")
    parser.add_argument(
        "--shape",
        type=shape,
        metavar="PROMPTSxGROUP:PROMPT_TOKENS+NEW_TOKENS",
        help="instead of --setting, without a bar",
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", help="of both; auto: as grpo-core would choose")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after one of warm-up")
    parser.add_argument("--trl-micro-batch", type=int, help="rows of a forward pass of TRL")
    parser.add_argument(
        "--trl-checkpointing",
        action="store_true",
        help="let TRL recompute activations, its default: slower, less memory",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="further settings of grpo-core, as for `grpo run`",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    setting: Setting = options.shape or SETTINGS[options.setting]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            **settings_of(options, setting, folder),
            "beta": 0.04,
            "lora_r": 16,
            "trl_micro_batch": options.trl_micro_batch or setting.trl_micro_batch,
            "checkpointing": options.trl_checkpointing,
        }
        sides = {
            "grpo-core": Side(
                [sys.executable, __file__, "--our-side"], settings, Path(folder) / "ours.log"
            ),
            "trl": Side(
                [options.trl_python, str(HERE / "trl_side.py")], settings, Path(folder) / "trl.log"
            ),
        }
        for number in range(options.steps + 1):
            for name, side in sides.items():
                step = side.step()
                print(
                    f"step {number} {name}: {step['seconds']:.2f} s "
                    f"(rollout {step['rollout']:.2f}, update {step['update']:.2f})",
                    flush=True,
                )
        for side in sides.values():
            side.close()
    report(sides, settings, setting, options.out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--our-side"]:
        our_side(sys.argv[2])
    else:
        main()
