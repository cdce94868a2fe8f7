r"""A sequence in chunks: products of matrices inside a chunk, and one state from chunk to chunk.

Inside a chunk of C tokens that begins with the state :math:`S_0`, with g the running sum of the
log-decays and :math:`\Gamma_{ij} = e^{g_i - g_j}` for j ≤ i,

.. math:: O = e^{g} \odot (Q S_0) + (QK^\top \odot \Gamma)\, \tilde V, \qquad
          S_C = e^{g_C} S_0 + (e^{g_C - g} \odot K)^\top \tilde V.

What is written, :math:`\tilde V`, is V where the state only adds. With the delta rule it is

.. math:: \tilde V = N\,(\beta \odot (V - e^{g} \odot K S_0)), \qquad
          N = (I + \beta \odot \operatorname{tril}(KK^\top \odot \Gamma, -1))^{-1}.

One chunk of all tokens is the parallel form, chunks of one token are the recurrence.
"""

from typing import Any, NamedTuple

from array_api_compat import device

from attnbook.arrays.array import Array, array_namespace
from attnbook.linear_attention.arguments import Tokens


class Chunks(NamedTuple):
    """The tokens in m chunks of C, and what all formulas of a chunk share."""

    query: Array  # (..., m, C, d_k)
    key: Array
    value: Array  # (..., m, C, d_v)
    beta: Array | None  # (..., m, C, 1)
    gamma: Array  # (..., m, C, C), 0 above the diagonal
    since_start: Array  # e^g, (..., m, C, 1)
    to_end: Array  # e^(g_C − g), (..., m, C, 1)
    whole: Array  # e^(g_C), (..., m, 1, 1)
    inverse: Array | None  # N, (..., m, C, C)


