"""The state of a sketch: its settings, keys and values, their tables, and the box of the values."""

import math
from dataclasses import dataclass, field
from typing import Any

import array_api_compat

from attnbook.arrays.arguments import check_choice, check_floats, check_int, check_number
from attnbook.arrays.array import Array, array_namespace, library, to_accumulate
from attnbook.hashing.given_hash import check_hash
from attnbook.sketch.estimators import ESTIMATORS
from attnbook.sketch.index import SignatureIndex

IMPLS = ("reference", "numba", "cupy")
LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True)
class Settings:
    """The settings of a sketch, which `SketchAttention` describes as its arguments."""

    hash: Any
    estimator: str = "union"
    scale: float | None = None
    seed: int = 0
    impl: str = "reference"
    n_probes: int = 1

    def __post_init__(self) -> None:
        hash, estimator, impl = self.hash, self.estimator, self.impl
        check_hash(hash)
        check_choice("estimator", estimator, ESTIMATORS)
        check_choice("impl", impl, IMPLS)
        check_int("seed", self.seed, at_most=LARGEST_SEED)
        if self.scale is not None:
            object.__setattr__(self, "scale", check_number("scale", self.scale))
        if check_int("n_probes", self.n_probes, at_least=1) > 1:
            if not hasattr(hash, "probes"):
                raise ValueError(
                    f"n_probes must be 1 for a hash without probes, {type(hash).__name__}, "
                    f"got {self.n_probes}"
                )
            if impl == "cupy":
                raise ValueError(f"n_probes must be 1 for impl 'cupy', got {self.n_probes}")
            if estimator == "importance":
                raise ValueError(
                    "n_probes must be 1 for estimator 'importance', as the probability to find a "
                    f"key in several buckets of a table is not known, got {self.n_probes}"
                )
        if estimator == "importance" and not self.knows_chances:
            raise ValueError(
                "hash must have retrieval_probability for estimator 'importance', "
                f"got {type(hash).__name__}"
            )
        if impl != "reference" and estimator.startswith("per_table"):
            raise ValueError(
                f"estimator must be union, importance or duplicates for impl {impl!r}, "
                f"got {estimator!r}"
            )

    @property
    def knows_chances(self) -> bool:
        """Whether the hash gives the probability to find a key, for one bucket per table."""
        return self.n_probes == 1 and hasattr(self.hash, "retrieval_probability")

    def scale_of(self, query: Array) -> float:
        """Return what multiplies the scores."""
        return 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale


class GrowingRows:
    """Rows of one width in an array with room at its end, appended in amortised constant time.

    The first rows are kept as they are given and not copied, so a million keys stay in one place.
    """

    def __init__(self) -> None:
        self.held: Any = None
        self.n = 0

    def array(self) -> Array:
        """Return the rows, a view."""
        return self.held[: self.n, ...]

    def with_room(self, x: Array) -> Array:
        """Return an array that holds the rows and `x` behind them, without changing anything."""
        if self.held is None:
            return x
        n, held = self.n + x.shape[0], self.held
        if n <= held.shape[0]:
            return held
        xp = array_namespace(held)
        # doubled, so that n single appends copy O(n) rows in all
        room = xp.zeros_like(held[:1, ...] if held.shape[0] else x[:1, ...])
        room = xp.broadcast_to(room, (max(n, 2 * self.n) - self.n, *held.shape[1:]))
        joined = xp.concat([held[: self.n, ...], room], axis=0)
        return xp.astype(joined, held.dtype, copy=False)  # concat turns foreign byte orders

    def append(self, x: Array, room: Array) -> None:
        """Append `x` into `room`, which came from `with_room(x)`."""
        if room is not x:
            room[self.n : self.n + x.shape[0], ...] = x
        self.held = room
        self.n += x.shape[0]


@dataclass
class SketchState:
    """All that a sketch holds. Functions take it and change it."""

    settings: Settings
    engine: Any
    """The engine that computes, one of `attnbook.sketch.engines`."""
    key: GrowingRows = field(default_factory=GrowingRows)
    value: GrowingRows = field(default_factory=GrowingRows)
    index: SignatureIndex | None = None
    """None as long as no key was ever added."""
    box: Any = None
    """The least and the largest of each entry of the values; None until it is first needed."""
    prepared: Any = None
    """What an engine keeps from query to query."""

    @property
    def n(self) -> int:
        """How many keys there are, without the removed ones."""
        return 0 if self.index is None else self.index.n

    def tables(self) -> SignatureIndex:
        """Return the index of a sketch that has had keys."""
        assert self.index is not None
        return self.index

    def taken(self, rows: Array) -> tuple[Array, Array]:
        """Return keys and values at places of any shape."""
        return gather(self.key.array(), rows), gather(self.value.array(), rows)

    def check_rows(self, name: str, x: Array, axes: str, held: GrowingRows) -> None:
        """Raise unless `x` has these axes, fits `impl`, and is like the rows that are held."""
        if x.ndim != 2 or x.shape[1] == 0:
            raise ValueError(f"{name} must have shape ({axes}), got {tuple(x.shape)}")
        wanted = self.engine.library
        if wanted is not None and library(x) != wanted:
            raise TypeError(
                f"{name} must be an array of {wanted} for impl {self.settings.impl!r}, "
                f"got {library(x)}"
            )
        if self.index is None:
            return
        before = held.array()
        check_floats(**{"the rows of the sketch": before, name: x})
        if x.shape[1] != before.shape[1]:
            raise ValueError(
                f"{name} must have shape (..., {before.shape[1]}) to match the sketch, "
                f"got {tuple(x.shape)}"
            )


def gather(x: Array, rows: Array) -> Array:
    """Return the rows of `x` at places of any shape; zeros if it has no rows."""
    xp = array_namespace(x)
    if x.shape[0] == 0:
        shape = (*rows.shape, x.shape[1])
        return xp.zeros(shape, dtype=x.dtype, device=array_api_compat.device(x))
    taken = xp.take(x, xp.reshape(rows, (-1,)), axis=0)
    return xp.reshape(taken, (*rows.shape, x.shape[1]))


def box_of(state: SketchState) -> tuple[Array, Array]:
    """Return the least and the largest of each entry of the values of a sketch that has keys."""
    if state.box is None:
        state.box = _box(gather(state.value.array(), state.tables().live()))
    return state.box


def widen_box(state: SketchState, value: Array) -> None:
    """Let values that were just added enter the box; a removal discards it."""
    if state.box is not None and value.shape[0]:
        xp, (low, high) = array_namespace(value), _box(value)
        state.box = xp.minimum(state.box[0], low), xp.maximum(state.box[1], high)


def _box(value):
    xp, wide = array_namespace(value), to_accumulate(value)
    return xp.min(wide, axis=0), xp.max(wide, axis=0)
