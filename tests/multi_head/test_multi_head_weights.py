"""The matrices of all heads: drawing them, cutting them into heads, putting heads together."""

import math

import numpy as np
import pytest
import torch
from cases import many_heads
from error_table import error_test

import attnbook

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")


def shapes(weights):
    return {name: tuple(x.shape) for name, x in weights.arrays().items()}


def init(rng=0, d_model=12, n_heads=3, **options):
    return attnbook.MultiHeadWeights.init(rng, d_model, n_heads, **options)


# init


@pytest.mark.parametrize("bias", [False, True])
def test_init_is_the_same_for_the_same_seed_and_draws_in_order(bias):
    for rng in (7, np.int64(7), np.random.default_rng(7)):
        weights = init(rng, bias=bias, n_kv_heads=1)
        drawn = np.random.default_rng(7)
        for name, shape in zip(MATRICES, ((12, 12), (12, 4), (12, 4), (12, 12)), strict=True):
            bound = math.sqrt(6 / sum(shape))
            np.testing.assert_array_equal(
                getattr(weights, name), drawn.uniform(-bound, bound, shape), err_msg=name
            )
    assert not np.array_equal(init(7).W_Q, init(8).W_Q)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ((12, 12), (12, 12), (12, 12), (12, 12))),
        ({"n_kv_heads": 1}, ((12, 12), (12, 4), (12, 4), (12, 12))),
        ({"d_key": 5}, ((12, 12), (5, 12), (5, 12), (12, 12))),
        ({"d_value": 7}, ((12, 12), (12, 12), (7, 12), (12, 12))),
        ({"d_key": 5, "d_value": 7}, ((12, 12), (5, 12), (7, 12), (12, 12))),
        ({"d_k": 5}, ((12, 15), (12, 15), (12, 12), (12, 12))),
        ({"d_v": 7}, ((12, 12), (12, 12), (12, 21), (21, 12))),
        ({"d_out": 11}, ((12, 12), (12, 12), (12, 12), (12, 11))),
        ({"d_v": 7, "n_kv_heads": 1}, ((12, 12), (12, 4), (12, 7), (21, 12))),
        ({"output": False}, ((12, 12), (12, 12), (12, 12))),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_init_fills_in_the_widths_that_are_left_out(options, expected, bias):
    weights = init(bias=bias, **options)
    named = dict(zip(MATRICES, expected, strict=False))
    if bias:
        named |= {b: (shape[1],) for b, shape in zip(BIASES, expected, strict=False)}
    assert shapes(weights) == named
    for name in BIASES if bias else ():
        x = getattr(weights, name)
        assert x is None or (x.dtype == np.float64 and not x.any())
    assert (weights.n_heads, weights.n_kv_heads) == (3, options.get("n_kv_heads", 3))


def test_heads_of_a_free_width_need_no_divisible_model():
    assert shapes(init(0, 7, 3, d_k=2, d_v=5))["W_O"] == (15, 7)
    assert shapes(init(0, 1, 1)) == dict.fromkeys(MATRICES, (1, 1))


# The class itself.


def test_numbers_of_heads_become_ints():
    weights = init(0, 12, np.int64(4), n_kv_heads=np.int8(2))
    assert [type(n) for n in (weights.n_heads, weights.n_kv_heads)] == [int, int]
    assert (weights.n_heads, weights.n_kv_heads) == (4, 2)


def test_the_graph_of_the_arrays_is_kept():
    x = torch.ones(5, 4, requires_grad=True)
    weights = attnbook.MultiHeadWeights(x, x, x, n_heads=2)
    assert weights.W_Q is x
    assert weights.heads()[1].W_Q.requires_grad
    joined = attnbook.MultiHeadWeights.from_heads(weights.heads())
    joined.W_K.sum().backward()
    assert bool((x.grad == 1).all())


# from_heads and heads


