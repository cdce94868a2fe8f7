"""The makers of masks against loops over query and key, combinations, caches, and the picture."""

import math
import re
import sys

import numpy as np
import oracle
import pytest
import torch
from cases import many_heads
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import masking

LENGTHS = st.sampled_from((0, 1, 2, 3, 5, 8))
LIKE = st.sampled_from(("numpy", "like", "like float"))
N_K = st.none() | LENGTHS

# What a query at `place` sees, written from each definition.


def is_causal(place, j):
    return j <= place


def is_near(left, right=0):
    return lambda place, j: place - left <= j <= place + right


def is_prefix(length):
    return lambda place, j: j < length or j <= place


def is_strided(stride):
    return lambda place, j: abs(place - j) in range(0, 10_000, stride)


def likes(library, kind):
    """Return the option `like` and the array whose library the mask must have."""
    if kind == "numpy":
        return {}, np.zeros(1, bool)
    like = library.array(np.ones(2), "float32" if kind == "like float" else "bool")
    return {"like": like}, library.array(np.zeros(1, bool))


def check(library, got, like, expected):
    """Assert that `got` is `expected` as an array of the kind of `like`."""
    assert library.same_kind(got, like)
    numbers = got if isinstance(got, np.ndarray) else library.numpy(got)
    assert (numbers.shape, numbers.dtype) == (expected.shape, bool)
    np.testing.assert_array_equal(numbers, expected)


def of_rule(shape, sees):
    """Return the mask of a rule `sees(*index)` over every entry."""
    return np.array([sees(*index) for index in np.ndindex(shape)], bool).reshape(shape)


# The makers.


def rules(n_k):
    """Return each maker of one mask, with its options and the rule it stands for."""
    for width in (0, 1, 2, 4, 100):
        yield masking.sliding_window, {"left": width}, is_near(width)
        for right in (0, 1, 100):
            yield masking.sliding_window, {"left": width, "right": right}, is_near(width, right)
    for stride in (1, 2, 3, 7, 100):
        yield masking.strided, {"stride": stride}, is_strided(stride)
    for length in range(n_k + 1):
        yield masking.prefix, {"length": length}, is_prefix(length)
    yield masking.causal, {}, is_causal
    for unlimited in (sys.maxsize, 2**64):
        yield masking.sliding_window, {"left": unlimited}, is_causal


@given(LENGTHS, N_K, LIKE)
def test_masks_are_their_rules(library, n_q, n_k, kind):
    options, like = likes(library, kind)
    keys = n_q if n_k is None else n_k
    for maker, how, rule in rules(keys):
        got = maker(n_q, n_k, **how, **options)
        check(library, got, like, oracle.mask_of(n_q, keys, rule))


def test_causal_by_hand():
    # more keys: the cache comes first; fewer: the first queries see nothing
    wide = [[1, 1, 1, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(masking.causal(2, 4), np.array(wide, bool))
    tall = [[0, 0], [0, 0], [1, 0], [1, 1]]
    np.testing.assert_array_equal(masking.causal(4, 2), np.array(tall, bool))
    assert masking.causal(1, 7).all()
    assert not masking.causal(3, 0).size
    assert masking.causal(0).shape == (0, 0)


@given(LENGTHS, N_K, st.data(), LIKE)
def test_prefixes(library, n_q, n_k, data, kind):
    options, like = likes(library, kind)
    keys = n_q if n_k is None else n_k
    lengths = data.draw(st.lists(st.integers(0, keys), max_size=3))
    got = masking.prefix(n_q, n_k, length=lengths, **options)
    each = [oracle.mask_of(n_q, keys, is_prefix(length)) for length in lengths]
    check(library, got, like, np.array(each, bool).reshape(len(lengths), n_q, keys))


COUNTS = st.sampled_from((0, 1, 2, 3, 5))


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=4), st.booleans(), LIKE)
def test_block_diagonal(library, documents, square, kind):
    options, like = likes(library, kind)
    queries = [q for q, _ in documents]
    keys = queries if square else [k for _, k in documents]
    of_query, of_key = (
        [i for i, n in enumerate(lengths) for _ in range(n)] for lengths in (queries, keys)
    )
    expected = of_rule((len(of_query), len(of_key)), lambda i, j: of_query[i] == of_key[j])
    got = masking.block_diagonal(queries, *(() if square else (keys,)), **options)
    check(library, got, like, expected)


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from((5, 8)), LIKE)
def test_padding(library, lengths, n, kind):
    options, like = likes(library, kind)
    expected = of_rule((len(lengths), 1, n), lambda sequence, _, j: j < lengths[sequence])
    check(library, masking.padding(lengths, n, **options), like, expected)
    for length, row in zip(lengths, expected, strict=True):
        check(library, masking.padding(length, n, **options), like, row)
    for_heads = np.array(lengths, int).reshape(len(lengths), 1)  # lengths of many axes
    check(library, masking.padding(for_heads, n, **options), like, expected[:, np.newaxis])
    if kind == "numpy":
        check(library, masking.from_valid_lengths(lengths, n), like, expected)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_lengths_may_be_arrays_of_every_library(library, dtype):
    lengths = [3, 0, 2]
    given = library.array(lengths, dtype)
    like = library.array(np.zeros(1, bool))
    plain = np.zeros(1, bool)
    expected = masking.padding(lengths, 4)
    assert isinstance(expected, np.ndarray)
    check(library, masking.padding(given, 4), like, expected)  # where the lengths are
    check(library, masking.padding(given, 4, like=np.zeros(1)), plain, expected)
    check(library, masking.padding(np.array(lengths), 4, like=given), like, expected)
    check(library, masking.padding(np.int64(2), 4), plain, expected[2])
    check(library, masking.from_valid_lengths(given, 4), like, expected)
    packed = masking.block_diagonal(lengths)
    check(library, masking.block_diagonal(given), plain, packed)
    check(library, masking.block_diagonal(given, given, like=given), like, packed)
    prefixes = masking.prefix(4, length=lengths)
    assert isinstance(prefixes, np.ndarray)
    check(library, masking.prefix(4, length=given), plain, prefixes)
    check(library, masking.prefix(4, length=given, like=given), like, prefixes)
    assert tuple(masking.prefix(4, length=library.array(2)).shape) == (4, 4)


