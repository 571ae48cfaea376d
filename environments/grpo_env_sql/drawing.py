"""Draw a question with its databases, until plausible wrong queries are told apart on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_core import held_out
from grpo_env_sql.database import Row, Shop, run_queries, same_rows
from grpo_env_sql.near_misses import near_misses
from grpo_env_sql.questions import Question, draw_question
from grpo_env_sql.shops import draw_edge_shop, draw_shop, with_revenue

DRAWS = (8, 24)
"""The most shops from which each of the two that tell near misses apart is chosen."""


@dataclass(frozen=True, slots=True)
class QueryProblem:
    """Holds what the verifier knows of a task."""

    question: Question
    visible: Shop
    """The database that the policy's queries run on."""
    hidden: tuple[Shop, ...]
    """Others with other rows, on which the right query has other results."""
    expected: tuple[tuple[Row, ...], ...]
    """The result of the right query on each of them, the visible one first."""
    is_canary: bool = False
    """There is no answer, so nothing is paid."""


def draw_problem(rng: random.Random, split: Literal["train", "eval"], level: float) -> QueryProblem:
    """Return a question with one visible and three hidden databases.

    The visible and the first hidden one are drawn as they come. The other two are chosen so that
    each near miss of the right query has another result on at least one of the four; a question for
    which `DRAWS` do not suffice is drawn again.
    """
    while True:
        question = draw_question(rng, level)
        visible, hidden = draw_shop(rng), draw_shop(rng)
        queries = [question.query, *near_misses(question).values()]
        results = [run_queries(shop, queries) for shop in (visible, hidden)]
        expected = [_expected(rows) for rows in results]
        if held_out(question.text) != (split == "eval") or same_rows(
            expected[0], expected[1], ordered=question.ordered
        ):
            continue
        alike = [
            query
            for query, *rows in list(zip(queries, *results, strict=True))[1:]
            if all(
                _is_alike(own, right, question) for own, right in zip(rows, expected, strict=True)
            )
        ]
        shops = [visible, hidden]
        for draw, draws in zip(_ways(question, rng), DRAWS, strict=True):
            shop, rows, alike = _best_shop(draw, draws, question, alike)
            shops.append(shop)
            expected.append(rows)
        if not alike:
            return QueryProblem(question, shops[0], tuple(shops[1:]), tuple(map(tuple, expected)))


def _ways(question: Question, rng: random.Random) -> list[Callable[[], Shop]]:
    """Return what draws the second and the third hidden database."""
    edges = [number for number in (question.number, question.last) if number]

    def at_edges(most_orders: int = 0) -> Shop:
        city, kind = question.city, question.kind
        return draw_edge_shop(rng, edges, city=city, kind=kind, most_orders=most_orders)

    def at_sums(revenue: int) -> Shop:
        return with_revenue(with_revenue(at_edges(), rng, revenue // 2), rng, revenue)

    if question.family == "revenue_by_city":  # a sum is at its bound only if it is made so
        return [lambda: at_sums(question.number), lambda: at_sums(question.number - 1)]
    if question.family == "ordered_amount":  # nothing may have been ordered
        return [at_edges, lambda: at_edges(_FEW)]
    return [at_edges, at_edges]


_FEW = 12
"""The most orders of a shop in which a condition may meet none."""


def _best_shop(
    draw: Callable[[], Shop], draws: int, question: Question, alike: list[str]
) -> tuple[Shop, list[Row], list[str]]:
    """Return the shop that tells most near misses apart, its right rows, and those still alike."""
    best: tuple[Shop, list[Row], list[str]] | None = None
    for _ in range(draws):
        shop = draw()
        results = run_queries(shop, [question.query, *alike])
        rows = _expected(results)
        left = [
            query
            for query, own in zip(alike, results[1:], strict=True)
            if _is_alike(own, rows, question)
        ]
        if best is None or len(left) < len(best[2]):
            best = shop, rows, left
        if not left:
            break
    assert best is not None
    return best


def _expected(results: list[list[Row] | None]) -> list[Row]:
    """Return the rows of the right query, which is the first."""
    assert results[0] is not None, "the right query runs"
    return results[0]


def _is_alike(rows: list[Row] | None, expected: list[Row], question: Question) -> bool:
    return rows is not None and same_rows(rows, expected, ordered=question.ordered)
