"""Say why rollouts could not be scored, each reason once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from grpo_core.protocol.types import Verdict
from grpo_core.train.run.journal import Journal

MAX_REPORTED = 10
"""Most different reasons that are reported; rollouts.jsonl has them all."""
_TASK_KEY = re.compile(r"TaskKey\([^)]*\)")


class UnscoredReasons:
    """Warn of the reasons for which rollouts have no verdict."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reported: set[str] = set()
        self.most_common = ""
        """The most common reason of the last call of `warn`; "" if all were scored."""

    def warn(self, verdicts: Sequence[Verdict], rollouts: str) -> None:
        """Warn of the most common reason, unless it was reported before.

        Args:
            verdicts: all verdicts of the rollouts.
            rollouts: what they are of, in words.
        """
        reasons = Counter(
            _TASK_KEY.sub("a task", verdict.error) for verdict in verdicts if verdict.error
        )
        self.most_common = ""
        if not reasons:
            return
        self.most_common, count = reasons.most_common(1)[0]
        if self.most_common not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(self.most_common)
            self._journal.warn(
                f"{count} of {len(verdicts)} {rollouts} could not be scored: {self.most_common}"
            )
