"""The backward pass of the rungs *numba* and *packed*: arrays in, pieces of work, arrays out.

The loops are in `backward`. A piece of work is a range of keys and a range of queries of one
key head, with all query heads that share it, so that nothing is written by two threads. What
several pieces give to one gradient is added at the end in the order of the pieces: the bits depend
on the shapes alone, not on the number of threads.

References: Dao et al. (2022), "FlashAttention", appendix B.4; Dao (2023), "FlashAttention-2",
section 3.1.2. Agrees with `attnbook.attention_vjp` with ``impl="reference"``.

Memory beside the gradients: a few numbers a query, less than 1 MiB a thread, and with fewer key
heads than `PIECES` as many copies of the gradient of the queries as pieces of keys, at most 16.
"""

import itertools
import math

import numpy as np

from attnbook.arrays.arguments import broadcast_shapes, dtype_name, library, sum_to_shape
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import read_only
from attnbook.compilers.register_tiles import Tile, lanes
from attnbook.kernels.numba_loops import backward as loops

TILES = {16: Tile(16, 12, 2), 8: Tile(8, 6, 2), 4: Tile(4, 6, 2)}
"""By numbers in a vector: 24 of AVX-512's 32 registers hold sums, 12 of 16 elsewhere."""

PIECES = 8
"""With fewer key heads than that, keys are split too, into twice as many pieces in all."""

LARGEST = 1e9
"""Beside larger scores a float64 loses the logarithm of their total."""

WORTH = 2**22
"""Multiply-adds that are worth a thread."""


def portable(query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output):
    """Return the gradients of query, key and value, by loops that any compiler makes vectors of."""
    rows = (output, log_total, grad_output)
    return _backward(None, query, key, value, mask, bias, scale, is_causal, *rows)


def packed(query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output):
    """Return the gradients of query, key and value, by products that stay in registers."""
    rows = (output, log_total, grad_output)
    return _backward(TILES[lanes()], query, key, value, mask, bias, scale, is_causal, *rows)


def _backward(tile, query, key, value, mask, bias, scale, is_causal, output, log_total, grad):
    inputs = (query, key, value)
    q, k, v, bias, output, grad = (_float32(x) for x in (*inputs, bias, output, grad))
    rows = (output, _numpy(log_total), grad)
    mask = None if mask is None else _numpy(mask)
    gradients = _gradients(tile, q, k, v, mask, bias, scale, is_causal, *rows)
    return tuple(
        _like(sum_to_shape(grad, tuple(x.shape)), x)
        for grad, x in zip(gradients, inputs, strict=True)
    )


