"""Architectures: what a config.json of the hub says, in this package's terms."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbook.arrays.arguments import check_bool, check_choice, check_int, check_number

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names of activations there: here."""


@dataclass(frozen=True)
class Architecture:
    """How the tensors of a state dict are put together to weights.

    Attributes
    ----------
    kind : type
        The class of the weights.
    names : dict of str to str
        The name of each array here: there. An asterisk is the number of a layer. ``.T`` at the end
        says that the matrix has shape (out, in) there, and ``[1/d_ff+d_ff]`` that it is part 1 of
        a tensor that concatenates parts of these widths. ``[1/d_nope+d_v per h]`` says that h such
        groups of parts are concatenated, and ``[:, 0]`` that an axis of length 1 is dropped. A # is
        the number of an expert, whose tensors are stacked. Of several names with `` | `` between
        them, the one whose tensors exist is meant.
    sizes : dict of str to int
        The length of an axis by its letter or, if the letter stands for different lengths in
        different parts, by the part's name here and the letter.
    plain : dict
        The value of each plain field by its name, in every class that has it, and of a field that
        holds no tensors, or has different values in different parts, by its full name, in which an
        asterisk may be the number of a layer.
    layers : dict of str to int
        How many layers each stack has.
    kinds : tuple of types
        What to take where a part can be of several classes: the first of these that has a field for
        each of the part's names, or the first class of all.
    factors : dict of str to float
        What an array is multiplied by, by its name here.
    terms : dict of str to float
        What is added to every array whose field has this name.
    optional : tuple of str
        Names here of arrays that may be missing there.
    prefix : str
        What may stand before every name there.
    ends : dict of str to str
        Former ends of names there: what they are now.
    same : dict of str to str
        What may be there again under another name.
    harmless : tuple of str
        Regular expressions of names that are no part of these weights.
    """

    kind: type
    names: dict[str, str]
    sizes: dict[str, int]
    plain: dict[str, Any]
    layers: dict[str, int]
    kinds: tuple[type, ...] = ()
    factors: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    prefix: str = ""
    ends: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()

    def rows(self) -> dict[str, str]:
        """Return `names` with the numbers of the layers in the place of asterisks."""
        rows = {}
        for ours, theirs in self.names.items():
            stack = ours.split(".*")[0]
            for i in range(self.layers[stack]) if "*" in ours else (0,):
                rows[ours.replace("*", str(i))] = theirs.replace("*", str(i))
        return rows

    def size(self, path: str, letters: str) -> int:
        """Return the length of an axis of an array of the part `path` (``"decoder.layers.0."``)."""
        if letters.isdecimal():
            return int(letters)
        named = (path + letters, starred(path) + letters, letters)
        return next(self.sizes[name] for name in named if name in self.sizes)

    def bare(self, name: str) -> str:
        """Return a name there without the prefix, and with the end that it has now."""
        name = str(name).removeprefix(self.prefix)
        for old, new in self.ends.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name


def starred(name: str) -> str:
    """Return a name here with an asterisk in the place of the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", name)


class Config:
    """The entries of a config.json, read with checks.

    An entry that is absent has the value that `defaults` give it. For most readers, one that is
    None counts as absent, too.
    """

    def __init__(
        self, config: Any, label: str = "config", defaults: Mapping[str, Any] | None = None
    ):
        entries = config.to_dict() if hasattr(config, "to_dict") else config
        if not isinstance(entries, Mapping):
            raise TypeError(
                f"{label} must be a dict or a config of transformers, got {type(config).__name__}"
            )
        self.entries, self.label, self.defaults = entries, label, defaults or {}

    def over(self, **defaults: Any) -> "Config":
        """Return the same entries with more defaults; those that it has already stay."""
        return Config(self.entries, self.label, {**defaults, **self.defaults})

    def known(self, name: str) -> Any:
        """Return an entry, or its default, either of which may be None."""
        return self.entries[name] if name in self.entries else self.defaults.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry, or `default`, or raise where neither is there."""
        value = self.known(name)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{self.label} must have an entry {name!r}, got none")
        return value

    def part(self, name: str, default: Mapping[str, Any] | None = None) -> "Config":
        """Return the entries of an entry; where it is absent, those of `default`."""
        return Config(self.get(name, default or {}), self._label_of(name))

    def size(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        return check_int(self._label_of(name), self.get(name, default), at_least)

    def size_or_none(self, name: str) -> int | None:
        return None if self.known(name) is None else self.size(name)

    def number(self, name: str, default: float | None = None) -> float:
        return check_number(self._label_of(name), self.get(name, default))

    def number_or_none(self, name: str) -> float | None:
        return None if self.known(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        return check_bool(self._label_of(name), self.get(name, default))

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        return check_choice(self._label_of(name), self.get(name, default), choices)

    def listed(self, name: str, n: int | None = None, default: Any = None) -> list[Any]:
        """Return a list of `n` entries, or of any number."""
        found = self.get(name, default)
        if not isinstance(found, (list, tuple)):
            raise TypeError(f"{self._label_of(name)} must be a list, got {type(found).__name__}")
        if n is not None and len(found) != n:
            raise ValueError(f"{self._label_of(name)} must have {n} entries, got {len(found)}")
        return list(found)

    def choices(
        self, name: str, choices: Iterable[str], n: int, default: list[str] | None = None
    ) -> list[str]:
        """Return `n` names, each of which is one of `choices`."""
        label, choices = self._label_of(name), tuple(choices)
        found = self.listed(name, n, default)
        return [check_choice(f"{label}[{i}]", x, choices) for i, x in enumerate(found)]

    def activation(self, name: str, default: str) -> str:
        """Return the name of an activation of this package."""
        return ACTIVATIONS[self.choice(name, ACTIVATIONS, default)]

    def only(self, **values: Any) -> None:
        """Raise where an entry that changes the computation is not absent, or this value."""
        for name, value in values.items():
            if self.known(name) not in (None, value):
                raise ValueError(
                    f"{self._label_of(name)} must be {value!r}, the only one that attnbook has, "
                    f"got {self.known(name)!r}"
                )

    def _label_of(self, name):
        return f"{self.label}[{name!r}]"


def sizes_of(
    d_model: int, d_ff: int, heads: int, kv_heads: int | None = None, d_k: int | None = None
) -> dict[str, int]:
    """Return the length of each axis of a layer by its letter."""
    d_k = d_model // heads if d_k is None else d_k
    kv_heads = heads if kv_heads is None else kv_heads
    tokens = dict.fromkeys(("d_model", "d_query", "d_key", "d_value", "d_out"), d_model)
    queries = dict.fromkeys(("hd_k", "hd_v"), heads * d_k)
    keys = dict.fromkeys(("hkvd_k", "hkvd_v"), kv_heads * d_k)
    return {**tokens, **queries, **keys, "d_ff": d_ff}
