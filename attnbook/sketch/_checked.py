"""What `SketchAttention` asks of keys, values and queries."""

from typing import Any

from attnbook.arrays.arguments import Array, check_floats, library


def check_update(sketch: Any, key: Array, value: Array) -> None:
    """Raise unless keys and values are finite, fit one another and what is there."""
    check_floats(key=key, value=value)
    for name, x, axes in (("key", key, "m, d"), ("value", value, "m, d_v")):
        if x.ndim != 2 or x.shape[1] == 0:
            raise ValueError(f"{name} must have shape ({axes}), got {tuple(x.shape)}")
    if key.shape[0] != value.shape[0]:
        raise ValueError(
            f"value must have shape ({key.shape[0]}, d_v) to match key, got {tuple(value.shape)}"
        )
    _check_home(sketch, "key", key, sketch._key)
    _check_home(sketch, "value", value, sketch._value)
    # a pass over a million keys takes as long as a third of their hashing
    hashed = sketch._impl.hash_refuses
    for name, x in (("value", value),) if hashed else (("key", key), ("value", value)):
        if not sketch._impl.all_finite(x):
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_query(sketch: Any, query: Array) -> None:
    """Raise unless `query` is finite and fits the keys."""
    check_floats(query=query)
    if query.ndim != 2 or query.shape[1] == 0:
        raise ValueError(f"query must have shape (n_q, d), got {tuple(query.shape)}")
    _check_home(sketch, "query", query, sketch._key)
    if not sketch._impl.hash_refuses and not sketch._impl.all_finite(query):
        raise ValueError("query must be finite, got NaN or infinity")


def _check_home(sketch, name, x, held):
    """Raise unless `x` is like the rows that are held already, or fits `impl` if none are."""
    wanted = sketch._impl.library
    if wanted is not None and library(x) != wanted:
        raise TypeError(
            f"{name} must be an array of {wanted} for impl {sketch.impl!r}, got {library(x)}"
        )
    if sketch._index is None:
        return
    before = held.array()
    check_floats(**{"the rows of the sketch": before, name: x})
    if x.shape[1] != before.shape[1]:
        raise ValueError(
            f"{name} must have shape (..., {before.shape[1]}) to match the sketch, "
            f"got {tuple(x.shape)}"
        )
