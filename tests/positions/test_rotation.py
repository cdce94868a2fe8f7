"""Rotary positions as a piece of a model: base, layout, width, scaling, changing the layout."""

import numpy as np
import oracle
import pytest
import torch
from cases import need, shaken
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import (
    DecoderWeights,
    TransformerWeights,
    nn,
    rotary_layout,
    transformer,
)
from attnbook.decoding import greedy_decode
from attnbook.positions import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
    rotary,
    to_halves,
    to_interleaved,
)
from attnbook.training import load_weights, save_weights

LAYOUTS = pytest.mark.parametrize("interleaved", [False, True])


# A part of each head.


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@LAYOUTS
@pytest.mark.parametrize("width", [2, 4, 6])
def test_the_first_features_turn_as_if_they_were_alone(library, dtype, interleaved, width):
    need(library, dtype)
    x = library.array(np.random.default_rng(0).standard_normal((2, 5, 6)), dtype)
    options = {"start": 3, "interleaved": interleaved, "base": 500.0}
    got = rotary(x, **options, width=width)
    assert library.same_kind(got, x)
    alone = library.numpy(rotary(x[..., :width], **options))
    np.testing.assert_array_equal(library.numpy(got)[..., :width], alone)
    np.testing.assert_array_equal(library.numpy(got)[..., width:], library.numpy(x)[..., width:])


def test_an_odd_head_may_turn_in_part():
    x = np.random.default_rng(0).standard_normal((4, 5))
    np.testing.assert_allclose(rotary(x, width=2)[:, :2], oracle.rotary(x[:, :2]), atol=1e-14)


# From one layout to the other.


@given(st.sampled_from((2, 4, 6, 8)), st.sampled_from((1, 2, 3)), st.booleans(), st.integers(0, 9))
def test_layouts_are_inverse_and_commute_with_the_rotation(d, h, partly, seed):
    width = 2 if partly else None
    x = np.random.default_rng(seed).standard_normal((3, h * d))
    there = to_interleaved(x, h, width=width)
    np.testing.assert_array_equal(to_halves(there, h, width=width), x)
    np.testing.assert_array_equal(to_interleaved(to_halves(x, h, width=width), h, width=width), x)
    for i in range(h):
        own = slice(i * d, (i + 1) * d)
        np.testing.assert_allclose(
            rotary(there[:, own], start=5, interleaved=True, width=width),
            to_interleaved(rotary(x[:, own], start=5, width=width), width=width),
            atol=1e-14,
        )


def test_layouts_by_hand(library):
    x = library.array(np.arange(12).reshape(1, 12))
    for function, expected in (
        (to_interleaved, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]),
        (to_halves, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]),
    ):
        got = function(x, 2)
        assert library.same_kind(got, x)
        np.testing.assert_array_equal(library.numpy(got)[0], expected)
    got = to_interleaved(x, 2, width=4)
    np.testing.assert_array_equal(library.numpy(got)[0], [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11])


def test_the_script_of_hugging_face_does_the_same():
    d_model, h = 24, 3
    W = torch.arange(d_model * d_model, dtype=torch.float64).reshape(d_model, d_model)
    # permute() of convert_llama_weights_to_hf.py, on a matrix (out, in)
    theirs = W.view(h, d_model // h // 2, 2, d_model).transpose(1, 2).reshape(d_model, d_model)
    torch.testing.assert_close(to_halves(W.T, h).T, theirs)


SIZES = {"d_model": 12, "n_heads": 2, "n_kv_heads": 1, "d_ff": 7, "n_layers": 2}
PIECES = (
    Rotary(),
    Rotary(base=500.0),
    Rotary(interleaved=True),
    Rotary(width=4),
    Rotary(base=50.0, interleaved=True, width=2),
    Rotary(scaling=Llama3Scaling(4.0, n_positions=64)),
    Rotary(scaling=LinearScaling(4.0), interleaved=True),
    Rotary(base=500.0, scaling=YarnScaling(4.0, 64, 8.0, mscale=1.0, mscale_all_dim=0.5)),
    Rotary(width=4, scaling=LongRopeScaling((1.0, 2.0), (1.5, 4.0), 64, factor=16.0)),
)
pieces = pytest.mark.parametrize("piece", PIECES, ids=str)


def model(piece, layers=1, **options):
    given = SIZES | {"n_encoder_layers": layers, "positions": piece} | options
    return shaken(TransformerWeights.init(0, 11, **given))


IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pieces
@pytest.mark.parametrize("layers", [0, 1])
def test_rotary_layout_gives_the_same_logits(piece, layers):
    weights = model(piece, layers)
    source = IDS if layers else None
    logits = transformer(source, IDS, weights)
    for interleaved in (False, True):
        other = rotary_layout(weights, interleaved=interleaved)
        assert other.decoder.positions.interleaved == interleaved
        np.testing.assert_allclose(transformer(source, IDS, other), logits, atol=1e-12)
        columns = [w.decoder.layers[0].self_attention.W_Q for w in (weights, other)]
        moved = interleaved != piece.interleaved and piece.width != 2  # one pair is both
        assert np.array_equal(*columns) != moved


def test_rotary_layout_knows_the_plain_name():
    weights = model("rotary", 0)
    assert weights.decoder.positions is None
    assert rotary_layout(weights, interleaved=False).decoder.positions is None
    other = rotary_layout(weights, interleaved=True)
    assert (other.positions, other.decoder.positions) == ("rotary", Rotary(interleaved=True))
    logits = [transformer(None, IDS, w) for w in (weights, other)]
    np.testing.assert_allclose(*logits, atol=1e-12)
    wrong = transformer(None, IDS, model(Rotary(interleaved=True), 0))
    assert np.max(np.abs(wrong - logits[0])) > 0.1


# A model that holds them.


@pieces
def test_a_stack_turns_as_its_piece_says(library, piece):
    weights = shaken(DecoderWeights.init(0, 2, 12, 2, 7, cross=False, positions=piece))
    x = np.random.default_rng(1).standard_normal((2, 5, 12))
    got = attnbook.decoder(library.array(x), None, library.place(weights))
    known = 1 / piece.base ** (np.arange(0, piece.width or 6, 2) / (piece.width or 6))
    known = known if piece.scaling is None else piece.scaling.scaled(known)
    amplitude = 1.0 if piece.scaling is None else piece.scaling.amplitude

    def turn(q):
        out, half = np.array(q), len(known)
        for *lead, p in np.ndindex(q.shape[:-1]):
            for i, frequency in enumerate(known):
                a, b = (2 * i, 2 * i + 1) if piece.interleaved else (i, i + half)
                turned = complex(q[(*lead, p, a)], q[(*lead, p, b)]) * np.exp(1j * p * frequency)
                turned *= amplitude
                out[(*lead, p, a)], out[(*lead, p, b)] = turned.real, turned.imag
        return out

    exact, *_ = oracle.decoder(x, None, weights, turn=turn)
    np.testing.assert_allclose(library.numpy(got), exact, atol=1e-10)


@pieces
def test_decoding_module_and_file_keep_the_piece(piece, tmp_path):
    weights = model(piece, 0)
    how = {"prompt": IDS, "max_length": 6}
    one, other = (greedy_decode(weights, None, **how, cache=cache) for cache in (True, False))
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-10)
    module = nn.Transformer(weights)
    assert module.weights.decoder.positions == piece
    expected = transformer(None, IDS, weights)
    np.testing.assert_allclose(module(None, torch.tensor(IDS)).detach(), expected, atol=1e-12)
    save_weights(tmp_path / "x.safetensors", weights)
    found = load_weights(tmp_path / "x.safetensors")
    assert found.decoder.positions == piece
    np.testing.assert_array_equal(transformer(None, IDS, found), expected)


