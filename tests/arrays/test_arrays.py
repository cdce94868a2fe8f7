"""What the package says to arguments it cannot take, and the helpers that find out."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import ADDITIVE, AS_NUMBERS, IN_BIAS, NOT_BOOLEAN, SCORES
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import attnbook
from attnbook.arrays import array
from attnbook.arrays.arguments import check_array, check_float

Q, K, V = (3, 5), (7, 5), (7, 2)  # the shapes that fit together


def ones(shape, dtype="float64"):
    return np.ones(shape, dtype=dtype)


def attend(query=Q, key=K, value=V, **options):
    """Call `attention` with ones of the given shapes, or with the arrays given."""
    arrays = [ones(x) if isinstance(x, tuple) else x for x in (query, key, value)]
    return attnbook.attention(*arrays, **options)


def vjp(grad_output):
    return attnbook.attention_vjp(ones(Q), ones(K), ones(V), grad_output)


def state(rows=3, d_v=2, dtype="float64"):
    return read(ones((rows, 7), dtype), ones((7, d_v), dtype))


def half_state(dtype):
    x = torch.ones(3, 3, dtype=dtype)
    return read(x, x)


def running(maximum, total, weighted):
    return attnbook.RunningSoftmax(maximum, total, weighted, np.dtype("float64"))


def weights(*shapes):
    return attnbook.SingleHeadWeights(*(s if s is None else ones(s) for s in shapes))


def init(rng=0, d_query=5, *widths, d_k=2, d_v=3, **options):
    return attnbook.SingleHeadWeights.init(rng, d_query, *widths, d_k=d_k, d_v=d_v, **options)


def head(query=Q, key=K, value=K, mask=None, weights=None):
    chosen = weights or init()
    arrays = [ones(x) if isinstance(x, tuple) else x for x in (query, key, value)]
    return attnbook.single_head_attention(*arrays, chosen, mask)


softmax, read = attnbook.softmax, attnbook.RunningSoftmax.read


class Stranger:
    """No array."""


ERRORS = r"""
softmax([1.0])
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
softmax(np.arange(3))
    TypeError: x must have a real floating dtype, got int64
softmax(np.ones(2, complex))
    TypeError: x must have a real floating dtype, got complex128
softmax(np.ma.ones(3))
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    MaskedArray
attnbook.log_softmax(np.arange(3))
    TypeError: x must have a real floating dtype, got int64
softmax(torch.arange(3))
    TypeError: x must have a real floating dtype, got int64
attend(query=None)
    TypeError: query must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    NoneType
attend(key=[[1.0]])
    TypeError: key must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
attend(value=Stranger())
    TypeError: value must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    Stranger
attend(query=np.ones(Q, int))
    TypeError: query must have a real floating dtype, got int64
attnbook.attention_weights([[1.0]], ones(K))
    TypeError: query must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
softmax(ones(3), 0.0)
    TypeError: axis must be an int, got float
softmax(ones(3), True)
    TypeError: axis must be an int, got bool
softmax(ones((2, 3)), 2)
    ValueError: axis must be from -2 to 1, got 2
softmax(np.array(1.0))
    ValueError: x must have at least 1 axis, got shape ()
attend(key=torch.ones(K))
    TypeError: key must be an array of the same library as query (numpy), got torch
attend(key=ones(K, 'float32'))
    TypeError: key must have the dtype of query (float64), got float32
attend(ones(Q, '<f8'), ones(K, '<f8'), ones(V, '>f8'))
    TypeError: value must have the dtype of query (float64), got >f8
attend(torch.ones(Q), torch.ones(K, device='meta'), torch.ones(V))
    ValueError: key must be on the same device as query (cpu), got meta
attend(*(torch.ones(s) for s in (Q, K, V)), mask=torch.ones(3, 7, dtype=torch.bool,
device='meta'))
    ValueError: mask must be on the same device as query (cpu), got meta
attend(query=(5,))
    ValueError: query must have shape (..., n_q, d_k), got (5,)
attend(key=(5,))
    ValueError: key must have shape (..., n_k, d_k), got (5,)
attend(value=())
    ValueError: value must have shape (..., n_k, d_v), got ()
attend(query=(2, 3, 64), key=(2, 7, 32), value=(2, 7, 2))
    ValueError: key must have shape (..., n_k, 64) to match query, got (2, 7, 32)
attend(value=(6, 2))
    ValueError: value must have shape (..., 7, d_v) to match key, got (6, 2)
attend(query=(2, 3, 5), key=(4, 7, 5))
    ValueError: key must have leading axes that broadcast with (2,), got shape (4, 7, 5)
