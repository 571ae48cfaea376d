"""Train on sums natively and by an agent that asks through the endpoint: both should learn alike.

    python examples/benchmarks/learn_agent.py --out runs/agent [--seeds 0 1 2] [--agent-seeds 0 1]

Model, warm start and recipe are those of learn_small.py. The agent asks for one completion of the
task's prompt by the `openai` client, over HTTP, and returns its text. The bar: the mean gain of the
agent's runs differs from that of the native runs by no more than these differ among themselves. A
finished run in the folder is read, an interrupted one is resumed. Exits with 1 if it is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from learn_small import warm_start, write_examples
from small import characters, make_model, train_or_read

from grpo_core import AgentEnvironment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.plugins.host import PluginHost
from grpo_env_arithmetic.env import Arithmetic


class SumsByAgent(AgentEnvironment[Any]):
    """The sums of Arithmetic, asked for by an agent."""

    Config = Arithmetic.Config
    parts: ClassVar[Mapping[str, float]] = Arithmetic.parts
    max_new_tokens = Arithmetic.max_new_tokens
    max_turns = 1
    trusted = True

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self._sums = Arithmetic(self.config)

    def task(self, key: TaskKey) -> Task[Any]:
        """Return the task of Arithmetic, also its held-out ones."""
        task = self._sums.task(replace(key, env="arithmetic"))
        return replace(task, key=key)

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """Return the number of tasks of Arithmetic."""
        return self._sums.size(split)

    async def agent(self, task: Task[Any], client: Any) -> str:
        """Ask once."""
        assert not isinstance(task.prompt, str)
        messages = [{"role": each.role, "content": each.content} for each in task.prompt]
        answer = await client.chat.completions.create(model="policy", messages=messages)
        return str(answer.choices[0].message.content)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        """Judge what the agent returned."""
        said = Message("assistant", rollout.returned or "")
        return self._sums.verify(task, replace(rollout, messages=(said,)))


def gain(folder: Path, name: str, environment: str, settings: Mapping[str, Any]) -> float:
    """Return the gain in exact held-out sums of a run from the warm model in `folder`."""
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
    lines = train_or_read(
        [recipe, settings, {"environment": environment, "model": {"name": str(folder / "warm")}}],
        folder / name,
    )
    exact = [line["eval/pass_rate"] for line in lines if "eval/pass_rate" in line]
    seconds = fmean(line["time/step"] for line in lines if "time/step" in line)
    print(
        f"{folder.name}, {name}: {exact[0]:.1%} -> {exact[-1]:.1%} exact, {seconds:.2f} s a step",
        flush=True,
    )
    return float(exact[-1] - exact[0])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/agent"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--agent-seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--warm-steps", type=int, default=500)
    parser.add_argument("--steps", type=int, default=60, help="steps of GRPO")
    parser.add_argument("--tasks", type=int, default=339, help="held-out tasks of an evaluation")
    options = parser.parse_args()
    gains: dict[str, list[float]] = {"native": [], "agent": []}
    for seed in options.seeds:
        folder = options.out / f"seed-{seed}"
        if not (folder / "model").is_dir():
            make_model(folder / "model", characters(), seed)
            write_examples(folder / "answers.jsonl", seed)
        common = {
            "env": {"shots": 0},
            "seed": seed,
            "model": {"dtype": "float32"},
            "sampling": {"max_new_tokens": 24, "max_rows": 384},
            "eval": {"tasks": options.tasks},
        }
        recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
        warm = warm_start(folder, options.warm_steps)
        train_or_read([recipe, common, warm, {"method": "sft"}], folder / "warm")
        settings = {
            **common,
            "steps": options.steps,
            "prompts_per_step": 48,
            "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95]},
            "schedule": {"name": "linear", "warmup": 10},
            "trainer": {"mu": 1, "minibatches": 2},
            "eval": {"tasks": options.tasks, "every": options.steps},
        }
        gains["native"].append(gain(folder, "native", "arithmetic", settings))
        if seed in options.agent_seeds:
            agent = f"{Path(__file__).resolve()}:{SumsByAgent.__name__}"
            gains["agent"].append(gain(folder, "agent", agent, settings))
    spread = max(gains["native"]) - min(gains["native"])
    difference = fmean(gains["agent"]) - fmean(gains["native"])
    print(
        f"gain natively {fmean(gains['native']):.1%} (spread {spread:.1%}), by the agent "
        f"{fmean(gains['agent']):.1%}: {difference:+.1%}"
    )
    return 0 if abs(difference) <= spread else 1


if __name__ == "__main__":
    sys.exit(main())
