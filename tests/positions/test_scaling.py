"""Scaled rotary positions against Hugging Face's own functions, and what they have in common."""

import math
import types

import numpy as np
import pytest
import torch
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import DecoderWeights
from attnbook.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
)
from attnbook.positions.angles import frequencies
from attnbook.training.backpropagation.attention import multi_head_with_vjp

LENGTHS = (1, 63, 64, 65, 200, 1000)
HALVES = (0.25, 0.5, 1.0)
"""Which part of each head rotates."""


def longrope(n_pairs, **options):
    rng = np.random.default_rng(n_pairs)
    short, long = (tuple(rng.uniform(1, top, n_pairs).tolist()) for top in (2.0, 40.0))
    return LongRopeScaling(short, long, 64, **options)


def every(n_pairs, factor):
    """Return one scaling of each kind."""
    alike = (factor,) * n_pairs
    return (
        LinearScaling(factor),
        DynamicScaling(factor, 64),
        Llama3Scaling(factor, n_positions=64),
        YarnScaling(factor, 64),
        LongRopeScaling(alike, alike, 64, factor=factor),
    )


# Hugging Face as the judge.


def theirs(kind, base, d, part, length, n_positions=64, n_max=64, **options):
    """Return the frequencies and the attention factor of `ROPE_INIT_FUNCTIONS`."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    rope = {"rope_type": kind, "rope_theta": base, "partial_rotary_factor": part, **options}
    if kind in ("yarn", "longrope", "llama3"):
        rope["original_max_position_embeddings"] = n_positions
    config = types.SimpleNamespace(
        **{"head_dim": d, "hidden_size": 4 * d, "num_attention_heads": 4},
        max_position_embeddings=n_max,
        rope_parameters=rope,
        standardize_rope_params=lambda: None,
    )
    inv_freq, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    return inv_freq.numpy(), factor


def assert_agree(scaling, expected, base, width, length):
    inv_freq, factor = expected
    got = scaling.scaled(frequencies(width, base), length)
    np.testing.assert_allclose(got, inv_freq, rtol=3e-6, atol=0)
    np.testing.assert_allclose(scaling.amplitude, factor, rtol=1e-12)


@pytest.mark.parametrize("part", HALVES)
@pytest.mark.parametrize("base", [10000.0, 150000.0, 50.0])
def test_linear_and_dynamic_agree_with_hugging_face(base, part):
    width = int(32 * part)
    for length in LENGTHS:
        for factor in (1.0, 2.0, 8.5):
            expected = theirs("linear", base, 32, part, length, factor=factor)
            assert_agree(LinearScaling(factor), expected, base, width, length)
            expected = theirs("dynamic", base, 32, part, length, factor=factor)
            assert_agree(DynamicScaling(factor, 64), expected, base, width, length)


@pytest.mark.parametrize("part", HALVES)
@pytest.mark.parametrize("base", [10000.0, 150000.0, 50.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"truncate": False},
        {"beta_fast": 20.0, "beta_slow": 0.5},
        {"mscale": 1.0, "mscale_all_dim": 0.707},
        {"mscale": 0.707},
        {"mscale_all_dim": 1.0},
        {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 1.0},
    ],
    ids=str,
)
def test_yarn_agrees_with_hugging_face(base, part, options):
    for n_positions in (64, 1000, 4096, 10**6):
        for factor in (0.5, 1.0, 4.0, 40.0):
            given = {"factor": factor, **options}
            expected = theirs("yarn", base, 32, part, None, n_positions, **given)
            scaling = YarnScaling(n_positions=n_positions, **given)
            assert_agree(scaling, expected, base, int(32 * part), 0)


@pytest.mark.parametrize(
    ("base", "d", "scaling"),
    [
        (10000.0, 64, YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)),  # DeepSeek-V3
        (10000.0, 64, YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)),  # V2
        (150000.0, 64, YarnScaling(32.0, 4096, truncate=False)),  # gpt-oss
        (1000000.0, 128, YarnScaling(4.0, 32768)),  # Qwen
    ],
    ids=["DeepSeek-V3", "DeepSeek-V2", "gpt-oss", "Qwen"],
)
def test_yarn_of_known_models(base, d, scaling):
    given = {name: getattr(scaling, name) for name in scaling.field_names}
    expected = theirs("yarn", base, d, 1.0, None, given.pop("n_positions"), **given)
    assert_agree(scaling, expected, base, d, 0)


def test_the_factor_of_scores_agrees_with_deepseek():
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    for mscale_all_dim in (0.0, 0.707, 1.0):
        scaling = YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=mscale_all_dim)
        rope = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": mscale_all_dim}
        expected = deepseek.yarn_apply_mscale(rope, 1.0)
        np.testing.assert_allclose(scaling.score_factor, expected, rtol=1e-14)


@pytest.mark.parametrize("part", HALVES)
@pytest.mark.parametrize("options", [{}, {"factor": 32.0}, {"attention_factor": 1.25}], ids=str)
def test_longrope_agrees_with_hugging_face(part, options):
    width = int(32 * part)
    scaling = longrope(width // 2, **options)
    given = {"short_factor": list(scaling.short), "long_factor": list(scaling.long), **options}
    for length in LENGTHS:
        expected = theirs("longrope", 10000.0, 32, part, length, **given)
        assert_agree(scaling, expected, 10000.0, width, length)


def test_phi_3_takes_its_factor_from_two_lengths():
    scaling = longrope(16, factor=131072 / 64)
    given = {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
    expected = theirs("longrope", 10000.0, 32, 1.0, 65, n_max=131072, **given)
    assert_agree(scaling, expected, 10000.0, 32, 65)


def test_llama_scaling_agrees_with_hugging_face():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    config = llama.LlamaConfig(
        **{"hidden_size": 128, "num_attention_heads": 2, "rope_parameters": rope},
        max_position_embeddings=131072,
    )
    inv_freq = llama.LlamaRotaryEmbedding(config).inv_freq
    ours = Llama3Scaling().scaled(500000.0 ** (-np.arange(0, 64, 2) / 64))
    np.testing.assert_allclose(ours, inv_freq.numpy(), rtol=1e-6)
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    assert ours[0] == plain[0]
    np.testing.assert_allclose(ours[-1], plain[-1] / 8)


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}, Llama3Scaling),
        ({"rope_type": "linear"}, LinearScaling),
        ({"rope_type": "dynamic"}, DynamicScaling),
        ({"rope_type": "yarn"}, YarnScaling),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
@pytest.mark.parametrize("start", [3, 60, 300])
def test_rotated_queries_agree_with_hugging_face(rope, scaling, start):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    known = {} if scaling is LinearScaling else {"n_positions": 64}
    piece = Rotary(base=500.0, scaling=scaling(factor=8.0, **known))
    rope = {**rope, "factor": 8.0, "rope_theta": 500.0}
    if rope["rope_type"] in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = 64
    config = llama.LlamaConfig(
        **{"hidden_size": 128, "num_attention_heads": 2, "rope_parameters": rope},
        max_position_embeddings=64 if scaling is DynamicScaling else 512,
    )
    q = torch.randn(1, 2, 7, 64, generator=torch.Generator().manual_seed(0))
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, torch.arange(start, start + 7)[None])
    rotated, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    torch.testing.assert_close(piece.turned(q, start), rotated, atol=2e-4, rtol=2e-4)


# What they have in common.

PAIRS = st.sampled_from((1, 2, 3, 5, 16))
BASES = st.floats(2.0, 1e7)


@given(PAIRS, BASES, st.sampled_from(LENGTHS))
def test_a_factor_of_one_changes_nothing(n_pairs, base, length):
    known = frequencies(2 * n_pairs, base)
    for scaling in every(n_pairs, 1.0):
        if isinstance(scaling, DynamicScaling) and length > 64:
            continue  # whose s is then length / N
        np.testing.assert_allclose(scaling.scaled(known, length), known, rtol=1e-15)
        assert scaling.amplitude == 1.0


@given(PAIRS, BASES, st.floats(1.0, 100.0), st.integers(1, 10**6), st.booleans())
def test_yarn_lies_between_linear_and_none(n_pairs, base, factor, n_positions, truncate):
    known = frequencies(2 * n_pairs, base)
    scaling = YarnScaling(factor, n_positions, truncate=truncate)
    got, divided = scaling.scaled(known), LinearScaling(factor).scaled(known)
    assert np.all(got <= known * (1 + 1e-15))
    assert np.all(got >= divided * (1 - 1e-15))
    assert np.all(np.diff(got) <= 0)  # slower pairs stay slower
    assert scaling.amplitude == pytest.approx(0.1 * math.log(factor) + 1)


def test_yarn_by_hand():
    # base 10 and 4 pairs: pair l makes N / 2π · 10^(-l/4) rotations
    N = round(2 * math.pi * 10**6)
    known = frequencies(8, 10.0**4)
    scaling = YarnScaling(10.0, N, beta_fast=10.0**5, beta_slow=10.0**3, truncate=False)
    ramp = np.array([0.0, 0.0, 0.5, 1.0])
    np.testing.assert_allclose(scaling.scaled(known), known * (1 - 0.9 * ramp), rtol=1e-5)


@given(st.sampled_from((2, 3, 5, 16)), BASES, st.floats(1.0, 100.0), st.sampled_from(LENGTHS))
def test_dynamic_keeps_the_first_pair_and_divides_the_last(n_pairs, base, factor, length):
    known = frequencies(2 * n_pairs, base)
    got = DynamicScaling(factor, 64).scaled(known, length)
    s = max(factor * length / 64 - (factor - 1), 1.0)
    assert got[0] == 1.0
    np.testing.assert_allclose(got[-1], known[-1] / s, rtol=1e-12)
    raised = base * s ** (n_pairs / (n_pairs - 1))  # as their formula says it
    np.testing.assert_allclose(got, frequencies(2 * n_pairs, raised), rtol=1e-9)


ALL = (*every(3, 4.0), YarnScaling(4.0, 64, mscale=1.0, mscale_all_dim=0.5), longrope(3))
scalings = pytest.mark.parametrize("scaling", ALL, ids=lambda s: type(s).__name__)


@scalings
@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_back_is_the_transpose(library, scaling, interleaved):
    rng = np.random.default_rng(0)
    x, y = (library.array(rng.standard_normal((2, 5, 7))) for _ in range(2))
    piece = Rotary(width=6, interleaved=interleaved, scaling=scaling)
    for start in (0, 62, 90):
        there, back = piece.turned(x, start), piece.turned_back(y, start)
        assert library.same_kind(there, x)
        got = np.sum(library.numpy(there) * library.numpy(y))
        np.testing.assert_allclose(got, np.sum(library.numpy(x) * library.numpy(back)), rtol=1e-12)
        size = [np.linalg.norm(library.numpy(z)[..., :6]) for z in (there, x)]
        np.testing.assert_allclose(size[0], size[1] * scaling.amplitude, rtol=1e-12)
        np.testing.assert_array_equal(library.numpy(there)[..., 6:], library.numpy(x)[..., 6:])


@scalings
def test_gradients_go_back_through_the_scaling(scaling):
    weights = DecoderWeights.init(
        **{"rng": 0, "n_layers": 1, "d_model": 12, "n_heads": 2, "d_ff": 5, "cross": False},
        positions=Rotary(scaling=scaling),
    )
    x = np.random.default_rng(1).standard_normal((3, 70, 12))
    own = weights.layers[0].self_attention
    output, vjp = multi_head_with_vjp(x, own, positions=weights.positions)
    grad_x, *_ = vjp(output)
    leaf = torch.tensor(x, requires_grad=True)
    placed = own.to("torch")
    turn = weights.positions.turn(0)
    q, k, v = (
        torch.reshape(leaf @ W, (3, 70, 2, 6)).transpose(1, 2)
        for W in (placed.W_Q, placed.W_K, placed.W_V)
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(turn(q), turn(k), v)
    theirs = mixed.transpose(1, 2).reshape(3, 70, 12) @ placed.W_O
    theirs.backward(torch.tensor(output))
    np.testing.assert_allclose(output, theirs.detach(), atol=1e-12)
    np.testing.assert_allclose(grad_x, leaf.grad, atol=1e-12)


@pytest.mark.parametrize(
    "scaling", [DynamicScaling(4.0, 6), LongRopeScaling((1.0,) * 3, (9.0,) * 3, 6)]
)
def test_the_length_is_the_last_position_plus_one(scaling):
    x = np.random.default_rng(0).standard_normal((4, 6))
    piece, plain = Rotary(scaling=scaling), Rotary()
    np.testing.assert_array_equal(piece.turned(x, 2), plain.turned(x, 2))  # positions 2 to 5
    assert np.max(np.abs(piece.turned(x, 3) - plain.turned(x, 3))) > 0.01
    long = np.random.default_rng(1).standard_normal((9, 6))
    whole, parts = piece.turned(long, 0), (piece.turned(long[:6], 0), piece.turned(long[6:], 6))
    np.testing.assert_array_equal(whole[6:], parts[1])  # one length, one set of frequencies
    assert np.max(np.abs(whole[:6] - parts[0])) > 0.01  # a cache keeps the keys as they were
    np.testing.assert_array_equal(parts[0], plain.turned(long[:6], 0))


ERRORS = """
LinearScaling(0)
    ValueError: factor must be above 0, got 0.0
