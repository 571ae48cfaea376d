"""Define the `Sampler` protocol: what continues token prefixes, what it is asked and what it gets.

A plugin offers one by the hook `grpo_samplers`: its target is called with its settings and a
`ModelToSample`, and returns a `Sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Finish

JSON_WHITESPACE = r" |\n {0,40}"
"""What may stand between the parts of JSON, as a regular expression: nothing, a space, or a line
break with an indentation. Where any whitespace may, small models write little else."""


class UnsupportedSchemaError(GrpoError):
    """The JSON schema of a request is not valid, or cannot be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Hold the settings that decide how a completion is drawn."""

    temperature: float = 1.0
    """The logits are divided by this; 0 takes the most likely token."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens that holds this much probability."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0: off."""
    min_p: float = 0.0
    """Draw from tokens at least this fraction as likely as the most likely token; 0: off."""
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these strings."""


Alternatives = tuple[tuple[int, float], ...]
"""The most likely tokens at a place with their log-probs, the most likely one first."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Hold what clients of a server ask for besides, and no run does.

    Log-probs stay those of the full distribution at the temperature, without bias and penalties.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Is added to the logits of these tokens."""
    repetition_penalty: float = 1.0
    """The logits of tokens of prefix and completion are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Is subtracted from the logits of tokens of the completion."""
    frequency_penalty: float = 0.0
    """Is subtracted as often as the completion has the token."""
    alternatives: int = 0
    """How many of the most likely tokens are reported at each place."""
    on_token: Callable[[int, float, Alternatives], None] | None = None
    """Is called in the event loop with each token when it was drawn, its log-prob and the
    alternatives."""

    @property
    def changes_logits(self) -> bool:
        """Return whether tokens are drawn from another distribution than the model's."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or penalties != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a completion of `prefix` of at most len(uniforms) tokens."""

    prefix: tuple[int, ...]
    """Tokens to continue."""
    uniforms: Sequence[float]
    """Numbers (T,) in [0, 1), one to draw each token; their number is the budget of tokens. A
    sampler that uses them may choose any mapping, as that by the cumulative probabilities, if it
    depends on nothing else."""
    params: SamplingParams = SamplingParams()
    """How to draw them; an evaluation may have others than a step."""
    seed: int = 0
    """Seed (64 bits) for samplers that cannot draw with the numbers above. Like those it depends
    only on the place in the run: run seed, step, prompt, attempt and turn."""
    json_schema: Mapping[str, Any] | None = None
    """Draw only tokens with which the completion can become JSON of this schema, and an end token
    only behind all of it. None: draw any token. Only samplers that follow schemas get one (see
    `follows_schemas`)."""
    extras: Extras | None = None
    """Wishes of a server's client. Only samplers that take them get any (see `takes_extras`)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Hold the tokens that a sampler drew for a request."""

    token_ids: tuple[int, ...] = ()
    """Tokens (T,), with the end token."""
    logprobs: tuple[float, ...] = ()
    """Log-probs (T,) under the full distribution at the temperature."""
    finish: Finish = "length"
    """Why the completion ended: "stop" by an end token or a stop string, "length" by its budget.
    """
    kept_mass: float = 1.0
    """Least probability mass that top-p, top-k, min-p and a JSON schema kept in any draw; 1.0
    without them."""
    version: int = 0
    """Version of the weights that drew the tokens."""
    alternatives: tuple[Alternatives, ...] = ()
    """The most likely tokens at each place (T,); () if the request asked for none."""


class Weights(Protocol):
    """Give the policy's present weights to a sampler that keeps a copy of them."""

    @property
    def is_adapter(self) -> bool:
        """Return whether an adapter is trained, so that only the adapter changes."""
        ...

    async def save(self, folder: Path) -> None:
        """Write the adapter (PEFT) or the model (transformers) into `folder`, as safetensors.

        Raises:
            OSError: the folder cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelToSample:
    """Describe the model that a sampler of a plugin is to load, before anything is trained."""

    path: Path
    """Folder of the base model, in the format of transformers, with its tokenizer."""
    trust_remote_code: bool
    """Whether the user allows code that comes with the model."""
    dtype: str
    """Type of the trainer's forward pass: "float32", "bfloat16" or "float16"."""
    device: str
    """Kind of the trainer's device: "cpu", "cuda" or "mps"."""
    context: int | None
    """Most tokens that the model can attend to; None if unknown."""
    end_ids: frozenset[int]
    """Every token that ends a completion."""
    adapter_rank: int | None
    """Rank of the adapter that is trained; None if all weights are."""
    decode: Callable[[Sequence[int]], str]
    """Return the text of tokens as the trainer reads it, to find stop strings."""


class Sampler(Protocol):
    """Continue token prefixes.

    A sampler never sees text, so earlier turns are never tokenised again. Before anything is
    trained, its log-probs are compared with the trainer's. One that can follow the JSON schema of a
    request has an attribute besides, `follows_schemas`, which is True; so has one that can do what
    `Request.extras` says, `takes_extras`.
    """

    uses_uniforms: ClassVar[bool]
    """Whether tokens are drawn with the numbers of a request, so that a run can be replayed
    exactly. Otherwise they are drawn with its seed, and the loss is weighted by truncated
    importance (`loss.tis_cap`)."""

    @property
    def samples_during_updates(self) -> bool:
        """Return whether requests may be in progress while the policy is trained.

        That needs weights of its own, which only `sync` changes, and nothing that an update needs,
        such as memory that `rest` would free. With it, a run with `pipeline.max_staleness` above 0
        samples during its updates, and does not call `rest`.
        """
        ...

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request; requests that wait together are computed together.

        If the caller is cancelled, the completion is given up.

        Raises:
            UnsupportedSchemaError: the JSON schema of the request cannot be followed.
            GrpoError: it cannot be computed, also after the sampler's own retries; the run ends.
        """
        ...

    async def sync(self, weights: Weights, version: int) -> None:
        """Take the present weights for all later requests; no request is in progress.

        Args:
            weights: the policy's weights, valid until this returns.
            version: number of the step after which the weights are these; 0 before training. A
                resumed run may go back to a lower one. `Completion.version` repeats it.
        """
        ...

    async def rest(self) -> None:
        """Leave the device to the policy, which is trained now; `sync` precedes the next request.

        A sampler that shares no device with the trainer has nothing to do.
        """
        ...

    async def close(self) -> None:
        """Free what the sampler holds, such as processes; a later `sync` opens it again."""
        ...


def follows_schemas(sampler: Sampler) -> bool:
    """Return whether a sampler can follow `Request.json_schema`.

    Its attribute `follows_schemas` says so; a sampler without it cannot.
    """
    return bool(getattr(sampler, "follows_schemas", False))


def takes_extras(sampler: Sampler) -> bool:
    """Return whether a sampler can do what `Request.extras` says; its attribute of this name does.

    A sampler without the attribute cannot.
    """
    return bool(getattr(sampler, "takes_extras", False))
