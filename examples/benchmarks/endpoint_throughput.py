"""Compare completions through `grpo serve` with the same requests given to the sampler directly.

    python examples/benchmarks/endpoint_throughput.py [--clients 64] [--requests 2] [--tokens 32]

Each client sends its next request when it has the answer to the last one. The clients are the
`openai` package's, in a process of their own on the same machine, with a connection each. Both ways
draw the same tokens up to the rounding of other batches, as requests have seeds; rounds of both
alternate, so that other load on the machine falls on both. The bar is a throughput of 0.9 of the
sampler's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

BAR = 0.9


def question(client: int, number: int) -> str:
    """Return what a client asks in its request of this number."""
    return f"What is {client + 3} * {number + 7}? Then name the {client % 9 + 2} first primes."


def seed(client: int, number: int) -> int:
    return 1000 * number + client


async def drive(options: argparse.Namespace) -> None:
    """Send the requests of a round whenever a line comes in, and print its seconds and tokens."""
    import openai

    clients = [
        openai.AsyncOpenAI(base_url=options.drive, api_key="none", max_retries=0, timeout=3600)
        for _ in range(options.clients)
    ]

    async def use(client: int) -> int:
        tokens = 0
        for number in range(options.requests):
            answer = await clients[client].chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": question(client, number)}],
                max_tokens=options.tokens,
                seed=seed(client, number),
            )
            assert answer.usage is not None
            tokens += answer.usage.completion_tokens
        return tokens

    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        started = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(use, range(options.clients))))
        print(json.dumps([time.perf_counter() - started, tokens]), flush=True)


async def direct_round(actor: Any, options: argparse.Namespace) -> tuple[float, int]:
    """Give the requests of a round to the sampler, and return the seconds and tokens."""
    from grpo_core import Message
    from grpo_core.train.rollout.completions import random_key, sampler_request

    async def use(client: int) -> int:
        tokens = 0
        for number in range(options.requests):
            prompt = (Message("user", question(client, number)),)
            request = sampler_request(
                actor.policy.encode(prompt),
                actor.config.sampling.params(),
                key=random_key(seed(client, number), 0),
                count=options.tokens,
            )
            tokens += len((await actor.sampler.generate(request)).token_ids)
        return tokens

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(use, range(options.clients))))
    return time.perf_counter() - started, tokens


async def served_round(driver: subprocess.Popen[str]) -> tuple[float, int]:
    """Make the clients send the requests of a round; return the seconds and tokens."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write("go\n")
    driver.stdin.flush()
    line = await asyncio.get_running_loop().run_in_executor(None, driver.stdout.readline)
    seconds, tokens = json.loads(line)
    return seconds, tokens


async def compare(actor: Any, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return the tokens per second of both ways, for each round."""
    from grpo_core.config.settings import EndpointConfig
    from grpo_core.plugins.host import PluginHost
    from grpo_core.plugins.services import open_endpoint
    from grpo_endpoint.policy import PolicyCompleter

    endpoint = open_endpoint(PluginHost(), EndpointConfig())
    rounds = []
    async with actor.sampling():
        await actor.sync()
        await endpoint.open()
        access = endpoint.admit(PolicyCompleter(actor), key="")
        driver = subprocess.Popen(  # noqa: ASYNC220 - once, before anything is timed
            [sys.executable, __file__, "--drive", access.base_url, *sys.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert driver.stdout is not None
            await asyncio.get_running_loop().run_in_executor(None, driver.stdout.readline)
            for number in range(options.rounds + 1):
                direct, tokens = await direct_round(actor, options)
                served, served_tokens = await served_round(driver)
                if number:  # the first round of both warms up
                    rounds.append({"direct": tokens / direct, "served": served_tokens / served})
                    print(json.dumps(rounds[-1]), flush=True)
        finally:
            driver.kill()
            driver.wait()
            await endpoint.close()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        asyncio.run(drive(options))
        return
    from grpo_core import build_config
    from grpo_core.runs.observer import Observer
    from grpo_core.train.actor import build_actor
    from grpo_core.train.build import find_ranks
    from grpo_core.verify.sources import Sources

    config = build_config(
        [
            {
                "environment": "none",
                "model": {"name": options.model},
                "sampling": {"gather_ms": 5},  # as `grpo serve` sets it
            }
        ]
    )
    actor = build_actor(config, Sources([]), ranks=find_ranks(config), observer=Observer())
    rounds = asyncio.run(compare(actor, options))
    ratios = [each["served"] / each["direct"] for each in rounds]
    ratio = statistics.median(ratios)
    print(
        f"served / direct: median {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"{statistics.median(each['served'] for each in rounds):.0f} tokens/s served"
    )
    if ratio < BAR:
        sys.exit(f"the throughput is below {BAR} of the sampler's")


if __name__ == "__main__":
    main()
