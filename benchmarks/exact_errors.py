"""Float64 attention and its gradients, on a sample that stays affordable for long sequences."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbook import move
from benchmarks import inputs

QUERIES, HEADS = 64, 8  # at most so many of each are compared
BLOCK = 512  # rows of scores at a time


def _some(n: int, at_most: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, at_most)).astype(int))


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, *x.shape[-2:])


def output_errors(
    rounded: Mapping[str, np.ndarray], is_causal: bool
) -> Callable[[Any], dict[str, float]]:
    """Return the function that compares an output with float64.

    It looks at 64 queries of 8 heads, the first and the last among them. `rounded` holds query of
    shape (..., n_q, d), and key and value whose leading axes broadcast with it. The output may have
    its leading axes split in another way.
    """
    query, key, value = (rounded[name] for name in ("query", "key", "value"))
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    # views: the keys of grouped heads are not repeated
    query, key, value = (np.broadcast_to(x, (*leading, *x.shape[-2:])) for x in (query, key, value))
    n_q, n_k = query.shape[-2], key.shape[-2]
    rows, heads = _some(n_q, QUERIES), _some(int(np.prod(leading)), HEADS)
    places = [np.unravel_index(head, leading) for head in heads]
    mask = np.arange(n_k) <= (rows + n_k - n_q)[:, np.newaxis] if is_causal else None
    expected = np.stack(
        [inputs.reference(query[at][rows], key[at], value[at], mask) for at in places]
    )

    def compare(output: Any) -> dict[str, float]:
        found = _flat(move(output, "numpy", dtype="float64"))
        return inputs.errors(found[np.ix_(heads, rows)], expected)

    return compare


def gradient_errors(
    rounded: Mapping[str, np.ndarray], is_causal: bool
) -> Callable[[Any], dict[str, float]]:
    """Return the function that compares an output and its three gradients with float64.

    It looks at all rows of the first head, and returns the largest error of the four arrays.
    """
    first = {name: _flat(x)[0] for name, x in rounded.items()}
    expected = gradients(**first, is_causal=is_causal)

    def compare(found: tuple[Any, ...]) -> dict[str, float]:
        arrays = [_flat(move(x, "numpy", dtype="float64"))[0] for x in found]
        each = [inputs.errors(x, y) for x, y in zip(arrays, expected, strict=True)]
        return {name: max(error[name] for error in each) for name in each[0]}

    return compare


def gradients(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, grad: np.ndarray, is_causal: bool
) -> tuple[np.ndarray, ...]:
    """Return output and gradients of query, key and value of one head, in blocks of rows."""
    n_q, n_k, scale = len(query), len(key), 1 / np.sqrt(query.shape[-1])
    output, grad_query = np.empty((n_q, value.shape[-1])), np.empty_like(query)
    grad_key, grad_value = np.zeros_like(key), np.zeros_like(value)
    for start in range(0, n_q, BLOCK):
        rows = slice(start, min(n_q, start + BLOCK))
        seen = slice(0, max(0, rows.stop + n_k - n_q) if is_causal else n_k)
        scores = query[rows] @ key[seen].T * scale
        if is_causal:
            last = np.arange(rows.start, rows.stop)[:, np.newaxis] + n_k - n_q
            scores[np.arange(seen.stop) > last] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output[rows] = weights @ value[seen]
        grad_value[seen] += weights.T @ grad[rows]
        grad_weights = grad[rows] @ value[seen].T
        mean = (grad[rows] * output[rows]).sum(axis=-1, keepdims=True)
        grad_scores = weights * (grad_weights - mean) * scale
        grad_query[rows] = grad_scores @ key[seen]
        grad_key[seen] += grad_scores.T @ query[rows]
    return output, grad_query, grad_key, grad_value