# Hugging Face as the judge.


def theirs(name):
    return pytest.importorskip(
        f"transformers.models.{name}.modeling_{name}", reason="transformers is not installed"
    )


def test_interleaved_part_agrees_with_gpt_j():
    gptj = theirs("gptj")
    q = torch.randn(1, 7, 2, 16, generator=torch.Generator().manual_seed(0))  # (b, n, h, d)
    sines, cosines = gptj.create_sinusoidal_positions(32, 8)[3:10].chunk(2, dim=-1)
    first = gptj.apply_rotary_pos_emb(q[..., :8], sines[None], cosines[None])
    expected = torch.cat([first, q[..., 8:]], dim=-1).transpose(1, 2)
    got = Rotary(interleaved=True, width=8).turned(q.transpose(1, 2), 3)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


# Errors.

ONES = np.ones((3, 4))
ERRORS = """
Rotary(base=0)
    ValueError: base must be above 0, got 0.0
Rotary(base="1e4")
    TypeError: base must be a real number, got str
Rotary(interleaved=1)
    TypeError: interleaved must be a bool, got int
Rotary(width=3)
    ValueError: width must be even, got 3
Rotary(width=0)
    ValueError: width must be at least 2, got 0
Rotary(scaling=8.0)
    TypeError: scaling must be LinearScaling or DynamicScaling or Llama3Scaling or YarnScaling or
    LongRopeScaling, got float
rotary(ONES, width=6)
    ValueError: x must have shape (..., n, d) with d >= width = 6, got (3, 4)
rotary(ONES, width=3)
    ValueError: width must be even, got 3
to_halves([1, 2])
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
to_halves(ONES, 3)
    ValueError: x must have shape (..., h·d) with n_heads = 3, got (3, 4)
to_halves(ONES, 0)
    ValueError: n_heads must be at least 1, got 0
to_interleaved(ONES, 4)
    ValueError: x must have heads of even width, got 1
to_interleaved(ONES, width=6)
    ValueError: x must have heads of at least 6 width, got 4
EncoderWeights.init(0, 1, 6, 2, 5, positions=Rotary())
    ValueError: d_k must be even to rotate pairs of features, got 3
EncoderWeights.init(0, 1, 6, 2, 5, positions=Rotary(width=4))
    ValueError: d_k must be at least the width 4 to rotate, got 3
EncoderWeights.init(0, 1, 6, 2, 5, positions="rotary")
    TypeError: positions must be Rotary or RelativeBias or Alibi, got str
attnbook.encoder(np.ones((3, 8)), EncoderWeights.init(0, 1, 8, 2, 5, positions=Rotary()),
rotate=True)
    ValueError: rotate must be False, since the weights have positions: Rotary
rotary_layout(EncoderWeights.init(0, 1, 8, 2, 5), interleaved=True)
    ValueError: weights must have rotary positions, got None
rotary_layout(np.ones(3), interleaved=True)
    TypeError: weights must be TransformerWeights or EncoderWeights or DecoderWeights, got ndarray
rotary_layout(model(Rotary()), interleaved=None)
    TypeError: interleaved must be a bool, got NoneType
nn.Encoder(EncoderWeights.init(0, 1, 8, 2, 5, positions=Rotary())).to_torch()
    ValueError: positions must be None to fit torch.nn.TransformerEncoder, got Rotary
"""

test_error = error_test(ERRORS, vars(attnbook) | globals())
