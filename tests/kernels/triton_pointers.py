"""The Triton kernels as on a GPU of compute capability 8.0, where no TMA loads the rows.

There they get pointer and strides. In the interpreter, and on a GPU that has a TMA as well, nothing
but the choice differs: triton_cases.py runs some of its cases again under `without_tma`.
"""

from contextlib import contextmanager
from unittest import mock

NAMES = (
    *("every dtype", "width 72", "heads after rows", "odd start", "mask of tiles, causal"),
    *("bfloat16, grouped", "keys without a batch", "values of more heads"),
    *("four axes that no three hold, and a mask", "decode", "decode, masks"),
    *("decode, grouped, odd start", "decode, queries without a batch"),
    *("rules, hidden tiles", "rules by name", "by name"),
)
"""Cases of every way in which rows lie, and of every path."""
OFTEN = (
    "width 72",
    "heads after rows",
    "bfloat16, grouped",
    "decode, grouped, odd start",
    "rules, hidden tiles",
)


@contextmanager
def without_tma():
    """Run calls as on a GPU of compute capability 8.0; raises unless all rows are `Pointers`."""
    from attnbook.kernels.triton_kernels import decode, operands, tile_sizes

    seen, rows_at = set(), operands.rows_at

    def recorded(*arguments):
        rows = rows_at(*arguments)
        seen.add(type(rows))
        return rows

    with (
        mock.patch.object(operands, "capability_of", return_value=(8, 0)),
        mock.patch.object(tile_sizes, "capability_of", return_value=(8, 0)),
        mock.patch.object(operands, "rows_at", recorded),
        mock.patch.object(decode, "rows_at", recorded),
    ):
        yield
    assert seen == {operands.Pointers}, seen
