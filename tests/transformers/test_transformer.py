"""The whole transformer against the loop, the two architectures of the sources, and itself."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import (
    HALF,
    LAYER_MASKS,
    calls_in_package,
    close,
    examples,
    held,
    layer_mask,
    leaves_of,
    need,
    recorded,
    shaken,
)
from error_table import error_test
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import (
    DecoderWeights,
    TransformerWeights,
    check,
    decoder,
    encoder,
    masking,
    transformer,
)
from attnbook.decoding import KVCache
from attnbook.transformers.decoder import memory_keys_and_values
from attnbook.transformers.transformer import decode, encode
from attnbook.transformers.weights import POSITIONS

ORDERS = ("pre", "post")
ARRANGEMENTS = ("shared", "own", "alone")
SIZES = {"d_model": 6, "n_heads": 3, "d_ff": 5, "n_layers": 2, "n_encoder_layers": 1}
V_T, V_S = 7, 11


def model(arrangement="own", seed=0, **options):
    """Return the weights of a small model in which nothing is 0 or 1."""
    options = SIZES | options
    if options.get("positions") == "learned":
        options |= {"n_positions": 8}
    if arrangement == "alone":
        options["n_encoder_layers"] = 0
    vocabularies = (V_T, V_S) if arrangement == "own" else (V_T,)
    return shaken(TransformerWeights.init(0, *vocabularies, **options), seed)


def ids(*shape, known=V_T, seed=0):
    return np.random.default_rng(seed).integers(0, known, shape)


def source_for(arrangement, *shape, seed=1):
    known = {"own": V_S, "shared": V_T, "alone": None}[arrangement]
    return None if known is None else ids(*shape, known=known, seed=seed)


def optional(library, x):
    return None if x is None else library.array(x)


# Against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=examples(20))
@given(
    *(st.sampled_from(x) for x in (ORDERS, ARRANGEMENTS, POSITIONS, LAYER_MASKS, LAYER_MASKS)),
    st.sampled_from(LAYER_MASKS), *(st.booleans() for _ in range(4)), st.integers(0, 99),
    st.sampled_from(((), (2,), (2, 1), (0,))), st.sampled_from((0, 1, 3)), st.sampled_from((0, 4)),
)  # fmt: skip
def test_agrees_with_the_loop(
    library, dtype, norm, arrangement, positions, source_kind, target_kind, memory_kind, tied,
    bias, scale, is_causal, seed, leading, n_t, n_s,
):  # fmt: skip
    weights = model(arrangement, seed, norm=norm, tied=tied, positions=positions, bias=bias)
    weights = replace(weights, scale_embeddings=scale)
    source, target = source_for(arrangement, *leading, n_s, seed=seed), ids(*leading, n_t)
    rng, crossed = np.random.default_rng(seed), arrangement != "alone"
    masks = {
        "source_mask": layer_mask(rng, source_kind, (*leading, 3, n_s, n_s)) if crossed else None,
        "target_mask": layer_mask(rng, target_kind, (*leading, 3, n_t, n_t)),
        "memory_mask": layer_mask(rng, memory_kind, (*leading, 3, n_t, n_s)) if crossed else None,
    }
    given = {name: optional(library, mask) for name, mask in masks.items()}
    mine = optional(library, source), library.array(target)
    placed = library.place(weights, dtype)
    got, shares = recorded(transformer, *mine, placed, is_causal=is_causal, **given)
    assert library.same_kind(got, placed.target_embedding)
    assert tuple(got.shape) == (*leading, n_t, V_T)
    known = masks["source_mask"]
    if masks["memory_mask"] is None and known is not None and known.shape[-2] == 1:
        masks["memory_mask"] = known
    held_weights = held(library, weights, dtype)
    exact = oracle.transformer(source, target, held_weights, **masks, is_causal=is_causal)
    close(library.numpy(got), exact, dtype, size=2000)
    alone = transformer(*mine, placed, is_causal=is_causal, **given)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))
    for name, x in placed.arrays().items():  # nothing is written to
        expected = library.numpy(library.array(weights.arrays()[name], dtype))
        np.testing.assert_array_equal(library.numpy(x), expected)
    # the weights of all attentions, each row of which sums to 1, or to 0 where nothing is seen
    encoder, own, cross = (n_s, n_s), (n_t, n_t), (n_t, n_s)
    shapes = [encoder, own, cross, own, cross] if crossed else [own, own]
    for i, (share, shape) in enumerate(zip(shares, shapes, strict=True)):
        assert library.same_kind(share, got)
        numbers = library.numpy(share)
        assert numbers.shape == (*leading, 3, *shape)
        total = numbers.sum(axis=-1)
        assert np.all((np.abs(total - 1) < 1e-5) | (total == 0))
        if is_causal and (not crossed or i in (1, 3)):
            np.testing.assert_array_equal(numbers, np.tril(numbers))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("positions", "norm"), [("interleaved", "pre"), ("rotary", "post")])
def test_half_precision(library, dtype, positions, norm):
    need(library, dtype)
    weights = model(norm=norm, positions=positions, tied=False)
    source, target = source_for("own", 2, 5), ids(2, 4)
    placed = library.place(weights, dtype)
    got = transformer(library.array(source), library.array(target), placed)
    assert library.same_kind(got, placed.target_embedding)
    exact = oracle.transformer(source, target, held(library, weights, dtype))
    atol = {"float16": 0.05, "bfloat16": 0.5}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=atol)


@pytest.mark.parametrize(
    ("of_source", "of_target"), [((), (2,)), ((2,), ()), ((2,), (3, 1)), ((1,), (2,)), ((0,), ())]
)
def test_leading_axes_broadcast(library, of_source, of_target):
    weights = model()
    source, target = source_for("own", *of_source, 5), ids(*of_target, 4)
    exact = oracle.transformer(source, target, weights)
    assert exact.shape == (*np.broadcast_shapes(of_source, of_target), 4, V_T)
    got = transformer(library.array(source), library.array(target), library.place(weights))
    close(library.numpy(got), exact, "float64", size=1000)


# Masks.


@pytest.mark.parametrize("shape", [(), (5,), (3, 1, 5), (2, 1, 1, 5)])
def test_a_source_mask_of_one_row_holds_for_the_memory_too(shape):
    weights, source, target = model(), source_for("own", 2, 5), ids(2, 4)
    mask = np.asarray(np.random.default_rng(1).random(shape) > 0.6)
    got = transformer(source, target, weights, source_mask=mask)
    given = transformer(source, target, weights, source_mask=mask, memory_mask=mask)
    np.testing.assert_array_equal(got, given)
    everything = np.ones((1, 5), bool)
    other = transformer(source, target, weights, source_mask=mask, memory_mask=everything)
    assert not np.allclose(got, other)


def test_a_call_checks_once():
    """A transformer of two layers on each side makes at most 195 calls of Python in the package."""
    weights = model(n_encoder_layers=2)
    assert len(calls_in_package(transformer, ids(1, 3, known=V_S), ids(1, 2), weights)) <= 195


@pytest.mark.parametrize("arrangement", ["own", "alone"])
def test_rotary_angles_are_computed_and_copied_once_for_all_layers(arrangement):
    """Once on each side: two layers turn queries and keys by the same cosines and sines."""
    weights = model(arrangement, positions="rotary", n_encoder_layers=2 * (arrangement == "own"))
    source = source_for(arrangement, 1, 3)
    names = Counter(name for _, name in calls_in_package(transformer, source, ids(1, 2), weights))
    n_sides = 2 if arrangement == "own" else 1
    assert names["cosines_and_sines"] == names["placed"] == n_sides


def test_a_source_mask_of_many_rows_does_not():
    weights, source, target = model(), source_for("own", 2, 5), ids(2, 5)
    mask = np.random.default_rng(0).random((5, 5)) < 0.5
    got = transformer(source, target, weights, source_mask=mask)
    everything = np.ones((1, 5), bool)
    free = transformer(source, target, weights, source_mask=mask, memory_mask=everything)
    np.testing.assert_allclose(got, free, atol=1e-13)


@pytest.mark.parametrize(
    ("arrangement", "positions"),
    [("own", "rotary"), ("alone", "learned"), ("shared", "sinusoidal")],
)
def test_nothing_leaks_from_the_future(arrangement, positions):
    weights = model(arrangement, positions=positions)
    source = source_for(arrangement, 5)
    for is_causal in (True, False):
        report = check.no_future_leak(
            lambda target, is_causal=is_causal: transformer(
                source, target, weights, is_causal=is_causal
            ),
            ids(2, 4),
        )
        assert report.passed == is_causal, report


# Lengths.


def test_learned_positions_are_as_long_as_their_table(library):
    weights = library.place(model(positions="learned"))
    fits = library.array(np.zeros(8, int)), library.array(np.zeros(9, int))
    assert tuple(transformer(fits[0], fits[0], weights).shape) == (8, V_T)
    message = "must have at most 8 tokens, as many as learned positions, got 9$"
    with pytest.raises(ValueError, match=f"^target {message}"):
        transformer(fits[0], fits[1], weights)
    with pytest.raises(ValueError, match=f"^source {message}"):
        transformer(fits[1], fits[0], weights)


# Features instead of tokens.


def features(library, *shape, seed=0):
    return library.array(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
def test_without_embeddings_features_go_in_and_come_out(library, positions):
    weights = replace(model(positions=positions), target_embedding=None, source_embedding=None)
    placed = library.place(weights)
    source, target = features(library, 2, 5, 6), features(library, 2, 4, 6, seed=1)
    rotate = positions == "rotary"
    memory = encoder(source, placed.encoder, rotate=rotate)
    for is_causal in (True, False):
        got = transformer(source, target, placed, is_causal=is_causal)
        mask = masking.causal(4, like=target) if is_causal else None
        expected = decoder(target, memory, placed.decoder, mask, rotate=rotate)
        np.testing.assert_allclose(library.numpy(got), library.numpy(expected), atol=1e-13)
    # an output may still make logits of them
    output = np.random.default_rng(0).standard_normal((6, 3))
    for b_out in (None, np.arange(3.0)):
        made = library.place(replace(weights, output=output, b_out=b_out))
        logits = library.numpy(transformer(source, target, made, is_causal=False))
        shift = 0 if b_out is None else b_out
        np.testing.assert_allclose(logits, library.numpy(got) @ output + shift, atol=1e-12)


# Dropout.


@pytest.mark.parametrize("norm", ORDERS)
@pytest.mark.parametrize("arrangement", ["own", "alone"])
def test_drop_is_applied_to_embeddings_sublayers_and_hidden_units(library, norm, arrangement):
    weights = model(arrangement, norm=norm, tied=False, positions="learned")
    source, target, seen = source_for(arrangement, 2, 5), ids(2, 4), []

    def drop(y):
        seen.append(tuple(y.shape))
        return 2 * y

    arguments = optional(library, source), library.array(target), library.place(weights)
    got = transformer(*arguments, drop=drop)
    crossed = arrangement == "own"
    places = [(2, 5, 6), (2, 5, 6), (2, 5, 5), (2, 5, 6)] if crossed else []
    places += [(2, 4, 6)]
    places += ([(2, 4, 6)] * (1 + crossed) + [(2, 4, 5), (2, 4, 6)]) * 2
    assert seen == places
    factors = {"W_O": 2, "b_O": 2, "W_2": 4, "b_2": 2}
    tables = itertools.product(("source", "target"), ("embedding", "positions"))
    factors |= {f"{side}_{what}": 2 for side, what in tables}
    doubled = weights.with_arrays(
        {name: factors.get(name.split(".")[-1], 1) * x for name, x in weights.arrays().items()}
    )
    exact = oracle.transformer(source, target, doubled)
    close(library.numpy(got), exact, "float64", size=5000)


# Gradients.


@pytest.mark.parametrize(
    ("arrangement", "norm"), [("own", "pre"), ("shared", "post"), ("alone", "pre")]
)
def test_gradcheck(arrangement, norm):
    sizes = {"d_model": 4, "n_heads": 2, "n_layers": 1, "activation": "gelu", "bias": False}
    for positions, tied in (("learned", False), ("rotary", True)):
        weights = model(arrangement, norm=norm, positions=positions, tied=tied, **sizes)
        weights, leaves = leaves_of(weights.to("torch"))
        source, target = source_for(arrangement, 3), torch.tensor(ids(3))
        source = None if source is None else torch.tensor(source)

        def function(*arrays, weights=weights, leaves=leaves, source=source, target=target):
            one = weights.with_arrays(dict(zip(leaves, arrays, strict=True)))
            mask = torch.tensor([[True], [False], [True]])  # the second token sees nothing
            return transformer(source, target, one, target_mask=mask)

        assert torch.autograd.gradcheck(function, tuple(leaves.values()), fast_mode=True)


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
@pytest.mark.parametrize(
    ("norm", "positions", "tied"), [("post", "learned", False), ("pre", "rotary", True)]
)
def test_gradients_reach_everything_and_are_finite(dtype, norm, positions, tied):
    weights = model(norm=norm, positions=positions, tied=tied, final_norm=True)
    weights, leaves = leaves_of(weights.to("torch", dtype=dtype))
    source, target = (torch.tensor(x) for x in (source_for("own", 2, 5), ids(2, 4)))
    masks = {"source_mask": masking.padding(torch.tensor([[5], [0]]), 5)}
    masks |= {"target_mask": masking.padding(torch.tensor([[4], [0]]), 4)}
    logits = transformer(source, target, weights, **masks)
    attnbook.cross_entropy(logits, target).backward()
    for name, leaf in leaves.items():
        assert leaf.grad.dtype == leaf.dtype
        assert bool(torch.isfinite(leaf.grad).all()), name
        # a bias of the keys shifts all scores of a query alike, which the softmax does not see
        assert bool((leaf.grad != 0).any()) or name.endswith("b_K"), name


def test_vmap():
    weights = model(positions="rotary").to("torch")
    source, target = torch.tensor(source_for("own", 2, 5)), torch.tensor(ids(2, 4))
    mapped = torch.func.vmap(lambda s, t: transformer(s, t, weights))(source, target)
    torch.testing.assert_close(mapped, transformer(source, target, weights))


def test_layers_may_be_missing_on_either_side():
    source, target = source_for("own", 5), ids(4)
    for sizes in ({"n_layers": 0, "n_encoder_layers": 1}, {"n_layers": 0}):
        weights = model("own" if sizes.get("n_encoder_layers") else "alone", **sizes)
        given = source if weights.encoder is not None else None
        got = transformer(given, target, weights)
        close(got, oracle.transformer(given, target, weights), "float64", size=100)
    bare = TransformerWeights(DecoderWeights(()))
    x = np.random.default_rng(0).standard_normal((4, 6))
    for features in (x, np.stack([x, x, x])):
        np.testing.assert_array_equal(transformer(None, features, bare), features)


# A cache, as decoding uses it.


@pytest.mark.parametrize("positions", POSITIONS)
def test_decoding_with_a_past_equals_the_whole_run(library, positions):
    weights = library.place(model(positions=positions, n_kv_heads=1))
    source, target = library.array(source_for("own", 2, 5)), ids(2, 7)
    expected = library.numpy(transformer(source, library.array(target), weights))
    memory = encode(source, weights)
    heads, past = memory_keys_and_values(memory, weights.decoder.layers), KVCache()
    start = 0
    for stop in (1, 2, 5, 7):
        new = library.array(target[:, start:stop])
        mask = masking.causal(stop - start, stop, like=new)
        logits = decode(new, heads, weights, mask, past=past, start=start)
        np.testing.assert_allclose(library.numpy(logits), expected[:, start:stop], atol=1e-12)
        start = stop


# Errors.


def call(source=(2, 5), target=(2, 4), weights=None, **options):
    source, target = (np.zeros(x, int) if isinstance(x, tuple) else x for x in (source, target))
    return transformer(source, target, weights or model(), **options)


def with_features(source=(2, 5, 6), target=(2, 4, 6), **options):
    weights = replace(model(), target_embedding=None, source_embedding=None)
    source, target = (np.zeros(x) if isinstance(x, tuple) else x for x in (source, target))
    return transformer(source, target, weights, **options)


def alone(target=(2, 4), source=None, **options):
    return call(source, target, model("alone"), **options)


ERRORS = """
transformer(None, ids(4), None)
    TypeError: weights must be TransformerWeights, got NoneType
