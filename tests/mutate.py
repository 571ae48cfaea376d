"""Mutation run: every small error put into the algorithm's files must make a test fail.

    python tests/mutate.py [--only losses] [--grep TEXT] [--list]

Each mutant changes one place: a sign, an operator, a comparison, a constant, a mask (`torch.where` gives one side always), min for max, a
detached tensor that is not, two swapped arguments. It is run in a fork of a process that has torch loaded already, against its tests
until the first failure. Mutants that mean the same as the original are listed in EQUIVALENT with the reason. Exits with 1 if
any other survives.
"""

import argparse
import ast
import copy
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODULES = {
    "losses": "grpo_core.train.algorithm.losses",
    "advantages": "grpo_core.train.algorithm.advantages",
    "batch": "grpo_core.engine.compute.batch",
    "rewards": "grpo_core.train.algorithm.rewards",
}
FILES = {name: ROOT / f"{module.replace('.', '/')}.py" for name, module in MODULES.items()}
TESTS = {
    "losses": ["tests/train/test_algorithm.py"],
    "advantages": ["tests/train/test_advantages.py", "tests/train/test_turns.py"],
    "batch": [
        "tests/train/test_batch.py",
        "tests/train/test_segments.py",
        "tests/train/test_algorithm.py",
        "tests/train/test_turns.py",
    ],
    "rewards": ["tests/train/test_advantages.py", "tests/train/test_turns.py"],
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPPOSITE = {"min": "max", "minimum": "maximum", "amin": "amax"}
OPPOSITE |= {largest: smallest for smallest, largest in OPPOSITE.items()}
# fmt: off

EQUIVALENT: dict[str, str] = {
    "rewards.rewards: 0 -> 1 | parts = max((len(v.rewards) for group in verdicts_PG for v in group), default=1)": 'there is always a verdict',
    "rewards.shuffled: task.key.rng('shuffle', task.draw) -> task.key.rng(task.draw, 'shuffle') | drawn = task.key.rng(task.draw, 'shuffle').sample(places, len(places))": 'another random order is as good',
    'advantages.maxrl: mean_P1 > 0 -> mean_P1 >= 0 | return torch.where((mean_P1 >= 0) & ~cancelled(mean_P1, size_P1), centred_PG / mean_P1.clamp(min=torch.finfo(torch.float64).tiny), 0.0)': 'rewards that are never negative and have the mean 0 are all 0, and 0 divided by anything is 0',
    'advantages.best_minus_second: 1 -> 2 | lead_P1 = torch.where(count_P1 >= 2, top_P2[:, :2] - top_P2[:, 1:], 0.0)': 'scatter reads only the first column of its source, since its index has one',
    'advantages.pods: len(places) <= keep -> len(places) < keep | if len(places) < keep:': 'of exactly `keep` attempts the best choice is all of them',
    'advantages.pods: 0 -> 1 | best = max(choices, key=lambda chosen: float(reward_G[chosen].var(correction=1)))': 'all choices have the same size, so the correction does not change which is the largest',
    'advantages._group_mean: 1 -> 2 | return torch.where(scored_PG, reward_PG, 0.0).sum(dim=1, keepdim=True) / scored_PG.sum(dim=1, keepdim=True).clamp(min=2)': 'the mean of a group with one scored attempt is used nowhere',
    'losses.clip: advantage_BT < 0 -> advantage_BT <= 0 | return torch.where(advantage_BT <= 0, torch.minimum(loss_BT, -config.dual_clip * advantage_BT), loss_BT)': 'an advantage of 0 makes a loss of 0 on either side',
    'losses.sapo: advantage_BT > 0 -> advantage_BT >= 0 | tau_BT = torch.full_like(advantage_BT, config.sapo_negative).masked_fill(advantage_BT >= 0, config.sapo_positive)': 'an advantage of 0 makes a loss of 0 with either temperature',
    'batch._trees: 0 -> 1 | tree_nodes = 1': 'it is read only beside a row that came before',
    'losses.k3_st: k2(logprob_BT, reference_BT) -> k2(reference_BT, logprob_BT) | squared_BT = k2(reference_BT, logprob_BT)': 'a square has no sign',
}
"""What a mutant is called -> why no test can tell it from the original."""
# fmt: on


def mutants(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Each with its name: the function, the statement as it became, and what was there."""
    seen: Counter[str] = Counter()
    for number, (function, _, node) in enumerate(_nodes(tree)):
        for change in _changes(node):
            mutant = copy.deepcopy(tree)
            _, statement, target = list(_nodes(mutant))[number]
            before = ast.unparse(target)
            change(target)
            if ast.unparse(target) != before:
                first = ast.unparse(statement).splitlines()[0]
                name = f"{function}: {before} -> {ast.unparse(target)} | {first}"
                seen[name] += 1
                yield name if seen[name] == 1 else f"{name} #{seen[name]}", mutant


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    """Every node inside a function with the statement that it is part of, but not its docstring or annotations."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            waiting: list[tuple[ast.stmt, ast.AST]] = [
                (statement, statement) for statement in function.body
            ]
            while waiting:
                statement, node = waiting.pop()
                # A function inside another has its own turn; `strict` and `stable` guard against what does not happen.
                if not isinstance(node, ast.FunctionDef) and not (
                    isinstance(node, ast.keyword) and node.arg in ("strict", "stable")
                ):
                    yield function.name, statement, node
                    waiting += [
                        (child if isinstance(child, ast.stmt) else statement, child)
                        for child in ast.iter_child_nodes(node)
                    ]


def _changes(node: ast.AST) -> Iterator[Callable[[Any], object]]:
    match node:
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield lambda found: setattr(found, "op", OPERATORS[type(found.op)]())
        case ast.Compare() if type(node.ops[0]) in COMPARISONS:
            yield lambda found: found.ops.__setitem__(0, COMPARISONS[type(found.ops[0])]())
        case ast.UnaryOp(op=ast.USub()):
            yield lambda found: setattr(found, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not()):
            yield _without_not
        case ast.Constant(value=bool()):
            yield lambda found: setattr(found, "value", not found.value)
        case ast.Constant(value=int() | float()):
            yield lambda found: setattr(found, "value", found.value + 1)
        case ast.Attribute() if node.attr in OPPOSITE:
            yield lambda found: setattr(found, "attr", OPPOSITE[found.attr])
        case ast.Name() if node.id in OPPOSITE:
            yield lambda found: setattr(found, "id", OPPOSITE[found.id])
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, _, _]):
            yield partial(_always, like="ones_like")
            yield partial(_always, like="zeros_like")
        case ast.Call(func=ast.Attribute(attr="detach" | "clamp" | "sqrt" | "exp")):
            yield _without_call
        case ast.Call(args=[first, second]) if ast.unparse(first) != ast.unparse(
            second
        ) and not _commutes(node):
            yield lambda found: found.args.reverse()
        case ast.BoolOp():
            yield lambda found: setattr(
                found, "op", ast.Or() if isinstance(found.op, ast.And) else ast.And()
            )


