"""The plausible wrong queries for each family of questions, by the name of their mistake.

Each mistake replaces a part of the right query. One that leaves a right query is not listed, such
as a month up to 13; so each of them differs on some database. The file is long because it is a
table with a part for each family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpo_env_sql.mistakes import (
    Mistakes,
    bounds,
    count_where,
    dear_products,
    mean_price,
    names_in_city,
    other_city,
    other_kind,
)
from grpo_env_sql.questions import Question
from grpo_env_sql.shops import MONTHS


def near_misses(question: Question) -> dict[str, str]:
    """Return wrong queries for a question by the name of their mistake."""
    if not question.family:
        return {}
    near = dict[str, str]()
    for name, (part, wrong) in _MISTAKES[question.family](question).items():
        if part not in question.query:
            raise ValueError(f"the mistake {name!r} replaces {part!r}, which is not in the query")
        near[name] = question.query.replace(part, wrong)
    return near


def _ordered_amount(question: Question) -> Mistakes:
    of_kind, until = f"p.kind = '{question.kind}'", f"o.month <= {question.number}"
    used = "COALESCE(SUM(o.amount), 0)"
    return {
        **bounds("o.month", "<=", question.number, high=MONTHS[1]),
        **other_kind(question, of_kind),
        "nothing instead of 0": (used, "SUM(o.amount)"),
        "a count": (used, "COUNT(*)"),
        "equal amounts once": (used, "COALESCE(SUM(DISTINCT o.amount), 0)"),
        "the largest": (used, "COALESCE(MAX(o.amount), 0)"),
        "money": (used, "COALESCE(SUM(o.amount * p.price), 0)"),
        "no kind": (f"{of_kind} AND ", ""),
        "no month": (f" AND {until}", ""),
        "or": (f"{of_kind} AND", f"{of_kind} OR"),
        "other kinds": (of_kind, of_kind.replace("=", "<>")),
        "joined by another key": ("p.id = o.product_id", "p.id = o.customer_id"),
        "joined by the order": ("p.id = o.product_id", "p.id = o.id"),
        "one for each month": (until, f"{until} GROUP BY o.month"),
    }


def _orders_each(question: Question) -> Mistakes:
    place, since = f"c.city = '{question.city}'", f"AND o.month >= {question.number}"
    wrong: Mistakes = {
        **bounds("o.month", ">=", question.number, low=MONTHS[0]),
        **other_city(question, place),
        "without those with 0": ("LEFT JOIN", "JOIN"),
        "the month as a condition": (
            f"{since} WHERE {place}",
            f"WHERE {place} {since}",
        ),
        "rows counted": ("COUNT(o.id)", "COUNT(*)"),
        "pieces": ("COUNT(o.id)", "COALESCE(SUM(o.amount), 0)"),
        "equal products once": ("COUNT(o.id)", "COUNT(DISTINCT o.product_id)"),
        "equal months once": ("COUNT(o.id)", "COUNT(DISTINCT o.month)"),
        "no city": (f" WHERE {place}", ""),
        "no groups": (" GROUP BY c.id", ""),
        "groups by city": ("GROUP BY c.id", "GROUP BY c.city"),
        "groups by order": ("GROUP BY c.id", "GROUP BY o.id"),
        "groups by age": ("GROUP BY c.id", "GROUP BY c.age"),
        "at most ten": ("GROUP BY c.id", "GROUP BY c.id LIMIT 10"),
        "joined by another key": ("o.customer_id = c.id", "o.product_id = c.id"),
        "joined by the order": ("o.customer_id = c.id", "o.id = c.id"),
        "another column": ("SELECT c.name", "SELECT c.id"),
        "columns exchanged": ("c.name, COUNT(o.id)", "COUNT(o.id), c.name"),
    }
    if question.number > MONTHS[0]:
        wrong["no month"] = (f" {since}", "")
    return wrong


def _revenue_by_city(question: Question) -> Mistakes:
    spent = "SUM(p.price * o.amount)"
    having = f" HAVING {spent} >= {question.number}"
    return {
        **bounds(f"HAVING {spent}", ">=", question.number),
        "no condition": (having, ""),
        "prices": (spent, "SUM(p.price)"),
        "pieces": (spent, "SUM(o.amount)"),
        "a product of sums": (spent, "SUM(p.price) * SUM(o.amount)"),
        "equal sums once": (spent, "SUM(DISTINCT p.price * o.amount)"),
        "a mean": (spent, "AVG(p.price * o.amount)"),
        "a condition on orders": (
            f"GROUP BY c.city{having}",
            f"WHERE p.price * o.amount >= {question.number} GROUP BY c.city",
        ),
        "groups by customer": ("GROUP BY c.city", "GROUP BY c.id"),
        "groups by product": ("GROUP BY c.city", "GROUP BY c.city, p.id"),
        "no groups": ("GROUP BY c.city ", ""),
        "a condition on the largest": (having, having.replace("SUM", "MAX")),
        "a condition on prices": (having, having.replace(" * o.amount", "")),
        "another column": ("SELECT c.city", "SELECT c.name"),
        "joined by another key": ("c.id = o.customer_id", "c.id = o.product_id"),
        "products by another key": ("p.id = o.product_id", "p.id = o.customer_id"),
        "joined by the order": ("c.id = o.customer_id", "c.id = o.id"),
        "each order once more": ("JOIN products p ON p.id", "JOIN products p ON p.id >"),
        "columns exchanged": (f"c.city, {spent}", f"{spent}, c.city"),
        "only the first": (
            f"{spent} >= {question.number}",
            f"{spent} >= {question.number} LIMIT 1",
        ),
    }


def _customers_without(question: Question) -> Mistakes:
    of_kind, until = f"p.kind = '{question.kind}'", f"o.month <= {question.number}"
    inside = question.query.partition(" WHERE id NOT IN ")[2]
    wrong: Mistakes = {
        **bounds("o.month", "<=", question.number, high=MONTHS[1]),
        **other_kind(question, of_kind),
        "those who ordered": ("NOT IN", "IN"),
        "no kind": (f"{of_kind} AND ", ""),
        "or": (f"{of_kind} AND", f"{of_kind} OR"),
        "other kinds": (of_kind, of_kind.replace("=", "<>")),
        "another key": ("SELECT o.customer_id", "SELECT o.product_id"),
        "the order's key": ("SELECT o.customer_id", "SELECT o.id"),
        "joined by another key": ("p.id = o.product_id", "p.id = o.customer_id"),
        "another column": ("SELECT name", "SELECT id"),
        "those who ordered something else": (
            f"FROM customers WHERE id NOT IN {inside}",
            "FROM customers WHERE id IN (SELECT o.customer_id FROM orders o JOIN products p ON "
            f"p.id = o.product_id WHERE p.kind <> '{question.kind}' OR "
            f"o.month > {question.number})",
        ),
        "those who ordered, but not this": (
            "FROM customers WHERE id NOT IN",
            "FROM customers WHERE id IN (SELECT customer_id FROM orders) AND id NOT IN",
        ),
        "nobody at all": (inside, "(SELECT customer_id FROM orders)"),
        "at most three": (inside, f"{inside} LIMIT 3"),
        "at most ten": (inside, f"{inside} LIMIT 10"),
    }
    if question.number < MONTHS[1]:
        wrong["no month"] = (f" AND {until}", "")
    return wrong


def _best_of_each_kind(question: Question) -> Mistakes:
    first, last = question.number, question.last
    months, order = f"BETWEEN {first} AND {last}", "ORDER BY SUM(o.amount) DESC, p.name"
    wrong: Mistakes = {
        "without the first month": (months, f"BETWEEN {first + 1} AND {last}"),
        "without the last month": (months, f"BETWEEN {first} AND {last - 1}"),
        "without both": (f"o.month {months}", f"o.month > {first} AND o.month < {last}"),
        "ties in any order": (order, "ORDER BY SUM(o.amount) DESC"),
        "ties backwards": (order, f"{order} DESC"),
        "ties by key": (order, "ORDER BY SUM(o.amount) DESC, p.id"),
        "ties by price": (order, "ORDER BY SUM(o.amount) DESC, p.price"),
        "all of those that tie": (
            f"ROW_NUMBER() OVER (PARTITION BY p.kind {order})",
            "RANK() OVER (PARTITION BY p.kind ORDER BY SUM(o.amount) DESC)",
        ),
        "the least": ("SUM(o.amount) DESC", "SUM(o.amount)"),
        "most orders": ("ORDER BY SUM(o.amount)", "ORDER BY COUNT(*)"),
        "a count": ("SUM(o.amount) AS total", "COUNT(*) AS total"),
        "the largest order": ("SUM(o.amount)", "MAX(o.amount)"),
        "money": ("SUM(o.amount)", "SUM(o.amount * p.price)"),
        "equal amounts once": ("SUM(o.amount)", "SUM(DISTINCT o.amount)"),
        "the second": ("place = 1", "place = 2"),
        "the first two": ("place = 1", "place <= 2"),
        "one of all": ("PARTITION BY p.kind ", ""),
        "the dearest": ("ORDER BY SUM(o.amount) DESC", "ORDER BY p.price DESC"),
        "joined by another key": ("p.id = o.product_id", "p.id = o.customer_id"),
        "columns exchanged": ("SELECT kind, name, total", "SELECT name, kind, total"),
        "no sum": ("SELECT kind, name, total", "SELECT kind, name"),
        "each order alone": ("GROUP BY p.id", "GROUP BY o.id"),
    }
    if first > MONTHS[0]:
        wrong["a month too early"] = (months, f"BETWEEN {first - 1} AND {last}")
        wrong["no first month"] = (f"o.month {months}", f"o.month <= {last}")
    if last < MONTHS[1]:
        wrong["a month too late"] = (months, f"BETWEEN {first} AND {last + 1}")
        wrong["no last month"] = (f"o.month {months}", f"o.month >= {first}")
    if (first, last) != MONTHS:
        wrong["all months"] = (f" WHERE o.month {months}", "")
        wrong["the other months"] = (f"o.month {months}", f"o.month NOT {months}")
    return wrong


def _running_total(question: Question) -> Mistakes:
    place, since = f"c.city = '{question.city}'", f"o.month >= {question.number}"
    running = "SUM(SUM(o.amount)) OVER (ORDER BY o.month)"
    order = "GROUP BY o.month ORDER BY o.month"
    wrong: Mistakes = {
        **bounds("o.month", ">=", question.number, low=MONTHS[0]),
        **other_city(question, place),
        "not running": (running, "SUM(o.amount)"),
        "the whole sum": (running, "SUM(SUM(o.amount)) OVER ()"),
        "from the end": (running, "SUM(SUM(o.amount)) OVER (ORDER BY o.month DESC)"),
        "without the month": (
            running,
            "SUM(SUM(o.amount)) OVER (ORDER BY o.month ROWS BETWEEN UNBOUNDED PRECEDING AND "
            "1 PRECEDING)",
        ),
        "the last two": (
            running,
            "SUM(SUM(o.amount)) OVER (ORDER BY o.month ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        ),
        "orders": (running, "SUM(COUNT(*)) OVER (ORDER BY o.month)"),
        "the largest": (running, "SUM(MAX(o.amount)) OVER (ORDER BY o.month)"),
        "a running mean": (running, "AVG(SUM(o.amount)) OVER (ORDER BY o.month)"),
        "equal amounts once": (running, "SUM(SUM(DISTINCT o.amount)) OVER (ORDER BY o.month)"),
        "no city": (f"{place} AND ", ""),
        "other cities": (place, place.replace("=", "<>")),
        "or": (f"{place} AND", f"{place} OR"),
        "the last month first": (order, f"{order} DESC"),
        "the smallest first": (order, "GROUP BY o.month ORDER BY SUM(o.amount), o.month"),
        "by customer": (order, "GROUP BY o.month ORDER BY o.customer_id"),
        "at most five": (order, f"{order} LIMIT 5"),
        "not the first": (order, f"{order} LIMIT -1 OFFSET 1"),
        "joined by another key": ("c.id = o.customer_id", "c.id = o.product_id"),
        "columns exchanged": (f"o.month, {running}", f"{running}, o.month"),
        "no month": (f"SELECT o.month, {running}", f"SELECT {running}"),
    }
    if MONTHS[1] - question.number >= 10:
        wrong["at most ten"] = (order, f"{order} LIMIT 10")
    if question.number > MONTHS[0]:
        wrong["from the first month"] = (f" AND {since}", "")
    return wrong


_MISTAKES: Mapping[str, Callable[[Question], Mistakes]] = {
    "count_where": count_where,
    "names_in_city": names_in_city,
    "dear_products": dear_products,
    "mean_price": mean_price,
    "ordered_amount": _ordered_amount,
    "orders_each": _orders_each,
    "revenue_by_city": _revenue_by_city,
    "customers_without": _customers_without,
    "best_of_each_kind": _best_of_each_kind,
    "running_total": _running_total,
}
