"""The shapes written in the signatures hold in every call."""

import dataclasses
import functools
import inspect
import typing
from typing import Annotated, Any

import numpy as np
import pytest
from cases import attention_cases, heads_cases, shaken
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Shaped, jaxtyped

import attnbook
from attnbook import masking, positions
from attnbook.arrays.arguments import Array
from attnbook.arrays.weights import Weights

FUNCTIONS = (
    attnbook.softmax,
    attnbook.log_softmax,
    attnbook.attention_weights,
    attnbook.attention,
    attnbook.attention_vjp,
    attnbook.single_head_attention,
    attnbook.split_heads,
    attnbook.merge_heads,
    attnbook.multi_head_attention,
    attnbook.RunningSoftmax.read,
    attnbook.layer_norm,
    attnbook.feed_forward,
    attnbook.relu,
    attnbook.gelu,
    attnbook.dropout,
    attnbook.embed,
    attnbook.cross_entropy,
    attnbook.encoder_layer,
    attnbook.encoder,
    attnbook.decoder_layer,
    attnbook.decoder,
    attnbook.transformer,
    attnbook.transformer_block,
    attnbook.single_head_attention_with_weights,
    attnbook.multi_head_attention_with_weights,
    attnbook.encoder_layer_with_weights,
    attnbook.encoder_with_weights,
    attnbook.decoder_layer_with_weights,
    attnbook.decoder_with_weights,
    attnbook.transformer_with_weights,
    attnbook.transformer_block_with_weights,
    positions.sinusoidal,
    positions.learned,
    positions.rotary,
)
CLASSES = (attnbook.RunningSoftmax, attnbook.SingleHeadWeights, attnbook.MultiHeadWeights)
TREES = (
    attnbook.LayerNormWeights,
    attnbook.FeedForwardWeights,
    attnbook.EncoderLayerWeights,
    attnbook.EncoderWeights,
    attnbook.DecoderLayerWeights,
    attnbook.DecoderWeights,
    attnbook.TransformerWeights,
    attnbook.TransformerBlockWeights,
)
MAKERS = {
    masking.causal: "n_q n_k",
    masking.sliding_window: "n_q n_k",
    masking.prefix: "... n_q n_k",
    masking.strided: "n_q n_k",
    masking.block_diagonal: "n_q n_k",
    masking.padding: "... 1 n",
    masking.from_valid_lengths: "...",
}
CONVERTERS = {masking.to_additive, masking.from_additive, masking.to_sdpa, masking.to_mha}
NOT_ARRAYS = {
    *("axis", "scale", "weights", "dtype", "n_heads", "n_kv_heads"),
    *("x", "library_name", "device", "like"),  # of any shape, in `move` and as a pattern
    *("epsilon", "activation", "rate", "rng", "label_smoothing", "norm", "drop", "rotate"),
    *("n", "d_model", "start", "interleaved", "base", "is_causal", "positions"),
    *("scale_embeddings", "impl"),
}


def shape_of(annotation: Any) -> str | None:
    """Return the shape in ``Annotated[Array, "..."]``, in a union with None too."""
    for part in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(part) is Annotated:
            return part.__metadata__[0]
    return None


def check_shapes(values: dict[str, Any], annotations: dict[str, Any], where: str) -> None:
    """Raise unless each value has the shape of its annotation; a letter is one size in them all."""
    with jaxtyped("context"):
        for name, value in values.items():
            shape = shape_of(annotations.get(name))
            if (
                shape is not None
                and value is not None
                and not isinstance(value, Shaped[Any, shape])
            ):
                raise TypeError(f"{where}: {name} must have shape {shape!r}, got {value.shape}")


def parts_of(held: Any) -> list[Any]:
    """Return a dataclass of arrays and all that are inside it."""
    if isinstance(held, tuple):
        return [part for one in held for part in parts_of(one)]
    if not isinstance(held, (*CLASSES, *TREES)):
        return []
    inner = vars(held).values() if isinstance(held, Weights) else ()
    return [held, *(part for value in inner for part in parts_of(value))]


def checked(function):
    """Return `function` with every argument and result checked against its signature."""
    signature = inspect.signature(function)
    annotations = {name: p.annotation for name, p in signature.parameters.items()}
    annotations["return"] = signature.return_annotation

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        result = function(*args, **kwargs)
        values = signature.bind(*args, **kwargs).arguments
        results = {"return": result}
        if isinstance(result, tuple):
            kinds = typing.get_args(signature.return_annotation)
            results = {f"return {i}": part for i, part in enumerate(result)}
            annotations.update(zip(results, kinds, strict=True))
        check_shapes(values | results, annotations, function.__name__)
        for held in (*values.values(), result):
            for part in parts_of(held):
                fields = {f.name: f.type for f in dataclasses.fields(part)}
                check_shapes(vars(part), fields, type(part).__name__)
        return result

    return wrapper


