"""Verification on a Ray cluster, beside verification on this machine.

    python examples/benchmarks/ray_verification.py equal --gsm8k FOLDER
    python examples/benchmarks/ray_verification.py faults --gsm8k FOLDER
    python examples/benchmarks/ray_verification.py overhead
    python examples/benchmarks/ray_verification.py scale

It needs the extra `ray`. Each prints a line of JSON per result, and exits with 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from raylets import two_raylets

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict, build_config
from grpo_core.config.config import RunConfig
from grpo_core.protocol.executor import EnvironmentToVerify, Executor
from grpo_core.verify.sources import Sources
from grpo_core.verify.workers.hosts import Placement
from grpo_core.verify.workers.local import LocalExecutor
from grpo_ray.config import RayConfig
from grpo_ray.executor import RayExecutor
from grpo_ray.place import RayPlace

OVERHEAD_MS, LINEAR_SHARE, SLOW_SECONDS = 5.0, 0.9, 0.5
SCALE = (1, 2, 4, 8, 16)
HERE = Path(__file__).resolve()


class Slow(Environment[int]):
    """Stand for a simulator: a verdict takes half a second, in which the CPU has nothing to do."""

    deterministic = False  # so that equal answers are not taken from the cache

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, f"Say {key.index}.", key.index)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        time.sleep(SLOW_SECONDS)
        return Verdict({"reward": Reward(float(rollout.text == str(task.data)))})


class Noted(RayExecutor):
    """The executor, which says where its actors are."""

    def __init__(self, config: RayConfig) -> None:
        super().__init__(config)
        self.places: dict[str, RayPlace] = {}

    def open(self, environment: EnvironmentToVerify) -> RayPlace:
        self.places[environment.spec.name] = super().open(environment)
        return self.places[environment.spec.name]

    def actors(self) -> list[tuple[str, int]]:
        """Return node and process id of all actors."""
        return [actor for place in self.places.values() for actor in place.actors]


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def configured(members: dict[str, dict[str, Any]], **verify: Any) -> RunConfig:
    return build_config(
        [
            {
                "mixture": {name: {"env": env} for name, env in members.items()},
                "verify": {"cache": "off", **verify},
            }
        ]
    )


def opened(config: RunConfig, executor: Executor) -> Sources:
    placement = Placement(executor, "ray", config.sandbox, config.judges)
    return Sources.of(config, {}, placement=placement)


async def answered(sources: Sources, rows: int) -> dict[str, list[tuple[Task[Any], list[Rollout]]]]:
    """Return tasks of each environment with answers of several kinds, `rows` answers in all."""
    found = {}
    for source in sources:
        keys = [TaskKey(source.name, "train", index) for index in range(rows // 5)]
        tasks = await sources.tasks(keys)
        references = [str(text) for text in await sources.references(tasks)]
        found[source.name] = [
            (task, [Rollout.of(text) for text in _answers(own, other)])
            for task, own, other in zip(
                tasks, references, [*references[1:], references[0]], strict=True
            )
        ]
    return found


def _answers(reference: str, other: str) -> tuple[str, ...]:
    """Return an honest answer, that to another task, a cut one, none, and a hostile one."""
    return reference, other, reference[: len(reference) // 2], "", f"{reference}\0{other}" * 20


async def equal(rows: int, members: dict[str, dict[str, Any]]) -> bool:
    """Compare verdicts of two nodes with those of this machine, row by row."""
    config, good = configured(members), True
    with two_raylets(cpus=4) as raylets:
        executor = Noted(RayConfig(raylets.address, actors=4, num_cpus=0.5))
        async with opened(config, LocalExecutor()) as here, opened(config, executor) as there:
            used = {node for node, _ in executor.actors()}
            for name, pairs in (await answered(here, rows)).items():
                tasks, rollouts = zip(*pairs, strict=True)
                started = time.monotonic()
                local = [v for row in await here.verify(tasks, rollouts) for v in row]
                middle = time.monotonic()
                away = [v for row in await there.verify(tasks, rollouts) for v in row]
                differing = sum(one != two for one, two in zip(local, away, strict=True))
                errors = sum(not verdict.scored for verdict in away)
                rewards = len({verdict.total for verdict in away if verdict.scored})
                say(
                    what="equal", environment=name, rows=len(away), differing=differing,
                    errors=errors, kinds_of_rewards=rewards, nodes=sorted(used),
                    own_network=raylets.apart, local_seconds=round(middle - started, 1),
                    ray_seconds=round(time.monotonic() - middle, 1),
                )  # fmt: skip
                for one, two in zip(local, away, strict=True):
                    if one != two:
                        say(what="differing", here=one.to_json(), there=two.to_json())
                        break
                good &= not differing and not errors and len(used) == 2
    return good


async def faults(rows: int, members: dict[str, dict[str, Any]], *, docker: bool) -> bool:
    """Kill an actor, then a node, then restart Docker, while verdicts are asked for."""
    config, good = configured(members, retries=1), True
    with two_raylets(cpus=4) as raylets:
        executor = Noted(RayConfig(raylets.address, actors=4, num_cpus=0.5, start_seconds=30))
        async with opened(config, LocalExecutor()) as here, opened(config, executor) as there:
            answers = await answered(here, rows)
            expected = await here.verify(*_columns(answers))

            def kill_actor() -> None:
                name = next(reversed(executor.places))
                os.kill(executor.places[name].actors[0][1], signal.SIGKILL)

            def restart_docker() -> None:
                say(what="restart Docker now, then send a line")
                sys.stdin.readline()

            steps: list[tuple[str, Callable[[], None] | None]] = [
                ("nothing", None), ("an actor is killed", kill_actor),
                ("a raylet is killed", raylets.kill_second),
                *([("the Docker daemon is restarted", restart_docker)] if docker else []),
                ("nothing any more", None),
            ]  # fmt: skip
            for event, fault in steps:
                there.forget_stats()
                started = time.monotonic()
                verifying = asyncio.create_task(there.verify(*_columns(answers)))
                if fault is not None:
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(fault)
                verdicts = [v for row in await verifying for v in row]
                wanted = [v for row in expected for v in row]
                pairs = list(zip(wanted, verdicts, strict=True))
                wrong = sum(two.scored and two != one for one, two in pairs)
                errors = sum(not verdict.scored for verdict in verdicts)
                counted = sum(source.verifier.stats.errors for source in there)
                reasons = {str(v.error)[:160] for v in verdicts if not v.scored}
                say(
                    what="faults", event=event, rows=len(verdicts), wrong_rewards=wrong,
                    errors=errors, counted=counted,
                    retried=sum(source.verifier.stats.retried for source in there),
                    actors=len(executor.actors()), seconds=round(time.monotonic() - started, 1),
                    reasons=sorted(reasons),
                )  # fmt: skip
                good &= not wrong and counted == errors
            good &= errors == 0  # after the last fault everything works again
    return good


def _columns(answers: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    pairs = [pair for row in answers.values() for pair in row]
    return [task for task, _ in pairs], [rollouts for _, rollouts in pairs]


async def overhead(calls: int) -> bool:
    """Time verdicts one after the other, in worker processes here and behind an actor, in turn."""
    config = configured({"arithmetic": {}}, isolation="process", workers=1)
    executor = Noted(RayConfig(actors=1))
    async with opened(config, LocalExecutor()) as here, opened(config, executor) as there:
        (pair, *_) = (await answered(here, 5))["arithmetic"]
        task, rollouts = pair[0], pair[1][:1]
        times: dict[Sources, list[float]] = {here: [], there: []}
        for number in range(calls + 20):
            for sources, seconds in times.items():
                started = time.perf_counter()
                await sources.verify([task], [rollouts])
                if number >= 20:
                    seconds.append((time.perf_counter() - started) * 1000)
        local, away = (statistics.median(seconds) for seconds in times.values())
    say(
        what="overhead", calls=calls, local_p50_ms=round(local, 2), ray_p50_ms=round(away, 2),
        overhead_p50_ms=round(away - local, 2), bar_ms=OVERHEAD_MS,
    )  # fmt: skip
    return away - local < OVERHEAD_MS


async def scale(each: int, counts: Sequence[int]) -> bool:
    """Time verdicts that take half a second, with more and more actors."""
    config, good, one = configured({f"{HERE}:Slow": {}}, timeout_seconds=30), True, 0.0
    for count in counts:
        executor = Noted(RayConfig(actors=count, num_cpus=0.1))
        async with opened(config, executor) as sources:
            (source,) = sources
            tasks = await sources.tasks([TaskKey(source.name, "train", i) for i in range(8)])
            warm = [[Rollout.of("")] * (2 * count)]
            await sources.verify(tasks[:1], warm)
            rollouts = [[Rollout.of(str(i)) for i in range(count * each // 8)] for _ in tasks]
            started = time.monotonic()
            verdicts = [v for row in await sources.verify(tasks, rollouts) for v in row]
            rate = len(verdicts) / (time.monotonic() - started)
        one = one or rate
        share = rate / one / count * counts[0]
        errors = sum(not verdict.scored for verdict in verdicts)
        say(
            what="scale", actors=count, verdicts=len(verdicts), errors=errors,
            verdicts_per_second=round(rate, 2), of_linear=round(share, 3),
            of_possible=round(rate * SLOW_SECONDS / count, 3), bar=LINEAR_SHARE,
        )  # fmt: skip
        good &= share >= LINEAR_SHARE and not errors
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["equal", "faults", "overhead", "scale"])
    parser.add_argument("--rows", type=int, default=500, help="answers of each environment")
    parser.add_argument("--environments", default="arithmetic,gsm8k,fizzbuzz")
    parser.add_argument("--gsm8k", default="", help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--no-docker", action="store_true", help="do not ask to restart Docker")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--each", type=int, default=24, help="verdicts for each actor")
    parser.add_argument("--actors", default=",".join(map(str, SCALE)))
    chosen = parser.parse_args()
    settings = {"gsm8k": {"path": chosen.gsm8k}}
    members = {name: settings.get(name, {}) for name in chosen.environments.split(",")}
    work: dict[str, Callable[[], Awaitable[bool]]] = {
        "equal": lambda: equal(chosen.rows, members),
        "faults": lambda: faults(chosen.rows, members, docker=not chosen.no_docker),
        "overhead": lambda: overhead(chosen.calls),
        "scale": lambda: scale(chosen.each, [int(n) for n in chosen.actors.split(",")]),
    }

    async def done() -> bool:
        return await work[chosen.what]()

    sys.exit(0 if asyncio.run(done()) else 1)


if __name__ == "__main__":
    main()
