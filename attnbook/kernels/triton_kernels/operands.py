"""Arrays as the Triton kernels read them: three leading axes, rows that start at 16 bytes."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from attnbook.arrays.array import broadcast_shapes

ROW_BYTES = 16
"""The copy engine of the GPU loads tiles whose rows start at multiples of this."""

MAX_WIDTH = 256
"""The widest row of query, key or value: a tile of it must fit on the chip."""


class Call(NamedTuple):
    """Arguments of every kernel that walks over tiles of scores."""

    query: Any
    key: Any
    value: Any
    mask: Any
    bias: Any
    strides: Any  # five of each of these
    A: Any
    B: Any
    G: Any
    n_q: Any
    n_k: Any
    d_k: Any
    d_v: Any
    scale: Any  # of the products q · k
    score_scale: Any  # the same, and that of the bias, in the unit of the dtype
    bias_scale: Any


@dataclass(frozen=True)
class Operands:
    """What one call of attention works on, with leading axes (A, B, G) that all arrays share.

    Where `shared_axes` is not empty, G counts the heads of queries that share one head of keys
    and values, whose gradients are summed over G. Along an axis that an array lacks its stride
    is 0.
    """

    query: Any  # (A, B, G, n_q, d_k)
    key: Any  # (A, B, G, n_k, d_k)
    value: Any  # (A, B, G, n_k, d_v)
    mask: Any  # (A, B, G, n_q, n_k) or None
    bias: Any  # the same
    d_k: int
    d_v: int
    scale: float
    is_causal: bool
    leading: tuple[int, ...]  # of the output, as the caller sees it
    shared_axes: tuple[int, ...]  # those of `leading` that make up G, if shared

    @property
    def n_q(self):
        return self.query.shape[3]

    @property
    def n_k(self):
        return self.key.shape[3]

    @property
    def heads(self):
        return math.prod(self.query.shape[:3])

    @property
    def is_empty(self):
        return self.heads * self.n_q * self.n_k == 0

    @property
    def call(self):
        """What the kernels read; for an array that is absent, one that they will not read.

        In half precision they count scores in units of log₂.
        """
        unit = 1.0 if self.query.dtype == torch.float32 else math.log2(math.e)
        arrays = (self.query, self.key, self.value, self.mask, self.bias)
        return Call._make(
            (
                *(self.query if x is None else x for x in arrays),
                tuple((0,) * 5 if x is None else strides_of(x) for x in arrays),
                *(*self.query.shape[:4], self.n_k, self.d_k, self.d_v),
                *(self.scale, self.scale * unit, unit),
            )
        )

    @property
    def n_shared(self):
        """How many heads of queries share one head of keys and values: G, or 1."""
        return self.query.shape[2] if self.shared_axes else 1

    @property
    def key_leading(self):
        """`leading` with 1 in place of the axes that are summed with the group."""
        return tuple(1 if i in self.shared_axes else size for i, size in enumerate(self.leading))

    def empty(self, n, d, dtype, leading=None):
        leading = self.leading if leading is None else leading
        return torch.empty((*leading, n, d), dtype=dtype, device=self.query.device)

    def with_grad(self, grad_output):
        """Return the gradient of the output as an array with the leading axes (A, B, G)."""
        return aligned(grad_output.detach().reshape(*self.query.shape[:4], self.d_v))


def operands(query, key, value, mask, bias, scale, is_causal):
    """Return `Operands` of arrays with any leading axes that broadcast; copies only if it must."""
    d_k, d_v = query.shape[-1], value.shape[-1]
    for name, d in (("query", d_k), ("value", d_v)):
        if d > MAX_WIDTH:
            letter = "d_k" if name == "query" else "d_v"
            raise ValueError(
                f"{name} must have {letter} of at most {MAX_WIDTH} for impl='triton', got {d}"
            )
    arrays = [aligned(x.detach()) for x in (query, key, value)]
    arrays += [None if x is None else x.detach() for x in (mask, bias)]
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value))) or ()
    n_q, n_k = query.shape[-2], key.shape[-2]
    arrays = [
        x if x is None else x.expand(*leading, *(x.shape[-2:] if i < 3 else (n_q, n_k)))
        for i, x in enumerate(arrays)
    ]
    groups = _merged(leading, [x for x in arrays if x is not None])
    if len(groups) > 3:
        arrays = [x if x is None else aligned(x.contiguous()) for x in arrays]
        groups = [list(range(len(leading)))]
    sizes = [1] * (3 - len(groups)) + [math.prod(leading[i] for i in group) for group in groups]
    arrays = [x if x is None else x.view(*sizes, *x.shape[-2:]) for x in arrays]
    query, key, value, mask, bias = arrays
    share = sizes[2] > 1 and key.stride(2) == value.stride(2) == 0
    shared_axes = tuple(groups[-1]) if share else ()
    options = (d_k, d_v, float(scale), is_causal, tuple(leading), shared_axes)
    return Operands(query, key, value, mask, bias, *options)


def aligned(x):
    """Return `x` with rows of unit stride that start at multiples of 16 bytes.

    A copy, with zeros to the right, where they do not.
    """
    unit = ROW_BYTES // x.element_size()
    steps = [step for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    regular = x.shape[-1] > 0 and (x.stride(-1) == 1 or x.shape[-1] == 1)
    regular = regular and (x.shape[-2] == 1 or x.stride(-2) > 0)
    if regular and all(step % unit == 0 for step in steps) and x.data_ptr() % ROW_BYTES == 0:
        return x
    width = max(triton.cdiv(x.shape[-1], unit), 1) * unit
    wide = x.new_zeros((*x.shape[:-1], width))
    wide[..., : x.shape[-1]] = x
    return wide


def strides_of(x):
    """Return the strides of `x`; those of axes of one element, which may be anything, as 0 or 16.

    The descriptor of a tile wants the stride of its rows to be a multiple of 16 bytes.
    """
    strides = [step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True)]
    if x.is_floating_point() and x.shape[-2] == 1:
        strides[-2] = MAX_WIDTH
    return tuple(strides)


def _merged(leading, arrays):
    """Return groups of neighbouring axes that are one axis in all `arrays`; size 1 is left out."""
    groups: list[list[int]] = []
    for i, size in enumerate(leading):
        if size == 1:
            continue
        last = groups[-1][-1] if groups else None
        if last is not None and all(x.stride(last) == x.stride(i) * size for x in arrays):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def launch(kernel, programs, *args, **meta):
    """Run a kernel, with memory for the descriptors that its programs build."""
    device = next(x.device for x in _leaves(args) if isinstance(x, torch.Tensor))
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=device))
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(programs,)](*args, **meta)


def _leaves(args):
    for x in args:
        if isinstance(x, tuple):
            yield from _leaves(x)
        else:
            yield x
