"""Sequences in pages, and a loop over their tokens that says what attention to them is."""

import math

import numpy as np

SIZES = (
    (5, 6, 2, 1, 13, 11, 7, 60),  # sequences, h, h_kv, n_q, d_k, d_v, tokens a page, most tokens
    (3, 4, 4, 2, 16, 8, 16, 90),
    (2, 4, 1, 3, 5, 3, 1, 9),
    (1, 3, 3, 1, 8, 8, 64, 40),
)


def drawn(rng, n, h, h_kv, n_q, d_k, d_v, size, most, lengths=None, n_shared=2):
    """Return query, pages of keys and values, a block table and lengths.

    Pages lie in any order, the first ones of some sequences are the same, and what is not read is
    NaN, or a page that does not exist.
    """
    lengths = rng.integers(most + 1, size=n) if lengths is None else np.asarray(lengths)
    columns = max(1, -(-most // size))
    n_pages = n * columns + 1
    table = rng.permutation(n_pages)[: n * columns].reshape(n, columns)
    table[::2, :n_shared] = table[0, :n_shared]
    query = rng.standard_normal((n, h, n_q, d_k))
    keys, values = (np.full((n_pages, h_kv, size, d), np.nan) for d in (d_k, d_v))
    for i, j in token_places(table, lengths, size):
        keys[i, :, j], values[i, :, j] = (rng.standard_normal((h_kv, d)) for d in (d_k, d_v))
    table[np.arange(columns) * size >= lengths[:, None]] = -7
    return query, keys, values, table, lengths


def token_places(table, lengths, size):
    """Yield page and slot of each token."""
    for pages, n in zip(table, lengths, strict=True):
        for j in range(n):
            yield pages[j // size], j % size


def looped(query, keys, values, table, lengths, scale):
    """Return the output by loops over sequences, heads, queries and tokens."""
    n, h, n_q, _ = query.shape
    group, size = h // keys.shape[1], keys.shape[2]
    output = np.zeros((n, h, n_q, values.shape[-1]))
    for i in range(n):
        places = list(token_places(table[i : i + 1], lengths[i : i + 1], size))
        for head in range(h):
            for r in range(n_q):
                seen = places[: max(0, lengths[i] - n_q + r + 1)]
                scores = [
                    scale * math.fsum(query[i, head, r] * keys[p, head // group, j])
                    for p, j in seen
                ]
                weights = [math.exp(s - max(scores)) for s in scores]
                for w, (p, j) in zip(weights, seen, strict=True):
                    output[i, head, r] += w / math.fsum(weights) * values[p, head // group, j]
    return output


def check_pages(device="cpu"):
    """The Triton kernel, with keys split in ranges: as the reference in float64."""
    import torch

    from attnbook.kernels import triton
    from attnbook.kernels.paging import paged_attention_of

    tolerances = {"float32": 3e-6, "bfloat16": 2e-2, "float16": 2e-3}
    for i, sizes in enumerate(SIZES):
        for dtype, tolerance in tolerances.items():
            case = drawn(np.random.default_rng(i), *sizes)
            arrays = [torch.tensor(x, device=device) for x in case]
            low = [x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in arrays]
            wide = [x.double() if x.is_floating_point() else x for x in low]
            exact = paged_attention_of(*wide, 0.3)
            for splits in (1, 3):
                output = triton.paged_attention(*low, 0.3, splits=splits)
                assert output.dtype == low[0].dtype
                torch.testing.assert_close(output.double(), exact, rtol=tolerance, atol=tolerance)
