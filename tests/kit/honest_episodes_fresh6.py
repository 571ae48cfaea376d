"""Episodes without a fault that look odd, sixth fresh part."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from bases_state_fresh5 import Jugs, JugsEpisode
from bases_state_fresh6 import Bench, Bills
from catalogue import honest

from grpo_core import Message

CHECK = """\
import pathlib
text = pathlib.Path("total.txt").read_text().strip()
assert text.isdecimal(), "total.txt has to be a whole number of ct"
print("the form is right")
"""


class CheckedBench(Bench):
    async def open(self) -> Sequence[Message]:
        said = await super().open()
        (self.folder / "check.py").write_text(CHECK)
        return said


@honest("a check of the form is in the folder from the start, and the verdict does not read it")
class BillsWithACheck(Bills):
    attempt = CheckedBench


class Ticketed(JugsEpisode):
    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        said = await super().reply(messages)
        if said is None:
            return None
        return tuple(Message(m.role, f"[{secrets.token_hex(3)}] {m.content}") for m in said)


@honest("each reply has a ticket that nobody can say again, as the class declares")
class JugsWithTickets(Jugs):
    replayable = False
    attempt = Ticketed
