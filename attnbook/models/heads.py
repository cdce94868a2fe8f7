"""What a head attends to: the keys of a job for each query, and how much weight they get.

A job, such as *attend to the previous token*, is a boolean array (n, n), which is True where a head
with this job would attend. `head_scores` says how much of its attention each head puts there.
"""

from collections.abc import Sequence
from typing import Annotated

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_array, check_float, check_ids, check_same_home
from attnbook.arrays.array import (
    Array,
    array_namespace,
    broadcast_shapes,
    dtype_name,
    to_accumulate,
)


def head_scores(
    A: Annotated[Array, "... n_q n_k"], targets: Annotated[Array, "..."]
) -> Annotated[Array, "..."]:
    r"""Return the mean attention that each head puts on `targets`, from 0 to 1.

    .. math:: \frac{1}{|R|} \sum_{i \in R}\, \sum_{j:\, T_{ij}} A_{ij},
        \qquad R = \{ i : T_{ij} \text{ for some } j \}

    Parameters
    ----------
    A : array, shape (..., n_q, n_k)
        Attention weights, such as those of all layers and heads, (layers, heads, n, n).
    targets : boolean array T that broadcasts to (..., n_q, n_k)
        True where a query of this job would attend. A query without such a key is not counted.

    Returns
    -------
    array, shape (...)
        The score of each head, or NaN if no query is counted.

    Raises
    ------
    TypeError
        If `A` is not a floating array, or `targets` is not a boolean array of the same library.
    ValueError
        If `A` has fewer than 2 axes, or `targets` does not broadcast to its shape.

    Notes
    -----
    Compare the score with that of uniform attention, because a job with many targets gets a high
    score even from heads that do not do it.
    Cost: O(n_q n_k) for each head.

    References
    ----------
    Olsson et al. (2022), "In-context learning and induction heads"; chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[1.0, 0, 0], [0.8, 0.2, 0], [0.1, 0.7, 0.2]])
    >>> float(head_scores(A, previous_token(np.array([4, 5, 6]))))
    0.75
    """
    check_float("A", A)
    check_same_home("targets", targets, "A", A)
    xp = array_namespace(A)
    if not xp.isdtype(targets.dtype, "bool"):
        raise TypeError(f"targets must be boolean, got {dtype_name(targets.dtype)}")
    shape, got = tuple(A.shape), tuple(targets.shape)
    if A.ndim < 2:
        raise ValueError(f"A must have shape (..., n_q, n_k), got {shape}")
    if broadcast_shapes(got, shape) != shape:
        raise ValueError(f"targets must broadcast to the shape of A, {shape}, got {got}")
    targets = xp.broadcast_to(targets, shape)
    wide = to_accumulate(A)
    there = xp.sum(xp.where(targets, wide, xp.zeros_like(wide)), axis=(-2, -1))
    counted = xp.astype(xp.count_nonzero(xp.any(targets, axis=-1), axis=-1), wide.dtype)
    share = xp.where(counted == 0, xp.nan, there / xp.where(counted == 0, 1.0, counted))
    return xp.astype(share, A.dtype, copy=False)


def previous_token(ids: Annotated[Array, "n"]) -> Annotated[Array, "n n"]:
    """Return the job *previous token*: each token attends to the token before it.

    Parameters
    ----------
    ids : array of integers, shape (n,)

    Returns
    -------
    boolean array, shape (n, n)
        True where a query would attend. The first token attends to nothing.
    """
    own, keys = _places(ids)
    return keys == own - 1


def first_token(ids: Annotated[Array, "n"]) -> Annotated[Array, "n n"]:
    """Return the job *attention sink*: each later token attends to the first one.

    The parameters and the result are those of `previous_token`. The first two tokens attend to
    nothing, because token 0 sees only itself, and for token 1 the first token is also the previous
    one.
    """
    own, keys = _places(ids)
    return (keys == 0) & (own > 1)


def same_token(ids: Annotated[Array, "n"]) -> Annotated[Array, "n n"]:
    """Return the job of a *duplicate-token head*: attend to earlier occurrences of the same token.

    The parameters and the result are those of `previous_token`. The previous and the first token
    are left to the jobs with these names.
    """
    own, keys = _places(ids)
    return _equal(ids) & (keys > 0) & (keys < own - 1)


def induction(ids: Annotated[Array, "n"]) -> Annotated[Array, "n n"]:
    """Return the job of an *induction head*: attend to what followed earlier copies of the token.

    A head that has seen ``Romeo loves`` and reads ``Romeo`` again attends to ``loves``, and the
    model may copy it. The parameters and the result are those of `previous_token`. The previous and
    the first token are left to the jobs with these names.
    """
    own, keys = _places(ids)
    # column j: whether the token before j is that of the query
    after = array_namespace(ids).roll(_equal(ids), 1, axis=1)
    return after & (keys > 0) & (keys < own - 1)


def own_speaker(tokens: Sequence[str]) -> Annotated[np.ndarray, "n n"]:
    r"""Return the job *own speaker*: each token of a speech attends to the speaker's name above it.

    Parameters
    ----------
    tokens : sequence of n str
        The tokens of a play, in which a speech is ``"NAME:\nline\nline\n\n"``.

    Returns
    -------
    boolean NumPy array, shape (n, n)
        True where a query would attend. The names themselves attend to nothing, and neither does a
        speech whose name is not among the tokens. The previous and the first token are left to the
        jobs with these names.

    Examples
    --------
    >>> own_speaker(["\n", "PUCK", ":", "\n", "Lord", "\n\n"]).astype(int)[:, 1]
    array([0, 0, 0, 1, 1, 1])
    """
    _check_tokens(tokens)
    targets = np.zeros((len(tokens), len(tokens)), dtype=bool)
    name, start = None, 0
    for i, token in enumerate(tokens):
        if name is not None:
            targets[i, name] = True
        elif ":" in token:
            name = slice(start, i)
        elif "\n" in token:  # an empty line before the name, or lines without a name
            name, start = (None, i + 1) if i == start else (slice(0), start)
        if token.endswith("\n\n"):
            name, start = None, i + 1
    return targets & _further_back(len(tokens))


def line_start(tokens: Sequence[str]) -> Annotated[np.ndarray, "n n"]:
    r"""Return the job *line start*: each token attends to the line break before its own line.

    The parameters and the result are those of `own_speaker`. A line break attends to the line break
    before it.

    Examples
    --------
    >>> line_start(["No", "\n", "Lord", ",", "\n", "my"]).astype(int)[:, 1]
    array([0, 0, 0, 1, 1, 0])
    """
    _check_tokens(tokens)
    targets = np.zeros((len(tokens), len(tokens)), dtype=bool)
    start = None
    for i, token in enumerate(tokens):
        if start is not None:
            targets[i, start] = True
        if "\n" in token:
            start = i
    return targets & _further_back(len(tokens))


def _check_tokens(tokens):
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise TypeError(f"tokens must be a sequence of str, got {type(tokens).__name__}")


def _further_back(n):
    """Return the earlier keys that are neither the first nor the previous token."""
    place = np.arange(n)
    return (place > 0) & (place < place[:, None] - 1)


def _places(ids):
    check_array("ids", ids)
    check_ids("ids", ids, None, "ids", ids)
    if ids.ndim != 1:
        raise ValueError(f"ids must have shape (n,), got {tuple(ids.shape)}")
    xp = array_namespace(ids)
    place = xp.arange(ids.shape[0], device=array_api_compat.device(ids))
    return place[:, None], place[None, :]


def _equal(ids):
    return ids[:, None] == ids[None, :]
