"""The questions, each with a query that answers it, by difficulty."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from grpo_env_sql.shops import CITIES, KINDS


@dataclass(frozen=True, slots=True)
class Question:
    """Holds a question and a query that answers it."""

    text: str
    query: str
    ordered: bool = False
    """Whether the order of the rows counts."""
    family: str = ""
    """The name of the family, by which its mistakes are known; "" for a question without them."""
    number: int = 0
    """The bound that the question names, the first of two."""
    last: int = 0
    """The second bound, if there is one."""
    city: str = ""
    kind: str = ""


Family = Callable[[random.Random], Question]
"""Draws a question of one form."""


def _count_where(rng: random.Random) -> Question:
    age, word, sign = rng.randint(20, 75), *rng.choice((("older", ">"), ("younger", "<")))
    return Question(
        f"How many customers are {word} than {age}?",
        f"SELECT COUNT(*) FROM customers WHERE age {sign} {age}",
        family="count_where",
        number=age,
    )


def _names_in_city(rng: random.Random) -> Question:
    city, age = rng.choice(CITIES), rng.randint(20, 60)
    return Question(
        f"What are the names of the customers in {city} who are at least {age}?",
        f"SELECT name FROM customers WHERE city = '{city}' AND age >= {age}",
        family="names_in_city",
        number=age,
        city=city,
    )


def _dear_products(rng: random.Random) -> Question:
    price = rng.randint(10, 80)
    return Question(
        f"Which products cost more than {price}? Return name and price, the dearest first, and by "
        "name where prices are equal.",
        f"SELECT name, price FROM products WHERE price > {price} ORDER BY price DESC, name",
        ordered=True,
        family="dear_products",
        number=price,
    )


def _mean_price(rng: random.Random) -> Question:
    extreme, function = rng.choice((("highest", "MAX"), ("lowest", "MIN"), ("mean", "AVG")))
    price = rng.randint(5, 60)
    return Question(
        f"What is the {extreme} price of each kind of product, of those that cost at least "
        f"{price}? Return the kind and the price.",
        f"SELECT kind, {function}(price) FROM products WHERE price >= {price} GROUP BY kind",
        family="mean_price",
        number=price,
    )


def _ordered_amount(rng: random.Random) -> Question:
    kind, month = rng.choice(tuple(KINDS)), rng.randint(3, 11)
    return Question(
        f"How many pieces of the kind {kind} were ordered up to month {month}? Return 0 if none.",
        "SELECT COALESCE(SUM(o.amount), 0) FROM orders o JOIN products p ON p.id = o.product_id "
        f"WHERE p.kind = '{kind}' AND o.month <= {month}",
        family="ordered_amount",
        number=month,
        kind=kind,
    )


def _revenue_by_city(rng: random.Random) -> Question:
    least = rng.randint(50, 900)
    return Question(
        "What did the customers of each city spend (price times amount)? Return the city and the "
        f"sum, only where it is at least {least}.",
        "SELECT c.city, SUM(p.price * o.amount) FROM orders o JOIN customers c ON "
        "c.id = o.customer_id JOIN products p ON p.id = o.product_id GROUP BY c.city "
        f"HAVING SUM(p.price * o.amount) >= {least}",
        family="revenue_by_city",
        number=least,
    )


def _customers_without(rng: random.Random) -> Question:
    kind, month = rng.choice(tuple(KINDS)), rng.randint(3, 12)
    return Question(
        f"What are the names of the customers who ordered nothing of the kind {kind} up to month "
        f"{month}?",
        "SELECT name FROM customers WHERE id NOT IN (SELECT o.customer_id FROM orders o "
        f"JOIN products p ON p.id = o.product_id WHERE p.kind = '{kind}' AND o.month <= {month})",
        family="customers_without",
        number=month,
        kind=kind,
    )


def _orders_each(rng: random.Random) -> Question:
    city, month = rng.choice(CITIES), rng.randint(1, 6)
    return Question(
        f"How many orders has each customer in {city} from month {month} on? Return name and "
        "number, also those with 0.",
        "SELECT c.name, COUNT(o.id) FROM customers c LEFT JOIN orders o ON o.customer_id = c.id "
        f"AND o.month >= {month} WHERE c.city = '{city}' GROUP BY c.id",
        family="orders_each",
        number=month,
        city=city,
    )


def _best_of_each_kind(rng: random.Random) -> Question:
    first, last = rng.randint(1, 5), rng.randint(7, 12)
    return Question(
        f"Which product of each kind was ordered most (sum of amounts) from month {first} to month "
        f"{last}? Return kind, name and sum; where several are equal, the first by name.",
        "SELECT kind, name, total FROM (SELECT p.kind, p.name, SUM(o.amount) AS total, "
        "ROW_NUMBER() OVER (PARTITION BY p.kind ORDER BY SUM(o.amount) DESC, p.name) AS place "
        f"FROM orders o JOIN products p ON p.id = o.product_id WHERE o.month "
        f"BETWEEN {first} AND {last} GROUP BY p.id) WHERE place = 1",
        family="best_of_each_kind",
        number=first,
        last=last,
    )


def _running_total(rng: random.Random) -> Question:
    first, city = rng.randint(1, 5), rng.choice(CITIES)
    return Question(
        f"How many pieces did customers in {city} order from month {first} up to each later month, "
        "that month included? Return month and running sum, in the order of the months that have "
        "orders.",
        "SELECT o.month, SUM(SUM(o.amount)) OVER (ORDER BY o.month) FROM orders o JOIN customers c "
        f"ON c.id = o.customer_id WHERE c.city = '{city}' AND o.month >= {first} "
        "GROUP BY o.month ORDER BY o.month",
        ordered=True,
        family="running_total",
        number=first,
        city=city,
    )


FAMILIES: tuple[tuple[Family, ...], ...] = (
    (_count_where, _names_in_city),
    (_dear_products, _mean_price),
    (_ordered_amount, _orders_each),
    (_revenue_by_city, _customers_without),
    (_best_of_each_kind, _running_total),
)
"""The families of levels 0.0, 0.2, 0.4, 0.6 and 0.8."""


def draw_question(rng: random.Random, level: float) -> Question:
    """Return a question of a level from 0 to 1."""
    families = FAMILIES[min(int(level * 5 + 1e-9), len(FAMILIES) - 1)]
    return rng.choice(families)(rng)
