"""Tables of checks: each call, then, indented, the mistake that it finds and what is said of it.

    softmax(lambda x: None)
        no return: Your function returns None…is the `return` missing?

`right` stands for an answer that passes, `unknown` for one that no mistake explains, and … for any
text. What is said is looked for in the message, the detail and the notes, in this order.
"""

import re
from typing import Any

import pytest

from attnbook import check

CHECKS = {name: getattr(check, name) for name in check.__all__}
"""What a call may name: the package loads each when it is asked for."""


def report_rows(table: str) -> list[Any]:
    """Return parameters (call, mistake, said) for `pytest.mark.parametrize`, one for each call."""
    rows = re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", table, flags=re.MULTILINE)
    texts = [(" ".join(call.split()), " ".join(said.split())) for call, said in rows]
    return [
        pytest.param(call, *said.partition(": ")[::2], id=f"{i}-{call[:60]}")
        for i, (call, said) in enumerate(texts)
    ]


def assert_report(call: str, mistake: str, said: str, names: dict[str, Any]) -> None:
    """Assert that `call`, evaluated with `names` and the checks, gives such a report."""
    report = eval(call, {**CHECKS, **names})
    assert report.passed == (mistake == "right"), report
    assert report.mistake == (None if mistake in ("right", "unknown") else mistake), report
    shown = " ".join(filter(None, (report.message, report.detail, *report.notes)))
    assert re.search(".*".join(map(re.escape, said.split("…"))), shown, flags=re.DOTALL), report
