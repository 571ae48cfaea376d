"""Time `grpo generate` beside plain transformers on idle and busy cores, in pairs.

    python examples/benchmarks/busy.py [--competitors 0 2 8] [--pairs 3] [--tokens 16]

Both start Python, load the model and write the same number of tokens greedily. In each pair the
other one goes first every second time. Competitors are busy loops in processes of their own. Prints
the seconds of wall clock and processor of each, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

PROMPT = "Calculate (4 - 3) + 5."
PLAIN = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompt, tokens = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
chat = [{"role": "user", "content": prompt}]
form = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
ids = tokenizer.apply_chat_template(chat, **form)
out = model.generate(**ids, max_new_tokens=int(tokens), do_sample=False)
print(tokenizer.decode(out[0, ids["input_ids"].shape[1]:]))
"""


@contextlib.contextmanager
def competitors(count: int) -> Iterator[None]:
    """Keep `count` processes busy during the block; each ends by itself after 20 minutes."""
    loop = "import time\nend = time.time() + 1200\nwhile time.time() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds of wall clock and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, used


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="an alias or a folder")
    parser.add_argument("--competitors", type=int, nargs="*", default=[0, 2, 8])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    from grpo_core.engine.models.load import resolve

    folder = str(resolve(arguments.model).path)
    more = ["--max-new-tokens", str(arguments.tokens), "--temperature", "0"]
    generate = ["generate", "--model", arguments.model, *more, PROMPT]
    ours = [sys.executable, "-c", "from grpo_core.cli import main; main()", *generate]
    plain = [sys.executable, "-c", PLAIN, folder, PROMPT, str(arguments.tokens)]
    commands = {"grpo generate": ours, "transformers": plain}
    for command in commands.values():
        timed(command)  # fills the caches
    for count in arguments.competitors:
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        with competitors(count):
            for pair in range(arguments.pairs):
                for name in list(commands)[:: -1 if pair % 2 else 1]:
                    seconds[name].append(timed(commands[name]))
        medians = {
            name: statistics.median(wall for wall, _ in each) for name, each in seconds.items()
        }
        for name, each in seconds.items():
            used = statistics.median(processor for _, processor in each)
            print(
                f"{count} competitors: {name:<14} {medians[name]:6.1f} s, {used:6.1f} of processor"
            )
        ratio = medians["grpo generate"] / medians["transformers"]
        print(f"{count} competitors: ratio {ratio:.2f} (load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
