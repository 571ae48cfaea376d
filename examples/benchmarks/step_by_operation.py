"""Say how much of a step's time matrix products, attention and everything else take.

    python examples/benchmarks/step_by_operation.py [--setting short|long] [--steps 4]
        [--trl-seconds 25.1]

It takes the steps of vs_trl.py, without TRL, every second one under PyTorch's profiler, which adds
time of its own. Prints the medians of both, and the seconds of each kind of operation. A trainer
that spent no time on anything but the products and attention would still need theirs, so with
--trl-seconds, the time of a step of TRL on the same machine, it also prints how many times as fast
as TRL such a trainer would be.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import workload
from sides import machine
from torch.profiler import ProfilerActivity, profile
from vs_trl import SETTINGS, Setting, settings_of

KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "_pointwise"),
    "attention": ("scaled_dot_product",),
    "packing of weights": ("_reorder_linear_weight",),
}
"""Parts of the names of a kind's operations."""
PRODUCTS, ATTENTION, *_ = KINDS
REST = "other operations"


def kind_of(operation: str) -> str:
    """Return the kind of an operation."""
    kinds = (kind for kind, parts in KINDS.items() if any(part in operation for part in parts))
    return next(kinds, REST)


class Profiling(workload.Watching):
    """Observer of a run: measures its steps, every second one with the profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[float] = []
        """Seconds of the steps without the profiler, after one of warm-up."""
        self.profiled: list[float] = []
        """Seconds of the steps under the profiler."""
        self.kinds: list[Counter[str]] = []
        """Seconds of each kind of operation in the latter."""
        self._profile: Any = None
        self._started = 0.0

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        seconds = time.perf_counter() - self._started
        if self._profile is not None:
            self._profile.stop()
            self.profiled.append(seconds)
            self.kinds.append(self._count())
            self._profile = None
        elif step > 1:
            self.plain.append(seconds)
        if step % 2 == 0 and step < total:
            self._profile = profile(
                activities=[ProfilerActivity.CPU], experimental_config=all_threads()
            )
            self._profile.start()
        self._started = time.perf_counter()

    def _count(self) -> Counter[str]:
        """Return the seconds of each kind of operation under the profiler."""
        seconds: Counter[str] = Counter()
        for event in self._profile.key_averages():
            seconds[kind_of(event.key)] += event.self_cpu_time_total / 1e6
        return seconds


def all_threads() -> Any:
    """Return the setting of the profiler that sees the thread in which grpo-core computes."""
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(profile_all_threads=True)


def run(setting: Setting, options: argparse.Namespace) -> Profiling:
    """Return the measurements of a run."""
    from grpo_core.config.overrides import build_config
    from grpo_core.train.trainer import Trainer

    with tempfile.TemporaryDirectory() as folder:
        given = settings_of(options, setting, folder)
        workload.Prompts.prompts = given["prompts"]
        names = ("prompts_per_step", "group_size", "steps")
        config = build_config(
            [
                workload.settings(
                    {"name": given["model"], "dtype": given["dtype"], "device": given["device"]},
                    new_tokens=given["max_new_tokens"],
                    **{name: given[name] for name in names},
                ),
                given["ours"],
            ]
        )
        profiling = Profiling()
        trainer = Trainer(
            config, workload.Prompts(), folder=Path(folder) / "run", observer=profiling
        )
        trainer.actor.policy.end_ids = ()
        trainer.run()
    print(f"{options.setting}: {machine(given['dtype'])}")
    return profiling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setting", choices=SETTINGS, default="short")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", help="auto: as grpo-core would choose")
    parser.add_argument("--steps", type=int, default=4, help="steps of each kind, after warm-up")
    parser.add_argument("--trl-seconds", type=float, help="of a step of TRL, from vs_trl.py")
    parser.add_argument("--set", action="append", default=[], help="settings, as for `grpo run`")
    options = parser.parse_args()
    options.device, options.steps = "cpu", 2 * options.steps  # `settings_of` adds one of warm-up

    found = run(SETTINGS[options.setting], options)
    step = statistics.median(found.profiled)
    print(
        f"a step: {statistics.median(found.plain):.2f} s without the profiler, {step:.2f} s with it"
    )
    medians = {
        kind: statistics.median(counted[kind] for counted in found.kinds) for kind in (*KINDS, REST)
    }
    for kind, seconds in medians.items():
        print(f"{kind}: {seconds:.2f} s, {seconds / step:.0%}")
    if options.trl_seconds:
        least = medians[PRODUCTS] + medians[ATTENTION]
        print(
            f"products and attention alone: {least:.2f} s, "
            f"{options.trl_seconds / least:.2f} times as fast as a step of TRL"
        )


if __name__ == "__main__":
    main()
