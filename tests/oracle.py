"""What the package must compute, in float64 loops over single numbers, written from the formulas.

Slow and plain on purpose: no array function of the package or of NumPy does any mathematics here.
"""

import math

import numpy as np


def softmax_row(row):
    """Return exp(x) / Σ exp(x) of a list; zeros where every x is −∞, NaN where one is NaN or +∞."""
    row = [float(x) for x in row]
    if any(math.isnan(x) or x == math.inf for x in row):
        return [math.nan] * len(row)
    top = max(row, default=-math.inf)
    if top == -math.inf:
        return [0.0] * len(row)
    exponentials = [math.exp(x - top) for x in row]
    total = math.fsum(exponentials)
    return [e / total for e in exponentials]


def log_softmax_row(row):
    """Return x − log Σ exp(x) of a list, with the same conventions."""
    row = [float(x) for x in row]
    if any(math.isnan(x) or x == math.inf for x in row):
        return [math.nan] * len(row)
    top = max(row, default=-math.inf)
    if top == -math.inf:
        return row
    log_total = math.log(math.fsum(math.exp(x - top) for x in row))
    return [(x - top) - log_total for x in row]


def along(function, x, axis):
    """Apply `function` to every slice of `x` along `axis`."""
    x = np.moveaxis(np.asarray(x, dtype=np.float64), axis, -1)
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        out[index] = function(x[index])
    return np.moveaxis(out, -1, axis)


def softmax(x, axis=-1):
    return along(softmax_row, x, axis)


def log_softmax(x, axis=-1):
    return along(log_softmax_row, x, axis)


def scores(query, key, mask=None, bias=None, scale=None):
    """Return scale · q·k + bias, −∞ where the mask forbids, one pair at a time."""
    query, key = (np.asarray(x, dtype=np.float64) for x in (query, key))
    n_q, d_k = query.shape[-2:]
    n_k = key.shape[-2]
    scale = 1 / math.sqrt(d_k) if scale is None else float(scale)
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query = np.broadcast_to(query, (*leading, n_q, d_k))
    key = np.broadcast_to(key, (*leading, n_k, d_k))
    mask = np.broadcast_to(True if mask is None else mask, (*leading, n_q, n_k))
    bias = np.broadcast_to(0.0 if bias is None else bias, (*leading, n_q, n_k))
    out = np.full((*leading, n_q, n_k), -math.inf)
    for *lead, i, j in np.ndindex(out.shape):
        if mask[(*lead, i, j)]:
            products = (query[(*lead, i, a)] * key[(*lead, j, a)] for a in range(d_k))
            out[(*lead, i, j)] = scale * math.fsum(products) + bias[(*lead, i, j)]
    return out


def attention_weights(query, key, mask=None, bias=None, scale=None):
    return softmax(scores(query, key, mask, bias, scale))


def weighted_sum(weights, value):
    """Return Σ_j weights[i, j] · value[j, c] for every i and c."""
    weights, value = (np.asarray(x, dtype=np.float64) for x in (weights, value))
    n_q, n_k = weights.shape[-2:]
    d_v = value.shape[-1]
    leading = np.broadcast_shapes(weights.shape[:-2], value.shape[:-2])
    weights = np.broadcast_to(weights, (*leading, n_q, n_k))
    value = np.broadcast_to(value, (*leading, n_k, d_v))
    out = np.zeros((*leading, n_q, d_v))
    for *lead, i, c in np.ndindex(out.shape):
        products = (weights[(*lead, i, j)] * value[(*lead, j, c)] for j in range(n_k))
        out[(*lead, i, c)] = math.fsum(products)
    return out


def attention(query, key, value, mask=None, bias=None, scale=None):
    return weighted_sum(attention_weights(query, key, mask, bias, scale), value)


def project(x, matrix):
    """Return x @ matrix, one number at a time."""
    x, matrix = (np.asarray(a, dtype=np.float64) for a in (x, matrix))
    out = np.zeros((*x.shape[:-1], matrix.shape[1]))
    for *row, c in np.ndindex(out.shape):
        products = (x[(*row, a)] * matrix[a, c] for a in range(matrix.shape[0]))
        out[(*row, c)] = math.fsum(products)
    return out


def single_head_attention(query, key, value, W_Q, W_K, W_V, W_O=None, mask=None):
    """Return the output of the learned head and its weights."""
    q, k, v = project(query, W_Q), project(key, W_K), project(value, W_V)
    weights = attention_weights(q, k, mask)
    output = weighted_sum(weights, v)
    return (output if W_O is None else project(output, W_O)), weights


def as_it_is(x):
    return x


def multi_head_attention(
    query,
    key,
    value,
    W_Q,
    W_K,
    W_V,
    W_O,
    b_Q,
    b_K,
    b_V,
    b_O,
    n_heads,
    n_kv_heads,
    mask=None,
    rounded=as_it_is,
):
    """Return the output of all heads and the weights of each, one head after the other.

    `rounded` is applied to each projection and to the joined heads: what is kept in the dtype of
    the inputs.
    """

    def affine(x, matrix, bias):
        projected = rounded(project(x, matrix))
        return projected if bias is None else rounded(projected + bias)

    q, k, v = affine(query, W_Q, b_Q), affine(key, W_K, b_K), affine(value, W_V, b_V)
    d_k, d_v = W_Q.shape[1] // n_heads, W_V.shape[1] // n_kv_heads
    leading = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    shape = (*leading, n_heads, q.shape[-2], k.shape[-2])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    shares, outputs = np.zeros(shape), []
    for i in range(n_heads):
        j = math.floor(i * n_kv_heads / n_heads)  # the key and value head that head i reads
        of_query = q[..., [i * d_k + a for a in range(d_k)]]
        of_key = k[..., [j * d_k + a for a in range(d_k)]]
        of_value = v[..., [j * d_v + c for c in range(d_v)]]
        shares[..., i, :, :] = attention_weights(of_query, of_key, mask[..., i, :, :])
        outputs.append(weighted_sum(shares[..., i, :, :], of_value))
    joined = np.zeros((*outputs[0].shape[:-1], n_heads * d_v))
    for i, output in enumerate(outputs):
        for c in range(d_v):
            joined[..., i * d_v + c] = output[..., c]
    joined = rounded(joined)
    return (joined if W_O is None else affine(joined, W_O, b_O)), shares


def mask_of(n_q, n_k, sees):
    """Return the mask of a rule `sees(place, j)`; the last query stands beside the last key."""
    out = np.zeros((n_q, n_k), dtype=bool)
    for i in range(n_q):
        for j in range(n_k):
            out[i, j] = sees(i + n_k - n_q, j)
    return out


def finite_difference(function, x, step=1e-6):
    """Return the central difference of the number `function(x)` by every entry of `x`."""
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        out[index] = (function(up) - function(down)) / (2 * step)
    return out
