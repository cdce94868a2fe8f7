"""Files of a sketch, which hold its hash, keys, values and signatures in safetensors, and no code.

A file is written as a whole or not at all. A damaged or foreign one is refused with a reason.
"""

import dataclasses
import numbers
import os
from typing import Any

import numpy as np

from attnbook.arrays import tensor_file
from attnbook.arrays.arguments import check_choice
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import LIBRARIES, move
from attnbook.hashing.cross_polytope import CrossPolytopeHash
from attnbook.hashing.given_hash import check_hash
from attnbook.hashing.learned_cells import LearnedCells
from attnbook.hashing.lifting import LiftedHash
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.sketch.engines import ENGINES
from attnbook.sketch.state import IMPLS, Settings, SketchState
from attnbook.sketch.updates import check_update, insert

Path = str | os.PathLike

CLASSES = {x.__name__: x for x in (SimHash, StableHash, CrossPolytopeHash, LearnedCells)}
"""The classes that a file can ask to be built."""

SETTINGS = tuple(field.name for field in dataclasses.fields(Settings))[1:]
"""All settings but the hash."""

FORMER = {
    "tail": "none",
    "n_heavy": 0,
    "n_cells": 1,
    "n_samples": 128,
    "delta": 0.05,
    "max_bucket": None,
}
"""Options that sketches once had, with their defaults. Those of a tail mean nothing without one."""


def write(path: Path, state: SketchState) -> None:
    """Write all that a sketch holds to a file."""
    arrays: dict[str, Any] = {}
    content: dict[str, Any] = {
        "hash": describe(state.settings.hash, "hash.", arrays),
        "settings": {name: _plain(getattr(state.settings, name)) for name in SETTINGS},
        "value": None,
    }
    if state.index is not None:
        arrays["key"] = state.key.array()
        content["value"] = "key" if state.value.held is state.key.held else "value"
        arrays[content["value"]] = state.value.array()
        arrays["live"] = state.index.live()
        arrays["signatures"] = state.index.signatures()
    tensor_file.write(path, "sketch", arrays, content)


def read(
    kind: Any,
    path: Path,
    library: str | None = None,
    *,
    impl: str | None = None,
    hash: Any = None,
) -> Any:
    """Return what a file holds as a sketch of the class `kind`, as `SketchAttention.load` does."""
    if library is not None:
        check_choice("library", library, LIBRARIES)
    if impl is not None:
        check_choice("impl", impl, IMPLS)
    if hash is not None:
        check_hash(hash)
    _, arrays, narrow, content = tensor_file.read(path, "sketch")
    with tensor_file.describing(path, "an attnbook sketch"):
        settings = {"n_probes": 1} | content["settings"]  # older files have none
        for name, default in FORMER.items():
            if settings.get(name, default) != default:
                raise ValueError(
                    f"{name}={settings[name]!r}, an option that sketches no longer have"
                )
        settings = {name: settings[name] for name in SETTINGS}
        described = content["hash"]
        settings["impl"] = check_choice("impl", settings["impl"] if impl is None else impl, IMPLS)
    needed = ENGINES[settings["impl"]].library
    if library is not None and needed not in (None, library):
        raise ValueError(f"library must be {needed} for impl {settings['impl']!r}, got {library!r}")
    library = library or needed or "numpy"
    if described is None and hash is None:
        raise ValueError(
            f"hash must be that of the sketch in {path}, which is one of your own, got None"
        )
    if described is not None and hash is not None:
        raise TypeError(f"hash must be None, since {path} holds one, got {type(hash).__name__}")
    with tensor_file.describing(path, "an attnbook sketch"):
        moved = {
            name: tensor_file.to_library(x, library, narrow=name in narrow)
            for name, x in arrays.items()
        }
        given = _rebuilt(described, "hash.", moved) if hash is None else hash
        sketch = kind(given, **settings)
        if "key" in moved:
            _fill(sketch.state, moved, content)
        return sketch


def _fill(state, arrays, content):
    """Put the rows of a file into an empty state."""
    key, value = arrays["key"], arrays[content["value"]]
    live, signatures = move(arrays["live"], "numpy"), move(arrays["signatures"], "numpy")
    n, n_tables = key.shape[0] if key.ndim else 0, state.settings.hash.n_tables
    if live.dtype != np.int64 or live.ndim != 1 or not np.array_equal(live, np.unique(live)):
        raise ValueError("live that is no ascending int64 array")
    if len(live) and not 0 <= live[0] <= live[-1] < n:
        raise ValueError(f"live keys beyond the {n} that there are")
    if signatures.dtype != np.int64 or signatures.shape != (len(live), n_tables):
        raise ValueError(
            f"signatures of shape {signatures.shape}, not {(len(live), n_tables)} as keys and hash"
        )
    everything = np.zeros((n, n_tables), dtype=np.int64)
    everything[live] = signatures
    check_update(state, key, value)
    insert(state, key, value, placed(everything, key))  # signatures are read, not made anew
    if len(live) < n:
        state.tables().remove(np.delete(np.arange(n), live))


def describe(part, prefix, arrays):
    """Return what JSON can hold of a hash, and put its arrays into `arrays`.

    Return None for a hash that is not of this package.
    """
    if type(part) is LiftedHash:
        inner = describe(part.hash, prefix, arrays)
        return inner and {"class": "LiftedHash", "longest": part.longest, "hash": inner}
    if type(part) not in CLASSES.values():
        return None
    arrays |= {prefix + name: x for name, x in part.arrays().items()}
    plain = {name: _plain(getattr(part, name)) for name in part.plain_names}
    return {"class": type(part).__name__, "plain": plain}


def _rebuilt(described, prefix, arrays):
    """Return what `describe` described."""
    if described["class"] == "LiftedHash":
        return LiftedHash(_rebuilt(described["hash"], prefix, arrays), described["longest"])
    if described["class"] not in CLASSES:
        raise ValueError(f"a {described['class']!r:.80}, which no sketch has")
    own = {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}
    return CLASSES[described["class"]](**own, **described["plain"])


def _plain(x):
    """Return a setting as what JSON can hold."""
    if x is None or isinstance(x, (bool, str)):
        return x
    return int(x) if isinstance(x, numbers.Integral) else float(x)
