"""Trees of arrays, such as learned weights: their arrays by name, and moving them."""

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

import numpy as np

from attnbook.arrays.arguments import check_array, check_floats
from attnbook.arrays.array import Array
from attnbook.arrays.move import move
from attnbook.arrays.projections import check_matrices, xavier

PLAIN = (bool, int, float, str)  # types of fields that are no arrays


class ArrayTree:
    """Base of the frozen dataclasses of arrays.

    A field is an array, None, another `ArrayTree`, a tuple of them, or what is plain: a number, a
    name or a tuple of numbers. So the arrays form a tree, and each has a name such as
    ``encoder.layers.0.self_attention.W_Q``. The annotations of the fields are the schema: what a
    part is, whether it may be None, and by which letters the axes of an array are called.
    """

    field_names: ClassVar[tuple[str, ...]]
    plain_names: ClassVar[frozenset[str]]  # numbers, names, and tuples of them
    _stacks: ClassVar[frozenset[str]]  # tuples of parts
    _optional: ClassVar[frozenset[str]]  # what may be None
    part_kinds: ClassVar[dict[str, tuple[Any, ...]]]  # of what classes a part may be
    axis_letters: ClassVar[dict[str, tuple[str, ...]]]  # of the axes of each array

    def __init_subclass__(cls):
        # kept by name, since torch.compile cannot look into annotations
        own = cls.__annotations__
        cls.field_names = tuple(name for name in own if get_origin(own[name]) is not ClassVar)
        cls.part_kinds, cls.axis_letters = {}, {}
        plain, stacks, optional = set(), set(), set()
        for name in cls.field_names:
            annotation = own[name]
            choices = [kind for kind in choices_of(annotation) if kind is not NoneType]
            optional |= {name} if NoneType in choices_of(annotation) else set()
            kind = choices[0]
            if kind in PLAIN or (get_origin(kind) is tuple and get_args(kind)[0] in PLAIN):
                plain.add(name)
            elif get_origin(kind) is tuple:
                stacks.add(name)
                cls.part_kinds[name] = choices_of(get_args(kind)[0])
            elif get_origin(kind) is Annotated:
                cls.axis_letters[name] = tuple(kind.__metadata__[0].split())
            else:
                cls.part_kinds[name] = tuple(choices)
        cls.plain_names, cls._stacks = frozenset(plain), frozenset(stacks)
        cls._optional = frozenset(optional)

    @classmethod
    def unchecked(cls, fields: dict[str, Any]) -> Self:
        """Return weights of these fields, which are known to fit: no constructor checks them."""
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    def any_array(self) -> Array | None:
        """Return one of the arrays, which are all of one home, or None if there is none."""
        for field in self.field_names:
            value = getattr(self, field)
            if value is None or field in self.plain_names:
                continue
            for part in value if field in self._stacks else (value,):
                found = part.any_array() if isinstance(part, ArrayTree) else part
                if found is not None:
                    return found
        return None

    def check_fields(self) -> None:
        """Raise unless every field holds what its annotation says, and all arrays are of one home.

        A matrix must have 2 axes; the lengths of axes are left to the class, and so is what is
        plain.
        """
        for name in self.field_names:
            value = getattr(self, name)
            if name in self.plain_names or (value is None and name in self._optional):
                continue
            if name in self.axis_letters:
                check_array(name, value)
            elif name not in self._stacks:
                check_part(name, value, *self.part_kinds[name])
            elif not isinstance(value, tuple):
                raise TypeError(f"{name} must be a tuple, got {type(value).__name__}")
            else:
                for i, part in enumerate(value):
                    check_part(f"{name}[{i}]", part, *self.part_kinds[name])
        arrays = self.arrays()
        if arrays:
            check_floats(**arrays)
        matrices = {name for name, letters in self.axis_letters.items() if len(letters) == 2}
        check_matrices(**{name: x for name, x in arrays.items() if name in matrices})

    def arrays(self) -> dict[str, Array]:
        """Return every array by its name, in the order of the fields; None has no entry."""
        found: dict[str, Array] = {}
        self._collect(found, "")
        return found

    def with_arrays(self, arrays: dict[str, Array]) -> Self:
        """Return the same structure with other arrays of the same names and shapes.

        Raises
        ------
        TypeError
            If `arrays` is not a dict or one of them is not an array.
        ValueError
            If a name is missing or unknown, or a shape differs.
        """
        self.check_fit(arrays)
        return self.filled(arrays)

    def check_fit(self, arrays: dict[str, Array]) -> None:
        """Raise as `with_arrays` does, unless `arrays` have the names and shapes of these."""
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays must be a dict of arrays, got {type(arrays).__name__}")
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

    def filled(self, arrays: dict[str, Array]) -> Self:
        """Return the same structure with other arrays that are known to fit; nothing is checked."""
        return self._map(lambda name, x: arrays[name])

    def to(
        self, library: str | None = None, *, device: Any = None, dtype: str | None = None
    ) -> Self:
        """Return the same weights in another library, on another device or in another dtype.

        Parameters are those of `attnbook.move`.
        """
        return self._map(lambda name, x: move(x, library, device=device, dtype=dtype))

    def _collect(self, found: dict[str, Array], prefix: str) -> None:
        """Enter every array below this in `found`."""
        for field in self.field_names:
            value = getattr(self, field)
            if value is None or field in self.plain_names:
                continue
            if field in self._stacks:
                for i, part in enumerate(value):
                    part._collect(found, f"{prefix}{field}.{i}.")
            elif isinstance(value, ArrayTree):
                value._collect(found, f"{prefix}{field}.")
            else:
                found[prefix + field] = value

    def _map(self, function: Callable[[str, Array], Array], prefix: str = "") -> Self:
        """Return a copy with `function` of its name and itself in the place of every array."""
        fields: dict[str, Any] = {}
        for field in self.field_names:
            value: Any = getattr(self, field)
            name = prefix + field
            if isinstance(value, ArrayTree):
                value = value._map(function, f"{name}.")
            elif field in self._stacks:
                value = tuple(p._map(function, f"{name}.{i}.") for i, p in enumerate(value))
            elif value is not None and field not in self.plain_names:
                value = function(name, value)
            fields[field] = value
        return type(self).unchecked(fields)  # shapes stay as they were checked


class Weights(ArrayTree):
    """Base of the frozen dataclasses of learned arrays."""

    token_widths: ClassVar[tuple[str, ...]] = ()  # letters of the widths that tokens have
    undrawn: ClassVar[tuple[str, ...]] = ()  # fields that `init` leaves None

    @classmethod
    def drawn(cls, rng: "np.random.Generator", *, bias: bool, **sizes: int) -> dict[str, Any]:
        """Return a value for each array by the letters of its axes; None where one has no size.

        A matrix is Xavier-uniform, a bias is zeros, or None without `bias`. Nothing is drawn for
        the names in `undrawn`.
        """
        made: dict[str, Any] = dict.fromkeys(cls.axis_letters)
        for name, letters in cls.axis_letters.items():
            if name in cls.undrawn:
                continue
            shape = [sizes[letter] for letter in letters if letter in sizes]
            if len(shape) == len(letters) == 2:
                made[name] = xavier(rng, *shape)
            elif len(shape) == len(letters) and bias:
                made[name] = np.zeros(shape)
        return made


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """Return what `annotation` allows: the members of ``A | B | None``, or itself alone."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if is_union else (annotation,)


def check_part(name: str, part: Any, *kinds: type) -> None:
    """Raise TypeError unless `part` is of one of the classes `kinds`."""
    if not isinstance(part, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {wanted}, got {type(part).__name__}")


def some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
