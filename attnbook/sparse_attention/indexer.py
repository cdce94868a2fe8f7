r"""The lightning indexer: cheap scores of all keys, and the loss that teaches them.

.. math:: I_{ij} = \sum_h w_{hi} \operatorname{ReLU}(q_{hi} \cdot k_j)
"""

from typing import Annotated, Any

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.attention_arguments import array_of, check_mask
from attnbook.single_head.softmax import log_softmax_of


def indexer_scores(
    query: Annotated[Array, "... h n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    weight: Annotated[Array, "... h n_q"],
) -> Annotated[Array, "... n_q n_k"]:
    r"""Score every key for every query by a few narrow heads that share their keys.

    .. math:: I_{ij} = \sum_h w_{hi} \operatorname{ReLU}(q_{hi} \cdot k_j)

    Parameters
    ----------
    query : array, shape (..., h, n_q, d_k), real floating dtype
        Queries of the h heads of the indexer, which are far narrower than those of attention.
    key : array, shape (..., n_k, d_k)
        One **index key** per token, which all heads share. Only index keys are cached.
    weight : array, shape (..., h, n_q)
        How much each head counts for each query, of any sign.

    Returns
    -------
    array, shape (..., n_q, n_k)
        Scores in the dtype of `query`. float16 and bfloat16 are computed in float32. Pass them to
        `top_keys`, with ``is_causal=True`` for a decoder.

    Raises
    ------
    TypeError
        If the arguments are not arrays of one library and one real floating dtype.
    ValueError
        If the shapes do not match, or the arrays are on different devices.

    Notes
    -----
    Leading axes broadcast, so queries of shape (h, n_q, d_k) and weights of shape (g, h, n_q)
    give scores for each of g KV heads from the same index keys.
    Cost: O(h n_q n_k d_k) time. It still grows with n_q n_k, but h d_k is small, and a query reads
    only d_k numbers per key.

    References
    ----------
    DeepSeek-AI (2025), "DeepSeek-V3.2-Exp: boosting long-context efficiency with DeepSeek sparse
    attention"; chapter `variants`.

    Examples
    --------
    >>> import numpy as np
    >>> query = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])  # two heads, one query
    >>> key = np.array([[2.0, 5.0], [-2.0, 3.0]])
    >>> indexer_scores(query, key, np.array([[1.0], [0.5]]))
    array([[4.5, 1.5]])
    """
    check_floats(query=query, key=key, weight=weight)
    for name, x, axes, least in (
        ("query", query, "h, n_q, d_k", 3),
        ("key", key, "n_k, d_k", 2),
        ("weight", weight, "h, n_q", 2),
    ):
        if x.ndim < least:
            raise ValueError(f"{name} must have shape (..., {axes}), got {tuple(x.shape)}")
    *_, h, n_q, d_k = query.shape
    if key.shape[-1] != d_k:
        raise ValueError(
            f"key must have shape (..., n_k, {d_k}) to match query, got {tuple(key.shape)}"
        )
    if tuple(weight.shape[-2:]) != (h, n_q):
        raise ValueError(
            f"weight must have shape (..., {h}, {n_q}) to match query, got {tuple(weight.shape)}"
        )
    leading = [tuple(query.shape[:-3]), tuple(key.shape[:-2]), tuple(weight.shape[:-2])]
    if broadcast_shapes(*leading) is None:
        listed = ", ".join(map(str, leading))
        raise ValueError(f"leading axes must broadcast, got {listed}")
    scores = indexer_scores_of(*map(to_accumulate, (query, key, weight)))
    return array_namespace(query).astype(scores, query.dtype, copy=False)


def indexer_scores_of(query: Array, key: Array, weight: Array) -> Array:
    xp = array_namespace(query)
    products = xp.matmul(query, xp.matrix_transpose(key)[..., None, :, :])  # (..., h, n_q, n_k)
    positive = xp.where(products > 0, products, xp.zeros_like(products))
    return xp.sum(weight[..., None] * positive, axis=-3)


def indexer_loss(
    scores: Annotated[Array, "... n_q n_k"],
    weights: Annotated[Array, "... n_q n_k"],
    mask: Mask | None = None,
) -> Annotated[Array, "... n_q"]:
    r"""Return how far the softmax of an indexer's scores is from true attention weights.

    .. math:: \mathrm{KL}_i = \sum_j p_{ij}
              \bigl(\log p_{ij} - \log \operatorname{softmax}(I)_{ij}\bigr)

    Parameters
    ----------
    scores : array, shape (..., n_q, n_k), real floating dtype
        What `indexer_scores` returns.
    weights : array, shape (..., n_q, n_k), of the dtype of `scores`
        Attention weights p, such as the mean over all heads that share a selection. Each row
        sums to 1, or is 0 where nothing is visible.
    mask : boolean array that broadcasts to (..., n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.** The softmax of the scores covers only these keys.

    Returns
    -------
    array, shape (..., n_q)
        The Kullback–Leibler divergence of each query, in the dtype of `scores`; 0 for a row of
        zeros. It is infinite where a weight stands at a masked key.

    Raises
    ------
    TypeError
        If the arrays are not of one library and one real floating dtype, or the mask is not
        boolean.
    ValueError
        If the shapes differ, or the mask does not broadcast to them.

    Notes
    -----
    Do not let gradients flow into `weights`: the indexer learns from attention, and attention does
    not learn from it.
    Cost: O(n_q n_k) time and memory.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.zeros((2, 2))  # the softmax is 1/2 for both keys
    >>> indexer_loss(scores, np.array([[1.0, 0.0], [0.75, 0.25]])).round(4)
    array([0.6931, 0.1308])
    """
    check_floats(scores=scores, weights=weights)
    if scores.ndim < 2:
        raise ValueError(f"scores must have shape (..., n_q, n_k), got {tuple(scores.shape)}")
    if tuple(weights.shape) != tuple(scores.shape):
        raise ValueError(
            f"weights must have the shape of scores {tuple(scores.shape)}, "
            f"got {tuple(weights.shape)}"
        )
    seen: Any = mask
    if mask is not None:
        check_mask(mask, scores, tuple(scores.shape), query_name="scores")
        seen = array_of(mask, scores.shape[-2], scores.shape[-1], scores)
    loss = indexer_loss_of(to_accumulate(scores), to_accumulate(weights), seen)
    return array_namespace(scores).astype(loss, scores.dtype, copy=False)


def indexer_loss_of(scores: Array, weights: Array, mask: Array | None) -> Array:
    xp = array_namespace(scores)
    if mask is not None:
        scores = xp.where(mask, scores, xp.full_like(scores, -xp.inf))
    counts, zeros = weights > 0, xp.zeros_like(weights)
    log_q = xp.where(counts, log_softmax_of(scores, -1), zeros)  # elsewhere it may be -inf
    log_p = xp.log(xp.where(counts, weights, xp.ones_like(weights)))
    return xp.sum(weights * (log_p - log_q), axis=-1)