call(weights=model().decoder)
    TypeError: weights must be TransformerWeights, got DecoderWeights
call(target=[1, 2])
    TypeError: target must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
call(target=np.zeros((2, 4)))
    TypeError: target must be an array of integers, got float64
call(target=torch.zeros(2, 4, dtype=torch.int64))
    TypeError: target must be an array of the same library as target_embedding (numpy), got
    torch
call(target=np.full((2, 4), V_T))
    ValueError: target must be from 0 to 6 to be known to target_embedding, got 7
call(np.full((2, 5), V_S))
    ValueError: source must be from 0 to 10 to be known to source_embedding, got 11
call(target=np.array(3))
    ValueError: target must have shape (..., n), got ()
call((3, 5), (2, 4))
    ValueError: source must have leading axes that broadcast with (2,), got shape (3, 5)
transformer(None, np.ones(3), TransformerWeights(DecoderWeights(())))
    ValueError: target must have shape (..., n, d_model), got (3,)
call(source_mask=torch.ones(1, 5, dtype=torch.bool))
    TypeError: source_mask must be an array of the same library as source (numpy), got torch
call(None)
    ValueError: source must be an array for the encoder, got None
alone(source=(2, 5))
    ValueError: source must be None, since the weights have no encoder
alone(source_mask=np.ones((1, 5), bool))
    ValueError: source_mask must be None, since the weights have no encoder
