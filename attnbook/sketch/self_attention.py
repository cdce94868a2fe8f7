r"""Self-attention in less than quadratic time: Gaussians for the crowd, scores for the few.

.. math:: \hat O = \frac{\sum_{i \in R} e^{s\,q \cdot k_i} v_i + \sum_c Z_c O_c}
                        {\sum_{i \in R} e^{s\,q \cdot k_i} + \sum_c Z_c}

R are the keys that a query scores one by one; the rest lies in cells c whose mass :math:`Z_c` and
mean value :math:`O_c` come from `Moments`, without looking at a key.
"""

import math
from typing import Annotated

import numpy as np

from attnbook._arrays import Array, check_attention_inputs, check_int, dtype_name, library
from attnbook._projections import generator

WIDTH = 16
"""Rows are padded to a multiple of so many numbers."""


def self_attention_sketch(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    *,
    n_cells: int = 1,
    n_scored: int = 0,
    n_heavy: int = 0,
    n_tables: int = 3,
    n_bits: int | None = None,
    n_probes: int = 20,
    distance: int = 14,
    scale: float | None = None,
    seed: "int | np.random.Generator" = 0,
    n_threads: int | None = None,
) -> Annotated[Array, "... n_q d_v"]:
    check_options = {"n_cells": (n_cells, 1), "n_scored": (n_scored, 0), "n_heavy": (n_heavy, 0)}
    check_options |= {"n_tables": (n_tables, 0), "n_probes": (n_probes, 1)}
    for name, (number, least) in check_options.items():
        check_int(name, number, at_least=least)
    arrays = {"query": query, "key": key, "value": value}
    _, _, _, _, scale = check_attention_inputs(arrays, None, None, scale)
    if library(query) != "numpy" or dtype_name(query.dtype) != "float32":
        raise TypeError(
            "query must be a float32 array of NumPy, "
            f"got {dtype_name(query.dtype)} of {library(query)}"
        )
    d_v = value.shape[-1]
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in arrays.values()))
    q, k, v = (_rows(x, leading) for x in arrays.values())
    from attnbook.sketch._self_sketch import SelfSketch

    sketch = SelfSketch(k, v, n_cells, n_heavy, generator(seed), n_threads)
    sketch.add_tables(n_tables, n_bits, n_probes, distance, generator(seed))
    out = sketch.answer(q, scale, n_scored)
    return out[..., :d_v].reshape(*leading, q.shape[1], d_v)


def _rows(x, leading):
    """Return a writable contiguous array (h, n, d) whose rows are a multiple of 16 wide."""
    if x.shape[:-2] != leading:
        x = np.broadcast_to(x, (*leading, *x.shape[-2:]))
    x = x.reshape(math.prod(leading), *x.shape[-2:])
    short = -x.shape[-1] % WIDTH
    return np.pad(x, ((0, 0), (0, 0), (0, short))) if short else np.require(x, None, ["C", "W"])
