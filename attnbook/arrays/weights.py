"""Trees of arrays, such as learned weights: their arrays by name, and moving them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from attnbook.arrays.arguments import Array, check_array
from attnbook.arrays.move import move

PLAIN = (bool, int, float, str)  # types of fields that are no arrays


class ArrayTree:
    """Base of the frozen dataclasses of arrays.

    A field is an array, None, another `ArrayTree`, a tuple of them, or a plain number or name. So
    the arrays form a tree, and each has a name such as ``encoder.layers.0.self_attention.W_Q``.
    """

    _names: ClassVar[tuple[str, ...]]
    _plain: ClassVar[frozenset[str]]

    def __init_subclass__(cls):
        # kept by name, since torch.compile cannot look into annotations
        cls._names = tuple(cls.__annotations__)
        cls._plain = frozenset(name for name in cls._names if cls.__annotations__[name] in PLAIN)

    def arrays(self) -> dict[str, Array]:
        """Return every array by its name, in the order of the fields; None has no entry."""
        return {name: x for name, x in self._leaves() if x is not None}

    def with_arrays(self, arrays: dict[str, Array]) -> Self:
        """Return the same structure with other arrays of the same names and shapes.

        Raises
        ------
        TypeError
            If one of `arrays` is not an array.
        ValueError
            If a name is missing or unknown, or a shape differs.
        """
        old = self.arrays()
        missing, unknown = sorted(old.keys() - arrays.keys()), sorted(arrays.keys() - old.keys())
        if missing or unknown:
            raise ValueError(
                f"arrays must have the {len(old)} names of these weights, got "
                f"{some(missing)} missing and {some(unknown)} unknown"
            )
        for name, x in arrays.items():
            check_array(name, x)
            if tuple(x.shape) != tuple(old[name].shape):
                raise ValueError(
                    f"{name} must have shape {tuple(old[name].shape)}, got {tuple(x.shape)}"
                )
        return self._map(lambda name, x: arrays[name])

    def to(
        self, library: str | None = None, *, device: Any = None, dtype: str | None = None
    ) -> Self:
        """Return the same weights in another library, on another device or in another dtype.

        Parameters are those of `attnbook.move`.
        """
        return self._map(lambda name, x: move(x, library, device=device, dtype=dtype))

    def _leaves(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for field in self._names:
            value = getattr(self, field)
            name = prefix + field
            if isinstance(value, ArrayTree):
                yield from value._leaves(f"{name}.")
            elif isinstance(value, tuple):
                for i, part in enumerate(value):
                    yield from part._leaves(f"{name}.{i}.")
            elif field not in self._plain:
                yield name, value

    def _map(self, function: Callable[[str, Array], Array], prefix: str = "") -> Self:
        """Return a copy with `function` of its name and itself in the place of every array."""
        changed = copy.copy(self)  # shapes stay as they were checked, so not through __init__
        for field in self._names:
            value: Any = getattr(self, field)
            name = prefix + field
            if isinstance(value, ArrayTree):
                value = value._map(function, f"{name}.")
            elif isinstance(value, tuple):
                value = tuple(p._map(function, f"{name}.{i}.") for i, p in enumerate(value))
            elif value is not None and field not in self._plain:
                value = function(name, value)
            object.__setattr__(changed, field, value)
        return changed


class Weights(ArrayTree):
    """Base of the frozen dataclasses of learned arrays."""


def check_part(name: str, part: Any, kind: type) -> None:
    """Raise TypeError unless `part` is of the class `kind`."""
    if not isinstance(part, kind):
        raise TypeError(f"{name} must be {kind.__name__}, got {type(part).__name__}")


def some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
