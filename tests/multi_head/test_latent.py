"""Latent attention in both forms against a loop, in every library, with gradients and a cache."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import HALF, close, held, layer_mask, leaves_of, need, recorded
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LatentWeights, RMSNormWeights, latent_attention
from attnbook.kernels import IMPLS
from attnbook.multi_head.latent import FORMS, latents_of
from attnbook.positions import Rotary

forms = pytest.mark.parametrize("form", FORMS)


def drawn(seed=0, h=3, q_rank=7, norms=True, scale=None, d_rope=4, d_nope=5):
    """Return weights of random numbers with widths that are all different."""
    rng = np.random.default_rng(seed)
    d_model, r, d_v, d_out = 11, 6, 2, 13
    r_q = d_model if q_rank is None else q_rank
    shapes = {
        "W_UQ": (r_q, h * (d_nope + d_rope)),
        "W_DKV": (d_model, r),
        "W_UK": (r, h * d_nope),
        "W_UV": (r, h * d_v),
        "W_KR": (d_model, d_rope),
        "W_O": (h * d_v, d_out),
    }
    shapes |= {} if q_rank is None else {"W_DQ": (d_model, r_q)}
    arrays = {name: rng.standard_normal(s) / np.sqrt(s[0]) for name, s in shapes.items()}
    gains = {}
    if norms:
        gains = {"kv_norm": RMSNormWeights(1 + rng.standard_normal(r) / 4, 1e-3)}
        if q_rank is not None:
            gains["q_norm"] = RMSNormWeights(1 + rng.standard_normal(r_q) / 4)
    return LatentWeights(**arrays, **gains, n_heads=h, scale=scale)


def loop(x, w, mask=None, bias=None, rotary=None):
    """Return the output of full keys and values, one head and one pair of tokens at a time."""

    def turned(y):
        if rotary is None or y.shape[-1] == 0:
            return y
        return oracle.rotary(y, interleaved=rotary.interleaved, base=rotary.base)

    def normed(y, norm):
        return y if norm is None else oracle.rms_norm(y, norm.gain, norm.epsilon)

    d_nope, d_v = w.d_nope, w.d_v
    q = (x if w.W_DQ is None else normed(x @ w.W_DQ, w.q_norm)) @ w.W_UQ
    c, shared = normed(x @ w.W_DKV, w.kv_norm), turned(x @ w.W_KR)
    width = d_nope + shared.shape[-1]
    scale = 1 / math.sqrt(width) if w.scale is None else w.scale
    shape = (*x.shape[:-2], w.n_heads, x.shape[-2], x.shape[-2])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, shape)
    heads = []
    for i in range(w.n_heads):
        own = q[..., i * width : (i + 1) * width]
        query = np.concatenate([own[..., :d_nope], turned(own[..., d_nope:])], axis=-1)
        key = np.concatenate([c @ w.W_UK[:, i * d_nope : (i + 1) * d_nope], shared], axis=-1)
        value = c @ w.W_UV[:, i * d_v : (i + 1) * d_v]
        own_mask, own_bias = mask[..., i, :, :], bias[..., i, :, :]
        heads.append(oracle.attention(query, key, value, own_mask, own_bias, scale))
    return np.concatenate(heads, axis=-1) @ w.W_O


# The function against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@forms
@given(
    st.sampled_from(((), (2,), (0,))),
    st.sampled_from((0, 1, 4)),
    *(st.sampled_from((None, 7)), st.booleans(), st.sampled_from((None, 0.3))),
    st.sampled_from((None, Rotary(), Rotary(interleaved=True, base=7.0))),
    *(st.sampled_from(("none", "causal", "padding", "heads")), st.integers(0, 99)),
)
def test_both_forms_agree_with_the_loop(
    library, dtype, form, leading, n, q_rank, norms, scale, rotary, kind, seed
):
    weights = drawn(seed, q_rank=q_rank, norms=norms, scale=scale)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*leading, n, 11))
    mask = layer_mask(rng, kind, (*leading, 3, n, n))
    bias = rng.standard_normal((3, n, n)) if seed % 2 else None
    mine = library.array(x, dtype)
    got = latent_attention(
        *(mine, library.place(weights, dtype)),
        None if mask is None else library.array(mask),
        rotary=rotary,
        bias=None if bias is None else library.array(bias, dtype),
        form=form,
    )
    assert library.same_kind(got, mine)
    rounded = None if bias is None else library.numpy(library.array(bias, dtype))
    exact = loop(library.numpy(mine), held(library, weights, dtype), mask, rounded, rotary)
    close(library.numpy(got), exact, dtype, size=64)
    np.testing.assert_array_equal(library.numpy(mine), library.numpy(library.array(x, dtype)))


@given(
    *(st.integers(1, 5), st.integers(1, 9), st.integers(1, 6), st.sampled_from((0, 2, 4))),
    st.booleans(),
    st.integers(0, 999),
)
def test_the_absorbed_form_computes_the_same(library, h, r, d_nope, d_rope, is_causal, seed):
    rng = np.random.default_rng(seed)
    sizes = {"rank": r, "d_nope": d_nope, "d_rope": d_rope, "d_v": 1 + seed % 4}
    weights = LatentWeights.init(rng, 7, h, **sizes, q_rank=3 if seed % 3 else None)
    x, placed = library.array(rng.standard_normal((2, 5, 7))), library.place(weights)
    options = {"is_causal": is_causal, "rotary": Rotary(interleaved=bool(seed % 2))}
    full, absorbed = (latent_attention(x, placed, **options, form=form) for form in FORMS)
    np.testing.assert_allclose(library.numpy(absorbed), library.numpy(full), rtol=0, atol=1e-10)


@pytest.mark.parametrize("impl", ["naive", "in_place", "tiled"])
@forms
def test_every_implementation_attends(impl, form):
    weights, x = drawn(), np.random.default_rng(1).standard_normal((2, 7, 11))
    options = {"is_causal": True, "rotary": Rotary(interleaved=True)}
    exact = latent_attention(x, weights, **options)
    got = latent_attention(x, weights, **options, form=form, impl=impl)
    np.testing.assert_allclose(got, exact, atol=1e-12)
    _, [shares] = recorded(latent_attention, x, weights, **options, form=form)
    assert shares.shape == (2, 3, 7, 7)
    np.testing.assert_allclose(shares.sum(axis=-1), 1)


@forms
def test_the_compiled_kernel_attends(form):
    pytest.importorskip("numba")
    weights = drawn().to(dtype="float32")
    x = np.random.default_rng(1).standard_normal((2, 7, 11)).astype("float32")
    exact = latent_attention(x, weights, is_causal=True)
    got = latent_attention(x, weights, is_causal=True, form=form, impl="packed")
    np.testing.assert_allclose(got, exact, atol=1e-5)


@forms
def test_the_absorbed_form_has_one_kv_head_for_a_rung(form):
    """What a function of the caller gets: keys of every head, of full width or of latents."""
    weights, shapes = drawn(), []

    def impl(query, key, value, *others):
        shapes.append((query.shape, key.shape, value.shape))
        return np.zeros((*query.shape[:-1], value.shape[-1]))

    latent_attention(np.ones((5, 11)), weights, form=form, impl=impl)
    full = [((3, 5, 9), (3, 5, 9), (3, 5, 2))]
    assert shapes == (full if form == "full" else [((3, 5, 10), (3, 5, 10), (3, 5, 6))])


@pytest.mark.parametrize("dtype", HALF)
@forms
def test_half_precision_is_near(library, dtype, form):
    need(library, dtype)
    weights = drawn()
    x = library.array(np.random.default_rng(1).standard_normal((5, 11)), dtype)
    got = latent_attention(x, library.place(weights, dtype), form=form)
    assert library.same_kind(got, x)
    exact = loop(library.numpy(x), held(library, weights, dtype))
    size = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, rtol=0, atol=8 * size)


@forms
def test_a_fully_masked_query_gets_zeros(library, form):
    mask = library.array(np.arange(5)[:, np.newaxis] > 1)
    x = library.array(np.random.default_rng(1).standard_normal((5, 11)))
    got = library.numpy(latent_attention(x, library.place(drawn()), mask, form=form))
    np.testing.assert_array_equal(got == 0, np.arange(5)[:, np.newaxis] * np.ones(13) < 2)


def test_the_key_that_is_rotated_is_one_for_all_heads_and_positions_only_differ():
    # the score depends on the difference of positions: the last rows see the same as a shorter text
    weights, rng = drawn(), np.random.default_rng(1)
    x = rng.standard_normal((6, 11))
    mask = np.arange(6) >= np.array(2)
    rotary = Rotary(interleaved=True)
    far = latent_attention(x, weights, mask, rotary=rotary)[2:]
    np.testing.assert_allclose(far, latent_attention(x[2:], weights, rotary=rotary), atol=1e-12)
    keys, latents = latents_of(x, weights, rotary.turn(0))
    assert (keys.shape, latents.shape) == ((1, 6, 4), (1, 6, 6))
    assert weights.cache_width == 10


# Gradients.


@forms
def test_gradcheck(form):
    weights, leaves = leaves_of(drawn(q_rank=2, h=2).to("torch"))
    x = torch.linspace(-1, 1, 33, dtype=torch.float64).reshape(3, 11).requires_grad_()
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    mask[1] = False  # a fully masked query

    def function(x, *arrays):
        mine = weights.with_arrays(dict(zip(leaves, arrays, strict=True)))
        return latent_attention(x, mine, mask, rotary=Rotary(interleaved=True), form=form)

    assert torch.autograd.gradcheck(function, (x, *leaves.values()))


@forms
def test_vmap(form):
    weights, x = drawn().to("torch"), torch.randn(2, 5, 11, dtype=torch.float64)
    mapped = torch.func.vmap(lambda rows: latent_attention(rows, weights, form=form))(x)
    torch.testing.assert_close(mapped, latent_attention(x, weights, form=form))


# The weights.


def test_init_draws_the_shapes_and_gains_of_one():
    weights = LatentWeights.init(3, 12, 4, rank=5, q_rank=7)
    shapes = {name: x.shape for name, x in weights.arrays().items()}
    assert shapes == {
        **{"W_UQ": (7, 20), "W_DKV": (12, 5), "W_UK": (5, 12), "W_UV": (5, 12)},
        **{"W_KR": (12, 2), "W_O": (12, 12), "W_DQ": (12, 7)},
        **{"q_norm.gain": (7,), "kv_norm.gain": (5,)},
    }
    for norm in (weights.kv_norm, weights.q_norm):
        np.testing.assert_array_equal(norm.gain, 1)
    assert (weights.d_nope, weights.d_rope, weights.d_v, weights.rank) == (3, 2, 3, 5)
    assert (weights.d_query, weights.d_out, weights.d_k, weights.cache_width) == (12, 12, 2, 7)
    bound = math.sqrt(6 / (12 + 5))
    assert 0.8 * bound < np.max(np.abs(weights.W_DKV)) <= bound
    again = LatentWeights.init(np.random.default_rng(3), 12, 4, rank=5, q_rank=7)
    np.testing.assert_array_equal(again.W_O, weights.W_O)


@pytest.mark.parametrize(("d_nope", "d_rope"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 4), (8, 4)])
def test_half_of_a_head_is_rotated_by_default(d_nope, d_rope):
    assert LatentWeights.init(0, 3, 1, rank=2, d_nope=d_nope).d_rope == d_rope


W = drawn(h=2)
X = np.ones((5, 11))


def changed(**fields):
    return replace(W, **fields)


test_wrong_calls_say_what_is_wrong = error_test(
    f"""