alone(memory_mask=np.ones((1, 5), bool))
    ValueError: memory_mask must be None, since the weights have no encoder
call(target_mask=torch.ones(4, 4, dtype=torch.bool))
    TypeError: target_mask must be an array of the same library as target (numpy), got torch
call(target_mask=np.ones((4, 5), bool))
    ValueError: target_mask must broadcast to the shape of the scores (..., n_q, n_k) = (2, 3,
    4, 4), got (4, 5)
call(target_mask=np.ones((2, 4, 4), bool))
    ValueError: target_mask must have 1 or 3 entries on the axis of the heads, the third from
    the right, got shape (2, 4, 4); one mask per sequence is target_mask[:, None]
call(memory_mask=np.ones((5, 4), bool))
    ValueError: memory_mask must broadcast to the shape of the scores (..., n_q, n_k) = (2, 3,
    4, 5), got (5, 4)
call(source_mask=np.ones((2, 5), bool))
    ValueError: source_mask must broadcast to (..., h, n_q, n_k) = (2, 3, 5, 5), got (2, 5); one
    row of keys per sequence is source_mask[:, None, None]
with_features(target=(2, 4, 5))
    ValueError: target must have shape (..., n, 6), got (2, 4, 5)
with_features(target=ids(2, 4))
    TypeError: target must have a real floating dtype, got int64
with_features(np.zeros((2, 5, 6), "float32"))
    TypeError: weights must have the dtype of source (float32), got float64
call(is_causal="False")
    TypeError: is_causal must be a bool, got str
call(drop=-1)
    TypeError: drop must be callable or None, got int
"""

test_error = error_test(ERRORS, globals())
