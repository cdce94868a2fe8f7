"""Form *triton*: one program walks through the chunks of a head, and keeps the state in registers.

A program takes as many columns of the values as fit beside the state. Tokens in half precision are
multiplied on the Tensor Cores as TF32, which holds them exactly and rounds the state to 11 bits in
each product; float32 takes three such products, which lose no more than float32 does. PyTorch
tensors on a GPU, with up to 128 features a key. No GPU has timed it. Compiled for a Hopper GPU it
needs no memory for registers up to 64 features in half precision; beyond, and with the delta rule
in float32, it does. Set TRITON_INTERPRET=1 before the first import to run it on the CPU, slowly.

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

LENGTH, COLUMNS, MOST_FEATURES, WARPS = 32, 16, 128, 4
"""Tokens in a chunk, columns of the values and features of a key that a program takes at most."""


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
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Read all tokens of one head into some columns of its state."""
    parts = tl.cdiv(d_v, D_V)
    head = (tl.program_id(0) // parts).to(tl.int64)
    features, rows = tl.arange(0, D_K), tl.arange(0, LENGTH)
    columns = tl.program_id(0) % parts * D_V + tl.arange(0, D_V)
    known, shown = features < d_k, columns < d_v
    places = head * d_k * d_v + features[:, None] * d_v + columns[None, :]
    state = tl.load(states + places, mask=known[:, None] & shown[None, :], other=0.0)
    for start in range(0, n, LENGTH):
        token = head * n + start + rows
        there = start + rows < n
        at_key = token[:, None] * d_k + features[None, :]
        at_value = token[:, None] * d_v + columns[None, :]
        of_key, of_value = there[:, None] & known[None, :], there[:, None] & shown[None, :]
        query = tl.load(queries + at_key, mask=of_key, other=0.0)
        key = tl.load(keys + at_key, mask=of_key, other=0.0)
        written = tl.load(values + at_value, mask=of_value, other=0.0)
        steps = tl.load(log_decays + token, mask=there, other=0.0)
        g, total = tl.cumsum(steps, 0), tl.sum(steps, 0)
        seen = rows[:, None] >= rows[None, :]
        gamma = tl.where(seen, tl.exp(tl.where(seen, g[:, None] - g[None, :], 0.0)), 0.0)
        turned = tl.trans(key)
        if ERASES:
            beta = tl.load(betas + token, mask=there, other=0.0)
            overlap = tl.dot(key, turned, input_precision=PRECISION) * gamma * beta[:, None]
            inverse = tl.where(rows[:, None] > rows[None, :], -overlap, 0.0)
            for i in range(1, LENGTH):  # row i from the rows above it
                here = rows[:, None] == i
                row = tl.sum(tl.where(here, inverse, 0.0), 0)
                row += tl.sum(row[:, None] * inverse, 0)
                inverse = tl.where(here, row[None, :], inverse)
            inverse += tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
            held = tl.dot(key, state, input_precision=PRECISION)
            rest = beta[:, None] * (written - tl.exp(g)[:, None] * held)
            written = tl.dot(inverse, rest, input_precision=PRECISION)
        inside = tl.dot(query, turned, input_precision=PRECISION) * gamma
        read = tl.exp(g)[:, None] * tl.dot(query, state, input_precision=PRECISION)
        read += tl.dot(inside, written, input_precision=PRECISION)
        tl.store(outputs + at_value, read, mask=of_value)
        left = turned * tl.exp(total - g)[None, :]
        state = tl.exp(total) * state + tl.dot(left, written, input_precision=PRECISION)
    tl.store(states + places, state, mask=known[:, None] & shown[None, :])


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
        wide, columns = max(16, triton.next_power_of_2(d_k)), min(COLUMNS, max(16, d_v))
        columns = triton.next_power_of_2(columns)
        options = (tokens.beta is not None, LENGTH, wide, columns, "tf32" if half else "tf32x3")
        programs = heads * triton.cdiv(d_v, columns)
        launch(
            *(chunk_kernel, programs, output.device, *arrays, state, output, n, d_k, d_v, *options),
            num_warps=WARPS,
        )
    return output, state
