"""Form *triton*: one program walks through the chunks of a head, and keeps the state in registers.

A program takes 16 columns of the values. The features of the keys are cut into parts, one for each
warp, and the products that sum over features are summed over the warps, so that no warp repeats
the work of another one. Tokens in half precision are multiplied on the Tensor Cores as TF32, which
holds them exactly and rounds the state to 11 bits in each product; float32 takes three such
products, which lose no more than float32 does. The kernel takes PyTorch tensors on a GPU, with up
to 256 features per key. No GPU has timed it. Compiled for sm_80, 86, 89, 90, 100 and 120, it spills
no register (`python tests/kernels/triton_sass.py` prints this), although chunks of 32 tokens
would. Set TRITON_INTERPRET=1 before the first import to run it on the CPU, slowly.

Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length",
cuts the work so that chunks run side by side, too, which pays where there are few heads.
"""

import math

import torch
import triton
import triton.language as tl

from attnbook.arrays.array import Array, library
from attnbook.kernels.triton_kernels.operands import launch
from attnbook.linear_attention.arguments import Tokens

DEVICES = ("cuda", "cpu") if triton.knobs.runtime.interpret else ("cuda",)
"""Where tensors may be: on the CPU too where TRITON_INTERPRET=1 was set before the import."""

LENGTH, COLUMNS = 16, 16
"""Tokens in a chunk, and columns of the values that a program takes."""
LEAST, MOST_WARPS, MOST_FEATURES = 16, 8, 256
"""Each warp of a program takes 16 features of a key or, where 8 warps are too few, more."""
WIDEST_AHEAD = 128
"""Up to so many features, the delta rule has registers to read the next chunk ahead."""


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """Return x y of matrices that are cut along the axis that is summed: (parts, ., .)."""
    return tl.sum(tl.dot(x, y, input_precision=PRECISION), 0)


@triton.jit
def state_at(head, features, columns, d_k, d_v):
    """Return where the state of a head lies, (parts, features, columns), and what of it exists."""
    places = head * d_k * d_v + features[:, :, None] * d_v + columns[None, None, :]
    return places, (features < d_k)[:, :, None] & (columns < d_v)[None, None, :]


@triton.jit(do_not_specialize=["n"])
def chunk_kernel(
    queries,
    keys,
    values,
    log_decays,
    betas,
    states,
    outputs,
    n,
    d_k,
    d_v,
    ERASES: tl.constexpr,
    LENGTH: tl.constexpr,
    PARTS: tl.constexpr,  # into so many parts the features are cut, for a warp each
    D_K: tl.constexpr,  # features of a part
    D_V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Read all tokens of one head into some columns of its state."""
    programs = tl.cdiv(d_v, D_V)
    head = (tl.program_id(0) // programs).to(tl.int64)
    rows = tl.arange(0, LENGTH)
    features = tl.arange(0, PARTS)[:, None] * D_K + tl.arange(0, D_K)[None, :]
    columns = tl.program_id(0) % programs * D_V + tl.arange(0, D_V)
    known, shown = features < d_k, columns < d_v
    places, of_state = state_at(head, features, columns, d_k, d_v)
    state = tl.load(states + places, mask=of_state, other=0.0)
    for start in range(0, n, LENGTH):
        token = head * n + start + rows
        there = start + rows < n
        at_key = token[None, :, None] * d_k + features[:, None, :]
        at_value = token[:, None] * d_v + columns[None, :]
        of_key = there[None, :, None] & known[:, None, :]
        of_value = there[:, None] & shown[None, :]
        query = tl.load(queries + at_key, mask=of_key, other=0.0)
        key = tl.load(keys + at_key, mask=of_key, other=0.0)
        written = tl.load(values + at_value, mask=of_value, other=0.0)
        steps = tl.load(log_decays + token, mask=there, other=0.0)
        g, total = tl.cumsum(steps, 0), tl.sum(steps, 0)
        seen = rows[:, None] >= rows[None, :]
        gamma = tl.where(seen, tl.exp(tl.where(seen, g[:, None] - g[None, :], 0.0)), 0.0)
        turned = tl.permute(key, (0, 2, 1))
        inside = product(query, turned, PRECISION) * gamma
        read = tl.exp(g)[:, None] * product(query, state, PRECISION)
        if ERASES:
            beta = tl.load(betas + token, mask=there, other=0.0)
            overlap = product(key, turned, PRECISION) * gamma * beta[:, None]
            inverse = tl.where(rows[:, None] > rows[None, :], -overlap, 0.0)
            for i in tl.static_range(1, LENGTH):  # row i from the rows above it
                here = rows[:, None] == i
                row = tl.sum(tl.where(here, inverse, 0.0), 0)
                row += tl.sum(row[:, None] * inverse, 0)
                inverse = tl.where(here, row[None, :], inverse)
            inverse += tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
            held = product(key, state, PRECISION)
            rest = beta[:, None] * (written - tl.exp(g)[:, None] * held)
            written = tl.dot(inverse, rest, input_precision=PRECISION)
        read += tl.dot(inside, written, input_precision=PRECISION)
        tl.store(outputs + at_value, read, mask=of_value)
        left = turned * tl.exp(total - g)[None, None, :]
        written = tl.broadcast_to(written[None, :, :], (PARTS, LENGTH, D_V))
        state = tl.exp(total) * state + tl.dot(left, written, input_precision=PRECISION)
    # Program 0 is the only one along axis 1, which the compiler does not know. Therefore, it makes
    # the addresses again and does not keep them in registers from the first to the last chunk.
    again = tl.program_id(1)
    places, of_state = state_at(head + again, features + again, columns, d_k, d_v)
    tl.store(states + places, state, mask=of_state)


def compiled(tokens: Tokens, half: bool) -> tuple[Array, Array]:
    """Return the output and the last state; `half` says that tokens come from half precision."""
    like = tokens.query
    if library(like) != "torch" or like.device.type not in DEVICES:
        raise ValueError(f'impl="triton" takes PyTorch tensors on a GPU, got {library(like)}')
    *leading, n, d_k = like.shape
    d_v, heads = tokens.value.shape[-1], math.prod(leading)
    if d_k > MOST_FEATURES:
        raise ValueError(f'impl="triton" takes keys of at most {MOST_FEATURES} features, got {d_k}')
    beta = tokens.log_decay if tokens.beta is None else tokens.beta
    arrays: list[torch.Tensor] = [x.contiguous() for x in (*tokens[:4], beta)]  # type: ignore[attr-defined]
    state = torch.clone(tokens.state, memory_format=torch.contiguous_format)  # type: ignore[arg-type]
    output = torch.zeros_like(arrays[2])
    if min(n, d_k, d_v, heads) > 0:
        wide, erases = max(LEAST, triton.next_power_of_2(d_k)), tokens.beta is not None
        warps = min(MOST_WARPS, wide // LEAST)
        precision = "tf32" if half else "tf32x3"
        options = (erases, LENGTH, warps, wide // warps, COLUMNS, precision)
        programs = heads * triton.cdiv(d_v, COLUMNS)
        launch(
            *(chunk_kernel, programs, output.device, *arrays, state, output, n, d_k, d_v, *options),
            num_warps=warps,
            num_stages=1 if erases and wide > WIDEST_AHEAD else 2,
            # told how many it may take, the compiler keeps none in memory where it takes most
            maxnreg=255 if erases or d_k % 16 or d_v % 16 else None,
        )
    return output, state
