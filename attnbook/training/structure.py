"""How weights are put together, as what JSON can hold; and the weights built again of it."""

from typing import Any

import attnbook
from attnbook.arrays.arguments import Array
from attnbook.arrays.weights import PLAIN, Weights, check_part


def structure(weights: Any) -> Any:
    """Return `weights` with the name of each array in its place.

    Raises TypeError if they, or a part of them, are of a class that is not this package's.
    """
    check_part("weights", weights, Weights)
    return _described("weights", weights, "")


def rebuilt(part: Any, arrays: dict[str, Array]) -> Any:
    """Return the weights that `structure` described, with the arrays of these names.

    Builds public classes of this package alone, whatever it is given. Raises TypeError or
    ValueError if `part` describes no such thing.
    """
    if isinstance(part, list):
        return tuple(rebuilt(one, arrays) for one in part)
    if not isinstance(part, dict):
        return part
    if "array" in part:
        if part["array"] not in arrays:
            raise ValueError(f"a structure whose array {part['array']!r} is not in the file")
        return arrays[part["array"]]
    name, parts = str(part.get("class")), part.get("fields")
    kind = getattr(attnbook, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Weights) and isinstance(parts, dict)):
        raise ValueError(f"a structure of a class that attnbook does not have, {name}")
    return kind(**{name: rebuilt(value, arrays) for name, value in parts.items()})


def _described(label, value, prefix):
    if isinstance(value, Weights):
        kind = type(value)
        if getattr(attnbook, kind.__name__, None) is not kind:
            raise TypeError(f"{label} must be of a class of attnbook, got {kind.__qualname__}")
        parts = {
            n: _described(prefix + n, getattr(value, n), f"{prefix}{n}.") for n in value._names
        }
        return {"class": kind.__name__, "fields": parts}
    if isinstance(value, tuple):
        return [_described(f"{prefix}{i}", x, f"{prefix}{i}.") for i, x in enumerate(value)]
    if value is None or isinstance(value, PLAIN):
        return value
    return {"array": label}
