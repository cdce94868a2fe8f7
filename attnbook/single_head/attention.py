r"""Attention: every query takes a weighted mean of the values.

.. math:: \operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\beta\,QK^\top + B)\,V

The formula is the first rung of the ladder, `attnbook.kernels.naive`. The three public functions
check their arrays and call it, or what `impl` names. What pulls gradients back stands here.
"""

from typing import Annotated

from attnbook import kernels
from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, sum_to_shape
from attnbook.arrays.attention_arguments import check_attention
from attnbook.kernels.naive import weights_of, widen


def _attention_vjp(
    query: Array,
    key: Array,
    value: Array,
    grad_output: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> tuple[Array, Array, Array]:
    xp = array_namespace(query)
    weights = weights_of(query, key, mask, bias, scale, is_causal)
    grad_value = xp.matmul(xp.matrix_transpose(weights), grad_output)
    grad_weights = xp.matmul(grad_output, xp.matrix_transpose(value))
    mean = xp.sum(weights * grad_weights, axis=-1, keepdims=True)  # a · g
    grad_scores = weights * (grad_weights - mean)
    grad_query = xp.matmul(grad_scores, key) * scale
    grad_key = xp.matmul(xp.matrix_transpose(grad_scores), query) * scale
    return grad_query, grad_key, grad_value


def attention_weights(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
) -> Annotated[Array, "... n_q n_k"]:
    r"""Return how much each query attends to each key.

    .. math:: A = \operatorname{softmax}(\beta\,QK^\top + B), \qquad \beta = 1/\sqrt{d_k},

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
        β above, finite and at least 0; 1/√d_k by default.
    is_causal : bool
        Also hide every key that comes later than its query. The **last** query stands at the last
        key: query i sees key j where j ≤ i + n_k − n_q, as in `masking.causal`.

    Returns
    -------
    array, shape (..., n_q, n_k)
        Weights of the dtype of `query`. Each row is at least 0 and sums to 1; a row that may see
        no key is 0. float16 and bfloat16 are computed in float32 and rounded once at the end.

    Raises
    ------
    TypeError
        For anything but arrays of one library and one real floating dtype, a mask that is not
        boolean, a boolean bias, a scale that is not a real number, or an `is_causal` that is not a
        bool.
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
    scale = check_attention({"query": query, "key": key}, mask, bias, scale, is_causal)
    weights = weights_of(query, key, mask, bias, scale, is_causal)
    return array_namespace(query).astype(weights, query.dtype, copy=False)


def attention(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    impl: kernels.Impl = kernels.REFERENCE,
) -> Annotated[Array, "... n_q d_v"]:
    r"""Return for each query the mean of the values, weighted by how well their keys match.

    .. math:: O = \operatorname{softmax}(\beta\,QK^\top + B)\,V, \qquad \beta = 1/\sqrt{d_k}

    Parameters
    ----------
    query, key, mask, bias, scale, is_causal
        As in `attention_weights`. In `mask`, **True = may attend.**
    value : array, shape (..., n_k, d_v)
        One row a key, of any width d_v, of the library, device and dtype of `query`.
    impl : str or callable
        Who computes it: ``"reference"``, the first rung of `attnbook.kernels.LADDER`, which the
        book prints, or a faster rung. None falls back to another; `backends` says which can run.
        Or a function of your own, ``f(query, key, value, mask, bias, scale, is_causal)``: so your
        attention runs inside any model of this package. A `kernels.Recorder` is one that keeps the
        attention weights.

    Returns
    -------
    array, shape (..., n_q, d_v)
        Of the library, device and dtype of `query`. A query that may see no key gets zeros. Under
        ``torch.autocast`` rungs with a backward pass return its dtype, as PyTorch's own function
        does.

    Raises
    ------
    TypeError, ValueError
        As in `attention_weights`; also if `impl` is unknown or does not take such arrays. In the
        backward pass of ``"numba"`` and ``"packed"``, ValueError for scores beyond ±10⁹.
    ImportError
        If `impl` needs a package that is not installed; the message says how to get it.

    Notes
    -----
    Each row of the result lies in the convex hull of the values that its query may see (claim 5).
    A value is multiplied by its weight even where that is 0, so a NaN or an infinity in `value`
    reaches every query, masked or not: 0 · NaN is NaN. From ``"tiled"`` on, what is hidden may not
    even be read, and then it reaches none.
    Gradients flow through PyTorch's autograd, and stay finite in rows that may see no key;
    `attention_vjp` has them for the other libraries.
    Cost: O(n_q n_k (d_k + d_v)) time and O(n_q n_k) memory; from ``"tiled"`` on, the memory beside
    the result grows with n_q + n_k only. Those give no gradient of `bias`, and their backward pass
    reads the result, which PyTorch therefore does not let you change in place.
    From ``"in_place"`` on the division comes last, so a mean of values near the largest number of
    the dtype may overflow. ``"numba"`` and ``"packed"`` sum a score in one chain: up to d_k = 256
    their error stays within twice that of PyTorch in float32, and grows beyond.

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
    kernels.check_impl(impl)
    arrays = {"query": query, "key": key, "value": value}
    scale = check_attention(arrays, mask, bias, scale, is_causal)
    return kernels.attention(impl, query, key, value, mask, bias, scale, is_causal)


def attention_vjp(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    grad_output: Annotated[Array, "... n_q d_v"],
    mask: Annotated[Array, "..."] | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    impl: str = kernels.REFERENCE,
) -> tuple[
    Annotated[Array, "... n_q d_k"],
    Annotated[Array, "... n_k d_k"],
    Annotated[Array, "... n_k d_v"],
]:
    r"""Pull the gradient of a loss back from the output of `attention` to its three inputs.

    With weights A, output O = AV, incoming gradient G = ∂ℒ/∂O and scale β,

    .. math::
        \frac{\partial\mathcal L}{\partial V} = A^\top G, \quad
        G_S = A \odot \bigl(GV^\top - (G \odot O)\mathbf 1 \mathbf 1^\top\bigr), \quad
        \frac{\partial\mathcal L}{\partial Q} = \beta\,G_S K, \quad
        \frac{\partial\mathcal L}{\partial K} = \beta\,G_S^\top Q.

    Parameters
    ----------
    query, key, value, mask, bias, scale, is_causal
        As in `attention`.
    grad_output : array, shape (..., n_q, d_v)
        G, of exactly the shape that `attention` returns.
    impl : str
        As in `attention`: the reference, or one with a backward pass (``"tiled"``, ``"numba"``,
        ``"packed"``, ``"triton"``), which makes the weights again, a tile at a time,
        from what the forward pass left.

    Returns
    -------
    grad_query, grad_key, grad_value : arrays
        Of the shapes and dtype of `query`, `key` and `value`; leading axes that were broadcast are
        summed. A query that may see no key has a gradient of 0 and gives none.

    Raises
    ------
    TypeError, ValueError
        As in `attention`, and ValueError if `grad_output` has another shape than its output.
        ``"numba"`` and ``"packed"`` also raise ValueError for scores beyond ±10⁹.

    Notes
    -----
    For libraries without autograd (NumPy, CuPy); equal to PyTorch's autograd to rounding. What the
    compiled ``"numba"``, ``"packed"`` and ``"triton"`` return of tensors is detached.
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
    kernels.check_impl(impl)
    scale = check_attention(arrays, mask, bias, scale, is_causal)
    check_floats(query=query, grad_output=grad_output)
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in arrays.values())) or ()
    expected = (*leading, query.shape[-2], value.shape[-1])
    if tuple(grad_output.shape) != expected:
        raise ValueError(
            f"grad_output must have the shape of the output {expected}, "
            f"got {tuple(grad_output.shape)}"
        )
    xp = array_namespace(query)
    if impl == kernels.REFERENCE:
        q, k, v, grad_output = widen(query, key, value, grad_output)
        grads = _attention_vjp(q, k, v, grad_output, mask, bias, scale, is_causal)
    else:
        rest = (grad_output, mask, bias, scale, is_causal)
        grads = kernels.attention_vjp(impl, query, key, value, *rest)
    summed = [
        xp.astype(sum_to_shape(grad, tuple(x.shape)), x.dtype, copy=False)
        for grad, x in zip(grads, (query, key, value), strict=True)
    ]
    return tuple(summed)