# In attention.


@pytest.mark.parametrize("causal", [False, True])
def test_documents_do_not_see_each_other(library, causal):
    # packed one after the other; or padded to one length
    rng = np.random.default_rng(0)
    weights = library.place(many_heads(0, 3, widths=(5, 5, 5), d_out=7, bias=True))
    lengths, n = [2, 5, 3], 5
    documents = [rng.standard_normal((length, 5)) for length in lengths]
    packed = library.array(np.concatenate(documents))
    rows = [np.concatenate([x, rng.standard_normal((n - len(x), 5))]) for x in documents]
    padded = library.array(np.stack(rows))
    together = masking.block_diagonal(lengths, like=packed)
    short = masking.padding(library.array(np.array(lengths)[:, np.newaxis]), n)
    if causal:
        together = together & masking.causal(10, like=packed)
        short = short & masking.causal(n, like=packed)

    def attend(x, mask):
        return library.numpy(attnbook.multi_head_attention(x, x, x, weights, mask))

    packed_output, padded_output = attend(packed, together), attend(padded, short)
    assert np.isfinite(padded_output).all()  # the rows of padding hold numbers, which nobody reads
    for i, x in enumerate(documents):
        start, length = sum(lengths[:i]), len(x)
        alone = attend(library.array(x), masking.causal(length, like=packed) if causal else None)
        np.testing.assert_allclose(packed_output[start : start + length], alone, atol=1e-13)
        np.testing.assert_allclose(padded_output[i, :length], alone, atol=1e-13)


# Valid lengths.


@pytest.mark.parametrize("as_list", [False, True])
def test_from_valid_lengths_of_queries(library, as_list):
    lengths = np.random.default_rng(0).integers(0, 6, (2, 3))
    got = masking.from_valid_lengths(lengths.tolist() if as_list else library.array(lengths), 5)
    like = np.zeros(1, bool) if as_list else library.array(np.zeros(1, bool))
    check(library, got, like, of_rule((2, 3, 5), lambda s, i, j: j < lengths[s, i]))


# The picture.


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.mark.parametrize("value", [False, True])
def test_draw_does_not_stretch_its_colours(pyplot, value):
    # a mask without any True must not be drawn full, nor a full one darker than its cells elsewhere
    colours = []
    for mask in (np.full((2, 3), value), np.array([[value, not value]])):
        image = masking.draw(mask).images[0]
        colours.append(image.to_rgba(image.get_array())[0, 0])
        assert image.norm.vmax > 1  # lighter than the darkest, which is for a weight of 1
    np.testing.assert_array_equal(*colours)


@pytest.mark.parametrize("shape", [(3, 5), (7, 1)])
def test_draw_fills_the_cells_that_are_true(pyplot, library, shape):
    from attnbook import plots

    mask = np.random.default_rng(sum(shape)).random(shape) < 0.5
    ax = masking.draw(library.array(mask))
    np.testing.assert_array_equal(ax.images[0].get_array(), mask)
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[::-1, :, :3] / 255.0  # from the bottom up
    paper = pyplot.matplotlib.colors.to_rgb(plots.PAPER)
    for i, j in np.ndindex(shape):
        x, y = ax.transData.transform((j, i))
        off_paper = np.abs(pixels[math.floor(y), math.floor(x)] - paper).max()
        assert (off_paper > 0.5) if mask[i, j] else (off_paper < 0.01)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first query on top