def _cut(x: Array, length: int) -> Array:
    """Cut axis -2 into chunks, the last one filled with zeros, which change no state."""
    xp = array_namespace(x)
    *leading, n, d = x.shape
    m = -(-n // length)
    if missing := m * length - n:
        zeros = xp.zeros((*leading, missing, d), dtype=x.dtype, device=device(x))
        x = xp.concat([x, zeros], axis=-2)
    return xp.reshape(x, (*leading, m, length, d))


def _joined(x: Array, n: int) -> Array:
    """Join what `_cut` has cut, without what it filled."""
    xp = array_namespace(x)
    *leading, m, length, d = x.shape
    return xp.reshape(x, (*leading, m * length, d))[..., :n, :]


def _inverse(lower: Array) -> Array:
    """Return (I + L)⁻¹ of a strictly lower triangular L, by halves.

    Up to 8 rows it is the product (I - L)(I + L²)(I + L⁴), since L⁸ = 0.
    """
    xp, n = array_namespace(lower), lower.shape[-1]
    if n <= 8:
        inverse = xp.eye(n, dtype=lower.dtype, device=device(lower)) - lower
        for _ in range(2):
            lower = xp.matmul(lower, lower)
            inverse = inverse + xp.matmul(inverse, lower)
        return inverse
    half = n // 2
    first, last = _inverse(lower[..., :half, :half]), _inverse(lower[..., half:, half:])
    corner = -xp.matmul(xp.matmul(last, lower[..., half:, :half]), first)
    nothing = xp.zeros_like(xp.matrix_transpose(corner))
    return xp.concat(
        [xp.concat([first, nothing], axis=-1), xp.concat([corner, last], axis=-1)], axis=-2
    )


def cut(tokens: Tokens, length: int) -> Chunks:
    """Return the tokens in chunks of `length`."""
    xp = array_namespace(tokens.query)
    query, key, value = (_cut(x, length) for x in tokens[:3])
    steps = _cut(tokens.log_decay[..., None], length)[..., 0]  # (..., m, C)
    g = xp.cumulative_sum(steps, axis=-1)
    gap = g[..., :, None] - g[..., None, :]
    place = xp.arange(length, device=device(g))
    seen = place[:, None] >= place[None, :]
    gamma = xp.exp(xp.where(seen, gap, xp.full_like(gap, -xp.inf)))
    beta = inverse = None
    if tokens.beta is not None:
        beta = _cut(tokens.beta[..., None], length)
        inverse = _inverse(xp.tril(beta * (key @ xp.matrix_transpose(key)) * gamma, k=-1))
    last = g[..., -1:]
    since_start, to_end = xp.exp(g)[..., None], xp.exp(last - g)[..., None]
    whole = xp.exp(last)[..., None]
    return Chunks(query, key, value, beta, gamma, since_start, to_end, whole, inverse)


def forward(tokens: Tokens, chunks: Chunks) -> tuple[Array, Array, Array, Array]:
    """Return output (..., n, d_v), last state, the state before each chunk, and what is written."""
    xp, n = array_namespace(tokens.query), tokens.query.shape[-2]
    query, key, value, beta, gamma, since_start, to_end, whole, inverse = chunks
    at_end = xp.matrix_transpose(key * to_end)  # (..., m, d_k, C)
    state, starts = tokens.state, []
    if inverse is None:
        written, added = value, at_end @ value
        for t in range(key.shape[-3]):
            starts.append(state)
            state = whole[..., t, :, :] * state + added[..., t, :, :]
    else:
        held = inverse @ (beta * since_start * key)  # W: what the state holds for these keys
        fresh, parts = inverse @ (beta * value), []
        for t in range(key.shape[-3]):
            starts.append(state)
            parts.append(fresh[..., t, :, :] - held[..., t, :, :] @ state)
            state = whole[..., t, :, :] * state + at_end[..., t, :, :] @ parts[-1]
        written = xp.stack(parts, axis=-3) if parts else value
    before = xp.stack(starts, axis=-3) if starts else tokens.state[..., None, :, :][..., :0, :, :]
    inside = (query @ xp.matrix_transpose(key)) * gamma
    output = since_start * (query @ before) + inside @ written
    return _joined(output, n), state, before, written


def backward(tokens: Tokens, length: int, grad_output: Array, grad_state: Array) -> tuple[Any, ...]:
    """Return the gradients of query, key, value, log-decay, beta (or None) and first state."""
    xp, n = array_namespace(tokens.query), tokens.query.shape[-2]
    chunks = cut(tokens, length)
    query, key, value, beta, gamma, since_start, to_end, whole, inverse = chunks
    _, _, before, written = forward(tokens, chunks)
    g_out, turned = _cut(grad_output, length), xp.matrix_transpose
    inside = (query @ turned(key)) * gamma
    from_start, at_start, at_end = query * since_start, key * since_start, key * to_end
    # through the states, last chunk first
    direct, read = turned(inside) @ g_out, turned(from_start) @ g_out
    after: list[Any] = []  # the gradient of the state after each chunk
    eta: Any = beta
    for t in reversed(range(key.shape[-3])):
        after.append(grad_state)
        grad = whole[..., t, :, :] * grad_state + read[..., t, :, :]
        if inverse is not None:
            g_written = direct[..., t, :, :] + at_end[..., t, :, :] @ grad_state
            g_rest = eta[..., t, :, :] * (turned(inverse[..., t, :, :]) @ g_written)
            grad = grad - turned(at_start[..., t, :, :]) @ g_rest
        grad_state = grad
    g_after = xp.stack(after[::-1], axis=-3) if after else before
    # inside every chunk
    g_written = direct + at_end @ g_after
    g_from_start, g_at_end = g_out @ turned(before), written @ turned(g_after)
    g_inside = xp.tril(g_out @ turned(written))
    pairs = g_inside * inside
    g_query = since_start * g_from_start + (g_inside * gamma) @ key
    g_key = turned(g_inside * gamma) @ query + to_end * g_at_end
    moved = xp.sum(at_end * g_at_end, axis=-1)  # (..., m, C)
    g_end = xp.sum(moved, axis=-1) + xp.sum(whole * before * g_after, axis=(-2, -1))
    g_g = xp.sum(from_start * g_from_start, axis=-1) - moved
    g_value, g_beta = g_written, None
    if inverse is not None:
        solved = turned(inverse) @ g_written
        rest = value - at_start @ before
        g_value = beta * solved
        g_at_start = -(g_value @ turned(before))
        overlap = xp.tril((key @ turned(key)) * gamma, k=-1)
        g_lower = -xp.tril(solved @ turned(written), k=-1)
        g_beta = xp.sum(solved * rest, axis=-1) + xp.sum(g_lower * overlap, axis=-1)
        g_overlap = beta * g_lower * gamma
        g_key = g_key + since_start * g_at_start + (g_overlap + turned(g_overlap)) @ key
        g_g = g_g + xp.sum(at_start * g_at_start, axis=-1)
        pairs = pairs + beta * g_lower * overlap
        g_beta = _joined(g_beta[..., None], n)[..., 0]
    g_g = g_g + xp.sum(pairs, axis=-1) - xp.sum(pairs, axis=-2)
    later = xp.flip(xp.cumulative_sum(xp.flip(g_g, axis=-1), axis=-1), axis=-1)
    g_decay = _joined((later + g_end[..., None])[..., None], n)[..., 0]
    return (*(_joined(x, n) for x in (g_query, g_key, g_value)), g_decay, g_beta, grad_state)
