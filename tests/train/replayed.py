"""A run whose completions are written down, or read back: python replayed.py FILE record|replay OUT SETTINGS-AS-JSON."""

import json
import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from letters import Letters
from samplers import Copyless

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.train.trainer import Trainer


class Recorder(Copyless):
    """The built-in engine, whose completions are kept. A request is known by its numbers, which its place in the run fixes."""

    def __init__(self, policy: Policy) -> None:
        self.engine = Engine(policy)
        self.table: dict[tuple[float, ...], Completion] = {}

    async def generate(self, request: Request) -> Completion:
        completion = await self.engine.generate(request)
        self.table[tuple(request.uniforms)] = completion
        return completion


class Player(Copyless):
    def __init__(self, table: dict[tuple[float, ...], Completion]) -> None:
        self.table = table

    async def generate(self, request: Request) -> Completion:
        return self.table[tuple(request.uniforms)]


def main(file: str, mode: str, out: str, settings: str) -> None:
    config = build_config([nested({"environment": "letters", **json.loads(settings)})])
    policy = load_policy(config, need_reference=config.needs_reference)
    sampler = (
        Recorder(policy) if mode == "record" else Player(pickle.loads(Path(file).read_bytes()))
    )
    Trainer(config, Letters(), folder=out, policy=policy, sampler=sampler).run()
    if isinstance(sampler, Recorder):
        Path(file).write_bytes(pickle.dumps(sampler.table))


if __name__ == "__main__":
    main(*sys.argv[1:])
