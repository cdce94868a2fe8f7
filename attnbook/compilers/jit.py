"""Loops that Numba compiles, and keeps for later processes."""

import functools
import zlib
from pathlib import Path
from typing import Any

import numba
import numpy as np


@functools.cache
def _stamp(package=Path(__file__).parents[1]):
    """Return a name for the present state of all files that loops may call.

    Numba keeps machine code until the file of the function itself changes. But a loop contains the
    loops that it calls, from other files and rooms too; so all their names change with each file
    of the package that is a compiler or names one.
    """
    files = {file: file.read_bytes() for file in sorted(package.rglob("*.py"))}
    own = package / "compilers"
    found = [x for file, x in files.items() if file.parent == own or b"attnbook.compilers" in x]
    return f"{zlib.crc32(b''.join(found)):08x}"


def _decorator(**options: Any) -> Any:
    """Return a decorator that compiles with these options, as `kept` says."""

    def decorate(function):
        function.__qualname__ = f"{function.__name__}_{_stamp()}"
        return kept(function, **options)

    return decorate


def kept(function: Any, **options: Any) -> Any:
    """Let Numba compile a function at its first call, and keep the machine code on disk."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder that can be written to: every process compiles
        return numba.njit(nogil=True, error_model="numpy", **options)(function)


# Loops that Python never calls compile sooner without wrappers. They are inlined, because they take
# so many arguments that a call costs time.
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}

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