@pytest.mark.parametrize("d_out", [None, 17])
@pytest.mark.parametrize(("h", "g"), [(1, 1), (3, 3), (6, 1), (6, 2), (6, 3)])
def test_heads_are_columns_and_the_way_back_is_exact(library, d_out, h, g):
    weights = many_heads(0, h, g, d_out=d_out)
    placed = library.place(weights)
    heads = placed.heads()
    assert [type(head) for head in heads] == [attnbook.SingleHeadWeights] * h
    of_group = np.repeat(np.arange(g), h // g)  # the key and value head of each head
    for i, (j, head) in enumerate(zip(of_group, heads, strict=True)):
        for name, width, place in (("W_Q", 2, i), ("W_K", 2, j), ("W_V", 3, j)):
            columns = [place * width + c for c in range(width)]
            got = library.numpy(getattr(head, name))
            np.testing.assert_array_equal(got, getattr(weights, name)[:, columns])
        if d_out is None:
            assert head.W_O is None
        else:
            rows = [3 * i + c for c in range(3)]
            np.testing.assert_array_equal(library.numpy(head.W_O), weights.W_O[rows])
    if g < h:
        return
    back = attnbook.MultiHeadWeights.from_heads(heads)
    assert (back.n_heads, back.n_kv_heads) == (h, h)
    assert list(back.arrays()) == list(weights.arrays())
    for name, x in back.arrays().items():
        assert library.same_kind(x, getattr(placed, name))
        np.testing.assert_array_equal(library.numpy(x), getattr(weights, name))


def test_from_heads_takes_one_output_matrix_and_any_iterable():
    heads = [attnbook.SingleHeadWeights.init(i, 5, d_k=2, d_v=3) for i in range(4)]
    W_O = np.random.default_rng(0).standard_normal((12, 7))
    for given in (heads, tuple(heads), iter(heads)):
        weights = attnbook.MultiHeadWeights.from_heads(given, W_O)
        assert weights.n_heads == 4
        np.testing.assert_array_equal(weights.W_O, W_O)
        np.testing.assert_array_equal(weights.W_K[:, 2:4], heads[1].W_K)
        assert all(getattr(weights, name) is None for name in BIASES)


# Errors.


def ones(*shape, dtype="float64"):
    return np.ones(shape, dtype=dtype)


def weights(q=(5, 8), k=(11, 8), v=(7, 12), o=None, n_heads=4, **options):
    """Return a call that makes weights of ones of these shapes, or of the arrays given."""
    given = [ones(*x) if isinstance(x, tuple) else x for x in (q, k, v, o)]
    options = {b: ones(*x) if isinstance(x, tuple) else x for b, x in options.items()}
    return attnbook.MultiHeadWeights(*given, n_heads=n_heads, **options)


def head(seed=0, d_query=5, d_out=None, dtype="float64", library="numpy"):
    weights = attnbook.SingleHeadWeights.init(seed, d_query, d_k=2, d_v=3, d_out=d_out)
    return weights.to(library, dtype=dtype)


ERRORS = """
weights(n_heads=True)
    TypeError: n_heads must be an int, got bool
weights(n_heads=0)
    ValueError: n_heads must be at least 1, got 0
weights(n_kv_heads=3)
    ValueError: n_kv_heads must divide n_heads = 4, got n_kv_heads = 3
weights(k=ones(11, 8, dtype="float32"))
    TypeError: W_K must have the dtype of W_Q (float64), got float32
weights(q=(4, 5, 2))
    ValueError: W_Q must have 2 axes, got shape (4, 5, 2)
weights(q=(5, 9))
    ValueError: W_Q must have a number of columns divisible by n_heads = 4, got shape (5, 9)
weights(v=(7, 11), k=(11, 4), n_kv_heads=2)
    ValueError: W_V must have a number of columns divisible by n_kv_heads = 2, got shape (7, 11)
weights(q=(5, 0), k=(11, 0))
    ValueError: W_Q must have at least 1 column per head for the scale 1/√d_k, got shape (5, 0)
weights(k=(11, 12))
    ValueError: W_K must have shape (d_key, 8) to match W_Q, got (11, 12)
weights(n_kv_heads=2)
    ValueError: W_K must have shape (d_key, 4) to match W_Q, got (11, 8)
weights(o=(8, 5))
    ValueError: W_O must have shape (12, d_out) to match W_V, got (8, 5)
weights(b_Q=(5,))
    ValueError: b_Q must have shape (8,) to match W_Q, got (5,)
weights(o=(12, 5), b_O=(12,))
    ValueError: b_O must have shape (5,) to match W_O, got (12,)
weights(b_O=(12,))
    ValueError: b_O must be None where there is no W_O
init(d_key=0)
    ValueError: d_key must be at least 1, got 0
init(None)
    TypeError: rng must be a numpy.random.Generator or an int, got NoneType
init(0, 0)
    ValueError: d_model must be at least 1, got 0
init(0, 8, 0)
    ValueError: n_heads must be at least 1, got 0
init(0, 512, 7)
    ValueError: d_model must be divisible by n_heads, got d_model = 512 and n_heads = 7
init(0, 8, 3, d_v=2)
    ValueError: d_model must be divisible by n_heads, got d_model = 8 and n_heads = 3
init(d_value=0)
    ValueError: d_value must be at least 1, got 0
init(d_v=-1)
    ValueError: d_v must be at least 1, got -1
init(d_out=0)
    ValueError: d_out must be at least 1, got 0
init(d_out=4, output=False)
    ValueError: d_out must be None without W_O (output=False), got 4
MultiHeadWeights.from_heads(head())
    TypeError: heads must be a sequence of SingleHeadWeights, got SingleHeadWeights
MultiHeadWeights.from_heads([])
    ValueError: heads must have at least 1 entry, got 0
MultiHeadWeights.from_heads([head(), ones(5, 2)])
    TypeError: heads must be SingleHeadWeights, got ndarray
MultiHeadWeights.from_heads([head(), head(dtype="float32")])
    TypeError: heads[1] must have the dtype of heads[0] (float64), got float32
MultiHeadWeights.from_heads([head(), head(d_query=7)])
    ValueError: heads must have matrices of the same shapes, got [(5, 2), (5, 2), (5, 3), False]
    in heads[0] and [(7, 2), (7, 2), (7, 3), False] in heads[1]
MultiHeadWeights.from_heads([head(d_out=4), head(d_out=4), head()])
    ValueError: heads must have matrices of the same shapes, got [(5, 2), (5, 2), (5, 3), (3,
    4)] in heads[0] and [(5, 2), (5, 2), (5, 3), False] in heads[2]
MultiHeadWeights.from_heads([head(d_out=4)] * 2, ones(6, 4))
    ValueError: W_O must be None where the heads have their own
MultiHeadWeights.from_heads([head()] * 2, ones(3, 4))
    ValueError: W_O must have shape (6, d_out) to match W_V, got (3, 4)
weights(b_K=(8,)).heads()
    ValueError: weights must have no biases to be split, got b_K
MultiHeadWeights.init(0, 8, 2, output="no")
    TypeError: output must be a bool, got str
"""

test_error = error_test(ERRORS, vars(attnbook) | globals())
