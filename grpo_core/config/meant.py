"""Say which setting was meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_core.protocol.errors import did_you_mean

ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "batch_size": "prompts_per_step",
    "per_device_train_batch_size": "prompts_per_step",
    "num_generations": "group_size",
    "max_tokens": "sampling.max_new_tokens",
    "max_completion_length": "sampling.max_new_tokens",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "kl_coef": "kl.beta",
}
"""What other programs call a setting, and what it is called here."""


def meant_settings(name: str, known: Sequence[str]) -> list[str]:
    """Return the setting that another program calls `name`, or those whose last word it is."""
    last = name.rpartition(".")[2]
    if last in ELSEWHERE:
        return [ELSEWHERE[last]]
    return [key for key in known if key.rpartition(".")[2] == last][:3]


def did_you_mean_setting(name: str, known: Sequence[str]) -> str:
    """Return the end of a message: "; did you mean 'optimizer.lr'?", else "."."""
    meant = " or ".join(map(repr, meant_settings(name, known)))
    return f"; did you mean {meant}?" if meant else did_you_mean(name, known)