attend(query=(2, 1, 3, 5), key=(4, 7, 5), value=(3, 7, 2))
    ValueError: value must have leading axes that broadcast with (2, 4), got shape (3, 7, 2)
attend(query=(3, 0), key=(7, 0))
    ValueError: query must have d_k of at least 1 for the default scale 1/√d_k, got 0
vjp(ones((7, 2)))
    ValueError: grad_output must have the shape of the output (3, 2), got (7, 2)
attnbook.attention_vjp(ones((4, *Q)), ones(K), ones((2, 1, *V)), ones((4, 3, 2)))
    ValueError: grad_output must have the shape of the output (2, 4, 3, 2), got (4, 3, 2)
vjp([1.0])
    TypeError: grad_output must be an array of NumPy, CuPy, PyTorch or another Array API library,
    got list
vjp(ones((3, 2), 'float32'))
    TypeError: grad_output must have the dtype of query (float64), got float32
attend(mask=[[True]])
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
attend(mask=torch.ones(3, 7, dtype=torch.bool))
    TypeError: mask must be an array of the same library as query (numpy), got torch
attend(mask=np.ones((2, 3, 7), bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (3, 7), got (2,
    3, 7)
# the type is what to mend first
attend(mask=np.eye(7, 3))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like a boolean mask
    stored as numbers: pass mask == 1
attend(mask=np.zeros((3, 7)))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like a boolean mask
    stored as numbers: pass mask == 1
attend(mask=np.where(np.eye(3, 7) == 1, 0.0, -1001))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like an additive
    mask: pass mask == 0, which is True where it allows
attend(mask=np.where(np.eye(3, 7) == 1, 0.0, -1000))
    TypeError: mask must be boolean, True = may attend, got float64; numbers that are added to the
    scores go in bias=
attend(mask=np.full((3, 7), -2000 + 1j))
    TypeError: mask must be boolean, True = may attend, got complex128; numbers that are added to
    the scores go in bias=
attend(mask=np.full((3, 7), np.nan))
    TypeError: mask must be boolean, True = may attend, got float64; numbers that are added to the
    scores go in bias=
attend(mask=np.full((3, 7), None))
    TypeError: mask must be boolean, True = may attend, got object; numbers that are added to the
    scores go in bias=
attend(key=(0, 5), value=(0, 2), mask=np.ones((3, 0), int))
    TypeError: mask must be boolean, True = may attend, got int64; it looks like a boolean mask
    stored as numbers: pass mask == 1
attend(*(torch.ones(s, device='meta') for s in (Q, K, V)), mask=torch.ones(3, 7, device='meta'))
    TypeError: mask must be boolean, True = may attend, got float32; numbers that are added to the
    scores go in bias=
torch.func.vmap(attnbook.attention)(*(torch.ones(2, *s) for s in (Q, K, V)), torch.ones(2, 3, 7))
    TypeError: mask must be boolean, True = may attend, got float32; numbers that are added to the
    scores go in bias=
attend(bias=1.0)
    TypeError: bias must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    float
attend(bias=np.ones((3, 7), bool))
    TypeError: bias must have the dtype of query, got bool; a mask of what may be attended to goes
    in mask=
attend(bias=np.ones((3, 7), int))
    TypeError: bias must have a real floating dtype, got int64
attend(bias=ones((3, 7), 'float32'))
    TypeError: bias must have the dtype of query (float64), got float32
attend(bias=ones((7, 3)))
    ValueError: bias must broadcast to the shape of the scores (..., n_q, n_k) = (3, 7), got (7,
    3)
attend(scale=True)
    TypeError: scale must be a real number, got bool
attend(scale=1j)
    TypeError: scale must be a real number, got complex
attend(scale=np.array(0.5))
    TypeError: scale must be a real number, got ndarray
attend(scale=-0.5)
    ValueError: scale must be finite and at least 0, got -0.5
attend(scale=float('nan'))
    ValueError: scale must be finite and at least 0, got nan
attend(scale=np.float32('inf'))
    ValueError: scale must be finite and at least 0, got inf
attend(scale=10 ** 400)
    ValueError: scale must be finite and at least 0, got inf
attend(scale=Fraction(-10 ** 400, 3))
    ValueError: scale must be finite and at least 0, got -inf
read(ones(3), ones(V))
    ValueError: scores must have at least 2 axes, got shape (3,)
read(ones((3, 7)), ones(7))
    ValueError: value must have at least 2 axes, got shape (7,)
read(ones((3, 7)), ones((6, 2)))
    ValueError: value must have shape (..., 7, d_v) to match scores of shape (3, 7), got (6, 2)
read(ones((2, 3, 7)), ones((4, 7, 2)))
    ValueError: value must have shape (..., 7, d_v) to match scores of shape (2, 3, 7), got (4, 7,
    2)
read(ones((3, 7)), ones(V, 'float32'))
    TypeError: value must have the dtype of scores (float64), got float32
read([[1.0]], ones(V))
    TypeError: scores must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
state().merge(3)
    TypeError: other must be a RunningSoftmax, got int
state().merge(half_state(torch.float16))
    TypeError: other must be an array of the same library as self (numpy), got torch
state().merge(state(dtype='float32'))
    TypeError: other must have the dtype of self (float64), got float32
half_state(torch.float16).merge(half_state(torch.bfloat16))
    TypeError: other must have dtype float16, got bfloat16
state().merge(state(rows=4))
    ValueError: other must hold rows of shape (3, 2), got (4, 2)
state().merge(state(d_v=1))
    ValueError: other must hold rows of shape (3, 2), got (3, 1)
running(1.0, 1.0, 1.0)
    TypeError: weighted must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    float
running([[1.0]], ones((3, 1)), ones((3, 2)))
    TypeError: maximum must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
running(ones(1), ones(1), ones(2))
    ValueError: weighted must have shape (..., n_q, d_v), got (2,)
running(ones((4, 1)), ones((3, 1)), ones((3, 2)))
    ValueError: maximum must broadcast to (3, 1) to match weighted, got (4, 1)
running(ones((3, 1)), ones((3, 2)), ones((3, 2)))
    ValueError: total must broadcast to (3, 1) to match weighted, got (3, 2)
weights(None, Q, Q)
    TypeError: W_Q must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    NoneType
weights(Q, (5,), Q)
    ValueError: W_K must have 2 axes, got shape (5,)
weights(Q, Q, Q, (1, 5, 2))
    ValueError: W_O must have 2 axes, got shape (1, 5, 2)
weights((3, 5), (7, 4), (7, 2))
    ValueError: W_K must have shape (d_key, 5) to match W_Q, got (7, 4)
weights((3, 5), (7, 5), (7, 2), (3, 11))
    ValueError: W_O must have shape (2, d_out) to match W_V, got (3, 11)
attnbook.SingleHeadWeights(ones(Q), ones(Q), ones(Q, 'float32'))
    TypeError: W_V must have the dtype of W_Q (float64), got float32
init(None)
    TypeError: rng must be a numpy.random.Generator or an int, got NoneType
init(True)
    TypeError: rng must be a numpy.random.Generator or an int, got bool
init(-1)
    ValueError: rng must be at least 0 if it is a seed, got -1
init(0, 8.0)
    TypeError: d_query must be an int, got float
init(0, 8, True)
    TypeError: d_key must be an int, got bool
init(0, 8, 3, 0)
    ValueError: d_value must be at least 1, got 0
init(d_k=0)
    ValueError: d_k must be at least 1, got 0
init(d_v=-1)
    ValueError: d_v must be at least 1, got -1
init(d_out='4')
    TypeError: d_out must be an int, got str
head(weights=3)
    TypeError: weights must be SingleHeadWeights, got int
head(query=[[1.0]])
    TypeError: query must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
head(key=(7, 4))
    ValueError: key must have shape (..., n, 5) to match the weights, got (7, 4)
head(query=(5,))
    ValueError: query must have shape (..., n, 5) to match the weights, got (5,)
head(value=(6, 5))
    ValueError: value must have shape (..., 7, 5) to match key, got (6, 5)
head(query=(2, 3, 5), key=(4, 7, 5))
    ValueError: key must have leading axes that broadcast with (2,), got shape (4, 7, 5)
head(*(ones(s, 'float32') for s in (Q, K, K)))
    TypeError: weights must have the dtype of query (float32), got float64
head(*(torch.ones(s) for s in (Q, K, K)))
    TypeError: weights must be an array of the same library as query (torch), got numpy
head(mask=np.ones((7, 3), bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (3, 7), got (7,
    3)
"""

test_error = error_test(ERRORS, globals())


# The same mistakes, in every library: shapes that do not fit, and a mask of the wrong type.
IN_EVERY_LIBRARY = {
    "key": ((3, 5), (7, 4), (7, 2), None, "key must have shape (..., n_k, 5) to match query"),
    "value": ((3, 5), (7, 5), (6, 2), None, "value must have shape (..., 7, d_v) to match key"),
    "leading": ((2, 3, 5), (4, 7, 5), (7, 2), None, "key must have leading axes that broadcast"),
    "mask shape": (Q, K, V, np.ones((7, 3), bool), f"mask {SCORES}(3, 7), got (7, 3)"),
    "mask 0/1": (Q, K, V, np.eye(3, 7), NOT_BOOLEAN + "float64" + AS_NUMBERS),
    "mask uint8": (Q, K, V, np.full((3, 7), 5, np.uint8), NOT_BOOLEAN + "uint8" + IN_BIAS),
    "mask int8": (Q, K, V, np.full((3, 7), -5, np.int8), NOT_BOOLEAN + "int8" + IN_BIAS),
    "mask −∞": (Q, K, V, np.full((3, 7), -np.inf), NOT_BOOLEAN + "float64" + ADDITIVE),
    "mask −1e9": (Q, K, V, np.full((3, 7), -(10**9)), NOT_BOOLEAN + "int64" + ADDITIVE),
}


@pytest.mark.parametrize("row", IN_EVERY_LIBRARY)
def test_error_in_every_library(library, row):
    *shapes, mask, message = IN_EVERY_LIBRARY[row]
    query, key, value, grad = (library.array(ones(shape)) for shape in (*shapes, (3, 2)))
    mask = None if mask is None else library.array(mask)
    for function, arrays in (
        (attnbook.attention, (query, key, value)),
        (attnbook.attention_vjp, (query, key, value, grad)),
        (attnbook.attention_weights, (query, key)),
    ):
        if len(arrays) > 2 or not message.startswith("value"):
            with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}"):
                function(*arrays, mask)


def test_any_real_number_is_a_scale():
    expected = attend(scale=0.5)
    for scale in (np.float32(0.5), np.float16(0.5), np.longdouble(0.5), Fraction(1, 2)):
        np.testing.assert_array_equal(attend(scale=scale), expected)
    for scale in (1, np.int64(1), np.uint8(1)):
        np.testing.assert_array_equal(attend(scale=scale), attend(scale=1.0))
    np.testing.assert_array_equal(attend(scale=-0.0), attend(scale=0))


# The helpers.


@given(st.lists(npst.array_shapes(min_dims=0, min_side=0, max_side=3), min_size=2, max_size=3))
def test_broadcast_shapes_is_none_where_numpy_raises(shapes):
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        expected = None
    assert array.broadcast_shapes(*shapes) == expected


@pytest.mark.parametrize("base", [(2, 5, 3), (2, 0, 3)])
@given(st.data())
def test_sum_to_shape_is_the_transpose_of_broadcasting(library, base, data):
    options = {"num_shapes": 1, "max_dims": 3, "min_side": 0}
    shapes = npst.mutually_broadcastable_shapes(base_shape=base, **options)
    (shape,), wide = data.draw(shapes)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape), rng.standard_normal(wide)
    total = library.numpy(array.sum_to_shape(library.array(y), shape))
    assert total.shape == shape
    # ⟨broadcast(x), y⟩ = ⟨x, sum_to_shape(y)⟩
    np.testing.assert_allclose((np.broadcast_to(x, wide) * y).sum(), (x * total).sum())


def test_names(library):
    x = library.array(np.ones(2, np.float32))
    assert array.library(x) == library.name
    assert array.dtype_name(x.dtype) == "float32"


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_only_plain_and_dense_arrays_are_taken():
    dense, parts = torch.eye(3), [torch.ones(1, 3), torch.ones(2, 3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    nested = torch.nested.nested_tensor(parts)
    for layout, x in (("sparse_coo", dense.to_sparse()), ("jagged", jagged), ("nested", nested)):
        message = rf"query must be dense, got a {layout} array"
        with pytest.raises(TypeError, match=f"^{message}$"):
            attnbook.attention_weights(x, dense)
    for name, x in (("type", np.ndarray), ("matrix", np.matrix([[1.0]]))):
        with pytest.raises(TypeError, match=rf"^x must be an array of .*, got {name}$"):
            attnbook.softmax(x)


@pytest.mark.parametrize(
    "x",
    [
        np.ones((3, 5), [("a", "f4"), ("b", "i4")]),
        np.zeros((3, 5), "V8"),
        torch.ones(3, 5).to(torch.float8_e4m3fn),
        torch.ones(3, 5).to(torch.float8_e5m2),
    ],
    ids=["record", "void", "e4m3", "e5m2"],
)
def test_what_no_library_computes_in_is_refused_by_its_name(x):
    for read in (check_array, check_float):
        with pytest.raises(TypeError, match=r"^key must have a dtype to compute in, got "):
            read("key", x)
    with pytest.raises(TypeError, match=r"^x must have a dtype to compute in, got "):
        attnbook.softmax(x)
    with pytest.raises(TypeError, match=r"^x must have a dtype to compute in, got "):
        attnbook.move(x, "numpy")
