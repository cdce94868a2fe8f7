"""Form *numba*: the chunks of `chunks` in loops that are compiled for this processor.

Nothing but the state leaves the inner caches between two chunks. What a chunk writes with the delta
rule is solved row by row, forward. Threads share the heads. Computes in float32.
"""

import numpy as np

from attnbook.arrays.array import Array, library
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_fused, compile_loops, read_only
from attnbook.kernels.numba_loops.arrays import plain, restored
from attnbook.kernels.numba_loops.panels import exp
from attnbook.linear_attention.arguments import LENGTH, Tokens
from attnbook.linear_attention.numba_products import product

_ZERO = np.float32(0)


def compiled(tokens: Tokens, half: bool) -> tuple[Array, Array]:
    """Return the output and the last state, of the library of the tokens."""
    like = tokens.query
    where = getattr(like.device, "type", "cpu")
    if library(like) not in ("numpy", "torch") or where != "cpu":
        raise ValueError(
            'impl="numba" takes NumPy arrays and PyTorch tensors on the CPU, '
            f"got {library(like)} on {like.device}"
        )
    *leading, n, d_k = like.shape
    d_v, heads = tokens.value.shape[-1], int(np.prod(leading))
    shapes = ((n, d_k), (n, d_k), (n, d_v), (n,), (n,), (d_k, d_v))
    beta = tokens.log_decay if tokens.beta is None else tokens.beta
    arrays = [plain(x) for x in (*tokens[:4], beta, tokens.state)]
    flat = [x.reshape(heads, *shape) for x, shape in zip(arrays, shapes, strict=True)]
    query, key, value, log_decay, beta = (read_only(x) for x in flat[:5])
    state, output = flat[5].copy(), np.empty((heads, n, d_v), np.float32)
    options = (tokens.beta is not None, bool(np.any(log_decay)))

    def take(start: int, stop: int, part: int) -> None:
        for h in range(start, stop):
            each = (query[h], key[h], value[h], log_decay[h], beta[h], state[h], output[h])
            read_head(*each, *options)

    if min(n, d_k, d_v) > 0:
        in_parts(take, heads, min(max(heads, 1), n_threads_for(heads * n, worth=2**11)))
    else:
        output[...] = 0
    joined = (output.reshape(*leading, n, d_v), state.reshape(*leading, d_k, d_v))
    return restored(joined[0], like), restored(joined[1], like)


@compile_fused
def decay_pairs(pairs, g, rows):
    """Multiply row i, column j of a square by e**(g_i - g_j); clear it above the diagonal."""
    for i in range(rows):
        for j in range(pairs.shape[1]):
            pairs[i, j] = pairs[i, j] * exp(g[i] - g[j]) if j <= i else _ZERO


@compile_loops
def read_head(query, key, value, log_decay, beta, state, output, erases, decays):
    """Read the tokens of one head, and leave its last state in `state`."""
    n, d_k = query.shape
    d_v = value.shape[1]
    keys, queries = key.reshape(n * d_k), query.reshape(n * d_k)
    turned = np.zeros((d_k, LENGTH), np.float32)
    inside = np.zeros((LENGTH, LENGTH), np.float32)
    overlap = np.zeros((LENGTH, LENGTH), np.float32)
    written = np.zeros((LENGTH, d_v), np.float32)
    read = np.zeros((LENGTH, d_v), np.float32)
    added = np.zeros((d_k, d_v), np.float32)
    g = np.zeros(LENGTH, np.float32)
    for start in range(0, n, LENGTH):
        rows, at = min(LENGTH, n - start), start * d_k
        total = _ZERO
        for i in range(LENGTH):
            total += log_decay[start + i] if i < rows else _ZERO
            g[i] = total
            for c in range(d_k):
                turned[c, i] = key[start + i, c] if i < rows else _ZERO
        product(queries, at, d_k, 1, turned, inside, rows, LENGTH, d_k)
        if decays:
            decay_pairs(inside, g, rows)
        else:
            for i in range(rows):
                inside[i, i + 1 :] = _ZERO
        if erases:
            product(keys, at, d_k, 1, turned, overlap, rows, LENGTH, d_k)
            if decays:
                decay_pairs(overlap, g, rows)
            product(keys, at, d_k, 1, state, written, rows, d_v, d_k)
            for i in range(rows):
                b = beta[start + i]
                grown = b * exp(g[i])
                for c in range(d_v):
                    written[i, c] = b * value[start + i, c] - grown * written[i, c]
                for j in range(i):
                    share = b * overlap[i, j]
                    for c in range(d_v):
                        written[i, c] -= share * written[j, c]
        else:
            for i in range(rows):
                written[i] = value[start + i]
        product(queries, at, d_k, 1, state, read, rows, d_v, d_k)
        pairs = inside.reshape(LENGTH * LENGTH)
        here = output[start : start + rows]
        product(pairs, 0, LENGTH, 1, written, here, rows, d_v, rows)
        for i in range(rows):
            grown = exp(g[i])
            for c in range(d_v):
                here[i, c] += grown * read[i, c]
            left = exp(total - g[i])
            for c in range(d_v):
                written[i, c] *= left
        product(keys, at, 1, d_k, written, added, d_k, d_v, rows)
        grown = exp(total)
        for c in range(d_k):
            for e in range(d_v):
                state[c, e] = grown * state[c, e] + added[c, e]
