"""The layers and stacks of encoder and decoder: one contract, in every library, against the loop.

Each kind below is called through `run`; what a kind has of its own stands at the end.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
import pytest
from cases import HALF, LAYER_MASKS, close, examples, held, layer_mask, need, recorded, shaken
from error_table import error_test
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import (
    DecoderLayerWeights,
    DecoderWeights,
    EncoderLayerWeights,
    EncoderWeights,
    FeedForwardWeights,
    LayerNormWeights,
    MultiHeadWeights,
    check,
    masking,
)


@dataclass(frozen=True)
class Kind:
    """One kind of layer or stack: its function, weights and oracle, and whether it has a memory."""

    function: str
    weights: Any
    cross: bool | None = None  # None for an encoder

    @property
    def stack(self):
        return "layer" not in self.function

    def init(self, rng=0, n_layers=2, d_model=6, n_heads=3, d_ff=5, **options):
        layers = (n_layers,) if self.stack else ()
        options |= {} if self.cross is None else {"cross": self.cross}
        return self.weights.init(rng, *layers, d_model, n_heads, d_ff, **options)

    def made(self, seed=0, **options):
        """Return weights in which nothing is 0 or 1."""
        return shaken(self.init(**options), seed)

    def run(self, weights, x, memory=None, mask=None, memory_mask=None, **options):
        given = (weights, mask) if self.cross is None else (memory, weights, mask, memory_mask)
        return getattr(attnbook, self.function)(x, *given, **options)

    def exact(self, weights, x, memory=None, mask=None, memory_mask=None, rotate=False):
        turn = oracle.rotary if rotate else oracle.as_it_is
        given = (weights, mask) if self.cross is None else (memory, weights, mask, memory_mask)
        return getattr(oracle, self.function)(x, *given, turn=turn)

    def memory(self, library, *shape, dtype=None, seed=1):
        return library.array(tokens(*shape, seed=seed), dtype) if self.cross else None


KINDS = {
    "encoder layer": Kind("encoder_layer", EncoderLayerWeights),
    "decoder layer": Kind("decoder_layer", DecoderLayerWeights, True),
    "decoder layer alone": Kind("decoder_layer", DecoderLayerWeights, False),
    "encoder": Kind("encoder", EncoderWeights),
    "decoder": Kind("decoder", DecoderWeights, True),
    "decoder alone": Kind("decoder", DecoderWeights, False),
}
STACKS = [name for name, kind in KINDS.items() if kind.stack]
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
stacks = pytest.mark.parametrize("kind", [KINDS[name] for name in STACKS], ids=STACKS)
orders = pytest.mark.parametrize("norm", ["pre", "post"])
LEADING = (((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((3, 1), (2,)), ((0,), ()))


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def optional(library, x):
    return None if x is None else library.array(x)


def flat(result):
    """Return the arrays of a result, however they are nested, without None."""
    if isinstance(result, (tuple, list)):
        return [x for part in result for x in flat(part)]
    return [] if result is None else [result]


# Against the loop.


@kinds
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=examples(12))
@given(
    st.sampled_from(LEADING), st.sampled_from((0, 1, 4)), st.sampled_from((0, 1, 5)),
    st.sampled_from(LAYER_MASKS), st.sampled_from(LAYER_MASKS),
    st.fixed_dictionaries({
        "norm": st.sampled_from(("pre", "post")),
        "activation": st.sampled_from(("relu", "gelu")),
        "bias": st.booleans(),
        "n_kv_heads": st.sampled_from((None, 1, 3)),
    }),
    st.sampled_from((0, 1, 2)), st.sampled_from((None, False, True)), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_agrees_with_the_loop(
    library, kind, dtype, leading, n_t, n_s, mask, memory_mask, options, n_layers, final, rotate,
    seed,
):  # fmt: skip
    if kind.stack:
        options = options | {"n_layers": n_layers, "final_norm": final}
    weights, rng = kind.made(seed, **options), np.random.default_rng(seed)
    if kind.stack:
        expected = options["norm"] == "pre" if final is None else final
        assert (weights.final_norm is not None) == expected
        assert len(weights.layers) == n_layers
    crossed = kind.cross and (n_layers or not kind.stack)
    x = library.array(tokens(*leading[0], n_t, 6, seed=seed), dtype)
    memory = kind.memory(library, *leading[1], n_s, 6, dtype=dtype) if crossed else None
    both = np.broadcast_shapes(*leading) if crossed else leading[0]
    mask = layer_mask(rng, mask, (*leading[0], 3, n_t, n_t))
    memory_mask = layer_mask(rng, memory_mask, (*both, 3, n_t, n_s)) if crossed else None
    before, placed = library.numpy(x).copy(), library.place(weights, dtype)
    given = (placed, x, memory, optional(library, mask), optional(library, memory_mask))
    got, A = recorded(kind.run, *given, rotate=rotate)
    numbers = None if memory is None else library.numpy(memory)
    held_weights = held(library, weights, dtype)
    exact, *exact_A = kind.exact(held_weights, before, numbers, mask, memory_mask, rotate=rotate)
    assert tuple(got.shape) == (*both, n_t, 6) or not crossed
    assert library.same_kind(got, x)
    close(library.numpy(got), exact, dtype, size=2000)
    calls = list(zip(*exact_A, strict=True)) if kind.stack else exact_A  # layer after layer
    for one, other in zip(A, flat(calls), strict=True):
        assert library.same_kind(one, x)
        close(library.numpy(one), other, dtype, size=500)
    alone = kind.run(*given, rotate=rotate)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))
    np.testing.assert_array_equal(library.numpy(x), before)
    for name, array in placed.arrays().items():
        expected = library.numpy(library.array(weights.arrays()[name], dtype))
        np.testing.assert_array_equal(library.numpy(array), expected)


@pytest.mark.parametrize("dtype", HALF)
@orders
@pytest.mark.parametrize("rotate", [False, True])
@stacks
def test_half_precision(library, kind, dtype, norm, rotate):
    need(library, dtype)
    weights = kind.made(norm=norm, activation="gelu")
    x, memory = library.array(tokens(2, 4, 6), dtype), kind.memory(library, 5, 6, dtype=dtype)
    got, A = recorded(kind.run, library.place(weights, dtype), x, memory, rotate=rotate)
    assert all(library.same_kind(y, x) for y in (got, *A))
    numbers = None if memory is None else library.numpy(memory)
    held_weights = held(library, weights, dtype)
    exact = kind.exact(held_weights, library.numpy(x), numbers, rotate=rotate)[0]
    atol = {"float16": 0.03, "bfloat16": 0.3}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=atol)


# Properties.


@stacks
def test_without_positions_order_does_not_matter(kind):
    weights, memory = kind.made(activation="gelu"), tokens(5, 6, seed=1)
    memory = memory if kind.cross else None
    for rotate in (False, True):
        report = check.permutation_equivariance(
            lambda x, rotate=rotate: kind.run(weights, x, memory, rotate=rotate), tokens(5, 6)
        )
        assert report.passed != rotate, report
    if kind.cross:  # the source is not rotated
        x, order = tokens(4, 6), np.random.default_rng(0).permutation(5)
        got, expected = (kind.run(weights, x, m, rotate=True) for m in (memory[order], memory))
        np.testing.assert_allclose(got, expected, atol=1e-12)


@stacks
def test_a_causal_mask_leaks_nothing(kind):
    weights, mask = kind.made(), masking.causal(4)
    memory = tokens(5, 6, seed=1) if kind.cross else None
    report = check.no_future_leak(
        lambda x: kind.run(weights, x, memory, mask, rotate=True), tokens(4, 6)
    )
    assert report.passed, report
    # layers add no mask by themselves
    assert not check.no_future_leak(lambda x: kind.run(weights, x, memory), tokens(4, 6)).passed


# Dropout.


@orders
@kinds
def test_drop_is_applied_to_all_sublayers_and_to_the_hidden_units(library, kind, norm):
    weights, seen = kind.made(norm=norm), []

    def drop(y):
        seen.append(tuple(y.shape))
        return 2 * y

    x, memory = tokens(2, 4, 6), tokens(7, 6, seed=1) if kind.cross else None
    given = (library.place(weights), library.array(x), optional(library, memory))
    got = kind.run(*given, drop=drop)
    places = [(2, 4, 6)] * (1 + bool(kind.cross)) + [(2, 4, 5), (2, 4, 6)]
    assert seen == places * len(weights.layers)
    factors = {"W_O": 2, "b_O": 2, "W_2": 4, "b_2": 2}  # what a `drop` that doubles does
    doubled = weights.with_arrays(
        {name: factors.get(name.split(".")[-1], 1) * x for name, x in weights.arrays().items()}
    )
    close(library.numpy(got), kind.exact(doubled, x, memory)[0], "float64", size=2000)


# The weights.


def same_arrays(one, other):
    assert list(one.arrays()) == list(other.arrays())
    for name, x in other.arrays().items():
        np.testing.assert_array_equal(one.arrays()[name], x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [k for k in KINDS.values() if not k.stack])
def test_init_draws_attentions_then_feed_forward(kind, bias):
    options = {"norm": "post", "activation": "gelu", "bias": bias, "n_kv_heads": 1}
    weights = kind.init(3, **options)
    rng, norm = np.random.default_rng(3), LayerNormWeights.init(6, bias=bias)
    expected = {}
    for name in ("self_attention", "cross_attention")[: 1 + bool(kind.cross)]:
        expected[name] = MultiHeadWeights.init(rng, 6, 3, n_kv_heads=1, bias=bias)
        expected[f"{name}_norm"] = norm
    network = FeedForwardWeights.init(rng, 6, 5, activation="gelu", bias=bias)
    expected |= {"feed_forward": network, "feed_forward_norm": norm}
    for name, part in vars(weights).items():
        if name in expected:
            same_arrays(part, expected[name])
        else:
            assert part in ("post", None)
    assert (weights.norm, weights.feed_forward.activation) == ("post", "gelu")
    assert (weights.self_attention.n_heads, weights.self_attention.n_kv_heads) == (3, 1)


@kinds
def test_init_defaults(kind):
    weights = kind.init()
    for one in weights.layers:
        assert (one.norm, one.feed_forward.activation) == ("pre", "relu")
        assert (len(one.arrays()), one.self_attention.n_kv_heads) == (16 + 10 * bool(kind.cross), 3)
        parts = {name: part for name, part in vars(one).items() if name != "norm"}
        assert type(one)(**parts).norm == "pre"
    if kind.stack:
        assert kind.weights(weights.layers).final_norm is None
        assert weights.final_norm.bias is not None
        assert kind.init(bias=False).final_norm.bias is None
        assert kind.init(norm="post").final_norm is None
    if kind.cross:  # which is the default
        assert DecoderLayerWeights.init(0, 6, 3, 5).cross_attention is not None
        assert DecoderWeights.init(0, 1, 6, 3, 5).layers[0].cross_attention is not None


@stacks
def test_init_of_a_stack_draws_layer_after_layer(kind):
    weights, rng = kind.init(np.random.default_rng(3), 3, norm="post"), np.random.default_rng(3)
    (layer,) = (k for k in KINDS.values() if not k.stack and f"{kind.function}_layer" == k.function
                and k.cross == kind.cross)  # fmt: skip
    for one in weights.layers:
        same_arrays(one, layer.init(rng, norm="post"))
    assert len(weights.layers) == 3


def unusual():
    """Return encoders and decoders whose layers are not alike, or have widths of their own."""
    layer, wide = KINDS["encoder layer"].made, KINDS["decoder layer"].made
    bare = EncoderLayerWeights(
        MultiHeadWeights.init(0, 6, 3, output=False), FeedForwardWeights.init(1, 6, 5, bias=False),
        LayerNormWeights(epsilon=0.5), LayerNormWeights(epsilon=0.25), "post",
    )  # fmt: skip
    of_7 = MultiHeadWeights.init(0, 6, 3, d_key=7, bias=True)
    return {
        "norms without gain, heads without output": EncoderWeights((bare,)),
        "heads of other widths": EncoderWeights(
            (replace(layer(), self_attention=MultiHeadWeights.init(0, 6, 2, d_k=2, d_v=5)),)
        ),
        "heads of odd width": KINDS["encoder"].made(n_heads=2),
        "other heads in each layer": EncoderWeights(
            (layer(), layer(n_heads=1), layer(norm="post"))
        ),
        "a memory of its own width": DecoderWeights(
            (replace(wide(), cross_attention=of_7),
             replace(wide(1, norm="post"), cross_attention=of_7))
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", unusual())
def test_unusual_layers_are_taken(library, name):
    weights, x = unusual()[name], library.array(tokens(2, 4, 6))
    kind = KINDS["encoder" if isinstance(weights, EncoderWeights) else "decoder"]
    memory = kind.memory(library, 5, 7)
    mask = np.random.default_rng(0).random((2, 1, 4, 4)) < 0.7
    rotate = name == "heads of other widths"
    got = kind.run(library.place(weights), x, memory, library.array(mask), rotate=rotate)
    numbers = None if memory is None else library.numpy(memory)
    exact = kind.exact(weights, library.numpy(x), numbers, mask, rotate=rotate)
    close(library.numpy(got), exact[0], "float64", size=2000)


# Errors.


def part(of="encoder layer", **parts):
    return replace(KINDS[of].made(), **parts)


def call(of="encoder layer", x=(4, 6), memory=(5, 6), weights=None, mask=None, memory_mask=None,
         dtype="float64", **options):  # fmt: skip
    kind = KINDS[of]
    x, memory = (np.ones(a, dtype) if isinstance(a, tuple) else a for a in (x, memory))
    weights = kind.made() if weights is None else weights
    memory = None if kind.cross is None else memory
    return kind.run(weights, x, memory, mask, memory_mask, **options)


def one(of="encoder layer", **options):
    return KINDS[of].made(**options)


def heads(*arguments, **options):
    return MultiHeadWeights.init(0, *arguments, **options)


ERRORS = """
part(self_attention=attnbook.SingleHeadWeights.init(0, 6, d_k=2, d_v=6))
    TypeError: self_attention must be MultiHeadWeights or LatentWeights, got SingleHeadWeights
