"""The shapes written in the signatures hold in every call."""

import dataclasses
import functools
import inspect
import typing
from typing import Annotated, Any

import numpy as np
import pytest
from cases import attention_cases, heads_cases, recorded
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Shaped, jaxtyped
from public_calls import public_calls

import attnbook
from attnbook import masking, positions
from attnbook.arrays.array import Array
from attnbook.arrays.weights import Weights

BARE = {"move", "draw", "to_additive", "from_additive", "to_sdpa", "to_mha"}
"""What takes an array of any shape and gives back that shape, or draws it."""

ANY_SHAPE = {"like", "drop", "impl"}
"""Arguments that are an array of any shape, or a function of one."""

PUBLIC = {
    f.__qualname__: f
    for module in (attnbook, masking, positions)
    for name in module.__all__
    if callable(f := getattr(module, name))
}
CLASSES = tuple(c for c in PUBLIC.values() if dataclasses.is_dataclass(c))
CALLS = {name: call for name, call in public_calls().items() if name in PUBLIC}


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
                and not isinstance(value, (int, list, type(None)))
                and not isinstance(value, Shaped[Any, shape])
            ):
                raise TypeError(f"{where}: {name} must have shape {shape!r}, got {value.shape}")


def parts_of(held: Any) -> list[Any]:
    """Return a dataclass of arrays and all that are inside it."""
    if isinstance(held, tuple):
        return [part for one in held for part in parts_of(one)]
    if not isinstance(held, CLASSES):
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
            results = {f"return {i}": part for i, part in enumerate(result)}
            kinds = typing.get_args(signature.return_annotation)
            annotations.update(zip(results, kinds, strict=True))
        check_shapes(values | results, annotations, function.__name__)
        for held in (*values.values(), result):
            for part in parts_of(held):
                fields = {f.name: f.type for f in dataclasses.fields(part)}
                check_shapes(vars(part), fields, type(part).__name__)
        return result

    return wrapper


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - BARE))
def test_every_array_in_a_public_signature_has_a_shape(name):
    thing = PUBLIC[name]
    if dataclasses.is_dataclass(thing):
        annotations = {field.name: field.type for field in dataclasses.fields(thing)}
    else:
        annotations = inspect.get_annotations(thing)
    for argument, annotation in annotations.items():
        if "Array" in str(annotation) and argument not in ANY_SHAPE:
            assert shape_of(annotation) is not None, f"{name}: {argument}"


def test_every_public_function_has_a_call():
    functions = {name for name, f in PUBLIC.items() if inspect.isfunction(f)}
    assert functions - CALLS.keys() == {
        "backends",
        "devices",
        "draw",
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
    }


@pytest.mark.parametrize("name", sorted(CALLS.keys() - BARE))
def test_every_call_keeps_its_signature(library, name):
    function, given = CALLS[name]
    in_library = {
        key: library.array(x)
        if isinstance(x, np.ndarray)
        else library.place(x)
        if isinstance(x, Weights)
        else x
        for key, x in given.items()
    }
    checked(function)(**in_library)


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
    arrays, options = case.arrays(library, dtype)
    weights = checked(attnbook.attention_weights)(*arrays[:2], **options)
    output = checked(attnbook.attention)(*arrays, **options)
    grads = checked(attnbook.attention_vjp)(*arrays, output, **options)
    assert [x.shape for x in grads] == [x.shape for x in arrays]
    leading = np.broadcast_shapes(case.query.shape[:-2], case.key.shape[:-2])
    assert tuple(weights.shape[:-2]) == leading
    assert tuple(output.shape[:-2]) == np.broadcast_shapes(leading, case.value.shape[:-2])
    state = checked(attnbook.RunningSoftmax.read)(weights, arrays[2])
    assert tuple(state.output().shape) == tuple(output.shape)
    for got, like in ((state.output(), state.weighted), (state.log_total(), state.total)):
        assert tuple(got.shape) == tuple(like.shape)


@given(heads_cases())
def test_heads_keep_their_signature(library, case):
    query, key, value, weights, mask = case.arguments(library, "float64")
    function = checked(attnbook.multi_head_attention)
    output = function(query, key, value, weights, mask)
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in (case.query, case.key, case.value)))
    width = case.weights.n_heads * case.weights.W_V.shape[1] // case.weights.n_kv_heads
    d_out = width if case.weights.W_O is None else case.weights.W_O.shape[1]
    assert tuple(output.shape) == (*leading, query.shape[-2], d_out)
    _, [A] = recorded(function, query, key, value, weights, mask)
    leading = np.broadcast_shapes(case.query.shape[:-2], case.key.shape[:-2])
    assert tuple(A.shape) == (*leading, weights.n_heads, query.shape[-2], key.shape[-2])
    split = checked(attnbook.split_heads)(output, 1)
    assert tuple(checked(attnbook.merge_heads)(split).shape) == tuple(output.shape)
