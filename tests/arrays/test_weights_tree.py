"""What the dataclasses of arrays share: names of arrays, other arrays, and moving them."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pytest
import torch
from cases import shaken
from error_table import error_test

import attnbook
from attnbook.arrays.arguments import check_choice
from attnbook.arrays.array import Array
from attnbook.arrays.weights import Weights, check_part
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class Leaf(Weights):
    a: Annotated[Array, "m n"]
    b: Annotated[Array, "n"] | None = None
    count: int = 3
    factor: float = 0.5
    name: str = "leaf"
    on: bool = True


@dataclass(frozen=True, eq=False)
class Tree(Weights):
    first: Leaf
    leaves: tuple[Leaf, ...] = ()
    other: Leaf | None = None
    c: Annotated[Array, "k"] | None = None


def leaf(start, b=False):
    a = np.arange(start, start + 6.0).reshape(2, 3)
    return Leaf(a, np.full(3, 1.0 * start) if b else None, count=start)


def tree():
    return Tree(leaf(10, b=True), (leaf(20), leaf(30, b=True)), None, np.arange(5.0))


NAMES = ["first.a", "first.b", "leaves.0.a", "leaves.1.a", "leaves.1.b", "c"]


def test_arrays_have_names_in_the_order_of_the_fields():
    weights = tree()
    arrays = weights.arrays()
    assert list(arrays) == NAMES
    assert arrays["first.a"] is weights.first.a
    assert arrays["leaves.1.b"] is weights.leaves[1].b
    assert arrays["c"] is weights.c
    assert list(Tree(leaf(1)).arrays()) == ["first.a"]
    assert list(Tree(leaf(1), (), leaf(2, b=True)).arrays()) == ["first.a", "other.a", "other.b"]
    assert list(leaf(1, b=True).arrays()) == ["a", "b"]
    assert arrays is not weights.arrays()


def test_any_array_is_the_first_that_is_there():
    empty = attnbook.LayerNormWeights()
    assert empty.any_array() is None
    decoder = attnbook.TransformerWeights.init(0, 5, d_model=4, n_heads=2, d_ff=3, n_layers=2)
    for weights in (tree(), leaf(1), decoder, attnbook.DecoderWeights(())):
        assert weights.any_array() is next(iter(weights.arrays().values()), None)
    assert replace(tree(), first=empty, leaves=(empty, leaf(20))).any_array()[0, 0] == 20.0


def test_with_arrays_puts_others_in_their_place(library):
    weights, rng = tree(), np.random.default_rng(0)
    others = {name: library.array(rng.random(x.shape)) for name, x in weights.arrays().items()}
    before = {name: x.copy() for name, x in weights.arrays().items()}
    changed = weights.with_arrays(dict(reversed(others.items())))  # the order does not matter
    assert type(changed) is Tree
    assert list(changed.arrays()) == NAMES
    assert all(x is others[name] for name, x in changed.arrays().items())
    assert isinstance(changed.leaves, tuple)
    assert (changed.other, changed.leaves[0].b) == (None, None)
    # plain fields stay, each in its place, and so do the old weights
    assert [part.count for part in (changed.first, *changed.leaves)] == [10, 20, 30]
    assert (changed.first.factor, changed.first.name, changed.first.on) == (0.5, "leaf", True)
    for name, x in weights.arrays().items():
        np.testing.assert_array_equal(x, before[name])


def test_to_moves_every_array(library):
    weights = tree()
    moved = library.place(weights, "float32")
    assert list(moved.arrays()) == NAMES
    for name, x in weights.arrays().items():
        like = library.array(x, "float32")
        assert library.same_kind(moved.arrays()[name], like)
        np.testing.assert_array_equal(library.numpy(moved.arrays()[name]), library.numpy(like))
    assert (moved.leaves[1].count, moved.other) == (30, None)
    back = moved.to("numpy")
    assert all(isinstance(x, np.ndarray) and x.dtype == "f4" for x in back.arrays().values())
    # within a library what is asked for changes alone
    placed = weights.to("torch", dtype="float32")
    for options, dtype, device in (
        ({}, torch.float32, "cpu"),
        ({"dtype": "bfloat16"}, torch.bfloat16, "cpu"),
        ({"device": "meta"}, torch.float32, "meta"),
    ):
        found = {(x.dtype, x.device.type) for x in placed.to(**options).arrays().values()}
        assert found == {(dtype, device)}


def test_the_graph_is_kept():
    weights = tree().to("torch")
    leaves = {name: x.clone().requires_grad_() for name, x in weights.arrays().items()}
    changed = weights.with_arrays(leaves)
    sum(x.sum() for x in changed.to(dtype="float32").arrays().values()).backward()
    assert all(bool((x.grad == 1).all()) for x in leaves.values())


def test_a_whole_transformer_goes_there_and_back(library):
    weights = TransformerWeights.init(
        0, 7, 5, d_model=6, n_heads=3, d_ff=5, n_layers=2, tied=False, positions="learned",
        n_positions=4, n_kv_heads=1, activation="gelu", norm="post", final_norm=True,
    )  # fmt: skip
    changed = shaken(weights, 1)
    names = ["encoder.layers.0.self_attention.W_Q", "decoder.layers.1.cross_attention_norm.gain"]
    assert set(names) < changed.arrays().keys() == weights.arrays().keys()
    placed = library.place(changed)
    for name, x in placed.arrays().items():
        np.testing.assert_array_equal(library.numpy(x), changed.arrays()[name])
    layer, heads = placed.decoder.layers[1], placed.decoder.layers[1].self_attention
    found = (layer.norm, layer.feed_forward.activation, heads.n_heads, heads.n_kv_heads)
    assert found == ("post", "gelu", 3, 1)
    assert (placed.positions, placed.scale_embeddings) == ("learned", True)


@pytest.mark.parametrize("kind", [bool, int, float, str])
def test_plain_fields_are_no_arrays(kind):
    # a class of weights is taken apart when it is made
    @dataclass(frozen=True, eq=False)
    class Other(Weights):
        plain: kind
        a: Annotated[Array, "n"] | None

    assert list(Other(kind(), np.ones(2)).arrays()) == ["a"]
    moved = Other(kind(1), np.ones(2)).to(dtype="float32")
    assert (moved.plain, moved.a.dtype) == (kind(1), np.float32)
    assert Other(kind(), None).arrays() == {}


ALL = (
    *(attnbook.MultiHeadWeights, attnbook.SingleHeadWeights, attnbook.LayerNormWeights),
    *(attnbook.FeedForwardWeights, attnbook.EncoderLayerWeights, attnbook.EncoderWeights),
    *(attnbook.DecoderLayerWeights, attnbook.DecoderWeights, attnbook.TransformerWeights),
    attnbook.TransformerBlockWeights,
)


@pytest.mark.parametrize("cls", ALL)
def test_every_class_of_weights_is_frozen_and_compares_by_identity(cls):
    assert issubclass(cls, Weights)
    assert cls.__eq__ is object.__eq__
    assert cls.__dataclass_params__.frozen


def test_no_array_is_an_empty_dict():
    empty = attnbook.LayerNormWeights()
    assert empty.arrays() == {}
    assert empty.with_arrays({}).epsilon == empty.epsilon
    assert empty.to("torch").gain is None
    decoder = attnbook.DecoderWeights(())
    assert decoder.arrays() == {}
    assert decoder.to("torch", dtype="float32").layers == ()


# Errors.


def swapped(remove=(), **others):
    arrays = {name: x for name, x in tree().arrays().items() if name not in remove}
    return lambda: tree().with_arrays(arrays | {k.replace("_", "."): x for k, x in others.items()})


ONES = np.ones(3)
ERRORS = r"""
swapped(['first.b'])()
    ValueError: arrays must have the 6 names of these weights, got first.b missing and none
    unknown
