"""The environment sql: its questions, what a query may do, and what it pays."""

import functools
import itertools
import random
import time
from collections.abc import Sequence

import pytest

from grpo_core import TaskKey
from grpo_core.testing import assert_environment
from grpo_env_sql.database import MAX_ROWS, QueryError, Row, Shop, run_queries, run_query, same_rows
from grpo_env_sql.drawing import QueryProblem
from grpo_env_sql.env import Sql
from grpo_env_sql.questions import FAMILIES, Question
from grpo_env_sql.shops import draw_edge_shop, draw_shop
from tests.environments.episodes import play, total

from .sql_mutator import mutants

ENV = Sql()
LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SHOP = draw_shop(TaskKey("sql", "train", 0).rng())


@functools.cache
def ask(index: int = 0, *, split: str = "train", level: float = 0.0):
    return ENV.task(TaskKey("sql", split, index, 0, level))  # type: ignore[arg-type]


def block(query: str) -> str:
    return f"```sql\n{query}\n```"


@pytest.mark.slow
def test_it_keeps_the_promises_of_an_environment() -> None:
    assert_environment(Sql())


@pytest.mark.parametrize("level", LEVELS)
def test_references_pass_and_hidden_results_differ(level: float) -> None:
    for index in range(8):
        task = ask(index, level=level)
        problem = task.data
        assert len(problem.hidden) == 3
        rows = [
            run_query(shop, problem.question.query) for shop in (problem.visible, *problem.hidden)
        ]
        assert not same_rows(*rows[:2], ordered=problem.question.ordered)
        _, verdict = play(ENV, task, ENV.reference(task))
        assert (verdict.passed, total(ENV, verdict)) == (True, 1.0)


def test_every_family_is_asked() -> None:
    for number, families in enumerate(FAMILIES):
        starts = {ask(i, level=number / 5).data.question.query[:28] for i in range(12)}
        assert len(starts) >= len(families)


def test_a_result_that_is_written_into_the_query_earns_only_that_it_runs() -> None:
    for index in range(10):
        task = ask(index // 2, level=LEVELS[index % 6])
        rows = run_query(task.data.visible, task.data.question.query)
        values = ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in rows)
        if not rows:
            continue
        _, verdict = play(ENV, task, block(f"SELECT * FROM (VALUES {values})"))
        assert verdict.rewards["runs"].value
        assert total(ENV, verdict) == pytest.approx(0.1)


def test_the_last_query_counts_and_results_are_shown() -> None:
    task = ask()
    right, wrong = task.data.question.query, "SELECT name FROM products"
    messages, verdict = play(ENV, task, [block(wrong), block(right), "Done."])
    names = [name for _, name, *_ in task.data.visible.products]
    assert messages[1].content.splitlines()[:10] == names[:10]
    assert verdict.passed
    result = "Result:\n```\n12\n```"
    assert play(ENV, task, [block(right), result])[1].passed  # no query, since others have labels
    assert not play(ENV, task, [block(right), block(wrong), "Done."])[1].passed
    assert play(ENV, task, [block(wrong)] * 3 + [block(right)])[1].passed  # the last of max_turns


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 9e999",
        "SELECT 1e308 * 10",
        "SELECT kind, 9e999 FROM products GROUP BY kind",
        "SELECT 9e999 - 9e999",
        "SELECT 'nan'",
        "SELECT COUNT(*) * 9e999 FROM customers",
    ],
)
def test_a_number_that_is_not_finite_is_no_answer(query: str) -> None:
    for index in range(4):
        for level in LEVELS[:5]:
            assert not play(ENV, ask(index, level=level), block(query))[1].passed


@pytest.mark.parametrize("level", LEVELS[:5])
def test_no_mutant_of_the_environment_passes(level: float) -> None:
    for index in range(4):
        task = ask(index, level=level)
        near = ENV.mutants(task)
        assert len(near) >= 10
        for name, turns in near.items():
            _, verdict = play(ENV, task, turns)
            assert total(ENV, verdict) < 1, (name, turns)
            assert not verdict.passed


def random_shop(question: Question, rng: random.Random) -> Shop:
    """Return a shop that is drawn in one of the ways in which those of tasks are drawn."""
    if rng.random() < 0.5:
        return draw_shop(rng)
    bounds = [number for number in (question.number, question.last) if number]
    most_orders = 12 * (question.family == "ordered_amount" and rng.random() < 0.5)
    return draw_edge_shop(
        rng, bounds, city=question.city, kind=question.kind, most_orders=most_orders
    )


