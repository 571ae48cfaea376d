"""One of several processes that meet: python joined.py CASE. It prints what came of it as JSON."""

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist

from grpo_core.engine.ranks import Ranks, exchange
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message, Reward, Rollout, Segment, TaskKey, ToolCall, Verdict

RANK = int(os.environ["RANK"])
VALUES: list[Any] = [
    *(True, 0, -(10**40), 0.1, -0.0, 5e-324, 1e308, float("inf"), float("-inf")),
    *("", "\ud800 \0 ü", None, b"\0\xff", Path("/a b"), (), [], {}, ((1, (2.5,)), [True, None])),
    *([[0.1, -0.0, float("inf"), 5e-324] * 9, tuple(range(-99, 99)), (2**31, -(2**63)) * 9]),
    *([[2**63] * 20, [True] * 20, [1, 0.5] * 20, (127, -128) * 20, [128] * 20]),
    {(0, 1, 2): ([0.1, float("inf")], [])},
    {"\0": ["tuple", [1]], "a": {"\0": 1}},
    TaskKey("e", "train", 3, 2**63, 0.3),
    Verdict(
        {"a": Reward(turns=(0.1, 0.2), note="n"), "b": Reward(0.5, 2.0)},
        passed=True,
        metrics={"m": 0.25},
        detail={"\0": ["dict", [[1, 2]]], "deep": {"list": [1, {"x": None}]}},
        cacheable=False,
    ),
    Verdict.failed("no"),
    Rollout(
        (Message("assistant", "x", (ToolCall("t", {"\0": ["Path", "x"]}, "1"),), "y", ("<", ">")),),
        prompt_ids=(1, 2),
        token_ids=(3,),
        logprobs=(-0.1,),
        trainable=(1,),
        later_segments=(Segment((1,), (2,), (-1e-17,), (1,), (0,)),),
        returned={"\0": ["bytes", "x"], "list": [[]]},
    ),
]
"""A value of each kind that processes exchange, and texts that look like the writing of others."""


class Planted:
    """Something that runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ['PLANTED']}",)


def values() -> object:
    ranks = Ranks(meeting_seconds=60, on_cpu=True)
    gathered = ranks.gather_values(VALUES)
    assert gathered == [VALUES, VALUES]
    assert repr(gathered[0]) == repr(gathered[1]) == repr(VALUES)
    nan, rank = ranks.gather_values((float("nan"), RANK))[1]
    assert nan != nan
    assert ranks.gather([[RANK] * 3] * (3 - RANK)) == [[0] * 3, [1] * 3, [0] * 3, [1] * 3, [0] * 3]
    assert ranks.gather_values("x" * (10**6 * RANK)) == ["", "x" * 10**6]
    for number in range(600):  # more than a byte counts
        assert ranks.gather_values(number) == [number] * 2
    return rank


def ports() -> object:
    """The addresses on which this process listens, and what is left of the secret."""
    folder = os.environ["GRPO_MEETING"]
    ranks = Ranks(meeting_seconds=60, on_cpu=True)
    ranks.meet()
    time.sleep(0.5)  # until the first process has removed it
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    return listening, "GRPO_MEETING" in os.environ, sorted(os.listdir(folder))


def poisoned() -> object:
    """The second process sends a pickle where the first one gathers."""
    ranks = Ranks(meeting_seconds=60, on_cpu=True)
    if RANK == 0:
        return ranks.gather_values(0)
    ranks.meet()
    exchange.exchange(pickle.dumps([Planted()]))
    return "sent"


def unknown() -> object:
    ranks = Ranks(meeting_seconds=15, on_cpu=True)
    try:
        ranks.gather_values(Planted() if RANK else 0)
    except TypeError as error:
        return str(error)
    return "gathered"


def late() -> object:
    """The second process opens its port long after the first one, so that others can come first."""
    exchange._PROOF_SECONDS = 4.0
    store = dist.FileStore

    def open_store(*arguments: Any) -> Any:
        time.sleep(3 * RANK)
        return store(*arguments)

    dist.FileStore = open_store  # type: ignore[misc, assignment]
    return Ranks(meeting_seconds=60, on_cpu=True).gather_values(RANK)


def dead() -> object:
    if RANK == 1:
        os._exit(0)
    return Ranks(meeting_seconds=2, on_cpu=True).size


def joined() -> object:
    return Ranks(meeting_seconds=60, on_cpu=True).gather_values(RANK)


try:
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
except GrpoError as error:
    print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
    os._exit(error.exit_status)
