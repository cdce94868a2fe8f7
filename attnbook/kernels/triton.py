"""Rung 7, *triton*: tiles on the Tensor Cores of a GPU, written in Python.

What `tiled` does with arrays happens here inside one kernel: a program holds a tile of queries,
walks over the keys, and keeps scores, weights and the running softmax in registers and shared
memory. Agrees with `attnbook.kernels.tiled`. PyTorch tensors on a GPU, in float16, bfloat16
or float32, sums in float32; rows of up to 256 numbers. A rule comes as ranges of keys, with which
the kernels compare, so no mask exists. The sizes of the tiles are those of the GPU's generation
(`triton_kernels.tile_sizes`). In how many parts few queries read their keys depends on the GPU and
on the batch, and so do the last bits.

Tensor Cores multiply half precision; they would round float32 to TF32, which has 10 bits after the
point. Therefore, products of float32 run on the ordinary cores unless you allow TF32 as you do for
PyTorch's own products: ``torch.backends.cuda.matmul.fp32_precision = "tf32"``, or
``torch.set_float32_matmul_precision("high")``. Then products are off by about 1e-3 of their size,
which means that a score of 100 is off by 0.1. Each pass follows the setting at its own time, so the
backward pass may differ from the forward pass.

In two respects it falls short of `tiled`. It keeps log Σ exp(score) of a row as one float32, so the
gradients lose digits with the size of the scores: in float32 they are off by 4e-5 of the largest
where all scores are 10⁴, and by 1e-2 where they are 10⁶. And it scales q · k, not q: where that
product is beyond the largest float32, the output is NaN whatever the scale.

In the folder `triton_kernels`, `forward` holds the walk over the keys, `backward` its gradients,
`decode` few queries over many keys, `pages` the same through a block table, `tiles` the sizes of
the tiles and which of them a mask leaves, `ranges` the same of a rule, `operands` the layout. Set
TRITON_INTERPRET=1 before the first import to run all of it on the CPU, slowly, in Triton's
interpreter.

Tillet, Kung, Cox (2019), "Triton: an intermediate language and compiler for tiled neural network
computations".
"""

import torch
import triton

from attnbook.kernels.triton_kernels import backward as gradients
from attnbook.kernels.triton_kernels import decode
from attnbook.kernels.triton_kernels import forward as walk
from attnbook.kernels.triton_kernels.operands import operands
from attnbook.kernels.triton_kernels.pages import paged_attention as paged_attention

DEVICES = ("cuda", "cpu") if triton.knobs.runtime.interpret else ("cuda",)
"""Where arrays may be: on the CPU too where TRITON_INTERPRET=1 was set before the import."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    is_causal: bool,
) -> torch.Tensor:
    """Return the output; beside it O(n_q) memory, and lists of tiles for a mask or a rule."""
    return forward(query, key, value, mask, bias, scale, is_causal)[0]


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and log Σ exp(score) of each row, −∞ for a row that sees no key."""
    if scale < 0:  # the kernels take the largest product for that of the largest score
        query, scale = -query, -scale
    x = operands(query, key, value, mask, bias, scale, is_causal)
    if x.is_empty:
        return x.without_keys()
    path = decode if decode.takes(x) else walk
    return path.forward(x)


def backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: float,
    is_causal: bool,
    output: torch.Tensor,
    log_total: torch.Tensor,
    grad_output: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of query, key and value from what `forward` returned."""
    x = operands(query, key, value, mask, bias, scale, is_causal)
    if x.is_empty:
        return tuple(torch.zeros_like(array) for array in (query, key, value))
    return gradients.backward(x, output, log_total, grad_output)