part(feed_forward_norm=np.ones(6))
    TypeError: feed_forward_norm must be LayerNormWeights or RMSNormWeights, got ndarray
part(feed_forward=FeedForwardWeights.init(0, 6, 5).to(dtype="float32"))
    TypeError: feed_forward.W_1 must have the dtype of self_attention.W_Q (float64), got float32
part(feed_forward_norm=LayerNormWeights.init(6).to("torch"))
    TypeError: feed_forward_norm.gain must be an array of the same library as self_attention.W_Q
    (numpy), got torch
part(self_attention=heads(6, 3, d_key=5))
    ValueError: self_attention.W_K must have 6 rows, got shape (5, 6)
part(self_attention=heads(6, 3, d_value=7))
    ValueError: self_attention.W_V must have 6 rows, got shape (7, 6)
part(self_attention=heads(6, 3, d_out=7))
    ValueError: self_attention.W_O must have length 6 on its last axis, the width of the tokens
    that it is added to, got shape (6, 7)
part(self_attention=heads(6, 3, d_v=5, output=False))
    ValueError: self_attention must have heads that join to width 6, or a W_O, got 15
part(feed_forward=FeedForwardWeights(np.ones((5, 4)), None, np.ones((4, 6)), None))
    ValueError: feed_forward.W_1 must have 6 rows, got shape (5, 4)