swapped(leaves_0_b=ONES)()
    ValueError: arrays must have the 6 names of these weights, got none missing and leaves.0.b
    unknown
swapped(['c', 'first.a'], x=ONES, y=ONES, z=ONES)()
    ValueError: arrays must have the 6 names of these weights, got c, first.a missing and x, y, z
    unknown
swapped(['c', 'first.a', 'first.b', 'leaves.0.a'])()
    ValueError: arrays must have the 6 names of these weights, got c, first.a, first.b and 1 more
    missing and none unknown
swapped(first_a=np.ones((3, 2)))()
    ValueError: first.a must have shape (2, 3), got (3, 2)
swapped(leaves_1_b=np.ones(1))()
    ValueError: leaves.1.b must have shape (3,), got (1,)
swapped(c=None)()
    TypeError: c must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    NoneType
tree().to('jax')
    ValueError: library_name must be one of numpy, torch, cupy, array_api_strict, got 'jax'
check_part('part', leaf(1), Tree)
    TypeError: part must be Tree, got Leaf
check_choice('order', 'around', ('pre', 'post'))
    ValueError: order must be one of pre, post, got 'around'
check_choice('order', ONES, ('pre', 'post'))
    ValueError: order must be one of pre, post, got ndarray
"""

test_error = error_test(ERRORS, globals())


def test_parts_and_choices_that_fit_pass():
    assert check_part("part", leaf(1), Leaf) is None
    assert check_part("part", leaf(1), Weights) is None
    assert check_choice("order", "post", ("pre", "post")) == "post"
