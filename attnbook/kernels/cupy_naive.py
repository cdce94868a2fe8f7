r"""Attention in plain CUDA C++: three kernels, a thread for every number.

.. math:: O = \operatorname{softmax}(\beta\,QK^\top + B)\,V

`naive.cu` holds one kernel for each step of the formula. A thread computes one score; a warp turns
one row into weights; a thread computes one number of the output. The n_q × n_k scores lie in the
GPU's memory between the steps, so the chip waits for memory most of the time: `cupy_tiled` keeps
them on the chip.

CuPy compiles the kernels with NVRTC when they are first launched.

Reference: `attnbook.attention`.
"""

import cupy  # here, so that a missing CuPy is known when the rung is chosen
import numpy as np

from attnbook.compilers.cuda import Source
from attnbook.kernels.cuda.arrays import Inputs

KERNELS = Source(("compilers/numbers.cu", "kernels/cuda/layout.cu", "kernels/cuda/naive.cu"))
THREADS = 256


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return `attnbook.attention` of CuPy arrays of float16, bfloat16 or float32.

    Takes checked arrays, as every rung does. Keys and values that heads share are not repeated,
    and masks and biases not broadcast: the kernels find them by steps.

    Notes
    -----
    Sums are float32 for every dtype, in a fixed order: the same call gives the same bits.
    Cost: O(n_q n_k (d_k + d_v)) time; 4 bytes a score of memory, for all heads at once.
    """
    x = Inputs.of(query, key, value, mask, bias)
    if x.output.size == 0:
        return x.output
    n_rows, sizes = x.n_heads * x.n_q, (np.int32(x.n_heads), np.int32(x.n_q), np.int32(x.n_k))
    scores = cupy.empty((n_rows, x.n_k), dtype=np.float32)
    (q, k, v), options = x.vectors, (np.float32(scale), np.int32(is_causal))
    _launch(
        *(f"scores<{x.type}>", n_rows * x.n_k),
        (q, k, *x.extra, *x.where, *sizes, np.int32(x.d_k), *options, scores),
    )
    _launch("softmax_rows", 32 * n_rows, (np.int64(n_rows), np.int32(x.n_k), scores))
    _launch(
        *(f"times_values<{x.type}>", n_rows * x.d_v),
        (scores, v, *x.where, *sizes, np.int32(x.d_v), x.output),
    )
    return x.output


def _launch(name, n_threads, args):
    if n_threads:
        KERNELS.launch(cupy, name, -(-n_threads // THREADS), THREADS, args)
