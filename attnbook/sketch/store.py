"""Saving a sketch and reading it again; `state_file` says what is in the file."""

import os
from typing import Any

from attnbook.arrays.weights import check_part
from attnbook.sketch import state_file
from attnbook.sketch.attention import SketchAttention

Path = str | os.PathLike


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
    state_file.write(path, sketch.state)


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
    return SketchAttention.load(path, library, impl=impl, hash=hash)
