"""Linear maps: drawing their matrices, inputs that fit them, and the product."""

import math
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import array_namespace
from attnbook.arrays.attention_arguments import check_leading_axes


def xavier(rng: "np.random.Generator", rows: int, columns: int) -> np.ndarray:
    """Return a matrix with entries uniform in ±√(6 / (rows + columns))."""
    bound = math.sqrt(6 / (rows + columns))
    try:
        return rng.uniform(-bound, bound, size=(rows, columns))
    except ValueError as error:  # NumPy speaks of its largest dimension
        raise ValueError(
            f"widths must make matrices that fit in memory, got shape ({rows}, {columns})"
        ) from error


def check_matrices(**matrices: Any) -> None:
    """Raise ValueError unless all have 2 axes."""
    for name, x in matrices.items():
        if x.ndim != 2:
            raise ValueError(f"{name} must have 2 axes, got shape {tuple(x.shape)}")


def check_inputs(inputs: dict[str, Any], matrices: dict[str, Any]) -> None:
    """Raise unless query, key and value fit together and each is as wide as its matrix is high."""
    check_floats(**inputs, weights=matrices["query"])
    for name, x in inputs.items():
        if x.ndim < 2 or x.shape[-1] != matrices[name].shape[0]:
            check_width(name, x, matrices[name].shape[0])  # which says so
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must have shape (..., {key.shape[-2]}, {value.shape[-1]}) to match key, "
            f"got {tuple(value.shape)}"
        )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        check_leading_axes(inputs)


def check_width(name: str, x: Any, width: int | None, n: str = "n") -> None:
    """Raise ValueError unless `x` has an axis of `n` tokens and one of `width` features."""
    if x.ndim < 2 or x.shape[-1] != (x.shape[-1] if width is None else width):
        wanted = "d_model" if width is None else width
        raise ValueError(
            f"{name} must have shape (..., {n}, {wanted}) to match the weights, "
            f"got {tuple(x.shape)}"
        )


def project(x: Any, matrix: Any, bias: Any = None) -> Any:
    """Return x W, plus the bias if there is one."""
    xp = array_namespace(x)
    # as one product: of a batch NumPy would make many, and each would read all of W
    rows = xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    projected = xp.reshape(xp.matmul(rows, matrix), (*x.shape[:-1], matrix.shape[-1]))
    return projected if bias is None else projected + bias
