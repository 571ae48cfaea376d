"""Answer questions about a small shop by a query over its SQLite database."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("sql", "grpo_env_sql.env:Sql", summary=__doc__)]
