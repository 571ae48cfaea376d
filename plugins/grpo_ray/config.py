"""The settings of the executor `ray`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from grpo_core import ConfigError, Harmless
from grpo_core.protocol.consent import Names, SettingsOf


@dataclass(frozen=True, slots=True)
class Actors:
    """Say how many actors verify for an environment, and what each of them takes."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    actors: int | None = None
    """Number of actors; unset: `verify.workers`, or as many as the cluster has room for, shared
    by the environments of the run."""
    num_cpus: float = 1.0
    """CPUs that Ray reserves for each actor; may be a fraction."""
    num_gpus: float = 0.0
    """GPUs that Ray reserves for each actor; may be a fraction."""
    resources: Mapping[Annotated[str, Harmless], float] = field(default_factory=dict)
    """Custom resources that each actor takes, such as {"docker": 1}: only nodes that have them,
    as by `ray start --resources`, get actors."""

    def needs(self) -> dict[str, float]:
        """Return the amount of each of Ray's resources that an actor takes, without zeros."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in amounts.items() if amount}


@dataclass(frozen=True, slots=True)
class RayConfig:
    """Settings of the executor `ray`."""

    address: str | None = None
    """Address of a cluster, HOST:PORT, or "auto" for the one on this machine; unset: the variable
    RAY_ADDRESS, and without it a cluster on this machine that starts and ends with the run."""
    actors: int | None = None
    """Number of actors of each environment; unset: as for `environments`."""
    num_cpus: float = 1.0
    """CPUs that Ray reserves for each actor."""
    num_gpus: float = 0.0
    """GPUs that Ray reserves for each actor."""
    resources: Mapping[Annotated[str, Harmless], float] = field(default_factory=dict)
    """Custom resources that each actor takes."""
    environments: Mapping[Annotated[str, Harmless], Actors] = field(default_factory=dict)
    """By name, environments whose actors take something else: actors, num_cpus, num_gpus and
    resources, instead of all four above."""
    start_seconds: float = 120.0
    """How long the start of an actor may take, with its imports and its wait for room."""

    def __post_init__(self) -> None:
        refuse_client(self.cluster_address(), "verify.executor.settings.address")
        groups: dict[str, RayConfig | Actors] = {"": self, **self.environments}
        for name, group in groups.items():
            where = f" of {name!r}" if name else ""
            amounts = (group.num_cpus, group.num_gpus, *group.resources.values())
            if min(amounts) < 0 or (group.actors is not None and group.actors < 1):
                raise ConfigError(
                    f"the executor 'ray' needs at least 1 actor{where} and amounts of at least 0"
                )

    def cluster_address(self) -> str | None:
        """Return the address of a cluster that runs already; None if there is none to join."""
        return cluster_address(self.address)

    def actors_of(self, environment: str) -> Actors:
        """Return what the actors of an environment are and take."""
        usual = Actors(self.actors, self.num_cpus, self.num_gpus, self.resources)
        return self.environments.get(environment, usual)


BUILTIN = "builtin"
"""The name of the built-in engine as a sampler of actors."""


@dataclass(frozen=True, slots=True)
class RaySamplerConfig:
    """Settings of the sampler `ray`."""

    sampler: Annotated[str, Names] = BUILTIN
    """What draws in each actor: builtin (the built-in engine with a copy of the model), or the name
    of a plugin's sampler, such as vllm."""
    settings: Annotated[Mapping[str, Any], SettingsOf("sampler", "sampler")] = field(
        default_factory=dict
    )
    """Its settings; of builtin those under `sampling` that limit memory: max_rows, kv_mb and
    prepack."""
    address: str | None = None
    """Address of a cluster, as for the executor `ray`, with which it is shared."""
    actors: int = 1
    """Number of actors; each has a copy of the model."""
    num_cpus: float = 1.0
    """CPUs that Ray reserves for each actor."""
    num_gpus: float = 0.0
    """GPUs that Ray reserves for each actor."""
    resources: Mapping[Annotated[str, Harmless], float] = field(default_factory=dict)
    """Custom resources that each actor takes."""
    at_once: int = 128
    """Most completions that an actor has at a time; further ones wait."""
    start_seconds: float = 900.0
    """How long the start of an actor may take, or the handover of weights."""
    retries: int = 2
    """How often a completion is requested again after its actor was lost."""

    def __post_init__(self) -> None:
        refuse_client(cluster_address(self.address), "sampler.settings.address")
        if min(self.actors, self.at_once, self.retries + 1) < 1 or self.sampler == "ray":
            raise ConfigError(
                "the sampler 'ray' needs at least 1 actor, at_once of at least 1, retries of 0 or "
                "more, and the name of another sampler"
            )

    def actors_taken(self) -> Actors:
        """Return how many actors there are, and what each of them takes."""
        return Actors(self.actors, self.num_cpus, self.num_gpus, self.resources)


def cluster_address(address: str | None) -> str | None:
    """Return the address of a cluster that runs already; None if there is none to join."""
    return address or os.environ.get("RAY_ADDRESS") or None


def refuse_client(address: str | None, setting: str) -> None:
    """Raise ConfigError for the address of a Ray client server; `setting` is the one to change."""
    if (address or "").startswith("ray://"):
        raise ConfigError(
            f"the address {address!r} is that of a Ray client server; start the run on a machine "
            f"of the cluster, and set {setting}=HOST:PORT, as `ray status` shows it"
        )