def test_every_array_in_a_public_signature_has_a_shape():
    seen = 0
    for function in FUNCTIONS:
        for name, parameter in inspect.signature(function).parameters.items():
            shaped = shape_of(parameter.annotation) is not None
            plain = name in NOT_ARRAYS - {"x"}
            assert shaped != plain, f"{function.__qualname__}: {name}"
            seen += shaped
    for maker, shape in MAKERS.items():
        assert shape_of(inspect.signature(maker).return_annotation) == shape
    for cls in (*CLASSES, *TREES):
        for field in dataclasses.fields(cls):
            shaped, inner = shape_of(field.type) is not None, "Weights" in str(field.type)
            assert shaped != (field.name in NOT_ARRAYS or inner), f"{cls.__name__}: {field.name}"
            seen += shaped
    attention, heads = 2 + 4 + 5 + 6 + 4 + 2 + 4 + 2, 3 + 4 + 8
    layers = (3 + 1 + 1 + 1 + 1 + 2 + 3) + (2 + 2 + 4 + 4 + 5 + 2) + (0 + 1 + 1)
    with_weights = 4 + 4 + 2 + 2 + 4 + 4 + 5 + 2
    trees = 2 + 4 + 0 + 0 + 0 + 0 + 6 + 5
    assert seen == attention + heads + layers + with_weights + trees


def test_every_public_function_is_covered():
    public = [getattr(attnbook, name) for name in attnbook.__all__]
    functions = {f for f in public if inspect.isfunction(f)}
    assert functions - set(FUNCTIONS) == {attnbook.backends, attnbook.move}
    assert inspect.signature(attnbook.move).parameters["x"].annotation is Array
    classes = {c for c in public if inspect.isclass(c)}
    assert classes - {*CLASSES, *TREES} == {attnbook.Backend}
    assert {thing for thing in public if inspect.ismodule(thing)} == {masking, positions}
    assert {getattr(positions, name) for name in positions.__all__} <= set(FUNCTIONS)
    of_masks = {getattr(masking, name) for name in masking.__all__}
    assert of_masks == {*MAKERS, *CONVERTERS, masking.draw}
    for function in (*CONVERTERS, masking.draw):
        assert inspect.signature(function).parameters["mask"].annotation is Array


def test_the_check_itself_can_fail():
    @checked
    def wrong(
        query: Annotated[Array, "... n_q d_k"], key: Annotated[Array, "... n_k d_k"]
    ) -> Annotated[Array, "... n_q n_k"]:
        return key @ query.T

    with pytest.raises(TypeError, match=r"return must have shape '... n_q n_k', got"):
        wrong(np.ones((3, 5)), np.ones((7, 5)))
    with pytest.raises(TypeError, match=r"key must have shape '... n_k d_k', got"):
        check_shapes(
            {"query": np.ones((3, 5)), "key": np.ones((7, 4))},
            inspect.get_annotations(wrong.__wrapped__),
            "wrong",
        )


@given(attention_cases(), st.sampled_from(("float32", "float64")))
def test_attention_keeps_its_signature(library, case, dtype):
    (query, key, value), options = case.arrays(library, dtype)
    weights = checked(attnbook.attention_weights)(query, key, **options)
    output = checked(attnbook.attention)(query, key, value, **options)
    grads = checked(attnbook.attention_vjp)(query, key, value, output, **options)
    for grad, x in zip(grads, (query, key, value), strict=True):
        assert grad.shape == x.shape
    leading = np.broadcast_shapes(case.query.shape[:-2], case.key.shape[:-2])
    assert tuple(weights.shape[:-2]) == leading
    assert tuple(output.shape[:-2]) == np.broadcast_shapes(leading, case.value.shape[:-2])
    state = checked(attnbook.RunningSoftmax.read)(weights, value)
    assert tuple(state.output().shape) == tuple(output.shape)
    for got, like in ((state.output(), state.weighted), (state.log_total(), state.total)):
        assert tuple(got.shape) == tuple(like.shape)


@given(attention_cases(), st.sampled_from((None, 13)))
def test_head_keeps_its_signature(library, case, d_out):
    arrays = (case.query, case.key, case.value)
    widths = [max(x.shape[-1], 1) for x in arrays]
    shapes = [(*x.shape[:-1], width) for x, width in zip(arrays, widths, strict=True)]
    query, key, value = (library.array(np.ones(shape)) for shape in shapes)
    weights = attnbook.SingleHeadWeights.init(0, *widths, d_k=11, d_v=17, d_out=d_out)
    weights = library.place(weights)
    mask = None if case.mask is None else library.array(case.mask)
    output = checked(attnbook.single_head_attention)(query, key, value, weights, mask)
    checked(attnbook.single_head_attention_with_weights)(query, key, value, weights, mask)
    assert output.shape[-1] == (17 if d_out is None else 13)
    assert output.shape[-2] == query.shape[-2]


