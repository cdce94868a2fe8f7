"""Positions as biases of the scores: T5's buckets, ALiBi, and models that hold them."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import recorded, shaken
from error_table import error_test

import attnbook
from attnbook import (
    DecoderWeights,
    EncoderWeights,
    TransformerWeights,
    multi_head_attention,
    nn,
    transformer,
)
from attnbook.decoding import greedy_decode
from attnbook.positions import Alibi, RelativeBias, alibi, relative_buckets
from attnbook.training import load_weights, save_weights

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
SIZES = {"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 7, "n_layers": 2}


def table(n_heads=6, n_buckets=8, seed=5):
    return np.random.default_rng(seed).standard_normal((n_buckets, n_heads))


ONE_SIDED = RelativeBias(table(), bidirectional=False, max_distance=16)
TWO_SIDED = RelativeBias(table(), max_distance=9)
PIECES = {"t5": ONE_SIDED, "t5, both sides": TWO_SIDED, "alibi": Alibi()}
pieces = pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)


def model(piece, layers=0, seed=0, **options):
    given = SIZES | {"n_encoder_layers": layers, "positions": piece} | options
    return shaken(TransformerWeights.init(seed, 11, **given), seed)


def exact_bias(piece, n_heads, n_q, n_k):
    """Return the bias one pair at a time."""
    out = np.zeros((n_heads, n_q, n_k))
    for h, i, j in np.ndindex(out.shape):
        r = j - (i + n_k - n_q)
        if isinstance(piece, Alibi):
            out[h, i, j] = -SLOPES[n_heads][h] * abs(r)
        else:
            n = len(piece.table) // 2 if piece.bidirectional else len(piece.table)
            side = n if piece.bidirectional and r > 0 else 0
            far = abs(r) if piece.bidirectional else max(-r, 0)
            if far >= n // 2:
                share = math.log(far / (n // 2)) / math.log(piece.max_distance / (n // 2))
                far = min(n - 1, n // 2 + math.floor(share * (n - n // 2) + 1e-5))
            out[h, i, j] = piece.table[side + far, h]
    return out


SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2.0**-k for k in range(1, 9)],
}


# The numbers.


@pytest.mark.parametrize("n_heads", SLOPES)
def test_alibi_agrees_with_the_loop(library, n_heads):
    like = library.array(np.ones(2), "float32")
    for n_q, n_k in ((5, 5), (1, 7), (3, 7), (0, 3)):
        exact = exact_bias(Alibi(), n_heads, n_q, n_k)
        np.testing.assert_allclose(alibi(n_heads, n_q, n_k), exact, rtol=1e-14)
        got = alibi(n_heads, n_q, n_k, like=like)
        assert library.same_kind(got, like)
        np.testing.assert_allclose(library.numpy(got), exact, rtol=1e-6)


def test_alibi_has_the_slopes_of_hugging_face():
    bloom = pytest.importorskip(
        "transformers.models.bloom.modeling_bloom", reason="transformers is not installed"
    )
    for n_heads in (1, 2, 3, 6, 8, 12, 20):
        theirs = bloom.build_alibi_tensor(torch.ones(1, 7), n_heads, torch.float32)
        ours = alibi(n_heads, 1, 7)[:, 0]  # theirs grows with the place of the key
        np.testing.assert_allclose(ours - ours[:, :1], theirs[:, 0].numpy(), rtol=1e-5)


def test_two_buckets_in_one_direction_tell_the_query_itself_from_what_is_before():
    got = relative_buckets(4, 4, n_buckets=2, bidirectional=False, max_distance=2)
    np.testing.assert_array_equal(got, np.tril(np.ones((4, 4)), -1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("n_buckets", "far"), [(32, 128), (32, 20), (8, 16), (64, 1000), (4, 9)])
def test_buckets_agree_with_hugging_face(bidirectional, n_buckets, far):
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="transformers is not installed"
    )
    apart = torch.arange(700)[None, :] - torch.arange(400, 700)[:, None]
    how = {"bidirectional": bidirectional, "num_buckets": n_buckets, "max_distance": far}
    theirs = t5.T5Attention._relative_position_bucket(apart, **how)
    ours = relative_buckets(
        300, 700, n_buckets=n_buckets, bidirectional=bidirectional, max_distance=far
    )
    assert ours.dtype == np.int64
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert ours.min() == 0


@pieces
def test_a_piece_gives_the_bias_of_every_pair(library, piece):
    placed = library.place(piece)
    like = library.array(np.ones(3))
    for n_q, n_k in ((5, 5), (1, 7), (3, 40)):
        got = placed.bias(6, n_q, n_k, like)
        assert library.same_kind(got, like)
        np.testing.assert_allclose(library.numpy(got), exact_bias(piece, 6, n_q, n_k), rtol=1e-12)


# In one attention.


@pytest.mark.parametrize(
    ("shape", "scale"),
    [
        *(((7, 13), None), ((6, 7, 13), 1.0), ((5, 1, 7, 13), 0.0)),
        *(((5, 6, 7, 13), 1.0), ((13,), 0.0), ((6, 1, 1), None)),
    ],
)
def test_bias_and_scale_agree_with_the_loop_for_every_impl(library, shape, scale):
    rng = np.random.default_rng(0)
    weights = replace(
        attnbook.MultiHeadWeights.init(0, 12, 6, n_kv_heads=2, bias=True), scale=scale
    )
    query, key = rng.standard_normal((5, 7, 12)), rng.standard_normal((1, 13, 12))
    bias, mask = rng.standard_normal(shape), rng.random((7, 13)) < 0.7
    exact, shares = oracle.heads_of(
        query, np.broadcast_to(key, (5, 13, 12)), weights, mask, bias=bias
    )
    query, key, bias, mask = map(library.array, (query, key, bias, mask))
    weights = library.place(weights)
    given = (query, key, key, weights, mask)
    for impl in ("reference", "naive", "tiled"):
        got = multi_head_attention(*given, bias=bias, impl=impl)
        np.testing.assert_allclose(library.numpy(got), exact, atol=1e-11, err_msg=impl)
    _, [A] = recorded(multi_head_attention, *given, bias=bias)
    np.testing.assert_allclose(library.numpy(A), shares, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_its_dtype(dtype):
    weights = attnbook.MultiHeadWeights.init(0, 12, 6).to("torch", dtype=dtype)
    x = torch.ones(2, 5, 12, dtype=getattr(torch, dtype))
    bias = alibi(6, 5, 5, like=x)
    assert multi_head_attention(x, x, x, weights, bias=bias).dtype == x.dtype


def test_a_bias_gets_a_gradient():
    weights = attnbook.MultiHeadWeights.init(0, 12, 6).to("torch")
    x = torch.tensor(np.random.default_rng(0).standard_normal((5, 12)))
    bias = torch.zeros(6, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda bias: multi_head_attention(x, x, x, weights, bias=bias), bias
    )


# In a stack and in a model.


@pieces
@pytest.mark.parametrize("kind", [EncoderWeights, DecoderWeights])
def test_a_stack_adds_the_bias_of_its_piece(library, piece, kind):
    options = {} if kind is EncoderWeights else {"cross": False}
    weights = shaken(kind.init(0, 2, 12, 6, 7, n_kv_heads=2, positions=piece, **options))
    x = np.random.default_rng(1).standard_normal((2, 5, 12))
    more = np.random.default_rng(2).standard_normal((6, 5, 5))
    run = attnbook.encoder if kind is EncoderWeights else attnbook.decoder
    for added in (None, more):
        bias = exact_bias(weights.positions, 6, 5, 5) + (0 if added is None else added)
        exact, *_ = oracle.decoder(x, None, weights, bias=bias)
        given = (library.array(x), library.place(weights))
        given = given if kind is EncoderWeights else (given[0], None, given[1])
        own = None if added is None else library.array(added)
        for impl in ("reference", "tiled"):
            got = run(*given, bias=own, impl=impl)
            np.testing.assert_allclose(library.numpy(got), exact, atol=1e-10)


@pytest.mark.parametrize("kind", ["encoder layer", "decoder layer"])
def test_a_layer_takes_a_bias(kind):
    init = getattr(attnbook, kind.title().replace(" ", "") + "Weights").init
    options = {"cross": False} if kind[0] == "d" else {}
    layer = shaken(init(0, 12, 6, 7, **options))
    x = np.random.default_rng(1).standard_normal((2, 5, 12))
    bias = np.random.default_rng(2).standard_normal((6, 5, 5))
    run = getattr(attnbook, kind.replace(" ", "_"))
    given = (x, layer) if kind[0] == "e" else (x, None, layer)
    exact, shares, *_ = oracle.decoder_layer(x, None, layer, bias=bias)
    output, [A] = recorded(run, *given, bias=bias)
    np.testing.assert_allclose(output, exact, atol=1e-11)
    np.testing.assert_allclose(A, shares, atol=1e-12)
    module = (nn.EncoderLayer if kind[0] == "e" else nn.DecoderLayer)(layer)
    got = module(torch.tensor(x), bias=torch.tensor(bias)).detach()
    np.testing.assert_allclose(got, exact, atol=1e-11)


def t5_like(seed=0):
    """Return an encoder-decoder whose stacks have their own tables, and the scale 1."""
    weights = model("none", layers=2, seed=seed)
    stacks = {}
    for name, own in (("encoder", TWO_SIDED), ("decoder", ONE_SIDED)):
        layers = []
        for layer in getattr(weights, name).layers:
            parts = {"self_attention": replace(layer.self_attention, scale=1.0)}
            if name == "decoder":
                parts["cross_attention"] = replace(layer.cross_attention, scale=1.0)
            layers.append(replace(layer, **parts))
        stacks[name] = replace(getattr(weights, name), layers=tuple(layers), positions=own)
    return replace(weights, **stacks)


def test_an_encoder_decoder_in_every_form(tmp_path):
    weights = t5_like()
    x = oracle.embed(IDS, weights.target_embedding)
    memory, _ = oracle.encoder(x, weights.encoder, bias=exact_bias(TWO_SIDED, 6, 5, 5))
    mask = np.tril(np.ones((5, 5), bool))
    y, *_ = oracle.decoder(x, memory, weights.decoder, mask, bias=exact_bias(ONE_SIDED, 6, 5, 5))
    exact = y @ weights.target_embedding.T
    for impl in ("reference", "tiled"):
        np.testing.assert_allclose(transformer(IDS, IDS, weights, impl=impl), exact, atol=1e-10)
    one, other = (
        greedy_decode(weights, IDS, prompt=1, max_length=7, cache=cache) for cache in (True, False)
    )
    np.testing.assert_array_equal(one.tokens, other.tokens)
    module = nn.Transformer(weights)
    assert set(module.state_dict()) == set(weights.arrays())
    got = module(torch.tensor(IDS), torch.tensor(IDS))
    np.testing.assert_allclose(got.detach(), exact, atol=1e-10)
    got.square().sum().backward()
    for stack in (module.encoder, module.decoder):
        assert bool(stack.positions.table.grad.any())
    save_weights(tmp_path / "x.safetensors", weights)
    found = load_weights(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(transformer(IDS, IDS, found), transformer(IDS, IDS, weights))
    assert found.decoder.layers[0].self_attention.scale == 1.0


# Errors.

HEADS = attnbook.MultiHeadWeights.init(0, 4, 2)
X = np.ones((3, 4))


def attend(bias, x=X):
    return multi_head_attention(x, x, x, HEADS, bias=bias)


ERRORS = """
alibi(0, 1, 1)
    ValueError: n_heads must be at least 1, got 0
