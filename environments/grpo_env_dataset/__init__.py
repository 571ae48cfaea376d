"""Your own rows (a JSONL file or a published dataset), a prompt template and a reward function."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_environments() -> list[Spec]:
    return [Spec("dataset", "grpo_env_dataset.env:Dataset", summary=__doc__)]