@given(heads_cases())
def test_heads_keep_their_signature(library, case):
    query, key, value, weights, mask = case.arguments(library, "float64")
    function = checked(attnbook.multi_head_attention)
    output = function(query, key, value, weights, mask)
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in (case.query, case.key, case.value)))
    width = case.weights.n_heads * case.weights.W_V.shape[1] // case.weights.n_kv_heads
    d_out = width if case.weights.W_O is None else case.weights.W_O.shape[1]
    assert tuple(output.shape) == (*leading, query.shape[-2], d_out)
    _, shares = checked(attnbook.multi_head_attention_with_weights)(
        query, key, value, weights, mask
    )
    leading = np.broadcast_shapes(case.query.shape[:-2], case.key.shape[:-2])
    assert tuple(shares.shape) == (*leading, weights.n_heads, query.shape[-2], key.shape[-2])
    split = checked(attnbook.split_heads)(output, 1)
    assert tuple(checked(attnbook.merge_heads)(split).shape) == tuple(output.shape)


@given(*(st.integers(0, 5) for _ in range(2)), st.lists(st.integers(0, 3), max_size=3))
def test_masks_keep_their_signature(library, n_q, n_k, lengths):
    like = library.array(np.zeros(1))
    checked(masking.causal)(n_q, n_k, like=like)
    checked(masking.sliding_window)(n_q, n_k, left=1, like=like)
    checked(masking.prefix)(n_q, n_k + 3, length=lengths, like=like)
    checked(masking.strided)(n_q, n_k, stride=2, like=like)
    checked(masking.block_diagonal)(lengths, like=like)
    checked(masking.padding)(lengths, 3, like=like)
    checked(masking.from_valid_lengths)(lengths, 3)


@pytest.mark.parametrize("function", [attnbook.softmax, attnbook.log_softmax])
@given(st.lists(st.sampled_from((0, 1, 3, 5)), min_size=1, max_size=4))
def test_softmax_keeps_the_shape(library, function, shape):
    x = library.array(np.zeros(shape))
    for axis in range(-len(shape), len(shape)):
        assert checked(function)(x, axis).shape == x.shape


# The transformer.


@given(
    st.sampled_from(((), (2,), (3, 1))), st.integers(0, 4), st.integers(0, 5),
    st.sampled_from(("pre", "post")), st.booleans(),
)  # fmt: skip
def test_layers_keep_their_signature(library, leading, n_t, n_s, norm, rotate):
    x, memory = (library.array(np.ones((*leading, n, 6))) for n in (n_t, n_s))
    one = attnbook.EncoderLayerWeights.init(0, 6, 3, 5, norm=norm)
    two = attnbook.DecoderLayerWeights.init(0, 6, 3, 5, norm=norm)
    stacks = attnbook.EncoderWeights((one,)), attnbook.DecoderWeights((two,))
    encoder_layer, encoder, decoder_layer, decoder = (
        functools.partial(checked(f), rotate=rotate)
        for f in (
            attnbook.encoder_layer,
            attnbook.encoder,
            attnbook.decoder_layer,
            attnbook.decoder,
        )
    )
    for output in (
        encoder_layer(x, library.place(one)),
        checked(attnbook.encoder_layer_with_weights)(x, library.place(one))[0],
        checked(attnbook.decoder_layer_with_weights)(x, memory, library.place(two))[0],
        encoder(x, library.place(stacks[0])),
        decoder_layer(x, memory, library.place(two)),
        decoder(x, memory, library.place(stacks[1])),
        checked(attnbook.layer_norm)(x, library.array(np.ones(6)), library.array(np.ones(6))),
        checked(attnbook.feed_forward)(x, library.place(one.feed_forward)),
        checked(attnbook.relu)(x),
        checked(attnbook.gelu)(x),
        checked(attnbook.dropout)(x, 0.5, 0),
        checked(positions.rotary)(x),
        checked(attnbook.transformer_block)(
            x, library.place(attnbook.TransformerBlockWeights.init(0, 6, 6, 3, 6))
        ),
    ):
        assert tuple(output.shape) == (*leading, n_t, 6)


@given(
    st.sampled_from(((), (2,), (3, 1))), st.integers(0, 4), st.integers(0, 5),
    st.sampled_from(("sinusoidal", "learned", "rotary")), st.booleans(), st.booleans(),
)  # fmt: skip
def test_transformers_keep_their_signature(library, leading, n_t, n_s, kind, tied, crossed):
    weights = attnbook.TransformerWeights.init(
        *(0, 7, *((11,) if crossed else ())),
        **{"d_model": 6, "n_heads": 3, "d_ff": 5, "n_layers": 1, "n_encoder_layers": int(crossed)},
        **{"tied": tied, "positions": kind, "n_positions": 5 if kind == "learned" else None},
    )
    weights = library.place(shaken(weights))
    source = library.array(np.zeros((*leading, n_s), int)) if crossed else None
    target = library.array(np.zeros((*leading, n_t), int))
    logits = checked(attnbook.transformer)(source, target, weights)
    assert tuple(logits.shape) == (*leading, n_t, 7)
    loss = checked(attnbook.cross_entropy)(logits, target, target == 0)
    assert tuple(loss.shape) == ()
    rows = checked(attnbook.embed)(target, weights.target_embedding)
    assert tuple(rows.shape) == (*leading, n_t, 6)
    table = checked(positions.sinusoidal)(n_t, 6, like=rows)
    assert tuple(checked(positions.learned)(table, n_t).shape) == (n_t, 6)
