"""Rows, their weights and micro-batches: denominators, masks and bounds, with numbers."""

from typing import Any

import pytest
import torch

from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.tree import MIN_COMMON, pair_cost
from grpo_core.engine.compute.tree import size as tree_size
from grpo_core.protocol.types import Message, Rollout

from .arrange import CPU, collate, micro_batches
from .tiny import tiny_model

PROMPT = (1, 2, 3)


def rollout(
    length: int, *, start: int = 10, finish: str = "stop", written: int = 99, prompt: Any = PROMPT
) -> Rollout:
    """`length` tokens, of which the first `written` are the policy's."""
    written = min(written, length)
    tokens = tuple(range(start, start + length))
    trainable = (1,) * written + (0,) * (length - written)
    drawn = tuple(-0.5 * (i + 1) for i in range(length))
    return Rollout((Message("assistant", "x"),), finish, prompt, tokens, drawn, trainable)  # type: ignore[arg-type]


# Two prompts with three attempts; one is empty, one was cut off, one ends with two tokens of the environment, one could not be judged.
ROLLOUTS = [
    [rollout(4), rollout(0), rollout(6, finish="length")],
    [rollout(5, written=3), rollout(2), rollout(9)],
]
SCORED = torch.tensor([[True, True, True], [True, True, False]])
ADVANTAGE = torch.tensor([[0.5, -1.0, 0.25], [0.0, 0.0, 0.0]], dtype=torch.float64)


def weights(aggregation: str, **more: bool) -> list[list[float]]:
    steps = collate(ROLLOUTS, ADVANTAGE, SCORED, aggregation=aggregation, max_length=10, **more)  # type: ignore[arg-type]
    return [[row.weight for row in rows] for rows in steps]


@pytest.mark.parametrize(
    ("aggregation", "whole", "masked"),
    [
        ("sequence_mean", [1 / 20, 1 / 5, 1 / 30, 1 / 15, 1 / 10], [1 / 16, 1 / 4, 1 / 12, 1 / 8]),
        ("token_mean", [1 / 15] * 5, [1 / 9] * 4),
        ("sequence_sum", [1 / 5] * 5, [1 / 4] * 4),
        ("constant", [1 / 50] * 5, [1 / 40] * 4),
    ],
)
def test_the_denominators_are_those_of_the_definition(aggregation, whole, masked):
    """Five scored completions with 4, 0, 6, 3 and 2 tokens of the policy; without the one that was cut off, four with 9."""
    assert weights(aggregation) == [pytest.approx(whole, rel=1e-15)]
    assert weights(aggregation, mask_truncated=True) == [pytest.approx(masked, rel=1e-15)]


def test_a_dead_group_is_left_out_and_counted():
    assert weights("token_mean", skip_dead=True) == [pytest.approx([1 / 15] * 3)]
    masked = weights("sequence_sum", skip_dead=True, mask_truncated=True)
    assert masked == [pytest.approx([1 / 4] * 2)]


def test_rows_carry_their_own_advantage():
    (rows,) = collate(ROLLOUTS, ADVANTAGE, SCORED, aggregation="token_mean", max_length=10)
    assert [row.advantage for row in rows] == [0.5, -1.0, 0.25, 0.0, 0.0]
    scored = [*ROLLOUTS[0], *ROLLOUTS[1][:2]]
    assert [row.segment for row in rows] == [rollout.segments[0] for rollout in scored]


@pytest.mark.parametrize(
    ("minibatches", "sizes"), [(1, [7]), (2, [3, 4]), (3, [2, 2, 3]), (7, [1] * 7)]
)
def test_minibatches_split_the_prompts_as_evenly_as_possible(minibatches, sizes):
    rollouts = [[rollout(p + 1)] for p in range(7)]
    ones = torch.ones(7, 1, dtype=torch.bool)
    more = {"aggregation": "sequence_sum", "max_length": 9, "minibatches": minibatches}
    steps = collate(rollouts, ones.double(), ones, **more)
    assert [len(rows) for rows in steps] == sizes
    segments = [row.segment for rows in steps for row in rows]
    assert segments == [group[0].segments[0] for group in rollouts]
    assert [[row.weight for row in rows] for rows in steps] == [[1 / size] * size for size in sizes]


def test_a_step_in_which_nothing_was_scored_is_left_out_and_one_with_dead_groups_is_not():
    scored = torch.tensor([[False] * 3, [True] * 3])
    more = {"aggregation": "token_mean", "max_length": 10, "minibatches": 2, "skip_dead": True}
    assert collate(ROLLOUTS, ADVANTAGE, scored, **more) == [[]]


def of(rollouts: list[Rollout]) -> list[Row]:
    return [Row(each.segments[0], 1.0, 1.0) for each in rollouts]


def passes(rows: list[Row], most: int, *, shared: bool = True, pair: float = 0.0) -> list[Any]:
    more = {"device": CPU, "dtype": torch.float64, "shared_prefix": shared, "pair": pair}
    return list(micro_batches(rows, max_tokens=most, **more))


def chunks(rows: list[Row], most: int, *, shared: bool) -> list[int]:
    return [len(micro.rows) for micro in passes(rows, most, shared=shared)]


