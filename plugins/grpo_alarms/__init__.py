"""Notice reward hacking and collapse while a run goes on, as a listener of the run."""

from grpo_core import Spec, hookimpl


@hookimpl
def grpo_listeners() -> list[Spec]:
    return [
        Spec(
            "alarms",
            "grpo_alarms.watch:AlarmWatch",
            "Reward hacking and collapse, noticed while a run goes on.",
        )
    ]
