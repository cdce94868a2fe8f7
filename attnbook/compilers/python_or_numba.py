"""One source for two speeds: the same functions run as Python, or compiled by Numba."""

import importlib
import types
import zlib
from collections.abc import Callable
from typing import Any


def compiled(*functions: Callable, known: Any = None) -> types.SimpleNamespace:
    """Return the functions compiled by Numba, by their names; the first call of each compiles.

    They are written in the part of Python that Numba compiles and call one another by name:
    whatever a function calls stands before it, or in `known`, which an earlier `compiled` made.
    Machine code is kept on disk beside the source, so only the first process waits for it; it is
    made anew when the function changes, or one that it may call.

    Raises
    ------
    ImportError
        If Numba is not installed.
    """
    try:
        importlib.import_module("numba")
    except ImportError as error:
        raise ImportError("impl='numba' needs Numba: pip install numba") from error
    from attnbook.compilers import jit

    made = dict(vars(known)) if known is not None else {}
    for function in functions:
        # a copy that finds the compiled functions under the names of the plain ones
        copy = types.FunctionType(
            function.__code__, {**function.__globals__, **made}, function.__name__
        )
        # Numba sees changes of a function's own file only, so its name tells those of the others
        codes = [callee.py_func.__code__ for callee in made.values()]
        stamp = zlib.crc32(repr([(code.co_code, code.co_consts) for code in codes]).encode())
        copy.__qualname__ = f"{function.__name__}_{stamp:08x}"
        made[function.__name__] = jit.kept(copy)
    return types.SimpleNamespace(**made)
