r"""Ring attention: keys and values travel, queries stay, and one running softmax grows.

With p processes, process r begins with its own keys. In step i it holds those of process r − i,
lets its queries attend to them, and passes them on. After p steps every query has met every key:

.. math:: \text{state}_r = \text{read}(Q_r, K_r, V_r) \oplus \text{read}(Q_r, K_{r-1}, V_{r-1})
          \oplus \dots \oplus \text{read}(Q_r, K_{r+1}, V_{r+1}).
"""

from typing import Any

import torch

from attnbook.arrays.arguments import check_bool, check_choice
from attnbook.arrays.array import accumulation_dtype, sum_to_shape
from attnbook.distributed.processes import Passing, Processes, flat, unflat
from attnbook.distributed.shards import LAYOUTS, seen
from attnbook.distributed.states import (
    check_arguments,
    into_groups,
    log_total_of,
    module_of,
    output_of,
    state_of,
)
from attnbook.kernels.running_softmax import State, merge_of

PAIRS, GRADIENTS = 0, 1
"""Tags that keep apart the two things which travel."""


def ring_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    group: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    layout: str = "zigzag",
    impl: str = "tiled",
    timeout: float = 60.0,
) -> torch.Tensor:
    r"""Return attention over the keys of all processes, for the queries of this one.

    .. math:: O_r = \operatorname{softmax}\bigl(\beta\,Q_r\,[K_0; \dots; K_{p-1}]^\top\bigr)\,
              [V_0; \dots; V_{p-1}]

    Every process of the group calls it with its own shards, of equal shapes.

    Parameters
    ----------
    query : tensor of PyTorch, shape (..., h, n_q, d_k)
        The queries of this process.
    key : tensor, shape (..., h_kv, n_k, d_k)
        Of the dtype and device of `query`. h_kv divides h: query head i reads key head
        i // (h / h_kv), as in grouped-query attention.
    value : tensor, shape (..., h_kv, n_k, d_v)
    group : ProcessGroup of torch.distributed, optional
        All processes by default. gloo passes tensors of the CPU, nccl those of GPUs.
    is_causal : bool
        Whether a query sees no key that comes later in the whole sequence, as `layout` orders it.
        Needs n_q = n_k.
    scale : float, optional
        β, finite and at least 0; 1/√d_k by default. It is that of the queries of this process, and
        another process may have another one.
    layout : str
        Which tokens of the sequence a process holds: ``"zigzag"``, ``"striped"`` or
        ``"contiguous"``, as `shard_sequence` cuts them. Without `is_causal` it changes nothing.
    impl : str
        The rung of `attnbook.kernels.LADDER` that computes the piece of a step; it must have a
        backward pass: ``"tiled"``, ``"packed"`` or ``"triton"``; the same on all
        processes.
    timeout : float
        Seconds that this process waits for another one, with gloo, from 0.001 to 2³¹ − 1. With nccl
        the timeout of the group counts, ``init_process_group(timeout=...)``.

    Returns
    -------
    tensor, shape (..., h, n_q, d_v)
        Of the dtype and device of `query`; equal to attention in one process to rounding.
        Autograd differentiates it once with respect to query, key and value; in the backward pass
        all processes have to take part too.

    Raises
    ------
    TypeError
        For anything but floating tensors of one dtype, or a `group` that is no group.
    ValueError
        If shapes do not fit one another, cannot be cut by `layout` or differ between the processes;
        if `layout` or `impl` is unknown or `impl` differs. Where one process is called wrongly, or
        cannot load `impl`, the others raise too and name its rank, as long as their own call is one
        that the group has not yet compared. Also if `timeout` is out of range, or `group` is a
        group of other processes, which the others do not learn.
    ImportError
        If `impl` needs a package that is not installed here.
    RuntimeError
        If no group has been initialised, or if a process ends or does not answer. Every process
        that waits for it raises, within milliseconds if its connection breaks and else after
        `timeout`. A process that already has all it needs returns, and raises at its next call.

    See Also
    --------
    shard_sequence : cuts a sequence into such shards.
    decode_attention : for the few queries of a decoder.

    Notes
    -----
    The processes compare shapes, dtype, order and `impl` in one all-gather of 512 bytes, for which
    the host waits. A group compares them once: later calls with the same ones send no such message.
    If one process alone is then called differently, it raises its error, and the others wait for it
    until `timeout`.

    The next keys and values are on their way while a piece is computed. On GPUs this overlap is not
    assured, because NCCL needs multiprocessors of its own, and a kernel that fills all of them
    makes the message wait. A process holds at most three shards of keys and values, namely its own,
    the one at work and the one that arrives: O(n/p) memory. In a forward pass it sends p − 1 of
    them. The backward pass computes the weights again from one number per row. It sends the keys
    and values round once more, and p shards of their gradients, which are summed in float32
    (float64 for float64). Under a causal mask a zigzag layout lets every process compute
    n²/2p² + O(n) scores per head in each step, half of a full piece.

    References
    ----------
    Liu, Zaharia and Abbeel (2023), "Ring attention with blockwise transformers for near-infinite
    context"; Brandon et al. (2023), "Striped attention"; Zhu (2024), ring-flash-attention.
    Chapter `distributed`.

    Examples
    --------
    A program that ``torchrun --nproc-per-node 2`` starts twice::

        torch.distributed.init_process_group("gloo")
        rank, p = torch.distributed.get_rank(), torch.distributed.get_world_size()
        q, k, v = (shard_sequence(x, p)[rank] for x in (query, key, value))
        output = ring_attention(q, k, v, is_causal=True)
    """
    processes = Processes.of(group, timeout)

    def check():
        factor = check_arguments(query, key, value, scale)
        check_bool("is_causal", is_causal)
        check_choice("layout", layout, LAYOUTS)
        n_q, n_k = query.shape[-2], key.shape[-2]
        if is_causal and n_q != n_k:
            raise ValueError(
                f"key must have as many tokens as query ({n_q}) for is_causal=True, got {n_k}"
            )
        if is_causal and layout == "zigzag" and n_q % 2:
            raise ValueError(
                f"query must have an even number of tokens for zigzag shards, got {n_q}"
            )
        module = module_of(impl, query)
        shapes = [
            f"{name} {tuple(x.shape)}"
            for name, x in (("query", query), ("key", key), ("value", value))
        ]
        order = f"is_causal={is_causal} {layout if is_causal else ''}".rstrip()
        return (module, factor), [*shapes, str(query.dtype), order, f"impl {impl}"]

    module, factor = processes.agree(check, query)
    call = (processes, module, layout, is_causal, factor)
    output = _Ring.apply(*into_groups(query, key, value), call)
    return output.reshape(*query.shape[:-1], value.shape[-1])