def _commutes(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in OPPOSITE


def _always(call: ast.Call, *, like: str) -> None:
    """One side of a `where`."""
    call.args[0] = ast.Call(ast.Attribute(ast.Name("torch"), like), [call.args[0]], [])


def _without_not(found: ast.UnaryOp) -> None:
    found.op, found.operand = ast.UAdd(), ast.Call(ast.Name("bool"), [found.operand], [])


def _without_call(call: ast.Call) -> None:
    """The tensor as it was before."""
    assert isinstance(call.func, ast.Attribute)
    call.func, call.args, call.keywords = ast.Attribute(call.func.value, "contiguous"), [], []


def survives(name: str, tree: ast.Module) -> bool:
    """Whether all tests pass with the mutant in place of its file; in a child, so that nothing of it stays."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            module = types.ModuleType(MODULES[name])
            module.__file__ = str(FILES[name])
            sys.modules[module.__name__] = module
            exec(
                compile(ast.fix_missing_locations(tree), str(FILES[name]), "exec"), module.__dict__
            )
            import pytest

            # In this process: one that pytest starts would import the file as it stands.
            status = int(
                pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS[name]]) != 0
            )
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=FILES)
    parser.add_argument("--grep", default="", help="only mutants with this text in their name")
    parser.add_argument("--list", action="store_true", help="name the mutants and run none")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import accelerate
    import peft
    import torch
    import transformers

    import grpo_core.config.overrides

    del accelerate, peft, transformers, grpo_core
    torch.set_num_threads(1)  # threads do not survive a fork
    killed, survivors, started = 0, [], time.monotonic()
    found = {
        f"{name}.{title}": (name, tree)
        for name in FILES
        for title, tree in mutants(ast.parse(FILES[name].read_text(encoding="utf-8")))
    }
    if stale := EQUIVALENT.keys() - found.keys():
        print("EQUIVALENT names mutants that are no more:", *sorted(stale), sep="\n")
        return 1
    for title, (name, tree) in found.items():
        if options.grep not in title or options.only not in (None, name):
            continue
        if options.list:
            print(title)
        elif title in EQUIVALENT:
            continue
        elif survives(name, tree):
            survivors.append(title)
            print(f"SURVIVED {title}", flush=True)
        else:
            killed += 1
    if not options.list:
        minutes = (time.monotonic() - started) / 60
        print(
            f"{killed} killed, {len(survivors)} survived, {len(EQUIVALENT)} equivalent, {minutes:.1f} minutes"
        )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