LinearScaling("2")
    TypeError: factor must be a real number, got str
DynamicScaling(0, 64)
    ValueError: factor must be above 0, got 0.0
DynamicScaling(2.0, 0)
    ValueError: n_positions must be at least 1, got 0
DynamicScaling(2.0, 64.0)
    TypeError: n_positions must be an int, got float
Llama3Scaling(0)
    ValueError: factor must be above 0, got 0.0
Llama3Scaling(8, "1", 4)
    TypeError: low must be a real number, got str
Llama3Scaling(8, 1, "4")
    TypeError: high must be a real number, got str
Llama3Scaling(8, 4, 4)
    ValueError: low must be below high = 4, got 4
Llama3Scaling(n_positions=0)
    ValueError: n_positions must be at least 1, got 0
YarnScaling(0, 64)
    ValueError: factor must be above 0, got 0.0
YarnScaling(2, 0)
    ValueError: n_positions must be at least 1, got 0
YarnScaling(2, 64, 0)
    ValueError: beta_fast must be above 0, got 0.0
YarnScaling(2, 64, beta_slow=0)
    ValueError: beta_slow must be above 0, got 0.0
YarnScaling(2, 64, 1, 32)
    ValueError: beta_slow must be below beta_fast = 1.0, got 32
YarnScaling(2, 64, attention_factor=0)
    ValueError: attention_factor must be above 0, got 0.0
