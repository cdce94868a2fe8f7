"""Files of a sketch: its hash, keys, values and signatures in safetensors, with no code in them.

A file is written at once or not at all, and a damaged or foreign one is refused with a reason.
"""

import inspect
import numbers
import os
from typing import Any

import numpy as np

from attnbook.arrays import tensor_file
from attnbook.arrays.arguments import check_choice, check_int
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import LIBRARIES, move
from attnbook.arrays.weights import check_part
from attnbook.sketch.engines import IMPLS
from attnbook.hashing.given_hash import check_hash
from attnbook.hashing.lifting import LiftedHash
from attnbook.sketch.moments import Moments
from attnbook.hashing.simhash import SimHash
from attnbook.sketch.attention import SketchAttention
from attnbook.hashing.stable_hash import StableHash

Path = str | os.PathLike

CLASSES = {"SimHash": SimHash, "StableHash": StableHash, "Moments": Moments}
"""What a file can ask to be built."""

SETTINGS = tuple(inspect.signature(SketchAttention).parameters)[1:]
"""All arguments of `SketchAttention` but its hash."""


def save_sketch(path: Path, sketch: SketchAttention) -> None:
    """Write a sketch to a file: hash, settings, keys, values and their signatures.

    Parameters
    ----------
    path : str or path
        A file that is there is replaced, at once or not at all.
    sketch : SketchAttention
        Of any library. A hash of your own is code, which is not written: `load_sketch` asks for it.

    Raises
    ------
    TypeError
        If `sketch` is not a `SketchAttention`.
    OSError
        If the file cannot be written.

    Notes
    -----
    The tables are not written but their signatures, from which they are sorted again: faster than
    to hash again, and the same to the last bit. bfloat16 is stored as float32, which holds it
    exactly. Removed keys are written too, since ids stay.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from attnbook.sketch import SimHash
    >>> sketch = SketchAttention(SimHash.init(0, 4, n_tables=3))
    >>> ids = sketch.update(np.eye(4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sketch(f"{folder}/sketch.safetensors", sketch)
    ...     again = load_sketch(f"{folder}/sketch.safetensors")
    >>> len(again), again.hash.n_tables
    (4, 3)
    """
    check_part("sketch", sketch, SketchAttention)
    arrays: dict[str, Any] = {}
    content: dict[str, Any] = {
        "hash": _described(sketch.hash, "hash.", arrays),
        "settings": {name: _plain(getattr(sketch, name)) for name in SETTINGS},
        "value": None,
        "moments": None,
    }
    if sketch._index is not None:
        arrays["key"], value = sketch._key.array(), sketch._value.array()
        content["value"] = "key" if sketch._value._held is sketch._key._held else "value"
        arrays[content["value"]] = value
        arrays["live"] = sketch._index.live()
        arrays["signatures"] = sketch._index.signatures()
        # cells are chosen when they are first needed: kept, so that answers stay the same
        if sketch._far._moments is not None:
            content["moments"] = _described(sketch._far._moments, "moments.", arrays)
            content["fitted"] = sketch._far._fitted
    tensor_file.write(path, "sketch", arrays, content)


def load_sketch(
    path: Path, library: str | None = None, *, impl: str | None = None, hash: Any = None
) -> SketchAttention:
    """Read a sketch that `save_sketch` wrote.

    Parameters
    ----------
    path : str or path
    library : str, optional
        That of the arrays: ``"numpy"``, ``"torch"`` or ``"cupy"``. By default the one that `impl`
        needs, or NumPy.
    impl : str, optional
        As of `SketchAttention`; by default what was saved.
    hash : optional
        Your own, if the sketch that was saved had one of your own; it has to be the same.

    Returns
    -------
    SketchAttention
        It answers as the one that was saved, and has the same ids.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or of something else, or `hash` is missing or has another number of
        tables; if `library` or `impl` is unknown or they do not fit.
    TypeError
        If `hash` is no hash, or is given for a sketch that has one.
    ImportError
        If `impl` or `library` is not installed.

    Notes
    -----
    Builds classes of this package alone, whatever the file says, and runs no code from it.
    """
    if library is not None:
        check_choice("library", library, LIBRARIES)
    if impl is not None:
        check_choice("impl", impl, tuple(IMPLS))
    if hash is not None:
        check_hash(hash)
    _, arrays, narrow, content = tensor_file.read(path, "sketch")
    with tensor_file.describing(path, "an attnbook sketch"):
        settings = {name: content["settings"][name] for name in SETTINGS}
        described = content["hash"]
        settings["impl"] = settings["impl"] if impl is None else impl
        check_choice("impl", settings["impl"], tuple(IMPLS))
    needed = IMPLS[settings["impl"]].library
    if library is not None and needed not in (None, library):
        raise ValueError(f"library must be {needed} for impl {settings['impl']!r}, got {library!r}")
    library = library or needed or "numpy"
    if described is None and hash is None:
        raise ValueError(
            f"hash must be that of the sketch in {os.fspath(path)}, which is one of your own, "
            "got None"
        )
    if described is not None and hash is not None:
        raise TypeError(
            f"hash must be None, since {os.fspath(path)} holds one, got {type(hash).__name__}"
        )
    with tensor_file.describing(path, "an attnbook sketch"):
        moved = {
            name: tensor_file.to_library(x, library, narrow=name in narrow)
            for name, x in arrays.items()
        }
        given = _rebuilt(described, "hash.", moved) if hash is None else hash
        sketch = SketchAttention(given, **settings)
        if "key" in moved:
            _fill(sketch, moved, content)
        return sketch


def _fill(sketch, arrays, content):
    """Put the rows of a file into an empty sketch."""
    key, value = arrays["key"], arrays[content["value"]]
    live, signatures = move(arrays["live"], "numpy"), move(arrays["signatures"], "numpy")
    n, n_tables = key.shape[0] if key.ndim else 0, sketch.hash.n_tables
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
    sketch._signatures = lambda *_: placed(everything, key)  # read, not made anew
    try:
        sketch.update(key, value)
    finally:
        del sketch._signatures
    if len(live) < n:
        sketch.remove(np.delete(np.arange(n), live))
    if content["moments"] is not None:
        sketch._far._moments = _rebuilt(content["moments"], "moments.", arrays)
        sketch._far._fitted = check_int("fitted", content["fitted"])


def _described(part, prefix, arrays):
    """Return what JSON can hold of a hash or of moments, and put their arrays into `arrays`.

    Return None for a hash that is not of this package.
    """
    if type(part) is LiftedHash:
        inner = _described(part.hash, prefix, arrays)
        return inner and {"class": "LiftedHash", "longest": part.longest, "hash": inner}
    if type(part) not in CLASSES.values():
        return None
    arrays |= {prefix + name: x for name, x in part.arrays().items()}
    plain = {name: _plain(getattr(part, name)) for name in part._plain}
    return {"class": type(part).__name__, "plain": plain}


def _rebuilt(described, prefix, arrays):
    """Return what `_described` described."""
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
