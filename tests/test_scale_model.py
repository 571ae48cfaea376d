"""The simulated steps of examples/benchmarks/scale_model.py, beside sums by hand."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("simpy")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "benchmarks"))

from scale_growth import grown
from scale_simulation import Costs, Layout, simulate

COSTS = Costs(
    sample_batch=1.0, sample_row=0.5, verdict=2.0, update_step=1.0, update_row=0.25, sync=0.5
)


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        # sync, a batch of 4 rows, 4 verdicts one after the other, an update
        (Layout(2, 2), 0.5 + (1 + 2) + 8 + (1 + 1)),
        (Layout(2, 2, verifiers=4), 0.5 + 3 + 2 + 2),
        (Layout(2, 2, verifiers=100), 0.5 + 3 + 2 + 2),
        # the verdicts of the first batch are judged while the second is drawn
        (Layout(2, 2, verifiers=4, batch_rows=2), 0.5 + 2 * (1 + 1) + 2 + 2),
        # two processes with half of everything each
        (Layout(2, 2, trainers=2, samplers=2, verifiers=2, pools=2), 0.5 + 2 + 4 + 1.5),
    ],
)
def test_a_synchronous_step_is_the_sum_of_its_phases(layout: Layout, seconds: float) -> None:
    assert simulate(COSTS, layout).seconds == pytest.approx(seconds)


def test_a_bounded_pipeline_is_as_fast_as_its_busiest_machine() -> None:
    """Weights of step s - 1 - staleness are enough for the rollouts of step s."""
    layout = Layout(2, 2, verifiers=4, shared=False)
    together = simulate(COSTS, layout)
    one, many = (
        simulate(COSTS, Layout(2, 2, verifiers=4, shared=False, staleness=k)) for k in (1, 5)
    )
    assert together.seconds == pytest.approx(0.5 + 3 + 2 + 2)
    assert one.seconds == pytest.approx((0.5 + 3 + 2 + 2) / 2)
    assert many.seconds == pytest.approx(0.5 + 3)  # the sampler, which takes weights each step
    assert many.busiest == "samplers"


def test_trainers_that_sample_do_one_of_the_two_at_a_time() -> None:
    seconds = simulate(COSTS, Layout(2, 2, verifiers=4, staleness=5)).seconds
    assert seconds >= 3 + 2


def test_an_exchange_is_paid_where_several_train() -> None:
    costs = Costs(1.0, 0.5, 2.0, 1.0, 0.25, 0.5, exchange=3.0)
    alone, two = (Layout(2, 2, trainers=n, shared=False, verifiers=4) for n in (1, 2))
    assert simulate(costs, alone).seconds == simulate(COSTS, alone).seconds
    assert simulate(costs, two).seconds == pytest.approx(0.5 + 3 + 2 + (1 + 0.5) + 3)


def test_what_is_added_next_is_what_holds_up_the_steps() -> None:
    path = grown(COSTS, Layout(8, 4, shared=False), most=40)
    assert path[1][2] == "verifiers"  # 32 verdicts of 2 s, beside 17 s and 9 s
    seconds = [predicted.seconds for _, predicted, _ in path]
    assert seconds == sorted(seconds, reverse=True)
    assert path[-1][0].machines <= 40