class _Ring(torch.autograd.Function):
    """The node of the graph: it keeps the shards of this process alone."""

    @staticmethod
    def forward(ctx: Any, query, key, value, call):
        state, like = forward_of(*call, query, key, value)
        output = output_of(state).to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_total_of(state, like))
        ctx.call = call
        return output

    @staticmethod
    def backward(ctx: Any, grad_output):
        return (*_Gradients.apply(ctx.call, *ctx.saved_tensors, grad_output.contiguous()), None)


class _Gradients(torch.autograd.Function):
    """The backward pass, a node of its own: `once_differentiable` would not always raise."""

    @staticmethod
    def forward(ctx: Any, call, *tensors):
        return backward_of(*call, *tensors)

    @staticmethod
    def backward(ctx: Any, *_):
        raise RuntimeError(
            "ring_attention has no gradient of second order; attention by the reference has one"
        )


def forward_of(processes, module, layout, is_causal, scale, *tensors):
    """Return the state after all keys, and the last logsumexp of the rung."""
    query, key, value = tensors
    shapes = [tuple(key.shape), tuple(value.shape)]
    state = like = None
    for held, part in _visits(processes, layout, is_causal, key, value, query.shape[-2]):
        if part is not None:
            k, v = (x[..., part.columns, :] for x in unflat(held, shapes))
            q = query[..., part.rows, :]
            output, like = module.forward(q, k, v, None, None, scale, part.is_causal)
            new = state_of(output, like)
            state = new if state is None else _merge_rows(state, new, part.rows)
    return state, like


def backward_of(processes, module, layout, is_causal, scale, *tensors):
    """Return the gradients of query, key and value of this process.

    The keys go round once more, and the sums of their gradients follow one step behind.
    """
    query, key, value, output, log_total, grad_output = tensors
    wide = accumulation_dtype(torch, query.dtype)
    shapes = [tuple(key.shape), tuple(value.shape)]
    grad_query = torch.zeros_like(query, dtype=wide)
    on_way: Passing | None = None
    visits = _visits(processes, layout, is_causal, key, value, query.shape[-2])
    for step, (held, part) in enumerate(visits):
        ours = torch.zeros_like(held, dtype=wide)
        if part is not None:
            rows, columns = part.rows, part.columns
            k, v = (x[..., columns, :] for x in unflat(held, shapes))
            of_rows = (x[..., rows, :] for x in (output, log_total, grad_output))
            q = query[..., rows, :]
            grads = module.backward(q, k, v, None, None, scale, part.is_causal, *of_rows)
            grad_query[..., rows, :] += grads[0]
            for total, grad, x in zip(unflat(ours, shapes), grads[1:], (k, v), strict=True):
                total[..., columns, :] += sum_to_shape(grad.to(wide), tuple(x.shape))
        summed = ours if on_way is None else on_way.wait().add_(ours)
        on_way = _begin(processes, summed, GRADIENTS, processes.size > 1, step)
    summed = summed if on_way is None else on_way.wait()
    grad_key, grad_value = unflat(summed, shapes)
    return tuple(x.to(query.dtype) for x in (grad_query, grad_key, grad_value))


def _visits(processes, layout, is_causal, key, value, n_q):
    """Yield the keys and values of each process as they come by, in a row, and what is seen."""
    rank, size = processes.rank, processes.size
    held = flat(key, value)
    for step in range(size):
        passing = _begin(processes, held, PAIRS, step + 1 < size, step)
        yield held, seen(layout, is_causal, rank, (rank - step) % size, n_q)
        held = held if passing is None else passing.wait()


def _begin(processes, x, tag, is_needed, step):
    what = "keys and values" if tag == PAIRS else "gradients of keys and values"
    step_of = f"in step {step + 1} of {processes.size}"
    return processes.pass_on(x, f"{what} {step_of}", tag) if is_needed else None


def _merge_rows(state, new, rows):
    """Return the state with that of other keys merged into some of its rows."""
    merged = merge_of(State(*(x[..., rows, :] for x in state)), new)
    for x, part in zip(state, merged, strict=True):
        x[..., rows, :] = part
    return state
