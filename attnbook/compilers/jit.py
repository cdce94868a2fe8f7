"""Loops that Numba compiles, and keeps for later processes."""

import functools
import zlib
from pathlib import Path
from typing import Any

import numba
import numpy as np


@functools.cache
def _stamp(folder):
    """Return a name for the present state of all files that loops in `folder` may call.

    Numba keeps machine code until the file of the function itself changes. But a loop contains the
    loops that it calls, from other files too; so all their names change with each of the files.
    """
    files = sorted([*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")])
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _decorator(**options: Any) -> Any:
    """Return a decorator that compiles at the first call, and keeps the machine code on disk."""

    def decorate(function):
        stamp = _stamp(Path(function.__code__.co_filename).parent)
        function.__qualname__ = f"{function.__name__}_{stamp}"
        try:
            return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder that can be written to: every process compiles
            return numba.njit(nogil=True, error_model="numpy", **options)(function)

    return decorate


_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # which compile sooner without

# four decorators: for what Python calls; for what only such loops call; the same with fused
# multiply-adds; and for sums in any order, which are made in vectors. In all of them infinities and
# NaN keep their meaning
compile_loops = _decorator()
compile_inner = _decorator(**_INNER)
compile_fused = _decorator(**_INNER, fastmath={"contract"})
compile_sums = _decorator(**_INNER, fastmath={"reassoc", "contract", "nsz"})


def read_only(x: np.ndarray) -> np.ndarray:
    """Return a C-contiguous view that is not written to, or a copy where `x` is not contiguous.

    Numba compiles anew for every kind of array; so all inputs are made one kind.
    """
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view
