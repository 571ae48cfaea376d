"""Stop a run whose verifiers fail too often."""

from __future__ import annotations

from grpo_core.config.config import RunConfig
from grpo_core.plugins.rows import name_in_commands
from grpo_core.protocol.events import BatchCollected, EvaluationEnded, Event
from grpo_core.verify.judge.error_rate import ErrorRate, check_begin, check_raised


class ErrorLimits:
    """End the run by an error, as a listener, where too many rollouts could not be scored."""

    def __init__(self, config: RunConfig) -> None:
        self._verify = config.verify
        members = config.members().items()
        self._environments = [name_in_commands(name, member.env) for name, member in members]
        self._rate = ErrorRate(stop_above=config.verify.max_error_rate)
        self._has_begun = False
        """Whether the first attempts were judged."""

    def on(self, event: Event) -> None:
        """Count the verdicts of a step or an evaluation.

        Raises:
            RunStoppedError: too many of them are errors, or floors for an exception, or all of the
                first ones are.
        """
        if not isinstance(event, BatchCollected | EvaluationEnded):
            return
        verdicts = [verdict for group in event.groups for verdict in group.verdicts]
        is_first = not self._has_begun and event.step <= isinstance(event, BatchCollected)
        if is_first and self._verify.max_error_rate < 1:
            check_begin(verdicts, environments=self._environments)
        self._has_begun = True
        self._rate.add(verdicts)
        if isinstance(event, BatchCollected):
            check_raised(event.step, verdicts, stop_above=self._verify.max_raised_rate)
