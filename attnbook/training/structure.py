"""The structure of weights in terms that JSON can hold, and the weights built from it again."""

from typing import Any

from attnbook.arrays.array import Array
from attnbook.arrays.weights import PLAIN, Weights, check_part


def structure(weights: Any) -> Any:
    """Return `weights` with the name of each array in its place.

    Raises TypeError if they, or a part of them, are of a class that is not this package's.
    """
    check_part("weights", weights, Weights)
    return _described("weights", weights, "")


def rebuilt(part: Any, arrays: dict[str, Array]) -> Any:
    """Return the weights that `structure` described, with the arrays of these names.

    Builds classes of weights of this package alone, whatever it is given. Raises TypeError or
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
    kind = _classes().get(name)
    if kind is None or not isinstance(parts, dict):
        raise ValueError(f"a structure of a class that attnbook does not have, {name}")
    return kind(**{name: rebuilt(value, arrays) for name, value in parts.items()})


def _classes() -> dict[str, type[Weights]]:
    """Return the dataclasses of weights that this package defines, by their names."""
    found, left = {}, [Weights]
    while left:
        kinds = left.pop().__subclasses__()
        left += kinds
        for kind in kinds:
            if kind.__module__.startswith("attnbook.") and "__dataclass_fields__" in vars(kind):
                found[kind.__name__] = kind
    return found


def _described(label, value, prefix):
    if isinstance(value, Weights):
        kind = type(value)
        if _classes().get(kind.__name__) is not kind:
            raise TypeError(f"{label} must be of a class of attnbook, got {kind.__qualname__}")
        parts = {
            n: _described(prefix + n, getattr(value, n), f"{prefix}{n}.") for n in value.field_names
        }
        return {"class": kind.__name__, "fields": parts}
    if isinstance(value, tuple):
        return [_described(f"{prefix}{i}", x, f"{prefix}{i}.") for i, x in enumerate(value)]
    if value is None or isinstance(value, PLAIN):
        return value
    return {"array": label}
