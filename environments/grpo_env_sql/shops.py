"""Draw the rows of databases: ordinary ones, and those in which near misses of a query show."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from grpo_env_sql.database import Shop

NAMES = "Ada Ben Cleo Dan Eva Finn Gina Hugo Ida Jan Kim Leo Mia Ned Ona Paul Rita Sam Tess Uli"
CITIES = ("Bern", "Kiel", "Lyon", "Oslo", "Porto")
KINDS = {
    "fruit": "apple pear plum fig grape",
    "tool": "saw file drill axe vise",
    "toy": "ball kite doll top yo-yo",
}
AGES, PRICES, AMOUNTS, MONTHS = (18, 80), (1, 90), (1, 9), (1, 12)
"""The lowest and the highest value of each column."""
_MAX_ADDED = 30
"""The most orders that are added to reach a sum."""


def draw_shop(rng: random.Random) -> Shop:
    """Return a shop with 12 to 20 customers, 9 to 15 products and 40 to 80 orders.

    Some customers have ordered nothing, and some values repeat, so that a join, an outer join, a
    count and a distinct count differ.
    """
    names = rng.sample(NAMES.split(), rng.randint(12, 20))
    customers = tuple(
        (number, name, rng.choice(CITIES), rng.randint(*AGES))
        for number, name in enumerate(names, 1)
    )
    products = tuple(
        (number, name, kind, rng.randint(*PRICES))
        for number, (name, kind) in enumerate(rng.sample(_wares(), rng.randint(9, 15)), 1)
    )
    buyers = rng.sample(customers, len(customers) - rng.randint(2, 4))
    orders = tuple(
        (
            number,
            rng.choice(buyers)[0],
            rng.choice(products)[0],
            rng.randint(*AMOUNTS),
            rng.randint(*MONTHS),
        )
        for number in range(1, rng.randint(41, 81))
    )
    return Shop(customers, products, orders)


def draw_edge_shop(
    rng: random.Random,
    edges: Collection[int],
    *,
    city: str = "",
    kind: str = "",
    most_orders: int = 0,
) -> Shop:
    """Return a shop whose values lie at the bounds that a question names, or on one side of them.

    Amounts are small, so that sums tie. Keys and names are in different orders.

    Args:
        rng: the random numbers.
        edges: the numbers that the question names.
        city: the city that the question names, in which most customers live at times.
        kind: the kind that it names, of which there are up to five products as of the others.
        most_orders: the most orders; 0: 15 to 80.
    """
    draw_age, draw_price, draw_month = (
        _column(rng, low, high, edges) for low, high in (AGES, PRICES, MONTHS)
    )
    names = rng.sample(NAMES.split(), rng.randint(18, 20))
    share = rng.choice((0.3, 0.8)) if city else 0.0
    customers = tuple(
        (number, name, city if rng.random() < share else rng.choice(CITIES), draw_age())
        for number, name in enumerate(names, 1)
    )
    wares = rng.sample(_wares(), rng.randint(14, 15))
    products = tuple(
        (number, name, of_kind, draw_price()) for number, (name, of_kind) in enumerate(wares, 1)
    )
    most = rng.choice((1, 2, 4, 9))
    buyers = rng.sample(customers, rng.randint(4, len(customers) - 2))
    count = rng.randint(0, most_orders) if most_orders else rng.randint(15, 80)
    bought = [product for product in products if product[2] == kind]
    rows = tuple(
        (
            number,
            rng.choice(buyers)[0],
            rng.choice(bought if bought and rng.random() < 0.3 else products)[0],
            rng.randint(1, most),
            draw_month(),
        )
        for number in range(1, count + 1)
    )
    return Shop(customers, products, rows)


def with_revenue(shop: Shop, rng: random.Random, revenue: int) -> Shop:
    """Return a shop in which the customers of some city spent exactly `revenue`.

    One product costs 1 then. The shop stays as it is where that takes too many orders.
    """
    *others, (number, name, kind, _) = shop.products
    products = (*others, (number, name, kind, 1))
    price = {row[0]: row[3] for row in products}
    city = rng.choice(shop.customers)[2]
    customers = [row[0] for row in shop.customers if row[2] == city]
    kept, left = list[tuple[int, int, int, int, int]](), revenue
    for _, customer, product, amount, month in shop.orders:
        cost = price[product] * amount
        if customer in customers and cost > left:
            continue
        kept.append((len(kept) + 1, customer, product, amount, month))
        left -= cost if customer in customers else 0
    dearest_first = sorted(products, key=lambda row: -row[3])
    for _ in range(_MAX_ADDED):
        if not left:
            return Shop(shop.customers, products, tuple(kept))
        number, _, _, cost = next(row for row in dearest_first if row[3] <= left)
        amount = min(AMOUNTS[1], left // cost)
        kept.append((len(kept) + 1, rng.choice(customers), number, amount, rng.randint(*MONTHS)))
        left -= cost * amount
    return shop


def _wares() -> list[tuple[str, str]]:
    return [(name, kind) for kind, names in KINDS.items() for name in names.split()]


def _column(rng: random.Random, low: int, high: int, edges: Collection[int]) -> Callable[[], int]:
    """Return what draws the values of a column, in a way that is drawn once for the shop."""
    inside = sorted(edge for edge in edges if low <= edge <= high) or [rng.randint(low, high)]
    first = rng.choice((-2, -1, -1, 0, 1))
    near = [edge + step for edge in inside for step in range(first, first + 3)]
    near = [value for value in near if low <= value <= high] or inside
    edge = rng.choice(inside)
    bounds = rng.choice(((low, high), (low, edge), (edge, high)))
    share = rng.choice((0.0, 0.8, 0.8))
    return lambda: rng.choice(near) if rng.random() < share else rng.randint(*bounds)
