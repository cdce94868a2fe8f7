"""Running-softmax states of what a rung of the ladder returns, and back."""

from typing import Any

import torch

from attnbook.arrays.arguments import check_choice, check_floats
from attnbook.arrays.array import accumulation_dtype
from attnbook.arrays.attention_arguments import check_attention
from attnbook.arrays.empty_rows import finite, or_one
from attnbook.distributed.processes import check_tensor
from attnbook.kernels import LADDER, kernel_for
from attnbook.kernels.running_softmax import State

IMPLS = tuple(kernel.name for kernel in LADDER if kernel.trainable)
"""The rungs that give a log total beside the output, and a backward pass."""


def module_of(impl, query):
    """Return the module of a rung that gives a log total, or raise."""
    check_choice("impl", impl, IMPLS)
    return kernel_for(impl, query)


def state_of(output: torch.Tensor, log_total: torch.Tensor) -> State:
    """Return the state of a piece of keys, from what ``forward`` of a rung returns.

    The logsumexp is one number, or two numbers that add up to it. If it is one number in float64,
    the digits that its float32 does not hold go into the total.
    """
    wide = accumulation_dtype(torch, output.dtype)
    highest, rest = log_total[..., :1].to(wide), log_total[..., 1:]
    if log_total.shape[-1] == 1:
        rest = log_total - finite(highest)
    total = torch.exp(rest).to(wide)
    return State(highest, total, output.to(wide) * total)


def output_of(state: State) -> Any:
    """Return the weighted mean value of each row, zeros for a row without keys."""
    return state.weighted / or_one(state.total)


def log_total_of(state: Any, like: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of each total, in one number or in two as `like` has it."""
    total: Any = or_one(state.total)
    if like.shape[-1] == 2:
        return torch.cat([state.maximum, torch.log(total)], -1).to(like.dtype)
    return state.maximum.to(like.dtype) + torch.log(total.to(like.dtype))


def into_groups(query, key, value):
    """Return the arrays with an axis for the query heads that share a key head.

    Shapes (..., h_kv, h / h_kv, n_q, d_k), (..., h_kv, 1, n_k, d_k) and (..., h_kv, 1, n_k, d_v).
    """
    if query.ndim == 2:
        query, key, value = (x[None] for x in (query, key, value))
    *leading, n_heads, n_q, d_k = query.shape
    n_kv = key.shape[-3]
    grouped = query.reshape(*leading, n_kv, n_heads // max(n_kv, 1), n_q, d_k)
    return grouped, key.unsqueeze(-3), value.unsqueeze(-3)


def check_arguments(query, key, value, scale):
    """Return the scale of attention between tensors with heads that share keys, or raise."""
    arrays = {"query": query, "key": key, "value": value}
    for name, x in arrays.items():
        check_tensor(name, x)
    check_floats(**arrays)
    for name, x in arrays.items():
        if x.ndim < 2:
            axes = {"query": "n_q, d_k", "key": "n_k, d_k", "value": "n_k, d_v"}[name]
            raise ValueError(f"{name} must have shape (..., {axes}), got {tuple(x.shape)}")
    ours = tuple(query.shape[:-2])
    if 0 in ours:
        raise ValueError(f"query must have at least 1 head, got shape {tuple(query.shape)}")
    for name, x in (("key", key), ("value", value)):
        theirs = tuple(x.shape[:-2])
        fits = len(ours) == len(theirs) and ours[:-1] == theirs[:-1]
        if fits and ours:
            fits = theirs[-1] > 0 and ours[-1] % theirs[-1] == 0
        if not fits or x.shape[:-2] != key.shape[:-2]:
            wanted = f"{ours} of query, or a number of heads that divides the last of them"
            wanted = wanted if name == "key" else f"{tuple(key.shape[:-2])} of key"
            raise ValueError(f"{name} must have the leading axes {wanted}, got {theirs}")
    one_head = {name: x[(0,) * (x.ndim - 2)] for name, x in arrays.items()}
    return check_attention(one_head, None, None, scale)
