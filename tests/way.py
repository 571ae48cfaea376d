"""Lists the functions, files and data shapes on the way of a rollout: python tests/way.py [--list].

    PYTHONPATH=CHECKOUT:CHECKOUT/environments python tests/way.py --list

A tiny model is trained on `arithmetic` for two steps, and the second one is traced: every call of
a function of `grpo_core` in any thread, with what its arguments, variables and results hold. The
first step is not traced, so nothing that happens once in a run is counted.

A function carries a rollout if one of them is, or holds, a task of the step, a message, a request,
a completion, a rollout or a verdict, or the line of the log that is made of them. Of those that
carry, the ones are on the way that bring it nearer to the loss or the log:
* the two ends (`ENDS`),
* what calls a function on the way with it,
* what stores it in its object, or gives it to a task that waits for it,
* what returns it to a function on the way,
* what has defined a function on the way inside itself.
Each counts once, however often it is called; what is defined inside one without a name (lambdas,
comprehensions) counts as a part of it. So what only looks at a rollout (metrics, alarms, warnings,
the curriculum) does not count. Nor does what sees bare numbers: tensors are followed no further
than the object that holds them, so a forward pass is no part of the way.

Shapes are the dataclasses of `grpo_core` whose instances hold the rollout on the way, and lists of
lists of its parts (P x G), which are shapes without a name.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpo_core
from grpo_core.config.overrides import build_config
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.protocol.types import Group, Message, Rollout, Segment, Task, Verdict

ROOT = Path(grpo_core.__file__).parent
ENDS = ("Updater.loss", "LineLog.append")
"""Where the way ends: in the loss and in the log."""
DATA = (Task, Message, Request, Completion, Segment, Rollout, Verdict, Group)
"""What a rollout consists of, from its prompt on."""
SETTINGS = {
    "environment": "arithmetic",
    "steps": 2,
    "prompts_per_step": 2,
    "group_size": 4,
    "sampling": {"max_new_tokens": 8},
    "eval": {"tasks": 0},
}
DEPTH = 6
"""How deep an object is looked into."""
NAMELESS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")


@dataclasses.dataclass(frozen=True)
class Way:
    """Hold what is on the way of a rollout."""

    functions: tuple[str, ...]
    """FILE FUNCTION, in the order in which they first carried one."""
    shapes: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files of the functions."""
        return tuple(dict.fromkeys(name.split()[0] for name in self.functions))


@dataclasses.dataclass(eq=False)
class Call:
    """Describe one call of a function."""

    function: str
    parent: Call | None
    """The call of `grpo_core` that made it; None: an event loop or a thread did."""
    children: list[Call] = dataclasses.field(default_factory=list)
    carries: bool = False
    returns: bool = False
    """Whether it returned a rollout."""
    stores: bool = False
    """Whether it put a rollout where something else takes it."""
    held_before: int = 0
    """How much its object held when it was called."""
    shapes: set[str] = dataclasses.field(default_factory=set)
    on_way: bool = False


class Trace:
    """Records the calls of `grpo_core` between `start` and `stop`."""

    def __init__(self) -> None:
        self.calls: dict[FrameType, Call] = {}
        self._parts: set[FrameType] = set()
        """Frames of functions without a name, which are parts of those that called them."""
        self._is_on = False
        self._here = threading.local()

    def start(self) -> None:
        """Begin to record; threads that begin later are traced, too."""
        self._is_on = True

    def stop(self) -> None:
        """End the recording."""
        self._is_on = False

    def event(self, frame: FrameType, event: str, value: Any) -> None:
        """Note a call, a return or a call of a built-in function; for `sys.setprofile`."""
        if not self._is_on or getattr(self._here, "is_busy", False):
            return
        if not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        self._here.is_busy = True  # looking at objects calls functions, too
        try:
            self._note(frame, event, value)
        finally:
            self._here.is_busy = False

    def _note(self, frame: FrameType, event: str, value: Any) -> None:
        call = self.calls.get(frame) or self._new(frame)
        if event == "c_call":
            call.stores |= getattr(value, "__name__", "") == "set_result"
            return
        variables = dict(frame.f_locals)
        owner = variables.pop("self", None)
        carried = [item for item in variables.values() if carries(item)]
        if event == "return" and carries(value):
            carried.append(value)
            call.returns |= frame not in self._parts
        if is_record(owner) and carries(owner):
            carried.append(owner)
        call.carries |= bool(carried)
        if event == "return" and frame not in self._parts:
            grows = bool(carried) and held(owner) > call.held_before
            call.stores |= grows and any(map(carries, attributes(owner)))
        for item in carried:
            call.shapes.update(shapes_of(item))

    def _new(self, frame: FrameType) -> Call:
        parent, above = None, frame.f_back
        while above is not None and parent is None:
            if above.f_code.co_filename.endswith("asyncio/events.py"):
                break  # who made the task is another question than who waits for it
            parent = self.calls.get(above)
            above = above.f_back
        file = Path(frame.f_code.co_filename).relative_to(ROOT)
        function = f"{file} {name_of(frame.f_code.co_qualname)}"
        is_part = not is_named(frame.f_code.co_qualname)
        if parent is not None and is_part and parent.function == function:
            self.calls[frame] = parent
            self._parts.add(frame)
            return parent
        call = self.calls[frame] = Call(function, parent)
        call.held_before = held(frame.f_locals.get("self"))
        if parent is not None:
            parent.children.append(call)
        return call

    def way(self) -> Way:
        """Return what was on the way."""
        calls = list(dict.fromkeys(self.calls.values()))
        for call in reversed(calls):  # what was called comes before what called it
            is_end = call.function.split()[1] in ENDS
            leads_on = any(child.on_way for child in call.children)
            call.on_way = is_end or (call.carries and (call.stores or leads_on))
        for call in calls:
            goes_on = call.parent is None or call.parent.on_way
            call.on_way |= call.carries and goes_on and (call.returns or call.parent is None)
        for call in calls:  # a function made in another, for a thread or a task, is a part of it
            inner = f"{call.function}."
            call.on_way |= call.carries and any(
                c.function.startswith(inner) for c in calls if c.on_way
            )
        kept = [call for call in calls if call.on_way]
        functions = tuple(dict.fromkeys(call.function for call in kept))
        if missing := [end for end in ENDS if not any(f.endswith(f" {end}") for f in functions)]:
            raise SystemExit(f"no rollout came to {', '.join(missing)}; correct ENDS in {__file__}")
        shapes = sorted({shape for call in kept for shape in call.shapes})
        return Way(functions, tuple(shapes))


