"""What a training step sums over all processes: the loss, and the gradients of the parameters."""

from collections.abc import Iterable
from typing import Any

import torch

from attnbook.arrays.array import accumulation_dtype
from attnbook.distributed.processes import Processes, check_tensor, flat, unflat


def global_mean(
    losses: torch.Tensor,
    counted: torch.Tensor | None = None,
    *,
    group: Any = None,
    timeout: float = 60.0,
) -> torch.Tensor:
    r"""Return the mean of the losses of all processes, each token counted once.

    .. math:: \mathcal L = \frac{\sum_r \sum_{i \in C_r} \ell_i}{\sum_r |C_r|}

    C_r are the tokens of process r that count. The mean of the processes' own means is another
    number wherever they count different numbers of tokens.

    Parameters
    ----------
    losses : floating tensor of PyTorch
        The losses of the tokens of this process.
    counted : boolean tensor of the shape of `losses`, optional
        **True = counts.** All by default. A process may have none that counts.
    group : ProcessGroup of torch.distributed, optional
        All processes by default.
    timeout : float
        As of `ring_attention`.

    Returns
    -------
    tensor, shape ()
        The same value on every process; NaN if no loss counts anywhere. Half precision is summed in
        float32. Its gradient on a process is that of the losses of this process: `sum_gradients`
        adds up what the processes find for a parameter that all of them hold.

    Raises
    ------
    TypeError
        If `losses` is no floating tensor, or `counted` no boolean one.
    ValueError
        If the shapes differ.
    RuntimeError
        As `ring_attention`.

    See Also
    --------
    sum_gradients : the second half of a training step.

    Notes
    -----
    One all-reduce of two numbers.

    References
    ----------
    Chapter `distributed`.
    """
    processes = Processes.of(group, timeout)

    def check():
        _check_losses(losses, counted)
        return None, [f"losses {losses.dtype}"]

    processes.agree(check, losses)
    wide = accumulation_dtype(torch, losses.dtype)
    if counted is None:
        counted = torch.ones_like(losses, dtype=torch.bool)
    own = torch.where(counted, losses, 0).to(wide).sum()
    both = torch.stack([own.detach(), counted.sum().to(wide)])
    total, n = processes.sum_up(both, "the losses")
    return (total + (own - own.detach())) / n  # its value is total / n, its gradient that of own


def sum_gradients(
    parameters: Iterable[torch.Tensor], *, group: Any = None, timeout: float = 60.0
) -> None:
    """Replace the gradient of each parameter by the sum over all processes.

    Every process holds all parameters, and has the gradients of its own tokens after a backward
    pass. A parameter without a gradient counts as 0.

    Parameters
    ----------
    parameters : iterable of tensors of PyTorch
        In the same order on all processes, such as ``model.parameters()``.
    group : ProcessGroup of torch.distributed, optional
        All processes by default.
    timeout : float
        As of `ring_attention`.

    Raises
    ------
    TypeError
        If one of the parameters is no tensor.
    ValueError
        If the processes have different numbers of parameters, or of numbers in them.
    RuntimeError
        As `ring_attention`.

    Notes
    -----
    One all-reduce for each dtype. The processes get the same bits, so an optimizer makes the same
    step on each of them. Half precision is summed in float32.

    References
    ----------
    Chapter `distributed`.
    """
    processes = Processes.of(group, timeout)
    every = list(parameters)

    def check():
        for i, x in enumerate(every):
            check_tensor(f"parameters[{i}]", x)
        sizes: dict[Any, int] = {}
        for x in every:
            sizes[x.dtype] = sizes.get(x.dtype, 0) + x.numel()
        kinds = [f"{n} numbers of {dtype}" for dtype, n in sizes.items()]
        return None, [f"{len(every)} parameters", *kinds]

    processes.agree(check, every[0] if every else None)
    for dtype in dict.fromkeys(x.dtype for x in every):
        ours = [x for x in every if x.dtype == dtype]
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in ours]
        row = flat(*grads).to(accumulation_dtype(torch, dtype))
        row = processes.sum_up(row, "the gradients")
        for x, grad in zip(ours, unflat(row, [tuple(x.shape) for x in ours]), strict=True):
            x.grad = grad.to(dtype)


def _check_losses(losses, counted):
    check_tensor("losses", losses)
    if not losses.is_floating_point():
        raise TypeError(f"losses must be a floating tensor, got {losses.dtype}")
    if counted is None:
        return
    check_tensor("counted", counted)
    if counted.dtype != torch.bool:
        raise TypeError(f"counted must be a boolean tensor, got {counted.dtype}")
    if counted.shape != losses.shape:
        raise ValueError(
            f"counted must have the shape {tuple(losses.shape)} of losses, "
            f"got {tuple(counted.shape)}"
        )