attention(X, 3)
    TypeError: weights must be LatentWeights, got int
attention([1.0], W)
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
attention(X.astype("float32"), W)
    TypeError: weights must have the dtype of x (float32), got float64
attention(X[:, :3], W)
    ValueError: x must have shape (..., n, 11) to match the weights, got (5, 3)
attention(X, W, form="half")
    ValueError: form must be one of full, absorbed, got 'half'
attention(X, W, impl="none")
    ValueError: impl must be one of {", ".join(IMPLS)}, got 'none'
attention(X, W, is_causal=1)
    TypeError: is_causal must be a bool, got int
attention(X, W, rotary=True)
    TypeError: rotary must be Rotary, got bool
attention(X, W, rotary=Rotary(width=6))
    ValueError: d_k must be at least the width 6 to rotate, got 4
attention(X, W, np.ones((5, 7), bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (2, 5, 5),
        got (5, 7)
attention(X, W, bias=np.ones((3, 5, 5)))
    ValueError: bias must have 1 or 2 entries on the axis of the heads, the third from the right,
        got shape (3, 5, 5)
changed(n_heads=0)
    ValueError: n_heads must be at least 1, got 0
changed(scale=-1.0)
    ValueError: scale must be finite and at least 0, got -1.0
changed(W_UK=np.ones((6, 9)))
    ValueError: W_UK must have a number of columns divisible by n_heads = 2, got shape (6, 9)
changed(W_UV=np.ones((6, 9)))
    ValueError: W_UV must have a number of columns divisible by n_heads = 2, got shape (6, 9)
changed(W_UK=np.ones((6, 0)), W_KR=np.ones((11, 0)))
    ValueError: W_UK and W_KR must not both have 0 columns, got 0 and 0
changed(W_UQ=np.ones((7, 9)))
    ValueError: W_UQ must have shape (7, 18), got (7, 9)
changed(W_UK=np.ones((5, 10)))
    ValueError: W_UK must have shape (6, 10), got (5, 10)
changed(W_UV=np.ones((5, 4)))
    ValueError: W_UV must have shape (6, 4), got (5, 4)
changed(W_KR=np.ones((3, 4)))
    ValueError: W_KR must have shape (11, 4), got (3, 4)
changed(W_O=np.ones((5, 13)))
    ValueError: W_O must have shape (4, 13), got (5, 13)
changed(W_DQ=np.ones((3, 7)))
    ValueError: W_DQ must have shape (11, 7), got (3, 7)
changed(W_DQ=None, W_UQ=np.ones((11, 18)))
    ValueError: q_norm must be None where there is no W_DQ
changed(q_norm=RMSNormWeights.init(3))
    ValueError: q_norm must have a gain of shape (7,), got (3,)
changed(kv_norm=RMSNormWeights.init(3))
    ValueError: kv_norm must have a gain of shape (6,), got (3,)
changed(kv_norm=3)
    TypeError: kv_norm must be RMSNormWeights, got int
changed(W_DKV=np.ones(3))
    ValueError: W_DKV must have 2 axes, got shape (3,)
init(0, 7, 2, rank=3)
    ValueError: d_model must be divisible by n_heads, got d_model = 7 and n_heads = 2
init(0, 8, 2, rank=3, d_rope=3)
    ValueError: d_rope must be even, got 3
init(0, 8, 2, rank=0)
    ValueError: rank must be at least 1, got 0
""",
    {
        **{"attention": latent_attention, "X": X, "W": W, "np": np, "changed": changed},
        **{"Rotary": Rotary, "RMSNormWeights": RMSNormWeights, "init": LatentWeights.init},
    },
)
