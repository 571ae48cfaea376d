"""Run the GPU tests, and time grpo-core, vLLM and TRL on a GPU with a model of 0.5 billion weights.

    python examples/benchmarks/gpu.py --out runs/gpu [--trl-python TRL/bin/python]
        [--vllm-python VLLM/bin/python]

The model has the shape of Qwen2-0.5B and random weights, so nothing is downloaded. Two settings are
timed: 8 prompts x 8 completions of 256 tokens after prompts of 256, and 8 x 16 of 1,024 after 512.
In each, vs_trl.py times a step of grpo-core beside one of TRL, and again with completions from vLLM
instead of the built-in engine; vs_vllm.py times generation alone. Parts whose --trl-python or
--vllm-python is not given are left out, and the report says so.

--out receives each part's log and JSON, `gpu.md` with the table and `gpu.png` with the picture. A
part that has its JSON there is not run again, nor are the tests where their log is. Exits with 1 if
a part or a test fails; the others are run and reported all the same.

`--device cpu --small` tries this script without a GPU: tiny matrices, few tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from picture import picture
from small import characters, save_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests" / "train" / "test_gpu.py"


@dataclass(frozen=True)
class Shape:
    """Hold the size of a step."""

    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int

    def __str__(self) -> str:
        return f"{self.prompts}x{self.group}:{self.prompt_tokens}+{self.new_tokens}"


SHAPES = (Shape(8, 8, 256, 256), Shape(8, 16, 512, 1024))
SMALL_SHAPES = (Shape(2, 2, 8, 4), Shape(2, 4, 12, 6))


@dataclass(frozen=True)
class Part:
    """Hold one measurement."""

    name: str
    """Name of its files."""
    title: str
    """Its title in the table."""
    command: Sequence[str]
    """Its command, to which `--out FILE.json` is added."""


def save_model(folder: Path, *, small: bool) -> None:
    """Save a Qwen2 of 0.5 billion random weights, or a tiny one, and a tokenizer of characters."""
    sizes: dict[str, Any] = (
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        if small
        else {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
        }
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        **sizes, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder, characters())


def parts(options: argparse.Namespace, model: Path) -> list[Part]:
    """Return the measurements that the options allow."""
    common = ["--model", str(model), "--device", options.device, "--dtype", "bfloat16"]
    chosen = []
    for shape in SMALL_SHAPES if options.small else SHAPES:
        size = f"{shape.prompts} x {shape.group}, {shape.prompt_tokens} + {shape.new_tokens} tokens"
        name = f"{shape.prompts}x{shape.group}"
        step = [str(HERE / "vs_trl.py"), *common, "--shape", str(shape)]
        step += ["--steps", str(options.steps)]
        if options.trl_python:
            step += ["--trl-python", options.trl_python]
            chosen.append(Part(f"step-{name}", f"step, {size}", step))
        if options.trl_python and options.vllm_python:
            python = json.dumps({"python": options.vllm_python})
            with_vllm = ["--set", "sampler.name=vllm", "--set", f"sampler.settings={python}"]
            title = f"step with vLLM as the sampler, {size}"
            chosen.append(Part(f"vllm-step-{name}", title, [*step, *with_vllm]))
        generation = [str(HERE / "vs_vllm.py"), *common, "--least", "0"]
        generation += ["--batches", str(options.steps)]
        generation += ["--rows", str(shape.prompts * shape.group), "--group", str(shape.group)]
        generation += ["--prompt", str(shape.prompt_tokens), "--tokens", str(shape.new_tokens)]
        if options.vllm_python:
            generation += ["--vllm-python", options.vllm_python]
        chosen.append(Part(f"generation-{name}", f"generation, {size}", generation))
        if shape == SHAPES[0]:
            plain = [*generation, "--set", "sampling.cuda_graphs=false"]
            title = f"generation without CUDA graphs, {size}"
            chosen.append(Part(f"plain-generation-{name}", title, plain))
    return [part for part in chosen if not options.parts or part.name in options.parts]


def run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> bool:
    """Run a command, write its output into `log`, and return whether it succeeded."""
    print(f"{log.stem} ...", flush=True)
    with log.open("w") as out:
        status = subprocess.run(
            [sys.executable, *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            check=False,
        ).returncode
    if status:
        print(f"{log.stem} failed with status {status}; its output is in {log}", flush=True)
    return status == 0


def row(title: str, result: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table for a measurement."""
    if "medians" in result:
        return [
            f"| {title} | {name} | {values['seconds']:.2f} | {values['rollout']:.2f} | "
            f"{values['update']:.2f} | {values['peak_mb'] / 1000:.1f} | |"
            for name, values in result["medians"].items()
        ]
    return [
        f"| {title} | {name} | | | | | {speed:.0f} |"
        for name, speed in result["tokens_per_second"].items()
    ]


def report(out: Path, lines: Sequence[str], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the table, and a picture of the results."""
    table = [
        "| measured | by | s/step | rollout, s | update, s | peak, GB | tokens/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, result in results.items():
        table += row(title, result)
    (out / "gpu.md").write_text("\n".join([*lines, "", *table, ""]))
    if results:
        picture(list(results.values())).savefig(out / "gpu.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trl-python", help="Python of the environment in which TRL is installed")
    parser.add_argument("--vllm-python", help="Python of the environment that has vLLM")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--steps", type=int, default=3, help="measured steps of a part, after one of warm-up"
    )
    parser.add_argument(
        "--parts", nargs="*", help="names of parts, such as step-8x8, to run no others"
    )
    parser.add_argument("--small", action="store_true", help="try this script with a tiny model")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU; --device cpu --small tries the script without one")

    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    model = (out / "model").resolve()
    if not model.exists():
        save_model(model, small=options.small)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    tests = ["-m", "pytest", "-m", "heavy", "-n", "4", "-q", str(TESTS)]
    failed = []
    if not (out / "tests.log").exists() and not run(
        tests, out / "tests.log", {"GRPO_GPU_DEVICE": options.device}
    ):
        failed.append("tests")
    left_out = [
        f"{name} was left out: no --{name.lower()}-python was given."
        for name, python in (("TRL", options.trl_python), ("vLLM", options.vllm_python))
        if not python
    ]
    summary = (out / "tests.log").read_text().splitlines()[-1]
    heading = f"{device}, torch {torch.__version__}. GPU tests: {summary}"
    results: dict[str, Mapping[str, Any]] = {}
    for part in parts(options, model):
        file = out / f"{part.name}.json"
        if not file.exists():
            run([*part.command, "--out", str(file)], out / f"{part.name}.log", {})
        if file.exists():
            results[part.title] = json.loads(file.read_text())
        else:
            failed.append(part.name)
        failures = [f"Failed: {', '.join(failed)}."] if failed else []
        # After each part, so that an interruption loses one.
        report(out, [heading, *left_out, *failures], results)
    print((out / "gpu.md").read_text())
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