def test_draw_with_labels_title_axes_and_lines(pyplot):
    from attnbook import plots

    _, ax = pyplot.subplots()
    options = {"title": "T", "query_labels": ["a", "b"], "key_labels": ["x", "y", "z"]}
    assert masking.draw(masking.causal(2, 3), ax=ax, **options) is ax
    assert ax.get_title(loc="left") + ax.get_title() == "T"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y", "z"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert masking.draw(masking.causal(2)).get_title() == ""
    # a line around every cell
    colors = [color for lines in ax.collections for color in lines.get_color()]
    assert {pyplot.matplotlib.colors.to_hex(color) for color in colors} == {plots.GRID}
    upright, level = (np.array(lines.get_segments()) for lines in ax.collections)
    np.testing.assert_array_equal(upright, [[[x, -0.5], [x, 1.5]] for x in (-0.5, 0.5, 1.5, 2.5)])
    np.testing.assert_array_equal(level, [[[-0.5, y], [2.5, y]] for y in (-0.5, 0.5, 1.5)])


def test_draw_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "attnbook.plots", raising=False)
    monkeypatch.delattr(attnbook, "plots", raising=False)
    message = re.escape("attnbook.plots needs matplotlib: pip install matplotlib")
    with pytest.raises(ImportError, match=f"^{message}$"):
        masking.draw(masking.causal(2))


# Errors.


SQUARE = np.ones((2, 3), bool)
ERRORS = r"""
masking.causal(3.0)
    TypeError: n_q must be an int, got float
masking.causal(True)
    TypeError: n_q must be an int, got bool
masking.causal(-1)
    ValueError: n_q must be at least 0, got -1
masking.causal(3, -2)
    ValueError: n_k must be at least 0, got -2
masking.causal(3, like=[1.0])
    TypeError: like must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
masking.sliding_window(3, left=0.5)
    TypeError: left must be an int, got float
masking.causal(2**63, 5)
    ValueError: n_q must be at most 2147483647, got 9223372036854775808
masking.padding(np.array([2**64 - 1], "u8"), 4)
    ValueError: lengths must be at most 2**63 - 1, got 18446744073709551615
masking.padding(torch.ones(2, device="meta"), 4)
    ValueError: lengths must hold numbers that can be read, got none
masking.padding(np.array(["a"]), 4)
    TypeError: lengths must be ints, got <U1
masking.sliding_window(3, left=-1)
    ValueError: left must be at least 0, got -1
masking.sliding_window(3, left=1, right=None)
    TypeError: right must be an int, got NoneType
masking.sliding_window(3, left=1, right=-1)
    ValueError: right must be at least 0, got -1
masking.prefix(3, length=4)
    ValueError: length must be at most the number of keys, 3, got 4
masking.prefix(3, length=1.0)
    TypeError: length must be ints, got float64
masking.prefix(3, length=-1)
    ValueError: length must be at least 0, got -1
masking.strided(3, stride=2.0)
    TypeError: stride must be an int, got float
masking.strided(3, stride=0)
    ValueError: stride must be at least 1, got 0
masking.block_diagonal(3)
    ValueError: lengths must have shape (documents,), got ()
masking.block_diagonal([1, 2], [[1, 2]])
    ValueError: key_lengths must have shape (documents,), got (1, 2)
masking.block_diagonal([1, 2], [1, 2, 3])
    ValueError: key_lengths must have 2 entries, got 3
masking.block_diagonal([1], [-1])
    ValueError: key_lengths must be at least 0, got -1
masking.padding(SQUARE, 3)
    TypeError: lengths must be ints, got bool
masking.padding([2.0], 3)
    TypeError: lengths must be ints, got float64
masking.padding(None, 3)
    TypeError: lengths must be ints, got object
masking.padding(np.ma.ones(3, dtype=int), 3)
    TypeError: lengths must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    MaskedArray
masking.padding([[1], [1, 2]], 3)
    ValueError: lengths must be ints in rows of one length, got others
masking.padding([3, 7, 5], 4)
    ValueError: lengths must be at most the number of keys, 4, got 7
masking.padding([3, -1], 4)
    ValueError: lengths must be at least 0, got -1
masking.padding([3], 4.0)
    TypeError: n must be an int, got float
masking.padding([3], -4)
    ValueError: n must be at least 0, got -4
masking.from_valid_lengths(3, 4)
    ValueError: valid_lens must have shape (batch,) or (batch, n_q), got 0 axes
masking.from_valid_lengths([[1, 5]], 4)
    ValueError: valid_lens must be at most the number of keys, 4, got 5
masking.from_valid_lengths([-1], 4)
    ValueError: valid_lens must be at least 0, got -1
masking.from_valid_lengths([1], None)
    TypeError: n_k must be an int, got NoneType
masking.draw([[True]])
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
masking.draw(np.full((2, 2), 0.25))
    TypeError: mask must be boolean, True = may attend, got float64; numbers that are added to the
    scores go in bias=
masking.draw(masking.Causal())
    TypeError: mask must be a boolean array, since this function reads no rule: pass
    rule.dense(n_q, n_k), got Causal()
masking.draw(np.ones((1, 2, 3), bool))
    ValueError: mask must have shape (n_q, n_k), got (1, 2, 3)
masking.draw(SQUARE, query_labels=['a'])
    ValueError: query_labels must have 2 entries, got 1
masking.draw(SQUARE, key_labels=['a', 'b'])
    ValueError: key_labels must have 3 entries, got 2
"""

test_error = error_test(ERRORS, globals() | {"torch": torch})
