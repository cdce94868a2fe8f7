"""Arrays as the Triton kernels read them: three leading axes, rows that start at 16 bytes.

From Hopper (sm_90) on, the **Tensor Memory Accelerator** (TMA) of a GPU loads a tile from a
descriptor of its array: where the array begins, its sizes and its strides, (A, B, G, n, d), which
are all the axes that a descriptor can have. The descriptor is made here, on the host, once per
call. Other GPUs, and sm_120, get pointer and strides (`Pointers`): for GPUs without TMA Triton
compiles a descriptor to loads of single numbers, which do not run ahead of the products, and on
sm_120 tiles that it loads fill the registers. How the arrays of a call lie is found once for all
calls that lie so: `layout_of` keeps what it finds.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbook.arrays.array import broadcast_shapes
from attnbook.arrays.intervals import Intervals
from attnbook.kernels.triton_kernels.ranges import on_device, widened

ROW_BYTES = 16
"""The TMA loads tiles whose rows start at multiples of this."""

VECTOR = 16
"""Masks and biases are loaded by so many elements."""

LOG2E = math.log2(math.e)
WITH_TMA = 9, 10
"""Major compute capabilities whose tiles the TMA loads."""
MAX_WIDTH = 256
"""The widest row of query, key or value: a tile of it must fit on the chip."""


class Sizes(NamedTuple):
    """Sizes that no kernel is compiled for: one compiled kernel serves them all."""

    A: Any
    B: Any
    G: Any
    n_q: Any
    n_k: Any


class Call(NamedTuple):
    """Arguments of every kernel that walks over tiles of scores, beside the sizes."""

    mask: Any
    bias: Any
    mask_strides: Any  # four: along the keys see `Kind`
    bias_strides: Any
    d_k: Any
    d_v: Any
    scale: Any  # of the products q · k
    score_scale: Any  # the same, and that of the bias, in the unit of the dtype
    bias_scale: Any


@dataclass(frozen=True)
class Layout:
    """How the arrays of a call lie in memory, with leading axes (A, B, G) that all of them share.

    Where `shared_axes` is not empty, G counts the heads of queries that share one head of keys
    and values, whose gradients are summed over G. Along an axis that an array lacks its stride
    is 0.
    """

    sizes: Sizes
    strides: tuple[Any, ...]  # of query, key, value, mask and bias, five of each
    rows: tuple[Any, ...]  # of query, key and value: shape and strides for the TMA
    leading: tuple[int, ...]  # of the output, as the caller sees it
    shared_axes: tuple[int, ...]  # those of `leading` that make up G, if shared


class Operands:
    """What one call of attention works on.

    Parameters
    ----------
    arrays : tuple of torch.Tensor or None
        Query, key, value, mask and bias, which lie as `layout` says.
    layout : Layout
    n_heads : tuple of int
        How many heads query, key and value had before they were laid out.
    d_k, d_v : int
        Widths of the rows; those of the arrays may be more, filled with zeros.
    scale : float
    is_causal : bool
    intervals : Intervals or None
        What the mask says, if it holds ranges of keys.
    """

    def __init__(self, arrays, layout, n_heads, d_k, d_v, scale, is_causal, intervals=None):
        self.intervals = intervals
        self.query, self.key, self.value, self.mask, self.bias = self.arrays = arrays
        self.layout, self.sizes, self.leading = layout, layout.sizes, layout.leading
        self.A, self.B, self.G, self.n_q, self.n_k = layout.sizes
        self.heads = self.A * self.B * self.G
        self.n_heads = n_heads
        self.d_k, self.d_v, self.scale, self.is_causal = d_k, d_v, scale, is_causal
        self.precision = precision_of(self.query.dtype)
        self.is_empty = self.heads * self.n_q * self.n_k == 0
        self.n_shared = self.G if layout.shared_axes else 1
        """How many heads of queries share one head of keys and values: G, or 1."""

    @property
    def call(self):
        """What the kernels read; for an array that is absent, one that they will not read.

        In half precision they count scores in units of log₂.
        """
        unit = 1.0 if self.query.dtype == torch.float32 else LOG2E
        mask_strides, bias_strides = (strides[:4] for strides in self.layout.strides[3:])
        return Call(
            self.query if self.mask is None else self.mask,
            self.query if self.bias is None else self.bias,
            mask_strides,
            bias_strides,
            self.d_k,
            self.d_v,
            self.scale,
            self.scale * unit,
            unit,
        )

    @property
    def key_leading(self):
        """`leading` with 1 in place of the axes that are summed with the group."""
        shared = self.layout.shared_axes
        return tuple(1 if i in shared else size for i, size in enumerate(self.leading))

    def rows(self, kind):
        """Return the descriptions of query, key and value for the tiles of a `Kind`."""
        blocks = (kind.BLOCK_Q, kind.D_K), (kind.BLOCK_K, kind.D_K), (kind.BLOCK_K, kind.D_V)
        return [
            rows_at(x, rows[0], rows[1], (1, 1, 1, *block))
            for x, rows, block in zip(self.arrays[:3], self.layout.rows, blocks, strict=True)
        ]

    def empty(self, n, d, dtype, leading=None):
        leading = self.leading if leading is None else leading
        return self.query.new_empty((*leading, n, d), dtype=dtype)

    def gradient_of(self, i, d, leading):
        """Return room for the gradient of array `i`, in float32 if it is yet to be summed."""
        is_summed = math.prod(leading) == self.n_heads[i]
        dtype = self.query.dtype if is_summed else torch.float32
        return self.empty(self.n_k if i else self.n_q, d, dtype, leading)

    def without_keys(self):
        """Return what `forward` does where there is no key to see: zeros, and log 0 = −∞."""
        output = self.empty(self.n_q, self.d_v, self.query.dtype).zero_()
        return output, self.empty(self.n_q, 1, torch.float32).fill_(-torch.inf)


class Rows(TensorDescriptor):
    """A descriptor of rows; what it would check, `aligned` has seen to, once per layout."""

    def __post_init__(self):
        pass


class Pointers(NamedTuple):
    """Where rows lie, for a GPU without TMA."""

    pointer: Any
    strides: Any  # four, of elements: along an axis that the array lacks, 0
    n: Any
    d: Any


def rows_at(x, shape, strides, block):
    """Return what a kernel loads tiles of rows from; `shape` and `strides` are `described_rows`."""
    if capability_of(x.device)[0] in WITH_TMA:
        return Rows(x, shape, strides, block)
    steps = [step if n > 1 else 0 for n, step in zip(shape[:3], strides[:3], strict=True)]
    return Pointers(x, (*steps, strides[3]), *shape[3:])


def rows_of_array(x, block, width):
    """Return what a kernel loads tiles of an aligned array (A, B, G, n, d) from."""
    shape, strides = x.shape, _stretched(x.shape, x.shape, x.stride())
    shape, strides = described_rows(shape[:3], shape[-2:], strides)
    return rows_at(x, shape, strides, (1, 1, 1, block, width))


def operands(query, key, value, mask, bias, scale, is_causal):
    """Return `Operands` of arrays with any leading axes that broadcast; copies only if it must."""
    d_k, d_v = query.shape[-1], value.shape[-1]
    if d_k > MAX_WIDTH or d_v > MAX_WIDTH:
        name, letter, d = ("query", "d_k", d_k) if d_k > MAX_WIDTH else ("value", "d_v", d_v)
        raise ValueError(
            f"{name} must have {letter} of at most {MAX_WIDTH} for impl='triton', got {d}"
        )
    intervals = mask if isinstance(mask, Intervals) else None
    if intervals is not None:
        mask = on_device(intervals, query.device)
    arrays: tuple[Any, ...] = (query, key, value, mask, bias)
    if 0 in (*query.shape[:-1], *key.shape[:-1], *value.shape[:-1]):  # no score to hide or to move
        arrays, intervals = (query, key, value, None, None), None
    layout = _layout(arrays, intervals)
    starts = query.data_ptr() | key.data_ptr() | value.data_ptr()
    for x in arrays[3:]:
        starts |= 0 if x is None else x.data_ptr()
    if layout is None or starts % ROW_BYTES:
        arrays = tuple(x if x is None else x.detach() for x in arrays)
        mask = arrays[3] if intervals is not None else in_vectors(arrays[3])
        arrays = (*map(aligned, arrays[:3]), mask, in_vectors(arrays[4]))
        layout = _layout(arrays, intervals)
    if layout is None:
        arrays, intervals = _whole(arrays, intervals)
        layout = _layout(arrays, intervals)
    n_heads = tuple(math.prod(x.shape[:-2]) for x in (query, key, value))
    return Operands(arrays, layout, n_heads, d_k, d_v, float(scale), is_causal, intervals)


def _layout(arrays, intervals):
    places = [None if x is None else (x.shape, x.stride()) for x in arrays]
    return layout_of(*places, arrays[0].element_size(), intervals is not None)


def _whole(arrays, intervals):
    """Return arrays that have all leading axes, each in one piece of memory."""
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in arrays[:3])) or ()
    n_q = arrays[0].shape[-2]
    ends = [x.shape[-2:] for x in arrays[:3]]
    ends += [None if x is None else (n_q, *(x.shape[-1:] or (1,))) for x in arrays[3:]]
    arrays = [
        x if x is None else x.expand(*leading, *end).contiguous()
        for x, end in zip(arrays, ends, strict=True)
    ]
    if intervals is None:
        return (*arrays[:3], *map(in_vectors, arrays[3:])), None
    intervals = widened(intervals, leading)
    mask = on_device(intervals, arrays[0].device)
    return (*arrays[:3], mask, in_vectors(arrays[4])), intervals


@lru_cache(maxsize=1024)
def layout_of(query, key, value, mask, bias, element_size, has_ranges=False):
    """Return the `Layout` of arrays, or None where no three leading axes hold all of them.

    Each array is its shape and its strides, or None. A mask may be the ranges of `Intervals`.
    """
    places = (query, key, value, mask, bias)
    if not all(rows_are_aligned(*place, element_size) for place in places[:3]):
        return None
    if not all(place is None or _is_in_vectors(*place) for place in places[3 + has_ranges :]):
        return None
    leading = broadcast_shapes(*(tuple(shape[:-2]) for shape, _ in places[:3])) or ()
    sizes = (*leading, query[0][-2], key[0][-2])
    ends = [place[0][-2:] for place in places[:3]] + [sizes[-2:]] * 2
    steps = [
        None if place is None else _stretched((*leading, *end), *place)
        for place, end in zip(places, ends, strict=True)
    ]
    groups = _merged(leading, [x for x in steps if x is not None])
    if len(groups) > 3:
        return None
    extra = 3 - len(groups)
    of_groups = [1] * extra + [math.prod(leading[i] for i in group) for group in groups]
    strides = tuple(
        (0,) * 5 if x is None else (*[0] * extra, *(x[group[-1]] for group in groups), *x[-2:])
        for x in steps
    )
    rows = tuple(
        described_rows(of_groups, end, x) for end, x in zip(ends[:3], strides[:3], strict=True)
    )
    share = of_groups[2] > 1 and strides[1][2] == strides[2][2] == 0
    shared_axes = tuple(groups[-1]) if share else ()
    return Layout(Sizes(*of_groups, *sizes[-2:]), strides, rows, leading, shared_axes)


def described_rows(leading, end, strides):
    """Return shape and strides of rows, (A, B, G, n, d), as the TMA reads them.

    An axis that the array lacks, of stride 0, has one element: the kernels stay on it. Its stride,
    which nothing reads, is one that the engine takes, as is that of the rows where there is one.
    """
    n, d = end
    step = strides[3] if n > 1 else MAX_WIDTH
    sizes = [size if own else 1 for size, own in zip(leading, strides[:3], strict=True)]
    steps = [own or n * step for own in strides[:3]]
    return (*sizes, n, d), (*steps, step, 1)


@lru_cache(maxsize=1024)
def rows_are_aligned(shape, strides, element_size):
    """Say whether rows have unit stride and start at multiples of 16 bytes from the first."""
    unit = ROW_BYTES // element_size
    steps = [step for size, step in zip(shape[:-1], strides[:-1], strict=True) if size > 1]
    regular = shape[-1] > 0 and (strides[-1] == 1 or shape[-1] == 1)
    regular = regular and (shape[-2] == 1 or strides[-2] > 0)
    return regular and all(step % unit == 0 for step in steps)


def aligned(x):
    """Return `x` with rows of unit stride that start at multiples of 16 bytes.

    A copy, with zeros to the right, where they do not.
    """
    regular = rows_are_aligned(x.shape, x.stride(), x.element_size())
    if regular and x.data_ptr() % ROW_BYTES == 0:
        return x
    unit = ROW_BYTES // x.element_size()
    width = max(-(-x.shape[-1] // unit), 1) * unit
    wide = x.new_zeros((*x.shape[:-1], width))
    wide[..., : x.shape[-1]] = x
    return wide


def in_vectors(x):
    """Return a mask or a bias whose rows are whole vectors of 16 elements, or None of None.

    A copy, with zeros to the right, where they are not: the kernels load it by vectors. A row of
    one element for all keys stays one, but is a vector from the next: Triton 3.6 loses a stride
    of 1, which it compiles as a constant, behind a loop.
    """
    if x is None or (_is_in_vectors(x.shape, x.stride()) and x.data_ptr() % ROW_BYTES == 0):
        return x
    wide = torch.constant_pad_nd(x, (0, -x.shape[-1] % VECTOR)).contiguous()
    return wide[..., :1] if x.shape[-1] == 1 else wide


@lru_cache(maxsize=1024)
def _is_in_vectors(shape, strides):
    steps = [step for size, step in zip(shape[:-1], strides[:-1], strict=True) if size > 1]
    if shape[-1:] in ((), (1,)):  # one element for all keys
        return 1 not in steps
    return strides[-1] == 1 and all(step % VECTOR == 0 for step in (shape[-1], *steps))


def _stretched(sizes, shape, strides):
    """Return the strides of an array along axes of `sizes`: 0 where it has one element, or none."""
    lacks = len(sizes) - len(shape)
    own = [step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)]
    return (*[0] * lacks, *own)


def _merged(leading, strides):
    """Return groups of neighbouring axes that are one axis in all arrays; size 1 is left out."""
    groups: list[list[int]] = []
    for i, size in enumerate(leading):
        if size == 1:
            continue
        last = groups[-1][-1] if groups else None
        if last is not None and all(x[last] == x[i] * size for x in strides):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def precision_of(dtype):
    """Return how kernels multiply: "half", or, float32, as PyTorch is set to: "tf32" or "ieee"."""
    if dtype != torch.float32:
        return "half"
    matmul = torch.backends.cuda.matmul
    # PyTorch has had `fp32_precision` since 2.9. Then the older flag raises where both were set.
    setting = getattr(matmul, "fp32_precision", None) or matmul.allow_tf32
    return "tf32" if setting in ("tf32", True) else "ieee"


@lru_cache
def capability_of(device):
    """Return the compute capability of a device, major and minor; of the CPU that of Hopper."""
    if device.type != "cuda":
        return 9, 0
    return torch.cuda.get_device_capability(device)


def launch(kernel, programs, device, *args, **meta):
    """Run a kernel on the device of its arrays."""
    here = device.type != "cuda" or device.index == torch.cuda.current_device()
    with nullcontext() if here else torch.cuda.device(device):
        kernel[(programs,)](*args, **meta)
