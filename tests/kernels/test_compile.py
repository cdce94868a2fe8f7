"""Functions that call one another run the same as Python and compiled."""

import numpy as np
import pytest

from attnbook.compilers.python_or_numba import compiled

pytest.importorskip("numba")


def double(x):
    return 2 * x


def add_doubles(x, y):
    return double(x) + double(y)


def fill(x):
    for i in range(x.shape[0]):
        x[i] = add_doubles(x[i], i)


def test_functions_call_those_before_them():
    made = compiled(double, add_doubles, fill)
    x, y = np.arange(5), np.arange(5)
    fill(x)
    made.fill(y)
    assert np.array_equal(x, y)
    assert made.add_doubles(2, 3.5) == add_doubles(2, 3.5) == 11
    assert made.fill.signatures  # of Numba: it was compiled, not run


def test_functions_call_those_that_were_compiled_before():
    known = compiled(double)
    made = compiled(add_doubles, known=known)
    assert made.double is known.double
    assert made.add_doubles(1, 1) == 4
    assert not hasattr(known, "add_doubles")


def test_code_on_disk_is_not_used_after_a_callee_has_changed():
    def other():
        def double(x):
            return 3 * x

        return compiled(double)

    names = {
        compiled(add_doubles, known=known).add_doubles.py_func.__qualname__
        for known in (compiled(double), compiled(double), other())
    }
    assert len(names) == 2
    assert compiled(add_doubles, known=other()).add_doubles(1, 1) == 6
    assert compiled(add_doubles, known=compiled(double)).add_doubles(1, 1) == 4


def test_loops_compile_where_no_machine_code_can_be_kept():
    from attnbook.compilers.jit import compile_loops

    made = {}
    exec(compile("def double(x):\n    return 2 * x", "in no folder", "exec"), made)
    assert compile_loops(made["double"])(3) == 6
