r"""Single-head attention: every query takes a weighted mean of the values.

.. math:: \operatorname{Attention}(Q, K, V) = \operatorname{softmax}(s\,QK^\top + B)\,V

The three public functions check their arrays and then call the mathematics beneath them
(`_scores`, `_attention_weights`, `_attention`, `_attention_vjp`), which is what the book prints.
The learned head wraps the same functions in four matrices.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np

from attnbook._arrays import (
    Array,
    array_namespace,
    broadcast_shapes,
    check_attention_inputs,
    check_floats,
    check_leading_axes,
    sum_to_shape,
)
from attnbook.backends import move
from attnbook.softmax import _softmax


def attention_weights(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
) -> Annotated[Array, "... n_q n_k"]:
    r"""Return how much each query attends to each key.

    .. math:: A = \operatorname{softmax}(s\,QK^\top + B), \qquad s = 1/\sqrt{d_k},

    row by row, over the keys that `mask` lets the query see.

    Parameters
    ----------
    query : array, shape (..., n_q, d_k), real floating dtype
    key : array, shape (..., n_k, d_k)
        Of the library, device and dtype of `query`. Leading axes broadcast, so grouped heads are
        (..., kv, group, n_q, d_k) against (..., kv, 1, n_k, d_k).
    mask : boolean array that broadcasts to (..., n_q, n_k), optional
        **True = may attend.**
    bias : array that broadcasts to (..., n_q, n_k), optional
        Finite numbers added to the scaled scores, of the dtype of `query`.
    scale : float, optional
        s above, finite and at least 0; 1/√d_k by default.

    Returns
    -------
    array, shape (..., n_q, n_k)
        Weights of the dtype of `query`. Each row is at least 0 and sums to 1; a row that may see
        no key is 0. float16 and bfloat16 are computed in float32 and rounded once at the end.

    Raises
    ------
    TypeError
        For anything but arrays of one library and one real floating dtype, a mask that is not
        boolean, a boolean bias, or a scale that is not a real number.
    ValueError
        For shapes that do not fit, arrays on different devices, a scale that is negative, infinite
        or NaN, and d_k = 0 without a scale.

    Notes
    -----
    n_q, n_k and any leading axis may be 0. NaN or +∞ in a score makes its row NaN. A masked score
    is −∞ whatever it was; but PyTorch's gradient of a query multiplies every key by its weight, and
    0 · NaN is NaN, so keep NaN and infinities out of masked keys too.
    Values of `bias` are not inspected.
    Cost: O(n_q n_k d_k) time and O(n_q n_k) memory.

    See Also
    --------
    attention : the weights times the values.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.2.1; chapter `single_head`.

    Examples
    --------
    >>> import numpy as np
    >>> query, key = np.zeros((1, 2)), np.zeros((4, 2))
    >>> attention_weights(query, key)
    array([[0.25, 0.25, 0.25, 0.25]])
    >>> attention_weights(query, key, mask=np.array([True, True, False, False]))
    array([[0.5, 0.5, 0. , 0. ]])
    """
    dtype, (q, k), mask, bias, scale = check_attention_inputs(
        {"query": query, "key": key}, mask, bias, scale
    )
    weights = _attention_weights(q, k, mask, bias, scale)
    return array_namespace(weights).astype(weights, dtype, copy=False)


def attention(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
) -> Annotated[Array, "... n_q d_v"]:
    r"""Return for each query the mean of the values, weighted by how well their keys match.

    .. math:: O = \operatorname{softmax}(s\,QK^\top + B)\,V, \qquad s = 1/\sqrt{d_k}

    Parameters
    ----------
    query, key, mask, bias, scale
        As in `attention_weights`. In `mask`, **True = may attend.**
    value : array, shape (..., n_k, d_v)
        One row a key, of any width d_v, of the library, device and dtype of `query`.

    Returns
    -------
    array, shape (..., n_q, d_v)
        Of the library, device and dtype of `query`. A query that may see no key gets zeros.

    Raises
    ------
    TypeError, ValueError
        As in `attention_weights`.

    Notes
    -----
    Each row of the result lies in the convex hull of the values that its query may see (claim 5).
    A value is multiplied by its weight even where that is 0, so a NaN or an infinity in `value`
    reaches every query, masked or not: 0 · NaN is NaN.
    Gradients flow through PyTorch's autograd, and stay finite in rows that may see no key;
    `attention_vjp` has them for the other libraries.
    Cost: O(n_q n_k (d_k + d_v)) time and O(n_q n_k) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.2.1; chapter `single_head`.

    Examples
    --------
    >>> import numpy as np
    >>> query, key = np.array([[0.0, 2.0]]), np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> value = np.array([[10.0], [20.0]])
    >>> attention(query, key, value).round(2)
    array([[19.44]])
    """
    arrays = {"query": query, "key": key, "value": value}
    dtype, (q, k, v), mask, bias, scale = check_attention_inputs(arrays, mask, bias, scale)
    output = _attention(q, k, v, mask, bias, scale)
    return array_namespace(output).astype(output, dtype, copy=False)


def attention_vjp(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    grad_output: Annotated[Array, "... n_q d_v"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    r"""Pull the gradient of a loss back from the output of `attention` to its three inputs.

    With weights A, output O = AV, incoming gradient G = ∂L/∂O and scale s,

    .. math::
        \frac{\partial L}{\partial V} = A^\top G, \quad
        D = A \odot \bigl(GV^\top - (G \odot O)\mathbf 1 \mathbf 1^\top\bigr), \quad
        \frac{\partial L}{\partial Q} = s\,DK, \quad
        \frac{\partial L}{\partial K} = s\,D^\top Q.

    Parameters
    ----------
    query, key, value, mask, bias, scale
        As in `attention`.
    grad_output : array, shape (..., n_q, d_v)
        G, of exactly the shape that `attention` returns.

    Returns
    -------
    grad_query, grad_key, grad_value : arrays
        Of the shapes and dtype of `query`, `key` and `value`; leading axes that were broadcast are
        summed. A query that may see no key has a gradient of 0 and gives none.

    Raises
    ------
    TypeError, ValueError
        As in `attention`, and ValueError if `grad_output` has another shape than its output.

    Notes
    -----
    For libraries without autograd (NumPy, CuPy); equal to PyTorch's autograd to rounding.
    Cost: O(n_q n_k (d_k + d_v)) time, O(n_q n_k) memory, about 2.5 times that of `attention`.
    Derived in the chapter `single_head`.

    Examples
    --------
    >>> import numpy as np
    >>> query, key, value = np.zeros((1, 2)), np.zeros((4, 2)), np.ones((4, 3))
    >>> grad_query, grad_key, grad_value = attention_vjp(query, key, value, np.ones((1, 3)))
    >>> grad_value[0]
    array([0.25, 0.25, 0.25])
    """
    arrays = {"query": query, "key": key, "value": value}
    dtype, (q, k, v), mask, bias, scale = check_attention_inputs(arrays, mask, bias, scale)
    check_floats(query=query, grad_output=grad_output)
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in arrays.values())) or ()
    expected = (*leading, q.shape[-2], v.shape[-1])
    if tuple(grad_output.shape) != expected:
        raise ValueError(
            f"grad_output must have the shape of the output {expected}, "
            f"got {tuple(grad_output.shape)}"
        )
    xp = array_namespace(q)
    grads = _attention_vjp(q, k, v, xp.astype(grad_output, q.dtype, copy=False), mask, bias, scale)
    grad_query, grad_key, grad_value = (
        xp.astype(sum_to_shape(grad, tuple(x.shape)), dtype, copy=False)
        for grad, x in zip(grads, (q, k, v), strict=True)
    )
    return grad_query, grad_key, grad_value


# The mathematics. These may rely on checked arrays in the dtype to compute in.


def _scores(query, key, mask, bias, scale):
    xp = array_namespace(query)
    # (..., n_q, d_k) times (..., d_k, n_k)
    scores = xp.matmul(query * scale, xp.matrix_transpose(key))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = xp.where(mask, scores, xp.full_like(scores, -xp.inf))
    return scores


def _attention_weights(query, key, mask, bias, scale):
    return _softmax(_scores(query, key, mask, bias, scale), axis=-1)


def _attention(query, key, value, mask, bias, scale):
    xp = array_namespace(query)
    weights = _attention_weights(query, key, mask, bias, scale)
    return xp.matmul(weights, value)  # (..., n_q, d_v)


def _attention_vjp(query, key, value, grad_output, mask, bias, scale):
    xp = array_namespace(query)
    weights = _attention_weights(query, key, mask, bias, scale)
    grad_value = xp.matmul(xp.matrix_transpose(weights), grad_output)
    grad_weights = xp.matmul(grad_output, xp.matrix_transpose(value))
    mean = xp.sum(weights * grad_weights, axis=-1, keepdims=True)  # a · g
    grad_scores = weights * (grad_weights - mean)
    grad_query = xp.matmul(grad_scores, key) * scale
    grad_key = xp.matmul(xp.matrix_transpose(grad_scores), query) * scale
    return grad_query, grad_key, grad_value


# The learned head.


@dataclass(frozen=True, eq=False)
class SingleHeadWeights:
    r"""The matrices of one learned head.

    .. math:: Q = XW_Q, \quad K = YW_K, \quad V = ZW_V, \quad
              \text{head} = \operatorname{Attention}(Q, K, V)\,W_O

    Attributes
    ----------
    W_Q : array, shape (d_query, d_k)
    W_K : array, shape (d_key, d_k)
    W_V : array, shape (d_value, d_v)
    W_O : array, shape (d_v, d_out), optional
        Without it the head returns the mixed values themselves, of width d_v.

    Raises
    ------
    TypeError, ValueError
        If the matrices are not arrays of one library, device and real floating dtype, or if their
        shapes do not fit together.

    Examples
    --------
    >>> weights = SingleHeadWeights.init(0, 8, d_k=4, d_v=6, d_out=8)
    >>> weights.W_Q.shape, weights.W_O.shape
    ((8, 4), (6, 8))
    """

    W_Q: Annotated[Array, "d_query d_k"]
    W_K: Annotated[Array, "d_key d_k"]
    W_V: Annotated[Array, "d_value d_v"]
    W_O: Annotated[Array, "d_v d_out"] | None = None

    def __post_init__(self):
        matrices = self._matrices()
        check_floats(**matrices)
        for name, x in matrices.items():
            if x.ndim != 2:
                raise ValueError(f"{name} must have 2 axes, got shape {tuple(x.shape)}")
        if self.W_K.shape[1] != self.W_Q.shape[1]:
            raise ValueError(
                f"W_K must have shape (d_key, {self.W_Q.shape[1]}) to match W_Q, "
                f"got {tuple(self.W_K.shape)}"
            )
        if self.W_O is not None and self.W_O.shape[0] != self.W_V.shape[1]:
            raise ValueError(
                f"W_O must have shape ({self.W_V.shape[1]}, d_out) to match W_V, "
                f"got {tuple(self.W_O.shape)}"
            )

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_query: int,
        d_key: int | None = None,
        d_value: int | None = None,
        *,
        d_k: int,
        d_v: int,
        d_out: int | None = None,
    ) -> "SingleHeadWeights":
        r"""Draw Xavier-uniform matrices (NumPy, float64).

        Entries are uniform in ±√(6 / (rows + columns)), a compromise that keeps the
        variance of activations and of gradients much the same from layer to layer (Glorot and
        Bengio 2010).

        Parameters
        ----------
        rng : numpy.random.Generator or int
            Where the numbers come from; an int is a seed.
        d_query, d_key, d_value : int
            Widths of the inputs; d_key is d_query and d_value is d_key unless given.
        d_k, d_v : int
            Width of queries and keys, and of values, inside the head.
        d_out : int, optional
            Width of the output. Without it there is no W_O.

        Raises
        ------
        TypeError, ValueError
            If a width is not an int of at least 1, or `rng` is neither a Generator nor an int of
            at least 0.
        """
        if isinstance(rng, bool) or not isinstance(rng, (np.random.Generator, int, np.integer)):
            raise TypeError(
                f"rng must be a numpy.random.Generator or an int, got {type(rng).__name__}"
            )
        if not isinstance(rng, np.random.Generator) and rng < 0:
            raise ValueError(f"rng must be at least 0 if it is a seed, got {rng}")
        rng = np.random.default_rng(rng)
        d_key = d_query if d_key is None else d_key
        d_value = d_key if d_value is None else d_value
        widths = {"d_query": d_query, "d_key": d_key, "d_value": d_value, "d_k": d_k, "d_v": d_v}
        if d_out is not None:
            widths["d_out"] = d_out
        for name, width in widths.items():
            if isinstance(width, bool) or not isinstance(width, (int, np.integer)):
                raise TypeError(f"{name} must be an int, got {type(width).__name__}")
            if width < 1:
                raise ValueError(f"{name} must be at least 1, got {width}")

        def xavier(rows, columns):
            bound = math.sqrt(6 / (rows + columns))
            return rng.uniform(-bound, bound, size=(rows, columns))

        return cls(
            xavier(d_query, d_k),
            xavier(d_key, d_k),
            xavier(d_value, d_v),
            None if d_out is None else xavier(d_v, d_out),
        )

    def to(
        self, library: str | None = None, *, device: Any = None, dtype: str | None = None
    ) -> "SingleHeadWeights":
        """Return the same weights in another library, on another device or in another dtype.

        Parameters are those of `attnbook.move`.
        """
        moved = {
            name: move(x, library, device=device, dtype=dtype)
            for name, x in self._matrices().items()
        }
        return replace(self, **moved)

    def _matrices(self):
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in named.items() if x is not None or name != "W_O"}


def single_head_attention(
    query: Annotated[Array, "... n_q d_query"],
    key: Annotated[Array, "... n_k d_key"],
    value: Annotated[Array, "... n_k d_value"],
    weights: SingleHeadWeights,
    mask: Annotated[Array, "..."] | None = None,
    *,
    return_weights: bool = False,
) -> Any:
    r"""Apply one learned head: project, attend, and project back if there is a W_O.

    .. math:: \operatorname{Attention}(XW_Q,\, YW_K,\, ZW_V)\,W_O

    Parameters
    ----------
    query : array X, shape (..., n_q, d_query)
    key : array Y, shape (..., n_k, d_key)
    value : array Z, shape (..., n_k, d_value)
        Self-attention passes one array three times; cross-attention passes key = value from
        elsewhere, of another width if W_K and W_V have it.
    weights : SingleHeadWeights
    mask : boolean array that broadcasts to (..., n_q, n_k), optional
        **True = may attend.**
    return_weights : bool
        Also return the attention weights.

    Returns
    -------
    array, shape (..., n_q, d_out), or (..., n_q, d_v) without W_O
        And with `return_weights` a pair of it and the weights (..., n_q, n_k).

    Raises
    ------
    TypeError, ValueError
        As in `attention`; ValueError if an input is not as wide as its matrix is high.

    Notes
    -----
    In half precision the projections are rounded to that precision, the attention is not.
    Cost: O(n d_query d_k + n_q n_k (d_k + d_v)) time.

    Examples
    --------
    >>> import numpy as np
    >>> weights = SingleHeadWeights.init(0, 8, d_k=4, d_v=6)
    >>> x = np.ones((5, 8))
    >>> single_head_attention(x, x, x, weights).shape
    (5, 6)
    """
    if not isinstance(weights, SingleHeadWeights):
        raise TypeError(f"weights must be SingleHeadWeights, got {type(weights).__name__}")
    inputs = {"query": query, "key": key, "value": value}
    matrices = {"query": weights.W_Q, "key": weights.W_K, "value": weights.W_V}
    check_floats(**inputs, weights=weights.W_Q)
    for name, x in inputs.items():
        height = matrices[name].shape[0]
        if x.ndim < 2 or x.shape[-1] != height:
            raise ValueError(
                f"{name} must have shape (..., n, {height}) to match the weights, "
                f"got {tuple(x.shape)}"
            )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must have shape (..., {key.shape[-2]}, {value.shape[-1]}) to match key, "
            f"got {tuple(value.shape)}"
        )
    check_leading_axes(inputs)  # here, where they still have the shapes that were passed
    xp = array_namespace(query)
    projected = {name: xp.matmul(x, matrices[name]) for name, x in inputs.items()}
    dtype, (q, k, v), mask, bias, scale = check_attention_inputs(projected, mask, None, None)
    attended = _attention_weights(q, k, mask, bias, scale)
    output = xp.astype(xp.matmul(attended, v), dtype, copy=False)
    if weights.W_O is not None:
        output = xp.matmul(output, weights.W_O)
    return (output, xp.astype(attended, dtype, copy=False)) if return_weights else output