part(feed_forward=FeedForwardWeights(np.ones((6, 4)), None, np.ones((4, 5)), None))
    ValueError: feed_forward.W_2 must have length 6 on its last axis, the width of the tokens that
    it is added to, got shape (4, 5)
part(feed_forward_norm=LayerNormWeights(None, np.ones(1)))
    ValueError: feed_forward_norm.bias must have length 6 on its last axis, the width of the
    tokens that it is added to, got shape (1,)
EncoderLayerWeights.init(0, 6, 3, 5, norm="both")
    ValueError: norm must be one of pre, post, got 'both'
EncoderLayerWeights.init(0, 6, 3, 0)
    ValueError: d_ff must be at least 1, got 0
EncoderWeights([one()])
    TypeError: layers must be a tuple, got list
EncoderWeights((one(), DecoderLayerWeights.init(0, 6, 3, 5)))
    TypeError: layers[1] must be EncoderLayerWeights, got DecoderLayerWeights
EncoderWeights((one(), one(d_model=9), one()))
    ValueError: layers and final_norm must have one width d_model, got [6, 9, 6]
EncoderWeights((one(), one().to(dtype="float32")))
    TypeError: layers.1.self_attention.W_Q must have the dtype of layers.0.self_attention.W_Q
    (float64), got float32
