"""Make near misses of a query by changing its text, without a list of mistakes.

It knows the words of SQL and the columns of the database, and nothing of the questions: operators,
numbers, names, aggregates, joins and clauses are exchanged, dropped or added one at a time.
"""

import re
from collections.abc import Iterator

TOKEN = re.compile(r"'[^']*'|\w+(?:\.\w+)?|<=|>=|<>|\S")
COLUMNS = (
    ("id", "name", "city", "age"),
    ("id", "name", "kind", "price"),
    ("id", "customer_id", "product_id", "amount", "month"),
)
WORDS = (
    ("<", "<=", ">", ">=", "=", "<>"),
    ("COUNT", "SUM", "MIN", "MAX", "AVG"),
    ("AND", "OR"),
    ("+", "-", "*"),
    ("RANK", "ROW_NUMBER", "DENSE_RANK"),
    ("'fruit'", "'tool'", "'toy'"),
    ("'Bern'", "'Kiel'", "'Lyon'", "'Oslo'", "'Porto'"),
    ("IN", "= ANY"),
    ("customers", "products", "orders"),
)
CLAUSE = re.compile(
    r" (?:WHERE .*?|GROUP BY .*?|HAVING .*?|ORDER BY .*?|PARTITION BY .*?)"
    r"(?= WHERE| GROUP| HAVING| ORDER|\)|$)"
)
CONDITION = re.compile(r"\S+ (?:[<>=]+|BETWEEN \d+ AND) (?:\d+|'\w+')")
ADDED = (
    " LIMIT 1",
    " LIMIT 2",
    " LIMIT 5",
    " LIMIT 10",
    " LIMIT 100 OFFSET 1",
    " ORDER BY 1",
    " ORDER BY 1 DESC",
    " ORDER BY 2",
    " ORDER BY 2 DESC",
)


def mutants(query: str) -> list[str]:
    """Return different queries, each one change away from `query`."""
    return [text for text in dict.fromkeys(_mutants(query)) if text != query]


def _mutants(query: str) -> Iterator[str]:
    for token in TOKEN.finditer(query):
        for other in _instead(token.group()):
            yield query[: token.start()] + other + query[token.end() :]
    for clause in (*CLAUSE.finditer(query), *CONDITION.finditer(query)):
        yield re.sub(
            r"(WHERE|AND|OR|ON) (?=$|\)|GROUP|ORDER|AND|WHERE)",
            "",
            (query[: clause.start()] + query[clause.end() :]).replace("AND  AND", "AND"),
        )
    for condition in CONDITION.finditer(query):
        yield query[: condition.start()] + f"NOT ({condition.group()})" + query[condition.end() :]
        for rest in (" AND", " OR"):
            yield query.replace(f"{condition.group()}{rest} ", "", 1)
        yield query.replace(f" AND {condition.group()}", "", 1)
    yield query.replace("SELECT", "SELECT DISTINCT", 1)
    yield re.sub(r"(SUM|COUNT|AVG)\((?!\*|SUM)", r"\1(DISTINCT ", query, count=1)
    for before, after in (
        ("LEFT JOIN", "JOIN"),
        (" JOIN", " LEFT JOIN"),
        ("NOT IN", "IN"),
        (" DESC", ""),
        (", name", ""),
        (", p.name)", ")"),
        ("COALESCE(SUM(o.amount), 0)", "SUM(o.amount)"),
    ):
        for place in re.finditer(re.escape(before), query):
            yield query[: place.start()] + after + query[place.end() :]
    for place in re.finditer(r"(ORDER BY [\w.]+(?:\([\w.]+\))?)(?! DESC)", query):
        yield query[: place.end()] + " DESC" + query[place.end() :]
    head, comma, tail = query.partition(", ")
    if comma and " FROM" in tail:
        yield head + tail[tail.index(" FROM") :]
    for added in ADDED:
        yield query + added


def _instead(token: str) -> Iterator[str]:
    if token.isdigit():
        yield from (str(int(token) + step) for step in (1, -1, 2))
    for words in WORDS:
        if token in words:
            yield from (word for word in words if word != token)
    table, dot, column = token.rpartition(".")
    for columns in COLUMNS:
        if column in columns:
            yield from (f"{table}{dot}{other}" for other in columns if other != column)
    if dot:
        yield from (f"{other}.{column}" for other in "cop" if other != table)
