"""SQL: the policy answers a question by a query over a database that it may explore.

A turn with a ```sql block runs that query, and the policy sees the first rows of its result. A turn
without one ends the episode. The last query is the answer: its result must equal that of a right
query, on the database that the policy saw and on three hidden ones with the same tables and other
rows, so that a result written into the query earns nothing. One of those is as random as the
visible one; in the others the values lie at the bounds of the question, sums tie, or there are few
orders, until each of about twenty near misses of the right query is told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from grpo_core import (
    Environment,
    Episode,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import NoAnswer, find_code
from grpo_env_sql.database import SCHEMA, QueryError, Row, run_query, same_rows
from grpo_env_sql.drawing import QueryProblem, draw_problem
from grpo_env_sql.near_misses import near_misses
from grpo_env_sql.questions import Question
from grpo_env_sql.shops import draw_shop

RULES = (
    "Answer the question by one SELECT over this SQLite database:\n"
    f"{SCHEMA.strip()}\n"
    "A ```sql block in your reply is run, and you see its result. Your last query is your answer; "
    "reply without a block when you are done."
)
LABELS = ("sql", "sqlite", "sqlite3")
_SHOWN_ROWS = 10
_SHOWN_CHARS = 600


class Sql(Environment[QueryProblem]):
    """Parts: runs 0.1, the last query has a result; right 0.9, it is that of a right query."""

    parts: ClassVar[Mapping[str, float]] = {"runs": 0.1, "right": 0.9}
    timeout_seconds: ClassVar[float] = 60.0
    """Ample for the queries of one turn, whose processor time is limited, on a busy machine."""
    max_turns = 4
    max_new_tokens = 192
    replayable = True

    def task(self, key: TaskKey) -> Task[QueryProblem]:
        problem = draw_problem(key.rng(), key.split, key.level)
        prompt = (Message("system", RULES), Message("user", problem.question.text))
        return Task(key, prompt, problem)

    def episode(self, task: Task[QueryProblem]) -> Queries:
        return Queries(task.data)

    def reference(self, task: Task[QueryProblem]) -> Sequence[str]:
        return (_block(task.data.question.query), "That is my answer.")

    def cheats(self, task: Task[QueryProblem]) -> Sequence[str | Sequence[str]]:
        """Return turns without a query that runs."""
        query = task.data.question.query
        return (
            query,
            f"```sql\n{query}",
            _block(f"{query}; {query}"),
            _block(f"CREATE TABLE answer AS {query}"),
            (_block(query), _block("SELECT no_such_column FROM customers")),
        )

    def mutants(self, task: Task[QueryProblem]) -> Mapping[str, str | Sequence[str]]:
        """Return near misses of the right query, such as `<=` for `<`, by their mistake."""
        near = near_misses(task.data.question)
        return {name: (_block(query), "That is my answer.") for name, query in near.items()}

    def canaries(self) -> Sequence[Task[QueryProblem]]:
        """Return a question about a column that the database does not have."""
        key = TaskKey("sql", "eval", 0)
        rng = key.rng("canary")
        shop, number = draw_shop(rng), rng.randint(10**6, 10**9)
        text = "What is the sum of the customers' telephone numbers?"
        prompt = (Message("system", RULES), Message("user", text))
        question = Question(text, f"SELECT {number}")
        problem = QueryProblem(question, shop, (), (((number,),),), is_canary=True)
        return (Task(key, prompt, problem),)

    def fingerprint(self) -> str:
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(super().fingerprint().encode() + sources).hexdigest()[:16]


class Queries(Episode):
    """Holds one attempt: its last query, and the result of it."""

    def __init__(self, problem: QueryProblem) -> None:
        self._problem = problem
        self._query: str | None = None
        self._rows: list[Row] | None = None
        self._is_labelled = False
        """Whether a query stood in a block with a label."""
        self._note = ""
        """Why there is no query, or why the last one has no result."""
        self._turns = 0

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        shown = self._take(messages[-1].content)
        return None if shown is None else (Message("user", shown),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in spoken[self._turns :]:  # the last one, if reply() has not seen it
            self._take(text)
        right = self._is_right()
        runs = self._rows is not None and not self._problem.is_canary
        return Verdict(
            {"runs": Reward(runs, note="" if runs else self._note), "right": Reward(right)},
            passed=right,
            answer=self._query,
            metrics={"queries": self._turns},
        )

    def _take(self, text: str) -> str | None:
        """Run the query of a turn, and return what the policy sees; None for a turn without one."""
        self._turns += 1
        # Behind a query with a label, a block without one shows a result.
        block = find_code(text, languages=LABELS if self._is_labelled else (*LABELS, ""))
        if isinstance(block, NoAnswer):
            self._note = self._note or block.reason
            return None
        self._is_labelled = self._is_labelled or bool(block.language)
        self._query, self._rows, self._note = block.content.strip(), None, ""
        try:
            self._rows = run_query(self._problem.visible, self._query)
        except QueryError as error:
            self._note = f"the query has no result: {error}"
            return f"error: {error}"
        return _shown(self._rows)

    def _is_right(self) -> bool:
        if self._query is None or self._rows is None:
            return False
        problem, rows = self._problem, self._rows
        for number, expected in enumerate(problem.expected):
            if number > 0:
                try:
                    rows = run_query(problem.hidden[number - 1], self._query)
                except QueryError:
                    return False
            if not same_rows(rows, expected, ordered=problem.question.ordered):
                return False
        return True


def _shown(rows: Sequence[Row]) -> str:
    """Return the first rows of a result as text."""
    lines = [" | ".join(map(str, row)) for row in rows[:_SHOWN_ROWS]]
    more = f"\n({len(rows)} rows in all)" if len(rows) > _SHOWN_ROWS else ""
    text = "\n".join(lines)[:_SHOWN_CHARS] + more if rows else "(no rows)"
    return text.encode("utf-8", "replace").decode()


def _block(query: str) -> str:
    return f"```sql\n{query}\n```"
