"""Write a sketch to a file and read it again. `state_file` says what is in the file."""

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
        A file that is there is replaced, as a whole or not at all.
    sketch : SketchAttention
        Its arrays may be of any library. A hash of your own is code and is not written, so
        `load_sketch` asks for it.

    Raises
    ------
    TypeError
        If `sketch` is not a `SketchAttention`.
    OSError
        If the file cannot be written.

    Notes
    -----
    Not the tables are written but the signatures, from which they are sorted again. That is faster
    than to hash again, and the same to the last bit. bfloat16 is stored as float32, which holds it
    exactly. Removed keys are written too, so that ids stay.

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
        The library of the arrays: ``"numpy"``, ``"torch"`` or ``"cupy"``. By default it is the one
        that `impl` needs, or NumPy.
    impl : str, optional
        As in `SketchAttention`, and by default what was saved. ``"cupy"`` takes no sketch with
        several probes.
    hash : optional
        Your own hash, if the sketch was saved with one of your own. It has to be the same.

    Returns
    -------
    SketchAttention
        It answers as the one that was saved, and has the same ids.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or holds something else, if `hash` is missing or has another number
        of tables, or if `library` or `impl` is unknown or does not fit.
    TypeError
        If `hash` is no hash, or if it is given for a sketch that has one.
    ImportError
        If `impl` or `library` is not installed.

    Notes
    -----
    Only classes of this package are built, whatever the file says, and no code from it runs.
    """
    return SketchAttention.load(path, library, impl=impl, hash=hash)
