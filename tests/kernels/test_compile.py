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


def test_functions_compile_where_no_machine_code_can_be_kept():
    from attnbook.compilers.jit import compile_loops

    made = {}
    exec(compile("def double(x):\n    return 2 * x", "in no folder", "exec"), made)
    assert compiled(made["double"]).double(3) == 6
    assert compile_loops(made["double"])(3) == 6


def test_kept_machine_code_is_not_used_after_a_file_of_another_room_has_changed(tmp_path):
    from attnbook.compilers.jit import _stamp

    for room in ("compilers", "hashing", "data"):
        (tmp_path / room).mkdir()
    stamps = []
    for file, text in (
        *(("hashing/a.py", "from attnbook.compilers import jit"), ("compilers/b.py", "")),
        ("hashing/a.py", "from attnbook.compilers import jit  # and another line"),
        *(("compilers/b.py", "x = 3"), ("data/c.py", "y = 4")),
    ):
        (tmp_path / file).write_text(text)
        stamps.append(_stamp.__wrapped__(tmp_path))
    first, same, after_a_loop, after_a_compiler, after_anything_else = stamps
    assert first == same
    assert after_a_compiler == after_anything_else
    assert len({first, after_a_loop, after_a_compiler}) == 3