alibi(2, 1, -1)
    ValueError: n_k must be at least 0, got -1
alibi(2, -1, 1)
    ValueError: n_q must be at least 0, got -1
alibi(2, 1, 1, like=np.ones(3, int))
    TypeError: like must have a real floating dtype, got int64
relative_buckets(3, 3, n_buckets=7)
    ValueError: n_buckets must be even, got 7
relative_buckets(3, 3, n_buckets=2)
    ValueError: n_buckets must be at least 4, got 2
relative_buckets(3, 3, n_buckets=1, bidirectional=False)
    ValueError: n_buckets must be at least 2, got 1
relative_buckets(3, 3, max_distance=8)
    ValueError: max_distance must be above 8, up to which every distance has its own bucket, got 8
relative_buckets(3, 3, bidirectional=0)
    TypeError: bidirectional must be a bool, got int
relative_buckets(3, 3.0)
    TypeError: n_k must be an int, got float
RelativeBias(np.ones(8))
    ValueError: table must have 2 axes, got shape (8,)
RelativeBias(np.ones((7, 2)))
    ValueError: n_buckets must be even, got 7
EncoderWeights.init(0, 1, 4, 2, 5, positions=RelativeBias(table(3)))
    ValueError: positions must have a table of 2 columns, one per head, got shape (8, 3)
