r"""Sketch attention as a function. It is called as `attention` is, and tables choose the keys."""

import math
from typing import Annotated, Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_bool, check_int
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes
from attnbook.arrays.attention_arguments import array_of, check_attention
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.sketch.engines import ENGINES
from attnbook.sketch.evidence import Evidence
from attnbook.sketch.queries import answer, joined
from attnbook.sketch.scored_keys import score_keys
from attnbook.sketch.state import Settings, SketchState
from attnbook.sketch.updates import update
from attnbook.sketch.visible_keys import Visible


def sketch_attention(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    mask: Mask | None = None,
    *,
    hash: Any,
    is_causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    return_evidence: bool = False,
    **options: Any,
) -> Any:
    r"""Return attention over the keys that hash tables find for each query.

    .. math:: \hat O_i = \sum_{j \in R_i} w_{ij}\, v_j, \qquad
              R_i = \{\, j : \operatorname{hash}_t(k_j)
              = \operatorname{hash}_t(q_i) \text{ for some table } t \,\}

    Parameters
    ----------
    query : array, shape (..., n_q, d_k)
    key : array, shape (..., n_k, d_k)
    value : array, shape (..., n_k, d_v)
        Leading axes broadcast. Each sequence has tables of its own, with the same hash.
    mask : boolean array that broadcasts to (..., n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.** Keys that no query may see are not put into the tables. A mask that
        differs between queries needs impl ``"reference"``.
    hash : SimHash, StableHash, LiftedHash, GivenHash or your own
        For vectors of width d_k, in the library of `query`; with impl ``"cupy"`` a `SimHash` or
        `StableHash` may be of any.
    is_causal : bool
        A query attends to keys up to its own place, and the last query to all keys. So the mask is
        aligned to the last key where n_q ≠ n_k.
    window : int
        With `is_causal`, at least the last `window` keys of a query are scored without the tables.
        Queries are taken in runs of `window`, and a run asks the tables for what lies behind all of
        it. So the last query of a run scores 2 `window` - 1 keys by itself.
    scale : float, optional
        1/√d_k by default.
    return_evidence : bool
        Whether to return `Evidence` too, with arrays of shape (..., n_q).
    **options
        Those of `SketchAttention`: estimator, seed, impl, n_probes (1 with impl ``"cupy"``).

    Returns
    -------
    array, shape (..., n_q, d_v)
        Of the library, device and dtype of `query`, and zeros where nothing was found. With
        `return_evidence` it comes in a pair with `Evidence`.

    Raises
    ------
    TypeError, ValueError
        As in `attention` and `SketchAttention`; if `window` is given without `is_causal` or with
        another estimator than ``"union"``.

    Notes
    -----
    The hash costs O((n_q + n_k) d L κ), and each key that is scored O(d_k + d_v).

    References
    ----------
    Chapter `sketch`.

    Examples
    --------
    >>> from attnbook import attention
    >>> from attnbook.sketch import SimHash
    >>> x = 2 * np.random.default_rng(0).standard_normal((500, 8))
    >>> hash = SimHash.init(0, 8, n_tables=16, n_projections=4)
    >>> exact = attention(x, x, x)
    >>> error = np.linalg.norm(sketch_attention(x, x, x, hash=hash) - exact)
    >>> bool(error < 0.1 * np.linalg.norm(exact))
    True
    """
    check_attention({"query": query, "key": key, "value": value}, mask, None, scale)
    check_bool("return_evidence", return_evidence)
    settings = Settings(hash, scale=scale, **options)
    _check_window(
        settings, check_bool("is_causal", is_causal), check_int("window", window, at_most=2**62)
    )
    engine = ENGINES[settings.impl](hash, settings.n_probes)
    xp = array_namespace(query)
    n_q, n_k, d_v = query.shape[-2], key.shape[-2], value.shape[-1]
    stacks = [query, key, value]
    seen = array_of(mask, n_q, n_k, query)
    if seen is not None:
        rows = 1 if seen.ndim < 2 else seen.shape[-2]
        stacks.append(xp.broadcast_to(seen, (*seen.shape[:-2], rows, n_k)))
    leading: tuple[int, ...] = ()
    for x in stacks:
        leading = broadcast_shapes(leading, tuple(x.shape[:-2])) or ()
    if 0 in (*leading, n_q, n_k):
        return _nothing(query, (*leading, n_q), n_k, d_v, return_evidence)
    n_heads = math.prod(leading)  # not -1, which no shape with a 0 allows
    flat = [
        xp.reshape(xp.broadcast_to(x, (*leading, *x.shape[-2:])), (n_heads, *x.shape[-2:]))
        for x in stacks
    ]
    heads = [
        _attend(
            SketchState(settings, engine),
            *(is_causal, window, return_evidence),
            *(x[i, ...] for x in flat),
        )
        for i in range(n_heads)
    ]
    whole, shape = joined(heads), (*leading, n_q)
    output = xp.astype(xp.reshape(whole.output, (*shape, d_v)), query.dtype, copy=False)
    if not return_evidence:
        return output
    return output, Evidence(n_k, *(xp.reshape(x, shape) for x in whole.evidence))


