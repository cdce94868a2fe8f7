"""Other ways to approximate self-attention, written from their papers: what the sketch is beside.

All take query, key and value of shape (h, n, d), as many queries as keys, tensors of PyTorch, and
return (h, n, d_v). Each is exact in a limit, which the tests use: HyperAttention and the attention
of Reformer where one block holds every key, random features as their number grows.
"""

import math
from typing import Any

import numpy as np


def hyper_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    block: int = 256,
    n_samples: int = 256,
    n_projections: int = 7,
    seed: int = 0,
) -> Any:
    """Attend within blocks of keys sorted by their hash, and to a uniform sample of the rest.

    Han et al. (2023): queries and keys are sorted by SimHash codes, in an order in which
    neighbours differ in one bit; block i of the queries attends to block i of the keys. A sampled
    key outside the block stands for n / n_samples keys.
    """
    import torch

    h, n, d = query.shape
    block = _divides(block, n)
    rng = np.random.default_rng(seed)
    directions = _tensor(rng.standard_normal((d, n_projections)), query)
    q_order = _gray_rank(query @ directions >= 0).argsort(dim=-1)
    k_order = _gray_rank(key @ directions >= 0).argsort(dim=-1)
    q, k, v = _rows(query, q_order), _rows(key, k_order), _rows(value, k_order)
    blocks = n // block
    sample = torch.as_tensor(rng.integers(n, size=(h, n_samples)), device=query.device)
    inside = sample[:, None, :] // block == torch.arange(blocks, device=query.device)[:, None]
    bias = torch.zeros((h, blocks, 1, block + n_samples), dtype=query.dtype, device=query.device)
    bias[..., 0, block:] = math.log(n / n_samples)
    bias[..., 0, block:].masked_fill_(inside, -math.inf)  # counted in the block already

    def beside(x):  # (h, n, e) -> (h, blocks, block + n_samples, e)
        shared = _rows(x, sample)[:, None].expand(-1, blocks, -1, -1)
        return torch.cat([x.unflatten(1, (blocks, block)), shared], dim=2)

    # one softmax over block and sample, in the library's fastest kernel
    out = torch.nn.functional.scaled_dot_product_attention(
        q.unflatten(1, (blocks, block)), beside(k), beside(v), attn_mask=bias
    )
    return torch.empty_like(v).scatter_(1, _wide(q_order, v), out.flatten(1, 2))


def _gray_rank(bits):
    """Return the place of each code in the Gray order, in which neighbours differ in one bit."""
    import torch

    place = torch.zeros(bits.shape[:-1], dtype=torch.int64, device=bits.device)
    for i in range(bits.shape[-1]):
        place |= bits[..., i].to(torch.int64) << i
    shift = 1
    while shift < bits.shape[-1]:
        place ^= place >> shift
        shift *= 2
    return place


def reformer_attention(
    query: Any, key: Any, value: Any, *, chunk: int = 64, n_rounds: int = 8, seed: int = 0
) -> Any:
    """Attend within chunks along the sorted buckets of several hashes.

    Kitaev et al. (2020), with keys of their own in place of shared ones: the bucket of x is the
    largest entry of [x R, -x R]; chunk i of the sorted queries attends to chunks i and i - 1 of
    the sorted keys; rounds are added with their normalizers as weights. A key found in several
    rounds counts as often.
    """
    import torch

    _, n, d = query.shape
    chunk = _divides(chunk, n)
    chunks = n // chunk
    rng = np.random.default_rng(seed)
    total, largest, weight = torch.zeros_like(value), None, None
    for _ in range(n_rounds):
        rotation = _tensor(rng.standard_normal((d, max(1, chunks // 2))), query)
        q_order, k_order = (_bucket(x @ rotation).argsort(dim=-1) for x in (query, key))
        q = _rows(query, q_order).unflatten(1, (chunks, chunk))
        k = _rows(key, k_order).unflatten(1, (chunks, chunk))
        v = _rows(value, k_order).unflatten(1, (chunks, chunk))
        if chunks > 1:
            k, v = (torch.cat([x, x.roll(1, dims=1)], dim=2) for x in (k, v))
        scores = (q / math.sqrt(d)) @ k.mT
        top = scores.amax(dim=-1, keepdim=True)
        scores = (scores - top).exp_()
        back = q_order.argsort(dim=-1)
        found = _rows((scores @ v).flatten(1, 2), back)  # not yet normalized
        mass = _rows(scores.sum(dim=-1, keepdim=True).flatten(1, 2), back)
        top = _rows(top.flatten(1, 2), back)
        if largest is None:
            total, weight, largest = found, mass, top
            continue
        both = torch.maximum(largest, top)
        old, new = (largest - both).exp(), (top - both).exp()
        total, weight, largest = total * old + found * new, weight * old + mass * new, both
    return total / weight


def _bucket(x):
    import torch

    return torch.cat([x, -x], dim=-1).argmax(dim=-1)


def random_features(
    query: Any, key: Any, value: Any, *, n_features: int = 1024, seed: int = 0
) -> Any:
    """Replace exp(q·k / √d) by a product of positive orthogonal random features.

    FAVOR+ of Choromanski et al. (2021): φ(x) = exp(w·x - ‖x‖²/2) for rows w that are orthogonal
    within groups of d and as long as normal vectors are; E[φ(q)·φ(k)] = exp(q·k).
    """
    import torch

    h, _, d = query.shape
    directions = _tensor(_orthogonal(np.random.default_rng(seed), n_features, d), query)

    def exponents(x):
        x = x / d**0.25
        return x @ directions.T - (x * x).sum(dim=-1, keepdim=True) / 2

    out = torch.empty((*query.shape[:2], value.shape[-1]), dtype=value.dtype, device=value.device)
    for i in range(h):  # the features of one head at a time: n × n_features numbers
        q, k = exponents(query[i]), exponents(key[i])
        q = (q - q.amax(dim=-1, keepdim=True)).exp_()  # what cancels in the ratio is free
        k = (k - k.amax()).exp_()
        mass = q @ k.sum(dim=0)[:, None]
        out[i] = q @ (k.mT @ value[i]) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return out


def _orthogonal(rng, n_features, d):
    groups = -(-n_features // d)
    Q, R = np.linalg.qr(rng.standard_normal((groups, d, d)))
    # with the signs of R, or Q would prefer some directions to others
    Q *= np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    lengths = np.linalg.norm(rng.standard_normal((n_features, d)), axis=1)
    return Q.mT.reshape(-1, d)[:n_features] * lengths[:, None]


def _rows(x, order):
    """Return the rows of `x` (h, n, e) in `order` (h, m)."""
    return x.gather(1, _wide(order, x))


def _wide(order, x):
    return order[..., None].expand(-1, -1, x.shape[-1])


def _tensor(x, like):
    import torch

    return torch.as_tensor(x, dtype=like.dtype, device=like.device)


def _divides(block, n):
    block = min(block, n)
    if n % block:
        raise ValueError(f"block must divide n = {n}, got {block}")
    return block
