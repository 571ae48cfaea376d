"""Make mistakes in queries that ask for rows of one table."""

from __future__ import annotations

from grpo_env_sql.questions import Question
from grpo_env_sql.shops import CITIES, KINDS

Mistakes = dict[str, tuple[str, str]]
"""The part of the right query and what stands in its place, by the name of the mistake."""


def bounds(column: str, sign: str, number: int, low: int = -1, high: int = 10**9) -> Mistakes:
    """Return wrong bounds of a column, but none that is right for all values of the column.

    Args:
        column: the column, as the query names it.
        sign: the sign behind it.
        number: the bound.
        low: the lowest value of the column.
        high: the highest one.
    """
    part = f"{column} {sign} {number}"
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[sign]
    turned = sign.translate(str.maketrans("<>", "><"))
    wrong: Mistakes = {
        "the bound counts, or does not": (part, f"{column} {other} {number}"),
        "the other side": (part, f"{column} {turned} {number}"),
        "only the bound": (part, f"{column} = {number}"),
        "all but the bound": (part, f"{column} <> {number}"),
        "the bound one higher": (part, f"{column} {sign} {number + 1}"),
        "the bound one lower": (part, f"{column} {sign} {number - 1}"),
    }
    if sign == "<=" and number >= high:
        del wrong["the bound one higher"], wrong["the other side"]
    if sign == ">=" and number <= low:
        del wrong["the bound one lower"], wrong["the other side"]
    return wrong


def _next(names: tuple[str, ...], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


def other_city(question: Question, part: str) -> Mistakes:
    """Return the mistake that a part of the query names another city."""
    return {"another city": (part, part.replace(question.city, _next(CITIES, question.city)))}


def other_kind(question: Question, part: str) -> Mistakes:
    """Return the mistake that a part of the query names another kind of product."""
    return {"another kind": (part, part.replace(question.kind, _next(tuple(KINDS), question.kind)))}


def count_where(question: Question) -> Mistakes:
    """Return mistakes in a query that counts customers by their age."""
    sign = "<" if "<" in question.query else ">"
    return {
        **bounds("age", sign, question.number),
        "no condition": (f" WHERE age {sign} {question.number}", ""),
        "equal ages once": ("COUNT(*)", "COUNT(DISTINCT age)"),
        "equal cities once": ("COUNT(*)", "COUNT(DISTINCT city)"),
        "a sum": ("COUNT(*)", "SUM(age)"),
        "another column": ("WHERE age", "WHERE id"),
        "another table": ("customers WHERE age", "products WHERE price"),
    }


def names_in_city(question: Question) -> Mistakes:
    """Return mistakes in a query for the names of customers of a city."""
    place, age = f"city = '{question.city}'", f"age >= {question.number}"
    return {
        **bounds("age", ">=", question.number),
        **other_city(question, place),
        "no city": (f"{place} AND ", ""),
        "no age": (f" AND {age}", ""),
        "or": (f"{place} AND", f"{place} OR"),
        "other cities": (place, place.replace("=", "<>")),
        "another column": ("SELECT name", "SELECT id"),
        "two columns": ("SELECT name", "SELECT name, age"),
        "only the first": (age, f"{age} LIMIT 1"),
        "at most three": (age, f"{age} LIMIT 3"),
        "at most ten": (age, f"{age} LIMIT 10"),
    }


def dear_products(question: Question) -> Mistakes:
    """Return mistakes in a query for products by their price."""
    return {
        **bounds("price", ">", question.number),
        "no condition": (f" WHERE price > {question.number}", ""),
        "no order": (" ORDER BY price DESC, name", ""),
        "ties in any order": ("price DESC, name", "price DESC"),
        "ties backwards": ("price DESC, name", "price DESC, name DESC"),
        "the cheapest first": ("price DESC", "price"),
        "by name": ("ORDER BY price DESC, name", "ORDER BY name"),
        "ties by key": ("price DESC, name", "price DESC, id"),
        "ties by kind": ("price DESC, name", "price DESC, kind"),
        "columns exchanged": ("SELECT name, price", "SELECT price, name"),
        "one column": ("SELECT name, price", "SELECT name"),
        "equal prices once": (f"> {question.number}", f"> {question.number} GROUP BY price"),
        "at most five": ("DESC, name", "DESC, name LIMIT 5"),
        "at most ten": ("DESC, name", "DESC, name LIMIT 10"),
        "not the first": ("DESC, name", "DESC, name LIMIT -1 OFFSET 1"),
    }


def mean_price(question: Question) -> Mistakes:
    """Return mistakes in a query for the highest, lowest or mean price of each kind."""
    function = question.query.split("kind, ")[1][:3]
    used, condition = f"{function}(price)", f" WHERE price >= {question.number}"
    wrong: Mistakes = {
        **bounds("price", ">=", question.number),
        "no condition": (condition, ""),
        "no groups": (" GROUP BY kind", ""),
        "groups by name": ("GROUP BY kind", "GROUP BY name"),
        "another column": ("SELECT kind", "SELECT name"),
        "no kind": ("SELECT kind, ", "SELECT "),
        "a sum": (used, "SUM(price)"),
        "a count": (used, "COUNT(price)"),
        "a condition on groups": (
            f"{condition} GROUP BY kind",
            f" GROUP BY kind HAVING {used} >= {question.number}",
        ),
    }
    for other in {"MAX", "MIN", "AVG"} - {function}:
        wrong[f"{other} for {function}"] = (used, f"{other}(price)")
    if function == "AVG":
        wrong["equal prices once"] = (used, "AVG(DISTINCT price)")
        wrong["whole numbers"] = (used, "SUM(price) / COUNT(*)")
        wrong["rounded"] = (used, "ROUND(AVG(price))")
    if function == "MAX":  # the highest of all is that of the dear ones, so only MIN shows groups
        wrong["a condition on groups"] = (
            f"{condition} GROUP BY kind",
            f" GROUP BY kind HAVING MIN(price) >= {question.number}",
        )
    return wrong
