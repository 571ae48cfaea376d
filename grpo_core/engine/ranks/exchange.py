"""Send bytes from each process to the others, as tensors: nothing that arrives is unpickled."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_core.protocol.errors import RunStoppedError

_PROOF_SECONDS = 120.0
"""How long a process may take to answer; all of them are there already."""
_NONCE_BYTES = 32
_PURPOSE = b"grpo ranks 1"


def exchange(message: bytes) -> list[bytes]:
    """Return the message of each process, in the order of their ranks.

    All processes have to call it. The lengths go first.
    """
    device, size = collective_device(), dist.get_world_size()
    mine = torch.tensor([len(message)], device=device)
    lengths = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(lengths, mine)
    bounds = torch.cat(lengths).tolist()
    padded = torch.zeros(max(1, *bounds), dtype=torch.uint8, device=device)
    if message:
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    return [
        part[:length].cpu().numpy().tobytes() for part, length in zip(parts, bounds, strict=True)
    ]


def prove_membership(secret: bytes) -> None:
    """Show each process the secret without telling it, and ask the same of each.

    A process that has connected to the port of another one in a third one's place has the
    addresses of nobody else and not the secret. Each pair of processes uses its own connection for
    it, the one that later carries weights and verdicts: both send a random number, and answer with
    a keyed digest of both numbers and of who speaks to whom.

    Args:
        secret: what only the processes of the run know; empty if they were given none.

    Raises:
        RunStoppedError: a process does not have the secret.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [secrets.token_bytes(_NONCE_BYTES) for _ in range(size)]
    theirs = _swap(mine)

    def proof(sender: int, receiver: int, said: bytes, heard: bytes) -> bytes:
        text = b"%s|%d|%d|%d|" % (_PURPOSE, size, sender, receiver)
        return hmac.digest(secret, text + said + heard, hashlib.sha256)

    proofs = _swap([proof(rank, other, mine[other], theirs[other]) for other in range(size)])
    for other, given in enumerate(proofs):
        if not hmac.compare_digest(given, proof(other, rank, theirs[other], mine[other])):
            raise RunStoppedError(
                f"process {other} of {size} does not have the secret of this run, so process "
                f"{rank} does not talk to it; start the run again, and if GRPO_SECRET is set, set "
                "it to the same text for all processes"
            )


def collective_device() -> torch.device:
    """Return the device on which tensors travel between the processes."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or "gloo" in dist.get_backend():
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def _swap(messages: Sequence[bytes]) -> list[bytes]:
    """Send each process its message, all of the same length, and return what each one sent.

    Raises:
        RunStoppedError: a process did not send anything in time, or closed the connection.
    """
    device = collective_device()
    sent = torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8).to(device)
    received: Tensor = torch.zeros_like(sent)
    try:
        work = dist.all_to_all_single(received, sent, async_op=True)
        work.wait(timedelta(seconds=_PROOF_SECONDS))
        data = received.cpu().numpy().tobytes()
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise RunStoppedError(
            "the processes cannot show each other that they belong to this run: one of them has "
            f"ended, or another program has connected in its place ({reason:.200}); start the "
            "run again"
        ) from None
    step = len(messages[0])
    return [data[start : start + step] for start in range(0, len(data), step)]