def attributes(owner: Any) -> list[Any]:
    """Return what the attributes of an object hold."""
    if is_record(owner):
        return [getattr(owner, field.name, None) for field in dataclasses.fields(owner)]
    return list(getattr(owner, "__dict__", {}).values())


def held(owner: Any) -> int:
    """Return how much the attributes of an object hold, as a number that grows with it."""
    items = [item for item in attributes(owner) if item is not None]
    return len(items) + sum(map(size, items))


def size(value: Any, depth: int = 2) -> int:
    """Return how many items a container holds, with those of the first containers in it."""
    if not isinstance(value, list | tuple | deque | dict):
        return 0
    items = list(value.values() if isinstance(value, dict) else value)
    return len(items) + (sum(size(item, depth - 1) for item in items[:9]) if depth else 0)


def name_of(qualified: str) -> str:
    """Return the name of a function, or of the one that holds it if it has none of its own."""
    parts = [part for part in qualified.split(".") if part != "<locals>"]
    while len(parts) > 1 and parts[-1] in NAMELESS:
        parts.pop()
    return ".".join(parts)


def is_named(qualified: str) -> bool:
    """Return whether a function has a name of its own."""
    return qualified.rpartition(".")[2] not in NAMELESS


def is_record(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass of the project."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and type(value).__module__.startswith("grpo_core.")
    )


def items_of(value: Any) -> Iterator[Any]:
    """Yield what a container or a record holds; of long ones the first few items."""
    if isinstance(value, list | tuple | deque):
        yield from list(value)[:3]
    elif isinstance(value, dict):
        yield from list(value.values())[:3]
    elif is_record(value):
        for field in dataclasses.fields(value):
            yield getattr(value, field.name, None)


def is_line(value: Any) -> bool:
    """Return whether a value is the line of a rollout in the log, as JSON data or as text."""
    if isinstance(value, str):
        return value.startswith("{") and '"attempt"' in value and '"messages"' in value
    return isinstance(value, dict) and "attempt" in value and "messages" in value


def carries(value: Any, depth: int = DEPTH) -> bool:
    """Return whether a value is or holds a part of a rollout."""
    if isinstance(value, DATA) or is_line(value):
        return True
    return depth > 0 and any(carries(item, depth - 1) for item in items_of(value))


def shapes_of(value: Any, depth: int = DEPTH) -> Iterator[str]:
    """Yield the names of the shapes in which a value holds a rollout."""
    if is_record(value) and carries(value):
        yield type(value).__qualname__
    elif isinstance(value, list) and value and all(isinstance(v, list | tuple) for v in value):
        inner = next(iter(value[0]), None)
        if isinstance(inner, DATA):
            yield f"P x G of {type(inner).__qualname__}"
    if depth:
        for item in items_of(value):
            yield from shapes_of(item, depth - 1)


def traced(folder: Path) -> Way:
    """Train two steps in a folder, and return what was on the way in the second."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "train"))
    from tiny import save_tiny

    from grpo_core.runs.observer import Observer
    from grpo_core.train.trainer import Trainer

    trace = Trace()

    class Steps(Observer):
        def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
            trace.start() if step == 1 else trace.stop()

    model = {"name": str(save_tiny(folder / "model")), "dtype": "float32"}
    trainer = Trainer(
        build_config([{**SETTINGS, "model": model}]), folder=folder / "run", observer=Steps()
    )
    with profiled(trace.event):
        trainer.run()
    return trace.way()


@contextmanager
def profiled(event: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Call a function at each event of this thread and of those that begin in the block."""
    before = sys.getprofile()
    threading.setprofile(event)
    sys.setprofile(event)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the names, not the counts alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        way = traced(Path(folder))
    if options.list:
        print("\n".join((*way.functions, "", *way.shapes, "")))
    print(
        f"{len(way.functions)} functions in {len(way.files)} files and {len(way.shapes)} shapes "
        "on the way of a rollout"
    )


if __name__ == "__main__":
    main()
