"""FAVOR+: exp(q·k / √d) as a product of positive orthogonal random features.

Choromanski et al. (2021), "Rethinking attention with performers". The matrix products are those of
PyTorch, faster here than NumPy's.
"""

import numpy as np

CHUNK = 128  # queries of causal attention that share a sum of what is before them


def prepare(key, value, *, n_features, hyperbolic, is_causal, seed=0):
    """Return the features of the keys, and what they sum to with the values."""
    import torch

    d = key.shape[-1]
    rows = orthogonal(np.random.default_rng(seed), n_features // (1 + hyperbolic), d)
    directions = torch.as_tensor(np.ascontiguousarray(rows.T, np.float32))
    features, value = _features(key, directions, hyperbolic, of_rows=False), torch.as_tensor(value)
    ones = torch.ones((*value.shape[:-1], 1))
    value = torch.cat([value, ones], dim=-1)  # the last column sums the weights
    if is_causal:
        n = value.shape[1]
        chunk = CHUNK if n % CHUNK == 0 else n
        features, value = (x.unflatten(1, (n // chunk, chunk)) for x in (features, value))
        sums = (features.mT @ value).cumsum(dim=1)
        sums = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=1)
    else:
        sums = features.mT @ value
        features = value = None
    return directions, hyperbolic, features, value, sums


def attend(query, state) -> np.ndarray:
    """Return attention of (h, n, d) queries."""
    directions, hyperbolic, features, value, sums = state
    q = _features(query, directions, hyperbolic, of_rows=True)
    if value is None:
        out = q @ sums
    else:
        q = q.unflatten(1, value.shape[1:3])
        out = ((q @ features.mT).tril_() @ value + q @ sums).flatten(1, 2)
    out = out.numpy()
    return out[..., :-1] / np.maximum(out[..., -1:], np.finfo(np.float32).tiny)


def _features(x, directions, hyperbolic, of_rows):
    """Return φ(x) up to a factor of each query, or of all keys of a head, that cancels."""
    import torch

    x = torch.as_tensor(np.ascontiguousarray(x)) / x.shape[-1] ** 0.25
    projected = x @ directions
    if hyperbolic:
        projected = torch.cat([projected, -projected], dim=-1)
    projected -= (x * x).sum(dim=-1, keepdim=True) / 2
    top = projected.amax(dim=-1 if of_rows else (-1, -2), keepdim=True)
    return projected.sub_(top).exp_()


def orthogonal(rng, n_features, d) -> np.ndarray:
    """Return rows, orthogonal within groups of d, as long as normal vectors."""
    groups = -(-n_features // d)
    Q, R = np.linalg.qr(rng.standard_normal((groups, d, d)))
    # with the signs of R, or Q would prefer some directions to others
    Q *= np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    lengths = np.linalg.norm(rng.standard_normal((n_features, d)), axis=1)
    return Q.mT.reshape(-1, d)[:n_features] * lengths[:, None]