EncoderWeights((*EncoderWeights.init(0, 1, 4, 2, 5).layers,
*EncoderWeights.init(0, 1, 4, 1, 5).layers), None, Alibi())
    ValueError: layers must have one number of heads, got [1, 2]
EncoderWeights.init(0, 1, 4, 2, 5, positions=np.ones(3))
    TypeError: positions must be Rotary or RelativeBias or Alibi, got ndarray
attend(np.ones((3, 3), bool))
    TypeError: bias must have the dtype of query, got bool; a mask of what may be attended to goes
    in mask=
attend(np.ones((3, 3), "float32"))
    TypeError: bias must have the dtype of query (float64), got float32
attend(np.ones((5, 3)))
    ValueError: bias must broadcast to the shape of the scores (..., n_q, n_k) = (2, 3, 3),
    got (5, 3)
attend(np.ones((3, 3, 3)))
    ValueError: bias must have 1 or 2 entries on the axis of the heads, the third from the right,
    got shape (3, 3, 3)
attend(np.ones((2, 3, 3)), np.ones((2, 3, 4)))
    ValueError: bias must say what its first axis is, because there are 2 heads and 2 sequences:
    bias[None] has one mask per head, bias[:, None] one per sequence; got shape (2, 3, 3)
attnbook.encoder(X, EncoderWeights.init(0, 1, 4, 2, 5), bias=np.ones((4, 3)))
    ValueError: bias must broadcast to the shape of the scores (..., n_q, n_k) = (2, 3, 3),
    got (4, 3)
replace(HEADS, scale=-1.0)
    ValueError: scale must be finite and at least 0, got -1.0
replace(HEADS, scale="1")
    TypeError: scale must be a real number, got str
replace(HEADS, scale=1.0).heads()
    ValueError: weights must have no scale to be split, got 1.0
nn.MultiHeadAttention(replace(HEADS, scale=1.0)).to_torch()
    ValueError: scale must be None to fit torch.nn.MultiheadAttention, got 1.0
"""

test_error = error_test(ERRORS, globals())
