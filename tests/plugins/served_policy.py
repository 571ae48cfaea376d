"""Completers of a tiny policy: one that draws with the built-in engine, and one that says what a script has."""

from collections.abc import Callable
from pathlib import Path

from grpo_core.config.overrides import build_config
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.sampler import Completion, Request, Sampler
from grpo_core.runs.observer import Observer
from grpo_core.train.actor import Actor, build_actor
from grpo_core.train.build import find_ranks
from grpo_core.verify.sources import Sources
from grpo_endpoint.policy import PolicyCompleter

from ..train.samplers import Copyless
from ..train.tiny import save_tiny


class Scripted(Copyless):
    """Says what a function of the prompt's text returns, token by token."""

    def __init__(self, policy: Policy, script: Callable[[str], str]) -> None:
        self._tokenizer, self._script = policy.tokenizer, script

    async def generate(self, request: Request) -> Completion:
        text = self._script(self._tokenizer.decode(list(request.prefix)))
        said = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = (*said, self._tokenizer.eos_token_id)[: len(request.uniforms)]
        finish = "stop" if len(tokens) == len(said) + 1 else "length"
        return Completion(tokens, (-0.25,) * len(tokens), finish)


def tiny_actor(
    model: Path | Policy, make_sampler: Callable[[Policy], Sampler] | None = None
) -> Actor:
    """An actor with a policy, or with the tiny model, which is saved in a folder."""
    policy = model if isinstance(model, Policy) else None
    if isinstance(model, Path) and not model.exists():
        save_tiny(model)
    settings = {
        "environment": "none",
        "model": {"name": str(model) if policy is None else "tiny", "dtype": "float32"},
        "sampling": {"gather_ms": 5.0},
        "kl": {"beta": 0.0},
    }
    config = build_config([settings])
    return build_actor(
        config,
        Sources([]),
        ranks=find_ranks(config),
        observer=Observer(),
        policy=policy,
        make_sampler=None
        if make_sampler is None
        else (lambda policy, config: make_sampler(policy)),
    )


def scripted_completer(model: Path | Policy, script: Callable[[str], str]) -> PolicyCompleter:
    """A completer that says what a function of the prompt's text returns."""
    return PolicyCompleter(tiny_actor(model, lambda policy: Scripted(policy, script)))