YarnScaling(2, 64, mscale="1")
    TypeError: mscale must be a real number, got str
YarnScaling(2, 64, mscale_all_dim=None)
    TypeError: mscale_all_dim must be a real number, got NoneType
YarnScaling(2, 64, truncate=0)
    TypeError: truncate must be a bool, got int
LongRopeScaling([1.0], (1.0,), 64)
    TypeError: short must be a tuple, got list
LongRopeScaling((1.0,), (0.0,), 64)
    ValueError: long[0] must be above 0, got 0.0
LongRopeScaling((1.0,), (1.0, 2.0), 64)
    ValueError: long must have as many factors as short = 1, got 2
LongRopeScaling((1.0,), (1.0,), 1)
    ValueError: n_positions must be at least 2, got 1
LongRopeScaling((1.0,), (1.0,), 64, factor=0)
    ValueError: factor must be above 0, got 0.0
LongRopeScaling((1.0,), (1.0,), 64, attention_factor=0)
    ValueError: attention_factor must be above 0, got 0.0
Rotary(scaling=longrope(3)).turned(np.ones((5, 8)), 0)
    ValueError: short must have 4 factors, one per pair, got 3
DecoderWeights.init(0, 1, 8, 2, 5, positions=Rotary(scaling=longrope(3)))
    ValueError: short must have 2 factors, one per pair, got 3
"""

test_error = error_test(ERRORS, vars(attnbook) | globals())