EncoderWeights.init(0, -1, 6, 3, 5)
    ValueError: n_layers must be at least 0, got -1
call(weights=one("encoder"))
    TypeError: weights must be EncoderLayerWeights, got EncoderWeights
call("encoder", weights=one())
    TypeError: weights must be EncoderWeights, got EncoderLayerWeights
call(dtype="int64")
    TypeError: x must have a real floating dtype, got int64
call(dtype="float32")
    TypeError: weights must have the dtype of x (float32), got float64
call("encoder layer", (2, 4, 5))
    ValueError: x must have shape (..., n, 6) to match the weights, got (2, 4, 5)
call("encoder", (3,), weights=EncoderWeights(()))
    ValueError: x must have shape (..., n, d_model) to match the weights, got (3,)
call("encoder", (4, 5), weights=EncoderWeights((), LayerNormWeights.init(6)))
    ValueError: x must have shape (..., n, 6) to match the weights, got (4, 5)
call(weights=one(n_heads=2), rotate=True)
    ValueError: d_k must be even to rotate pairs of features, got 3
call(mask=np.ones((4, 5), bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (3, 4, 4), got
    (4, 5)
call("encoder", (4, 6), weights=EncoderWeights((one(), one(n_heads=1))), mask=np.ones((3, 4, 4),
bool))
    ValueError: mask must have 1 entry on the axis of the heads, the third from the right, got
    shape (3, 4, 4)
part("decoder layer", cross_attention=np.ones((6, 6)))
    TypeError: cross_attention must be MultiHeadWeights, got ndarray
part("decoder layer", cross_attention_norm=None)
    ValueError: cross_attention and cross_attention_norm must both be there or both be None
part("decoder layer", cross_attention=None)
    ValueError: cross_attention and cross_attention_norm must both be there or both be None
part("decoder layer", cross_attention_norm=np.ones(6))
    TypeError: cross_attention_norm must be LayerNormWeights or RMSNormWeights, got ndarray
part("decoder layer", cross_attention=heads(9, 3, d_key=6, d_out=6))
    ValueError: cross_attention.W_Q must have 6 rows, got shape (9, 9)
part("decoder layer", cross_attention=heads(6, 3, d_key=5, d_value=7))
    ValueError: cross_attention must have W_K and W_V of as many rows as the memory is wide, got 5
    and 7
DecoderWeights((EncoderLayerWeights.init(0, 6, 3, 5),))
    TypeError: layers[0] must be DecoderLayerWeights, got EncoderLayerWeights
DecoderWeights((one("decoder layer"), one("decoder layer alone")))
    ValueError: layers must all attend to a memory of one width, or none to any, got 6 and None
DecoderWeights((one("decoder layer"), replace(one("decoder layer"), cross_attention=heads(6, 3,
d_key=7, bias=True)), one("decoder layer")))
    ValueError: layers must all attend to a memory of one width, or none to any, got 6 and 7
call("decoder layer", weights=EncoderLayerWeights.init(0, 6, 3, 5))
    TypeError: weights must be DecoderLayerWeights, got EncoderLayerWeights
call("decoder", weights=one("decoder layer"))
    TypeError: weights must be DecoderWeights, got DecoderLayerWeights
call("decoder", (4, 5))
    ValueError: x must have shape (..., n, 6) to match the weights, got (4, 5)
call("decoder layer", memory=None)
    ValueError: memory must be an array for the cross-attention, got None
call("decoder layer", memory=(5, 7))
    ValueError: memory must have shape (..., n_s, 6) to match the weights, got (5, 7)
call("decoder layer", (2, 4, 6), (3, 5, 6))
    ValueError: memory must have leading axes that broadcast with (2,), got shape (3, 5, 6)
call("decoder layer", weights=one("decoder layer alone"))
    ValueError: memory must be None, since no layer has a cross-attention
call("decoder", memory=None, weights=one("decoder alone"), memory_mask=np.ones((4, 5), bool))
    ValueError: memory_mask must be None, since no layer has a cross-attention
call("decoder layer", memory_mask=np.ones((4, 4), bool))
    ValueError: memory_mask must broadcast to the shape of the scores (..., n_q, n_k) = (3, 4, 5),
    got (4, 4)
call("decoder", (2, 4, 6), (5, 6), memory_mask=np.ones((2, 4, 5), bool))
    ValueError: memory_mask must have 1 or 3 entries on the axis of the heads, the third from the
    right, got shape (2, 4, 5); one mask per sequence is memory_mask[:, None]
# flags and what can be called
EncoderLayerWeights.init(0, 6, 3, 5, bias=np.array(True))
    TypeError: bias must be a bool, got ndarray
DecoderLayerWeights.init(0, 6, 3, 5, cross=2**31)
    TypeError: cross must be a bool, got int
EncoderWeights.init(0, 1, 6, 3, 5, final_norm="no")
    TypeError: final_norm must be a bool, got str
EncoderLayerWeights.init(0, 2**30, 1, 2**31 - 1)
    ValueError: widths must make matrices that fit in memory, got shape (1073741824, 1073741824)
one().with_arrays(None)
    TypeError: arrays must be a dict of arrays, got NoneType
"""

test_error = error_test(ERRORS, globals())


@kinds
def test_flags_drop_mask_and_bias_are_checked(kind):
    weights, memory = kind.made(), np.ones((5, 6)) if kind.cross else None
    for wrong in ("no", np.array(True), 1, None):
        message = f"^rotate must be a bool, got {type(wrong).__name__}$"
        with pytest.raises(TypeError, match=message):
            kind.run(weights, np.ones((4, 6)), memory, rotate=wrong)
    for wrong in (-1, 0, "no"):
        message = f"^drop must be callable or None, got {type(wrong).__name__}$"
        with pytest.raises(TypeError, match=message):
            kind.run(weights, np.ones((4, 6)), memory, drop=wrong)
    for name, wrong in (("mask", np.ones((4, 5), bool)), ("bias", np.ones((4, 5)))):
        message = f"^{name} must broadcast to the shape of the scores"
        with pytest.raises(ValueError, match=message):
            kind.run(weights, np.ones((4, 6)), memory, **{name: wrong})
