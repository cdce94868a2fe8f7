r"""Attention: every query returns a weighted mean of the values.

.. math:: \operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\beta\,QK^\top + B)\,V

The formula is the first rung of the ladder, `attnbook.kernels.naive`. The three public functions
check their arrays and call it, or what `impl` names. What pulls gradients back stands here.
"""

from typing import Annotated, Any

from attnbook import kernels
from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes, sum_to_shape
from attnbook.arrays.attention_arguments import check_attention, dense, visible
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
    mask: Mask | None = None,
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
        Has the library, device and dtype of `query`. Leading axes broadcast, so for grouped heads
        you pass queries (..., kv, group, n_q, d_k) and keys (..., kv, 1, n_k, d_k).
    mask : boolean array that broadcasts to (..., n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.**
    bias : array that broadcasts to (..., n_q, n_k), optional
        Finite numbers that are added to the scaled scores, in the dtype of `query`.
    scale : float, optional
        β above, finite and at least 0; 1/√d_k by default.
    is_causal : bool
        Also hide every key that comes later than its query. The **last** query is aligned with the
        last key, which means that query i sees key j if j ≤ i + n_k − n_q, as in `masking.causal`.

    Returns
    -------
    array, shape (..., n_q, n_k)
        Weights in the dtype of `query`. They are at least 0, and each row sums to 1; a fully
        masked row is 0. float16 and bfloat16 are computed in float32 and rounded once at the end.

    Raises
    ------
    TypeError
        If the inputs are not arrays of one library and one real floating dtype, the mask is not
        boolean, the bias is boolean, the scale is not a real number, or `is_causal` is not a bool.
    ValueError
        If the shapes do not match, the arrays are on different devices, the scale is negative,
        infinite or NaN, or d_k = 0 and no scale is given.

    Notes
    -----
    n_q, n_k and any leading axis may be 0. A score of NaN or +∞ makes its whole row NaN. Masking
    sets a score to −∞ whatever it was before. However, PyTorch's gradient with respect to a query
    multiplies every key by its weight, and 0 · NaN is NaN, so keep NaN and infinities out of
    masked keys, too. The values of `bias` are not checked.
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
    n_leading = max(query.ndim, key.ndim) - 2
    seen, is_causal = visible(mask, query.shape[-2], key.shape[-2], is_causal, n_leading)
    weights = weights_of(query, key, dense(seen, query), bias, scale, is_causal)
    return array_namespace(query).astype(weights, query.dtype, copy=False)


def attention(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    mask: Mask | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    impl: kernels.Impl = kernels.REFERENCE,
) -> Annotated[Array, "... n_q d_v"]:
    r"""Return for each query a mean of the values, weighted by how well their keys match.

    .. math:: O = \operatorname{softmax}(\beta\,QK^\top + B)\,V, \qquad \beta = 1/\sqrt{d_k}

    Parameters
    ----------
    query, key, mask, bias, scale, is_causal
        As in `attention_weights`. In `mask`, **True = may attend.** An array broadcasts, whereas
        the leading axes of a rule are the first axes, those of the sequences.
    value : array, shape (..., n_k, d_v)
        One row per key, of any width d_v, in the library, device and dtype of `query`.
    impl : str or callable
        The implementation: ``"reference"``, the first rung of `attnbook.kernels.LADDER`, whose
        source the book prints, or a faster rung. No rung falls back to another, and `backends`
        says which ones can run on your machine. You can also pass a function of your own,
        ``f(query, key, value, mask, bias, scale, is_causal)``, so that your attention runs inside
        any model of this package. For example, a `kernels.Recorder` keeps the attention weights.

    Returns
    -------
    array, shape (..., n_q, d_v)
        Has the library, device and dtype of `query`. A fully masked query gets zeros. Under
        ``torch.autocast``, the rungs with a backward pass return the dtype of autocast, as
        PyTorch's own function does.

    Raises
    ------
    TypeError, ValueError
        As in `attention_weights`, and if `impl` is unknown or does not take these arrays. The
        backward pass of ``"packed"`` raises ValueError for scores beyond ±10⁹.
    ImportError
        If `impl` needs a package that is not installed; the message says how to install it.

    Notes
    -----
    Each row of the result lies in the convex hull of the values that its query may see (claim 5).
    A value is multiplied by its weight even where the weight is 0, and 0 · NaN is NaN, so a NaN or
    an infinity in `value` reaches every query, masked or not. From ``"tiled"`` on, hidden values
    may not even be read, and then they reach no query.
    Gradients flow through PyTorch's autograd and stay finite in fully masked rows; for the other
    libraries, `attention_vjp` computes them.
    Cost: O(n_q n_k (d_k + d_v)) time and O(n_q n_k) memory. From ``"tiled"`` on, the memory in
    addition to the result grows only with n_q + n_k. Those rungs compute no gradient with respect
    to `bias`, and their backward pass reads the result, so PyTorch does not let you change the
    result in place.
    From ``"in_place"`` on, the division comes last, so a mean of values near the largest number of
    the dtype may overflow. ``"packed"`` sums each score in one chain. Up to d_k = 256 its
    error stays within twice that of PyTorch in float32; for larger d_k it grows.

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
    seen: Any = mask
    if hasattr(mask, "intervals"):  # a rule
        n_leading = max(query.ndim, key.ndim) - 2
        seen, is_causal = visible(mask, query.shape[-2], key.shape[-2], is_causal, n_leading)
    return kernels.attention(impl, query, key, value, seen, bias, scale, is_causal)


def attention_vjp(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    grad_output: Annotated[Array, "... n_q d_v"],
    mask: Mask | None = None,
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
        As in `attention`: the reference, or a rung with a backward pass (``"tiled"``,
        ``"packed"``, ``"triton"``), which recomputes the weights tile by tile from what the
        forward pass stored.

    Returns
    -------
    grad_query, grad_key, grad_value : arrays
        Have the shapes and the dtype of `query`, `key` and `value`; leading axes that were
        broadcast are summed. A fully masked query has a gradient of 0 and contributes nothing to
        the gradients of keys and values.

    Raises
    ------
    TypeError, ValueError
        As in `attention`, and ValueError if `grad_output` does not have the shape of its output.
        ``"packed"`` also raises ValueError for scores beyond ±10⁹.

    Notes
    -----
    Use it with libraries that have no autograd (NumPy, CuPy); the result equals that of PyTorch's
    autograd up to rounding. If the inputs are tensors, the compiled ``"packed"`` and ``"triton"``
    return detached tensors.
    Cost: O(n_q n_k (d_k + d_v)) time, O(n_q n_k) memory, about 2.5 times that of `attention`.
    The chapter `single_head` derives the formulas.

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
    n_leading = max(query.ndim, key.ndim) - 2
    seen, is_causal = visible(mask, query.shape[-2], key.shape[-2], is_causal, n_leading)
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
        grads = _attention_vjp(q, k, v, grad_output, dense(seen, query), bias, scale, is_causal)
    else:
        rest = (grad_output, seen, bias, scale, is_causal)
        grads = kernels.attention_vjp(impl, query, key, value, *rest)
    summed = [
        xp.astype(sum_to_shape(grad, tuple(x.shape)), x.dtype, copy=False)
        for grad, x in zip(grads, (query, key, value), strict=True)
    ]
    return tuple(summed)
