"""Split decoding: each process reads its part of the cache, and their states are merged."""

import functools
from typing import Any

import torch

from attnbook.arrays.attention_arguments import check_mask, is_rule
from attnbook.distributed.processes import Processes, flat, unflat
from attnbook.distributed.states import (
    check_arguments,
    into_groups,
    module_of,
    output_of,
    state_of,
)
from attnbook.kernels.running_softmax import State, merge_of


def decode_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    group: Any = None,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    impl: str = "tiled",
    timeout: float = 60.0,
) -> torch.Tensor:
    r"""Return attention of a few queries, the same on every process, over a cache that is sharded.

    .. math:: O = \frac{\sum_r e^{m_r - m} u_r}{\sum_r e^{m_r - m} z_r}, \qquad m = \max_r m_r,

    where maximum m_r, total z_r and weighted sum u_r are the running-softmax state that process r
    reads from its own keys.

    Parameters
    ----------
    query : tensor of PyTorch, shape (..., h, n_q, d_k)
        The same on all processes; n_q is 1 for a decoder that writes one token at a time.
    key : tensor, shape (..., h_kv, n_r, d_k)
        The keys of this process, of the dtype and device of `query`. n_r may differ from process to
        process and may be 0. h_kv divides h.
    value : tensor, shape (..., h_kv, n_r, d_v)
    group : ProcessGroup of torch.distributed, optional
        All processes by default.
    mask : boolean tensor that broadcasts to (n_q, n_r), optional
        **True = may attend.** Which keys of this process a query may see.
    scale : float, optional
        β, the same on all processes; 1/√d_k by default.
    impl : str
        As of `ring_attention`.
    timeout : float
        As of `ring_attention`.

    Returns
    -------
    tensor, shape (..., h, n_q, d_v)
        The same bits on every process, equal to attention over the whole cache to rounding; zeros
        for a query that may see no key anywhere. No gradient is recorded.

    Raises
    ------
    TypeError, ValueError, ImportError, RuntimeError
        As `ring_attention`; ValueError also if the processes differ in the shape or the dtype of
        their queries, in the width of their values or in `scale`. Here too, a process that has all
        parts when another one ends raises at its next call.

    Notes
    -----
    Each process sends d_v + 2 numbers per query and head to every other one, in one all-gather,
    however long the cache is. The states are merged in the order of the ranks.

    References
    ----------
    Dao et al. (2023), "Flash-Decoding for long-context inference"; Shyam et al. (2024), "Tree
    attention". Chapter `distributed`.

    Examples
    --------
    A program that ``torchrun --nproc-per-node 2`` starts twice::

        torch.distributed.init_process_group("gloo")
        output = decode_attention(query, keys_of_this_process, values_of_this_process)
    """
    processes = Processes.of(group, timeout)

    def check():
        factor = check_arguments(query, key, value, scale)
        if mask is not None:
            if is_rule(mask):  # the last key of a process is not the last of all
                raise TypeError(
                    f"mask must be a tensor, since each process has some of the keys, got {mask}"
                )
            check_mask(mask, query, (query.shape[-2], key.shape[-2]))
        shape = (*query.shape[:-1], value.shape[-1])
        common = [f"query {tuple(query.shape)}", f"values of width {shape[-1]}"]
        common += [str(query.dtype), f"scale {factor}", f"impl {impl}"]
        return (module_of(impl, query), factor, shape), common

    module, factor, shape = processes.agree(check, query)
    with torch.no_grad():
        grouped = into_groups(query, key, value)
        few = {"few": True} if impl == "packed" else {}  # as no backward pass follows
        ours = state_of(*module.forward(*grouped, mask, None, factor, False, **few))
        shapes = [tuple(x.shape) for x in ours]
        states = [State(*unflat(x, shapes)) for x in processes.gather(flat(*ours), "the states")]
        output = output_of(functools.reduce(merge_of, states))
        return output.reshape(shape).to(query.dtype)
