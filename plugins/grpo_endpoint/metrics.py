"""Count what a server does, in the text format of Prometheus and under names like vLLM's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from grpo_core.protocol.endpoint import CompletionAnswer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the histogram of latencies in seconds."""


class Metrics:
    """Count answered requests.

    Args:
        model: name of the model.
    """

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._label = f'model_name="{escaped}"'
        self._prompt_tokens = self._completion_tokens = self._failed = 0
        self._finished: Counter[str] = Counter()
        self._latencies: Counter[float] = Counter()
        self._seconds = 0.0

    def add(self, answers: Sequence[CompletionAnswer], seconds: float) -> None:
        """Count the answers to a request, and how long they took, the queue included."""
        choices = [choice for answer in answers for choice in answer.choices]
        self._prompt_tokens += sum(answer.prompt_tokens for answer in answers)
        self._completion_tokens += sum(len(choice.token_ids) for choice in choices)
        self._finished.update(choice.finish for choice in choices)
        self._seconds += seconds
        self._latencies[next((bound for bound in _BOUNDS if seconds <= bound), float("inf"))] += 1

    def add_failure(self) -> None:
        """Count a request that has no answer, as one that was refused or given up."""
        self._failed += 1

    def text(self, *, running: int, waiting: int) -> str:
        """Return all numbers.

        Args:
            running: requests that are being answered.
            waiting: requests that wait for their turn.
        """
        return "".join(f"{line}\n" for line in self._lines(running, waiting))

    def _lines(self, running: int, waiting: int) -> Iterator[str]:
        for name, kind, value in (
            ("num_requests_running", "gauge", running),
            ("num_requests_waiting", "gauge", waiting),
            ("prompt_tokens_total", "counter", self._prompt_tokens),
            ("generation_tokens_total", "counter", self._completion_tokens),
            ("request_failure_total", "counter", self._failed),
        ):
            yield f"# TYPE grpo:{name} {kind}"
            yield f"grpo:{name}{{{self._label}}} {value}"
        yield "# TYPE grpo:request_success_total counter"
        for reason in ("stop", "length", "tool_calls"):
            labels = f'{self._label},finished_reason="{reason}"'
            yield f"grpo:request_success_total{{{labels}}} {self._finished[reason]}"
        name, count = "grpo:e2e_request_latency_seconds", 0
        yield f"# TYPE {name} histogram"
        for bound in (*_BOUNDS, float("inf")):
            count += self._latencies[bound]
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{{self._label},le="{shown}"}} {count}'
        yield f"{name}_sum{{{self._label}}} {self._seconds:.6f}"
        yield f"{name}_count{{{self._label}}} {count}"
