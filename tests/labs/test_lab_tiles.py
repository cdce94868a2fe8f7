"""FlashAttention, tile by tile: the states of the figure are those of the running softmax."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

import attnbook as ab
from attnbook.kernels.running_softmax import RunningSoftmax

QUERIES = np.array([[1.0, 0], [0, 1], [1, 1], [2, 0], [0, 2], [2, 1]])
KEYS = np.array([[1.0, 0], [0, 2], [2, 1], [2, 0], [3, 0], [0, 3]])
VALUES = np.array([[6.0], [0], [3], [5], [2], [9]])
N = 6
SETTINGS = list(itertools.product((1, 2, 3), ("queries", "keys"), (False, True)))


def scores_of(causal):
    scores = QUERIES @ KEYS.T * math.log(2)
    return np.where(np.tri(N, dtype=bool), scores, -np.inf) if causal else scores


def order_of(size, outside, causal):
    """Return the tiles as (top, left), in the order of the loop."""
    starts = range(0, N, size)
    pairs = itertools.product(starts, starts)
    pairs = pairs if outside == "queries" else ((top, left) for left, top in pairs)
    return [(top, left) for top, left in pairs if not causal or left <= top + size - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    rng, lab = np.random.default_rng(seed), lab_named("tiles")
    size, outside, causal = SETTINGS[seed % len(SETTINGS)]
    order, scores = order_of(size, outside, causal), scores_of(causal)
    step = int(rng.integers(len(order) + 1))
    state = {"size": size, "outside": outside, "causal": causal, "step": step}
    found = lab.numbers(**fits(lab, **state))
    assert [(tile["top"], tile["left"]) for tile in found["tiles"]] == order
    np.testing.assert_allclose(found["exponentials"], np.exp(scores_of(False)), rtol=1e-14)
    for i, row in enumerate(found["rows"]):
        read = [left for top, left in order[:step] if top <= i < top + size]
        columns = [j for left in read for j in range(left, left + size)]
        part = RunningSoftmax.read(scores[[i]][:, columns], VALUES[columns])
        np.testing.assert_allclose([[row["z"]]], part.total, rtol=1e-13)
        np.testing.assert_allclose([[row["u"]]], part.weighted, rtol=1e-13)
        if row["m"] is None:
            assert part.total[0, 0] == 0
            continue
        np.testing.assert_allclose([[row["m"]]], part.maximum, rtol=1e-14)
        np.testing.assert_allclose([[row["output"]]], part.output(), rtol=1e-13)
        seen = [j for j in columns if not causal or j <= i]
        exponentials = [math.exp(scores[i, j]) for j in seen]  # in float64, without a shift
        mean = math.fsum(e * VALUES[j, 0] for e, j in zip(exponentials, seen, strict=True))
        np.testing.assert_allclose(row["output"], mean / math.fsum(exponentials), rtol=1e-13)


@pytest.mark.parametrize(("size", "outside", "causal"), SETTINGS)
def test_the_last_tile_gives_attention(size, outside, causal):
    found = lab_named("tiles").numbers(size=size, outside=outside, causal=causal, step=99)
    output = ab.attention(QUERIES, KEYS, VALUES, scale=math.log(2), is_causal=causal)
    np.testing.assert_allclose([[row["output"]] for row in found["rows"]], output, rtol=1e-13)
    assert found["travelled"] == found["whole"]


@pytest.mark.parametrize(("size", "outside", "causal"), SETTINGS)
def test_factors_of_a_step(size, outside, causal):
    lab, order = lab_named("tiles"), order_of(size, outside, causal)
    state = {"size": size, "outside": outside, "causal": causal}
    before = lab.numbers(**state, step=0)["rows"]
    for step in range(1, len(order) + 1):
        rows = lab.numbers(**state, step=step)["rows"]
        for old, new in zip(before, rows, strict=True):
            grown = math.exp(old["m"] - new["m"]) if old["m"] is not None else 1
            np.testing.assert_allclose(new["rescale"], grown, rtol=1e-14)
        before = rows


@pytest.mark.parametrize(("size", "outside", "causal"), SETTINGS)
def test_bytes_are_those_that_a_loop_moves(size, outside, causal):
    """Count them array by array, as a program would that has only so much fast memory."""
    found = lab_named("tiles").numbers(size=size, outside=outside, causal=causal, step=99)
    order, moved = order_of(size, outside, causal), 0
    query, key_value, state, output = (size * width for width in (2, 3, 3, 1))
    held, begun, to_come = None, set(), Counter(top for top, _ in order)
    for top, left in order:
        if outside == "queries":
            moved += key_value
            moved += query if held != top else 0
            held = top
        else:
            moved += query
            moved += key_value if held != left else 0
            moved += state if top in begun else 0
            held = left
            begun.add(top)
        to_come[top] -= 1
        if to_come[top] == 0:
            moved += output
        elif outside == "keys":
            moved += state
    assert found["whole"] == 4 * moved
    assert found["plain"] == 4 * (QUERIES.size + KEYS.size + VALUES.size + N + 4 * N * N)
    assert found["fast"] == 4 * (query + key_value + state + size * size)


def test_the_first_row_is_that_of_the_chapter():
    """Keys one at a time: e^m, z and u after each, as by hand."""
    by_hand = [
        (2, 1, 6),
        (2, 1.5, 6),
        (4, 1.75, 6),
        (4, 2.75, 11),
        (8, 2.375, 7.5),
        (8, 2.5, 8.625),
    ]
    for step, expected in enumerate(by_hand, start=1):
        row = lab_named("tiles").numbers(size=1, step=step)["rows"][0]
        np.testing.assert_allclose((math.exp(row["m"]), row["z"], row["u"]), expected, rtol=1e-13)


def test_buttons_stop_at_both_ends():
    step = "(i, step) => lab.controls[i].change({ ...lab.start, step })"
    lab = lab_named("tiles")
    assert [lab.call(step, 0, at)["step"] for at in (0, 1, 9, 99)] == [0, 0, 8, 8]
    assert [lab.call(step, 1, at)["step"] for at in (0, 8, 9, 99)] == [1, 9, 9, 9]
    assert lab.call("() => lab.act(lab.start, 'tile 7', { kind: 'press' })") == {"step": 7}