def test_micro_batches_take_as_many_rows_as_fit_and_one_that_fits_nowhere_alone():
    """With its own prompt of 3, a row of 4 tokens is 7, two are 14; sharing it, two rows that part at once are 3 + 8."""
    apart = of([rollout(4, start=10 * i) for i in range(1, 5)])
    sizes = [[1] * 4, [1] * 4, [2, 2], [3, 1], [4]]
    assert [chunks(apart, most, shared=False) for most in (1, 13, 14, 27, 28)] == sizes
    assert [chunks(apart, most, shared=True) for most in (1, 10, 11, 18, 19)] == sizes
    assert tree_size([PROMPT], [row.segment.token_ids for row in apart]) == 19


def test_what_two_prompts_begin_with_counts_once():
    start = tuple(range(100, 100 + 2 * MIN_COMMON))
    rows = of([rollout(4, prompt=(*start, 1)), rollout(3, start=60, prompt=(*start, 2))])
    whole = len(start) + 2 + 4 + 3
    assert [chunks(rows, most, shared=True) for most in (whole - 1, whole)] == [[1, 1], [2]]


def together(rows: list[Row], *, most: int = 99, **more: Any) -> list[tuple[int, ...]]:
    """Rows in each tree of each pass."""
    return [micro.together for micro in passes(rows, most, **more)]


def test_a_tree_ends_where_two_cost_less():
    """A prompt of 3 and rows of 4 tokens: 7, 11, 15, 19 nodes, and 7 for a row alone."""
    apart = of([rollout(4, start=10 * i) for i in range(1, 5)])
    assert together(apart) == [(4,)]
    # One tree of 11 costs 11 + 121 pair, two of 7 cost 14 + 98 pair: even at 3 / 23.
    assert together(apart, pair=3 / 23 - 1e-9) == [(2, 2)]
    assert together(apart, pair=3 / 23 + 1e-9) == [(1, 1, 1, 1)]
    # One of 15 costs 15 + 225 pair, 11 and 7 cost 18 + 170 pair: even at 3 / 55; 19 against 15 and 7: 3 / 87.
    assert together(apart, pair=3 / 55 - 1e-9) == [(3, 1)]
    assert together(apart, pair=3 / 87 - 1e-9) == [(4,)]
    # Rows with prompts of their own do not look at each other.
    assert together(apart, pair=1, shared=False) == [(1, 1, 1, 1)]
    # Trees that cost the same are one.
    assert together(of([rollout(4, prompt=(i,)) for i in range(1, 5)])) == [(4,)]


def test_a_pass_holds_trees_padded_to_the_largest_longest_first():
    """Trees of 5, 11 and 7 nodes: beside 11, 7 counts 11 and so does 5."""
    apart = rollout(2, prompt=(1, 1, 1)), rollout(4, prompt=(3, 3, 3))
    rows = of([apart[0], rollout(4), rollout(4, start=50), apart[1]])
    assert together(rows, pair=0.1, most=33) == [(2, 1, 1)]
    assert together(rows, pair=0.1, most=32) == [(2, 1), (1,)]
    assert together(rows, pair=0.1, most=21) == [(2,), (1, 1)]
    (micro,) = passes(rows, 33, pair=0.1)
    assert list(micro.rows) == [rows[1], rows[2], rows[3], rows[0]]


def test_a_pair_of_nodes_costs_what_attention_and_weights_say():
    """The tiny Llama: 2 layers of 32 numbers; weights without its tied embedding."""
    model = tiny_model()
    weights = sum(p.numel() for p in model.parameters())
    embeddings = model.get_input_embeddings().weight.numel()
    assert pair_cost(model) == 2 * 2 * 32 / (weights - embeddings)


def test_rows_with_prompts_of_their_own_stand_with_those_of_their_length():
    rows = of([rollout(2), rollout(5), rollout(3)])
    first, second = passes(rows, 16, shared=False)
    assert [*first.rows, *second.rows] == [rows[1], rows[2], rows[0]]
    assert len(first.rows) == 2


def test_padding_counts_where_every_row_has_its_own_prompt():
    uneven = of([rollout(2), rollout(5, prompt=(1, 2, 3, 4))])  # two rows of 4 + 5
    assert chunks(uneven, 17, shared=False) == [1, 1]
    assert chunks(uneven, 18, shared=False) == [2]


def test_a_micro_batch_is_padded_on_the_right_with_what_its_masks_hide():
    (micro,) = passes(of([rollout(3, written=2), rollout(1, start=50)]), 99)
    assert micro.tokens_BT.tolist() == [[10, 11, 12], [50, 0, 0]]
    assert micro.real_BT.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert micro.trainable_BT.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert micro.generated_BT.tolist() == [[-0.5, -1.0, -1.5], [-0.5, 0.0, 0.0]]
    assert micro.advantage_BT.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert micro.weight_B1.tolist() == [[1.0], [1.0]]
    for numbers in (micro.generated_BT, micro.advantage_BT, micro.weight_B1):
        assert numbers.dtype == torch.float64


def test_a_micro_batch_of_empty_completions_has_a_width():
    (micro,) = passes(of([rollout(0)]), 99)
    assert micro.tokens_BT.tolist() == micro.real_BT.tolist() == [[0]]