def equivalent_ones(question: Question, queries: Sequence[str], *, shops: int) -> list[str]:
    """Return the queries that have the right result on many random databases."""
    rng = random.Random(question.text)
    left = list(queries)
    for _ in range(shops):
        right, *results = run_queries(random_shop(question, rng), [question.query, *left])
        assert right is not None
        left = [
            query
            for query, rows in zip(left, results, strict=True)
            if rows is not None and same_rows(rows, right, ordered=question.ordered)
        ]
    return left


def is_paid(problem: QueryProblem, results: Sequence[list[Row] | None]) -> bool:
    """Return whether a query with these results on the four databases is right."""
    return all(
        rows is not None and same_rows(rows, expected, ordered=problem.question.ordered)
        for rows, expected in zip(results, problem.expected, strict=True)
    )


def near_misses_that_are_paid(tasks: int, *, shops: int) -> tuple[int, list[str]]:
    """Return how many near misses ran that are not equivalent, and those of them that are paid."""
    wrong, paid = 0, list[str]()
    for level, index in itertools.product(LEVELS[:5], range(tasks)):
        problem = ask(index, split="eval", level=level).data
        near = mutants(problem.question.query)
        results = [run_queries(shop, near) for shop in (problem.visible, *problem.hidden)]
        full = [
            query for query, *rows in zip(near, *results, strict=True) if is_paid(problem, rows)
        ]
        equivalent = equivalent_ones(problem.question, full, shops=shops)
        wrong += sum(rows is not None for rows in results[0]) - len(equivalent)
        paid += [query for query in full if query not in equivalent]
    return wrong, paid


def test_few_near_misses_of_a_generic_mutator_are_paid() -> None:
    wrong, paid = near_misses_that_are_paid(1, shops=100)
    assert wrong >= 180
    assert len(paid) <= 1, paid


@pytest.mark.heavy
def test_at_most_4_of_2000_near_misses_of_a_generic_mutator_are_paid() -> None:
    wrong, paid = near_misses_that_are_paid(9, shops=400)
    assert wrong >= 2000
    assert len(paid) <= 4, paid


def test_cheats_and_canaries_earn_nothing() -> None:
    for index in range(10):
        task = ask(index // 2, level=LEVELS[index % 6])
        for cheat in ENV.cheats(task):
            assert total(ENV, play(ENV, task, cheat)[1]) == 0
    (canary,) = ENV.canaries()
    assert not play(ENV, canary, block("SELECT COUNT(*) FROM customers"))[1].passed


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH 'other' AS other",
        "PRAGMA table_info(customers)",
        "SELECT name FROM pragma_table_info('customers')",
        "DELETE FROM customers",
        "SELECT load_extension('x')",
        "SELECT random()",
        "SELECT date('now')",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
        "\x00",
        "SELECT '\ud800'",
        "SELECT 1" + " " * 3000,
        "SELECT " + "(" * 900 + "1" + ")" * 900,
        "SELECT zeroblob(1000000000)",
        "SELECT * FROM customers a, customers b, customers c, customers d",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 300000) "
        "SELECT SUM(INSTR(HEX(ZEROBLOB(990)), HEX(ZEROBLOB(400)) || x)) FROM c",
        "SELECT HEX(ZEROBLOB(49000)) LIKE '%' || HEX(ZEROBLOB(20000)) || '1'",
        "SELECT MAX(HEX(ZEROBLOB(40000)) || a.name || b.name || c.name) FROM customers a, orders b, orders c",
    ],
)
def test_a_query_can_neither_write_nor_reach_out_nor_go_on(query: str) -> None:
    started = time.process_time()
    with pytest.raises(QueryError) as raised:
        run_query(SHOP, query)
    assert str(raised.value)
    assert time.process_time() - started < 5
    assert len(run_query(SHOP, "SELECT * FROM customers")) == len(SHOP.customers)


def test_results_are_compared_as_multisets_or_in_order() -> None:
    rows = [(1, "a"), (2, "b"), (2, "b")]
    assert same_rows(rows, rows[::-1], ordered=False)
    assert not same_rows(rows, rows[::-1], ordered=True)
    assert not same_rows(rows, rows[:2], ordered=False)
    assert not same_rows([(1, "a"), (1, "a"), (2, "b")], rows, ordered=False)
    assert same_rows([(2,)], [(2.0 + 1e-9,)], ordered=True)
    assert not same_rows([("2",)], [(2,)], ordered=True)
    assert not same_rows([(None,)], [(0,)], ordered=True)
    assert not same_rows([(1, 2)], [(1,)], ordered=True)
    counting = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {}) SELECT x FROM c"
    )
    assert len(run_query(SHOP, counting.format(MAX_ROWS))) == MAX_ROWS
