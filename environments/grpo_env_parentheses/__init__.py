"""Brackets that open and close: short functions on strings, written by the model and run in a sandbox."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [
        Spec(
            "parentheses", "grpo_env_parentheses.env:Parentheses", summary=__doc__, extra="sandbox"
        )
    ]
