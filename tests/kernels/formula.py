"""The formula of attention in PyTorch's plainest functions, all in the dtype of the arrays."""

import torch


def attention(query, key, value, mask=None, bias=None, scale=1.0, is_causal=False):
    """Return output and log Σ exp(score) of each row; 0 and −∞ of a row that sees no key."""
    scores = query @ key.mT * scale
    scores = scores if bias is None else scores + bias
    n_q, n_k = scores.shape[-2:]
    seen = torch.ones(n_q, n_k, dtype=torch.bool, device=query.device)
    seen = seen.tril(n_k - n_q) if is_causal else seen
    seen = seen if mask is None else seen & mask
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1).masked_fill(~seen, 0)
    return weights @ value, torch.logsumexp(scores, -1, keepdim=True)


def exact(query, key, value, mask=None, bias=None, scale=1.0, is_causal=False):
    """Return both in float64, as arrays of NumPy, for arrays of any library on the CPU."""
    query, key, value = (torch.as_tensor(x).double() for x in (query, key, value))
    mask = None if mask is None else torch.as_tensor(mask)
    bias = None if bias is None else torch.as_tensor(bias).double()
    found = attention(query, key, value, mask, bias, scale, is_causal)
    return [x.numpy() for x in found]
