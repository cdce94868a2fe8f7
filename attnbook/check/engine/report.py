"""The report of a check: a text, a picture of it for a notebook, and the input that failed."""

import dis
import html
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_NUMBERS = 48
"""How many numbers an input may hold to be shown; a larger one is in `Report.case` alone."""


class CheckFailed(AssertionError):  # noqa: N818
    """Raised by `Report.require` when a check failed; its text is that of the report."""


@dataclass(frozen=True)
class FailingCase:
    """One input on which the function is wrong, to be called again with.

    ``f(*case.arguments.values(), **case.options)`` is the call for a function that takes what the
    check's docstring names first.

    Attributes
    ----------
    arguments : dict
        What is passed by position, by name: arrays of NumPy, numbers, weights, models.
    options : dict
        What is passed by name, such as a mask.
    got, expected : array, tuple of arrays, or None
        What the function returned, and the right result. None where nothing came back.
    """

    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    got: Any = None
    expected: Any = None

    @property
    def input(self) -> dict[str, Any]:
        """Arguments and options together, by name."""
        return {**self.arguments, **self.options}

    def lines(self) -> list[str]:
        """Return a line for each array of the input, for got and for expected.

        There are none if the input is too large to be read, or holds more than arrays and numbers.
        """
        numbers = (bool, int, float, np.generic, np.ndarray)
        given = list(self.input.values())
        plain = all(isinstance(x, numbers) for x in given)
        arrays = [x for x in given if isinstance(x, np.ndarray)]
        if not plain or not arrays or sum(map(np.size, given)) > MOST_NUMBERS:
            return []
        shown = [f"{name} = {show(x)}" for name, x in self.input.items()]
        if self.got is None or isinstance(self.got, tuple):
            return shown
        if np.size(self.got) + np.size(self.expected) > MOST_NUMBERS:
            return shown
        return [*shown, f"got {show(self.got)}", f"expected {show(self.expected)}"]


def show(x: Any) -> str:
    """Return numbers or an array of them on one line."""
    if isinstance(x, (bool, int)):
        return str(x)
    x = np.asarray(x)
    if x.ndim:
        return f"[{', '.join(map(show, x))}]" if x.size else f"an empty array {x.shape}"
    return f"{x + 0:.4g}" if x.dtype.kind == "f" else str(x)  # no -0


def names_in(mistake: str | None) -> tuple[str, ...]:
    """Return the names that the name of one mistake or of two joins."""
    return tuple(mistake.split("; ")) if mistake else ()


@dataclass(frozen=True, repr=False)
class Report:
    """The result of checking one function.

    It is true if the function is right in at least one array library. It shows itself as a short
    text, and in a notebook as a box. For a function written for NumPy the text is the same whatever
    else is installed, unless its result differs in another library. ``assert report`` and
    ``report.require()`` raise the text of a failed one.

    Attributes
    ----------
    check : str
        Name of the check, such as ``"attention"``.
    passed : bool
    mistake : str or None
        Short name of the mistake, such as ``"no scale"``, or of two, ``"no scale; W_O forgotten"``;
        None if the function passed or its mistake is not a known one.
    message : str
        What to tell the author of the function.
    detail : str
        The smallest failing case: shapes, first differing index, got and expected.
    remarks : tuple of str
        What else the check saw, such as an argument that it could not test.
    library_remarks : tuple of str
        Remarks that hold for one array library only, except on wrong results, which are among the
        others. They are not part of the text shown.
    cases : int
        How many cases ran, over all libraries.
    libraries : tuple of str
        The array libraries in which every case is right.
    case : FailingCase or None
        The smallest failing input, what the function made of it, and the right result.
    mistakes : tuple of str
        The short names of the mistakes, one or two; empty where `mistake` is None.
    began_right : bool
        Whether the first stage was right: ordinary numbers, in several sizes.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> report = check.attention(attention)
    >>> print(report)
    ✓ attention: agrees with the reference
    >>> bool(report)
    True
    """

    check: str
    passed: bool
    mistake: str | None
    message: str
    detail: str
    remarks: tuple[str, ...] = ()
    library_remarks: tuple[str, ...] = ()
    cases: int = 0
    libraries: tuple[str, ...] = ()
    case: FailingCase | None = None
    began_right: bool = False

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The names that `mistake` joins."""
        return names_in(self.mistake)

    @property
    def notes(self) -> tuple[str, ...]:
        """All remarks, those of single libraries last."""
        return self.remarks + self.library_remarks

    def __bool__(self) -> bool:
        if not self.passed and _is_asserted():
            raise CheckFailed(repr(self))
        return self.passed

    def __repr__(self) -> str:
        paragraphs = [f"{self._mark} {self.check}: {self.message}"]
        if self.detail:
            paragraphs.append(f"  {self.detail}")
        paragraphs += [f"    {line}" for line in self._evidence()]
        paragraphs += [f"  Note: {remark}" for remark in self.remarks]
        wrap = textwrap.TextWrapper(78, break_on_hyphens=False)
        lines = []
        for text in paragraphs:
            wrap.subsequent_indent = "      " if text.startswith("    ") else "  "
            lines.append(wrap.fill(text))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Draw the report in the colours of the page, with a bar in green or red."""
        colour = "#2e9e5b" if self.passed else "#d9534f"  # seen on white and on black
        body = [f"<b style='color: {colour}'>{self._mark}</b> <b>{html.escape(self.check)}</b>: "]
        body.append(html.escape(self.message))
        lines = [html.escape(line) for line in self._evidence()]
        if self.detail:
            body.append(f"<div style='margin-top: .4em'>{html.escape(self.detail)}</div>")
        if lines:
            shown = "\n".join(lines)
            style = "margin: .4em 0 0; padding: 0 0 0 1em; background: none; color: inherit"
            body.append(f"<pre style='{style}; white-space: pre-wrap'>{shown}</pre>")
        body += [
            f"<div style='margin-top: .4em; opacity: .75'>Note: {html.escape(remark)}</div>"
            for remark in self.remarks
        ]
        style = f"border-left: 4px solid {colour}; padding: .2em .8em; color: inherit"
        return f"<div class='attnbook-report' style='{style}'>{''.join(body)}</div>"

    @property
    def _mark(self) -> str:
        return "✓" if self.passed else "✗"

    def _evidence(self) -> list[str]:
        """Return the input with got and expected; where nothing came back, no numbers help."""
        return [] if self.case is None or self.case.got is None else self.case.lines()

    def require(self) -> "Report":
        """Return this report, or raise `CheckFailed` with its text if the function failed.

        For automatic grading: ``check.attention(my_attention).require()``.
        """
        if not self.passed:
            raise CheckFailed(repr(self))
        return self


def _is_asserted() -> bool:
    """Tell whether the truth that is asked for is that of an assert statement."""
    frame = sys._getframe(2)  # of the code that asks the report
    for instruction in dis.get_instructions(frame.f_code):
        name = instruction.opname
        passed_by = name in ("CACHE", "TO_BOOL", "NOT_TAKEN") or name.endswith("IF_TRUE")
        if instruction.offset >= frame.f_lasti and not passed_by:
            return name == "LOAD_ASSERTION_ERROR" or instruction.argval is AssertionError
    return False