def _attend(state, is_causal, window, with_evidence, query, key, value, mask=None):
    """Return the answer to one sequence of queries (n_q, d_k)."""
    xp = array_namespace(query)
    n_q, n_k = query.shape[0], key.shape[0]
    before = np.clip(np.arange(n_q) + n_k - n_q + 1, 0, n_k) if is_causal else None
    if mask is not None:  # keys that nobody may see stay out, and the others move together
        seen = move(xp.any(mask, axis=0), "numpy")
        rows = placed(np.nonzero(seen)[0], key)
        key, value = xp.take(key, rows, axis=0), xp.take(value, rows, axis=0)
        # one row for all queries: what is left is visible to all of them
        mask = None if mask.shape[0] == 1 else xp.take(mask, rows, axis=1)
        if before is not None:
            before = np.concatenate([[0], np.cumsum(seen)])[before]
    if mask is not None and state.settings.impl != "reference":
        raise ValueError(
            "mask must be the same for all queries, of shape (..., 1, n_k), with impl other than "
            f"'reference', got {tuple(mask.shape)}"
        )
    update(state, key, value)
    if not window:
        limits = None if before is None else placed(before, query)
        return answer(state, query, Visible(limits, mask), with_evidence)
    return joined(list(_runs(state, query, before, mask, window, with_evidence)))


def _runs(state, query, before, mask, window, with_evidence):
    """Yield the answers to runs of queries, whose last keys are scored one by one."""
    xp = array_namespace(query)
    for start in range(0, query.shape[0], window):
        part = slice(start, min(start + window, query.shape[0]))
        first, last = max(int(before[start]) - window, 0), int(before[part.stop - 1])
        limits = placed(before[part], query)
        seen = Visible(limits, None if mask is None else mask[part, :])
        near = score_keys(state, query[part, :], placed(np.arange(first, last), query), seen)
        behind = Visible(xp.full_like(limits, first), seen.mask)
        yield answer(state, query[part, :], behind, with_evidence, window=near)


def _nothing(query, shape, n_k, d_v, return_evidence):
    xp = array_namespace(query)
    device = array_api_compat.device(query)
    output = xp.zeros((*shape, d_v), dtype=query.dtype, device=device)
    zeros = xp.zeros(shape, dtype=query.dtype, device=device)
    return (output, Evidence.of_nothing(n_k, zeros)) if return_evidence else output


def _check_window(settings, is_causal, window):
    if window and not is_causal:
        raise ValueError(f"window must be 0 without is_causal, got {window}")
    if window and settings.estimator != "union":
        raise ValueError(f"estimator must be 'union' with a window, got {settings.estimator!r}")
