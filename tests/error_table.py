"""Tables of calls that must raise: each call, then what it raises, indented.

    softmax([1.0])
        TypeError: x must be an array, got list

A call or a message may go on in the next line.
"""

import builtins
import re
from collections.abc import Callable
from typing import Any

import pytest


def error_rows(table: str) -> list[Any]:
    """Return parameters (call, kind, message) for `pytest.mark.parametrize`, one for each call."""
    rows: list[tuple[list[str], list[str]]] = []
    for line in table.splitlines():
        if line.startswith(" "):
            rows[-1][1].append(line.strip())
        elif line and not line.startswith("#"):
            if not rows or rows[-1][1]:
                rows.append(([], []))
            rows[-1][0].append(line)
    found = []
    for call, error in rows:
        kind, _, message = " ".join(error).partition(": ")
        text = " ".join(call)
        found.append(pytest.param(text, getattr(builtins, kind), message, id=text[:70]))
    return found


def error_test(table: str, names: dict[str, Any]) -> Callable[..., None]:
    """Return a test of all calls of a table, each evaluated with `names`."""

    @pytest.mark.parametrize(("call", "kind", "message"), error_rows(table))
    def test(call, kind, message):
        assert_raises(call, kind, message, names)

    return test


def assert_raises(call: str, kind: type[Exception], message: str, names: dict[str, Any]) -> None:
    """Assert that `call`, evaluated with `names`, raises this very kind with this very message."""
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        eval(call, dict(names))
    assert type(caught.value) is kind
