"""Rung 10, *gluon*: the tiles of `triton`, with the work of a multiprocessor divided by hand.

Triton decides which warp does what. Gluon, its lower layer, leaves that to the author: here one
warp of a program lets the copy engine bring tiles of keys and values, and two or three groups of
four warps take turns, so that one computes exponentials while another has the matrix units.
In the folder `gluon_kernels`, `forward` tells the order of all waits and holds the consumers,
`stages` what they wait for, `blocks` which queries and keys, `launch` the side of the host.
Agrees with `attnbook.kernels.triton`.

PyTorch tensors on an NVIDIA GPU of compute capability 9.0 (H100, H200), in float16 or bfloat16,
rows of 64 or 128 numbers, causal or not, grouped heads; no mask and no bias. The backward pass is
that of `attnbook.kernels.triton`, which takes what `forward` returns; what large scores and large
products do to `triton` they do here.

`attnbook.backends` lists this rung once ``python -m attnbook doctor --gpu`` has compared it with
float64 on the device. Whoever names it runs it: ``impl="gluon"``.

Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao (2024), "FlashAttention-3: fast and accurate attention
with asynchrony and low-precision".
"""

import torch

from attnbook.kernels import triton
from attnbook.kernels.gluon_kernels import launch as walk
from attnbook.kernels.triton_kernels.operands import operands

CAPABILITY = (9, 0)
"""Of the GPU: the instructions of the matrix units are those of this generation alone."""


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return the output; beside it O(n_q) memory."""
    return forward(query, key, value, mask, bias, scale, is_causal)[0]


def forward(query, key, value, mask, bias, scale, is_causal):
    """Return the output and log Σ exp(score) of each row, −∞ for a row that sees no key.

    Raises
    ------
    ValueError
        If there is a mask or a bias, rows are not of 64 or 128 numbers, or the GPU is another one.
    """
    check(query, value, mask, bias)
    if scale <= 0:  # the kernel takes the largest product for that of the largest score
        query, scale = (-query, -scale) if scale < 0 else (torch.zeros_like(query), 1.0)
    x = operands(query, key, value, mask, bias, scale, is_causal)
    return x.without_keys() if x.is_empty else walk.forward(x)


def backward(query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output):
    """Return the gradients of query, key and value from what `forward` returned, by `triton`."""
    check(query, value, mask, bias)
    after = (output, log_total, grad_output)
    return triton.backward(query, key, value, mask, bias, scale, is_causal, *after)


def check(query, value, mask, bias):
    """Raise where an argument is not one of those that the kernel was written for."""
    for name, x in (("mask", mask), ("bias", bias)):
        if x is not None:
            raise ValueError(f"{name} must be None for impl='gluon', got an array")
    d_k, d_v = query.shape[-1], value.shape[-1]
    if d_k not in walk.TILES:
        widths = " or ".join(map(str, walk.TILES))
        raise ValueError(f"query must have d_k of {widths} for impl='gluon', got {d_k}")
    if d_v != d_k:
        raise ValueError(f"value must have d_v = d_k = {d_k} for impl='gluon', got {d_v}")
    capability = torch.cuda.get_device_capability(query.device)
    if capability != CAPABILITY:
        raise ValueError(
            "query must be on a GPU of compute capability 9.0 (H100, H200) for impl='gluon', "
            "got {}.{}".format(*capability)
        )