def _gradients(tile, q, k, v, mask, bias, scale, is_causal, output, log_total, g):
    """Return the gradients in float32, with leading axes that sum to those of the inputs."""
    d_q = q.shape[-1]
    if d_q == 0:  # all scores are 0, as with a column of zeros
        q, k = (np.zeros((*x.shape[:-1], 1), dtype=np.float32) for x in (q, k))
    (n_q, d_k), (n_k, d_v) = q.shape[-2:], v.shape[-2:]
    rules = (mask is not None, bias is not None, bool(is_causal))
    mask, bias = _matrices(mask, np.bool_), _matrices(bias, np.float32)
    leading, of_keys, heads = _heads(q, k, v, mask, bias)
    n_heads, n_key_heads = math.prod(leading), len(heads)
    wanted = 1 if n_key_heads >= PIECES else -(-2 * PIECES // max(1, n_key_heads))
    keys = _split(n_k, loops.KEYS, wanted)
    queries = _split(n_q, loops.QUERIES, -(-wanted // len(keys)))
    width = 1 if tile is None else tile.lanes * tile.vectors
    wide = d_k + -d_k % width
    grad_q = np.zeros((len(keys), n_heads, n_q, wide), dtype=np.float32)
    grad_k = np.zeros((len(queries), n_key_heads, n_k, d_k), dtype=np.float32)
    grad_v = np.zeros((len(queries), n_key_heads, n_k, d_v), dtype=np.float32)
    if n_heads * n_q * n_k * d_v:  # without any, all gradients are 0
        log_total = np.broadcast_to(log_total, (*leading, n_q, 1)).reshape(n_heads, n_q)
        log_total, factor = _rounded(log_total)
        mean = np.empty(n_heads * n_q, dtype=np.float32)
        loops.row_sums(_flat(output, 1), _flat(g, 1), factor.reshape(-1), mean)
        rows = (read_only(x) for x in (log_total, factor, mean.reshape(n_heads, n_q)))
        arrays = (*(_flat(x, 2) for x in (q, k, v, g)), *rows)
        rest = (arrays, _flat(mask, 2), _flat(bias, 2), rules, np.float32(scale))
        pieces = itertools.product(range(n_key_heads), range(len(keys)), range(len(queries)))
        todo = iter(list(pieces))

        def work(start, stop, part):
            for head, i, j in todo:  # whoever is free takes the next
                to = (grad_q[i], grad_k[j, head], grad_v[j, head])
                loops.backward_part(tile, width, heads[head], keys[i], queries[j], *rest, *to)

        n_products = n_heads * n_q * n_k * (3 * d_k + 2 * d_v)
        n_threads = n_threads_for(n_products, worth=WORTH)
        n_threads = min(n_threads, n_key_heads * len(keys) * len(queries))
        in_parts(work, n_threads, n_threads)
    grad_q = _sum(grad_q).reshape(*leading, n_q, wide)
    grad_k, grad_v = (_sum(x).reshape(*of_keys, *x.shape[2:]) for x in (grad_k, grad_v))
    return grad_q[..., :d_q], grad_k[..., :d_q], grad_v


def _rounded(log_total):
    """Return `log_total` in float32, and the factor of all weights that are made with that.

    A logarithm of 10 is rounded by up to 5e-7, and so much would all weights of its row be off. A
    row that sees nothing has log 0 = −∞, and gets exp(score − ∞) = 0.
    """
    empty = log_total == -np.inf
    largest = np.max(np.abs(log_total), initial=0, where=np.isfinite(log_total))
    if largest > LARGEST:
        raise ValueError(
            f"scores must be within ±{LARGEST:.0e} for these gradients, got {largest:.3g}; "
            "hide keys with mask=, not with a large negative bias"
        )
    rounded = np.where(empty, np.inf, log_total).astype(np.float32)
    factor = np.exp(np.where(empty, 0.0, rounded - log_total.astype(np.float64)))
    return rounded, factor.astype(np.float32)


def _heads(q, k, v, mask, bias):
    """Return the leading axes of the output and of the keys, and who shares which key head.

    The last is int64 (key heads, group, 6): of each query head its place in the output and in the
    flat q, k, v, mask and bias. Those of k and v are one for a group.
    """
    shapes = [x.shape[:-2] for x in (q, k, v, mask, bias)]
    leading = broadcast_shapes(*shapes[:3]) or ()
    of_keys = broadcast_shapes(*shapes[1:3]) or ()
    of_keys = (1,) * (len(leading) - len(of_keys)) + of_keys
    places = [
        np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), leading or (1,)).ravel()
        for shape in (leading, *shapes, of_keys)
    ]
    order = np.argsort(places.pop(), kind="stable")
    heads = np.stack(places, axis=-1).astype(np.int64)[order]
    n_key_heads = math.prod(of_keys)
    group = len(heads) // max(1, n_key_heads)
    return leading, of_keys, heads.reshape(n_key_heads, group, len(places))


def _split(n, size, wanted):
    """Return so many ranges of whole tiles that make up 0 … n, or fewer; at least one."""
    n_tiles = -(-n // size)
    pieces = max(1, min(wanted, n_tiles))
    bounds = [min(n, n_tiles * i // pieces * size) for i in range(pieces + 1)]
    return list(itertools.pairwise(bounds))


def _matrices(x, dtype):
    """Return an array with at least two axes, in which a number that strides repeat stands once."""
    x = np.zeros((1, 1)) if x is None else np.atleast_2d(x)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides)
    return np.ascontiguousarray(x[once], dtype=dtype)


def _flat(x, n_axes):
    """Return an array with one axis before its last `n_axes`."""
    return read_only(x.reshape(math.prod(x.shape[:-n_axes]), *x.shape[-n_axes:]))


def _sum(parts):
    """Return the sum over the first axis, in its order."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _numpy(x):
    """Return an array of NumPy, in a dtype that it has."""
    if library(x) != "torch":
        return x
    x = x.detach().resolve_neg()
    return (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy()


def _float32(x):
    return None if x is None else np.asarray(_numpy(x), dtype=np.float32)


def _like(grad, x):
    """Return a gradient as an array like `x`."""
    if library(x) == "torch":
        import torch

        return torch.from_numpy(np.ascontiguousarray(grad)).to(x.dtype)
    return np.ascontiguousarray(grad, dtype=x.dtype)
