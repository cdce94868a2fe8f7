"""The learned head, in every library and dtype."""

import math

import numpy as np
import oracle
import pytest
from cases import DTYPES, masks, need, recorded

import attnbook

dtypes = pytest.mark.parametrize("dtype", DTYPES)


def head(seed=0, d_out=None, d_key=3, d_value=7):
    return attnbook.SingleHeadWeights.init(seed, 5, d_key, d_value, d_k=2, d_v=4, d_out=d_out)


@pytest.mark.parametrize("d_out", [None, 11])
@pytest.mark.parametrize("name", ["none", "random", "empty row"])
def test_head_agrees_with_the_loop(library, d_out, name):
    rng = np.random.default_rng(1)
    shapes = ((2, 1, 3, 5), (4, 13, 3), (13, 7))  # leading axes that broadcast
    query, key, value = map(rng.standard_normal, shapes)
    weights = head(d_out=d_out)
    mask = masks(rng, (2, 4, 3, 13))[name]
    arrays = [library.array(x) for x in (query, key, value)]
    placed = library.place(weights)
    theirs = None if mask is None else library.array(mask)
    output, [attended] = recorded(attnbook.single_head_attention, *arrays, placed, theirs)
    exact, shares = oracle.single_head_attention(query, key, value, **vars(weights), mask=mask)
    np.testing.assert_allclose(library.numpy(output), exact, atol=1e-12)
    np.testing.assert_allclose(library.numpy(attended), shares, atol=1e-12)
    alone = attnbook.single_head_attention(*arrays, placed, theirs)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(output))
    assert library.same_kind(output, arrays[0])


def test_init_is_the_same_for_the_same_seed_and_draws_in_order():
    for rng in (7, np.int64(7), np.random.default_rng(7)):
        weights = head(rng, d_out=6)
        drawn = np.random.default_rng(7)
        for name, shape in (("W_Q", (5, 2)), ("W_K", (3, 2)), ("W_V", (7, 4)), ("W_O", (4, 6))):
            bound = math.sqrt(6 / sum(shape))
            np.testing.assert_array_equal(
                getattr(weights, name), drawn.uniform(-bound, bound, shape), err_msg=name
            )
    assert not np.array_equal(head(7).W_Q, head(8).W_Q)


@pytest.mark.parametrize(("given", "filled"), [((), (5, 5)), ((3,), (3, 3)), ((3, 7), (3, 7))])
def test_init_fills_in_the_widths_that_are_left_out(given, filled):
    weights = attnbook.SingleHeadWeights.init(0, 5, *given, d_k=2, d_v=4)
    shapes = (weights.W_K.shape, weights.W_V.shape, weights.W_O)
    assert shapes == ((filled[0], 2), (filled[1], 4), None)


@pytest.mark.parametrize("name", ["d_query", "d_key", "d_value", "d_k", "d_v", "d_out"])
def test_init_refuses_a_width_of_0(name):
    widths = {"d_query": 5, "d_k": 2, "d_v": 4, name: 0}
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
        attnbook.SingleHeadWeights.init(0, **widths)


@dtypes
def test_head_in_every_dtype(library, dtype):
    need(library, dtype)
    rng = np.random.default_rng(1)
    arrays = [library.array(rng.standard_normal(s), dtype) for s in ((3, 5), (6, 3), (6, 7))]
    placed = library.place(head(d_out=2), dtype)
    got = attnbook.single_head_attention(*arrays, placed)
    assert library.same_kind(got, arrays[0])
    matrices = {name: library.numpy(x) for name, x in vars(placed).items()}
    exact, _ = oracle.single_head_attention(*map(library.numpy, arrays), **matrices)
    # the projections are rounded to `dtype` as well: three roundings of numbers near 3
    tolerance = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=tolerance)
