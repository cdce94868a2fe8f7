"""A kernel as a node of PyTorch's graph, with its own backward pass.

Autograd would keep every tile of weights that the forward pass makes. Here the graph holds the
inputs, the output and one number a row, `log_total`, from which the backward pass makes the weights
again (Dao et al. 2022, "FlashAttention", section 3.1 and appendix B.4): O(n) memory, where the
weights take O(n²).
"""

import contextlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad

from attnbook.arrays.array import sum_to_shape
from attnbook.arrays.intervals import Intervals


def differentiable(
    module: ModuleType,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    is_causal: bool,
) -> torch.Tensor:
    """Return what ``module.attention`` returns, with gradients by ``module.backward``.

    Where autograd records nothing it is ``module.attention`` itself. Query, key and value get a
    gradient, each if it requires one; there is none of second order. Under ``torch.autocast`` they
    are rounded to its dtype first, as for PyTorch's own `scaled_dot_product_attention`, and so is
    the output; what is summed in between is float32 as ever. float64 stays what it is.

    Raises
    ------
    ValueError
        If `bias` requires a gradient or has a tangent: no kernel has a derivative for it.
    """
    graph = torch.is_grad_enabled()
    check_bias(_name(module), bias)
    dtype = _autocast_dtype(query)
    if dtype is not None:
        query, key, value = (x.to(dtype) for x in (query, key, value))  # recorded by autograd
        bias = None if bias is None else bias.to(dtype)
    arguments = (query, key, value, mask, bias, scale, is_causal)
    if (graph and any(x.requires_grad for x in arguments[:3])) or _has_tangent(arguments[:3]):
        return _Attention.apply(module, *arguments)[0]
    with _plain(query):
        return module.attention(*_cut(*arguments[:5]), scale, is_causal)


def check_bias(impl: str, bias: Any) -> None:
    """Raise ValueError if a derivative with respect to `bias` is asked for, which no kernel has."""
    if bias is None:
        return
    if torch.is_grad_enabled() and bias.requires_grad:
        found = "requires_grad=True"
    elif _has_tangent([bias]):
        found = "a tangent"
    else:
        return
    raise ValueError(
        f"bias must not require a gradient for impl={impl!r}, got {found}; "
        f"impl='reference' gives one"
    )


def untraced(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` outside of `torch.compile`, which breaks what has a compiler of its own."""
    if torch.compiler.is_compiling():  # else there is no need to load it
        function = torch.compiler.disable(function)
    return function(*arguments)


class _Attention(torch.autograd.Function):
    """The node of the graph."""

    @staticmethod
    def forward(
        module: ModuleType,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float,
        is_causal: bool,
    ) -> Any:
        with _plain(query):
            return module.forward(*_cut(query, key, value, mask, bias), scale, is_causal)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.module, query, key, value, mask, bias, ctx.scale, ctx.is_causal = inputs
        ctx.intervals = mask if isinstance(mask, Intervals) else None
        mask = None if ctx.intervals else mask
        ctx.save_for_backward(query, key, value, mask, bias, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor | None, _: Any) -> Any:
        if grad_output is None:
            return (None,) * 8
        query, key, value, mask, bias, output, log_total = ctx.saved_tensors
        arrays = (query, key, value, ctx.intervals or mask, bias)
        arguments = (*arrays, ctx.scale, ctx.is_causal, output.detach(), log_total, grad_output)
        grads = _Gradients.apply(ctx.module, ctx.needs_input_grad[1:4], *arguments)
        return (None, *grads, None, None, None, None)


class _Gradients(torch.autograd.Function):
    """The backward pass, a node of its own: `once_differentiable` would not always raise."""

    @staticmethod
    def forward(
        module: ModuleType,
        needed: tuple[bool, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        bias: torch.Tensor | None,
        scale: float,
        is_causal: bool,
        *after: torch.Tensor,
    ) -> Any:
        arrays = _cut(query, key, value, mask, bias)
        output, log_total, grad_output = _cut(*after)
        grad_output = grad_output.contiguous()  # that of a sum is one number, repeated by strides
        with _plain(query):
            rest = (scale, is_causal, output, log_total, grad_output)
            grads = module.backward(*arrays, *rest)
            return tuple(
                sum_to_shape(grad, tuple(x.shape)).to(x.dtype) if wanted else None
                for grad, x, wanted in zip(grads, arrays[:3], needed, strict=True)
            )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = _name(inputs[0])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"impl={ctx.name!r} has no gradient of second order; impl='reference' has one"
        )


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _cut(*arrays: torch.Tensor | None) -> list[Any]:
    """Return the arrays without their graph: `Tensor.numpy` wants none."""
    return [x if x is None or isinstance(x, Intervals) else x.detach() for x in arrays]


def _has_tangent(arrays: Iterable[torch.Tensor]) -> bool:
    """Whether forward-mode differentiation runs: the node above says that it has none."""
    return any(forward_ad.unpack_dual(x).tangent is not None for x in arrays)


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    """Return the dtype that ``torch.autocast`` wants of `x`, or None where it says nothing."""
    kind = x.device.type
    if x.dtype == torch.float64 or not _autocasts(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _plain(x: torch.Tensor) -> contextlib.AbstractContextManager:
    """Return a context in which PyTorch changes no dtype behind a kernel's back."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if _autocasts(kind) else contextlib.nullcontext()


def _autocasts(kind: str) -> bool:
    """Whether ``torch.autocast`` is on; some kinds of devices, such as "meta", have none."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
