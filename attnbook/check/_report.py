"""What a check hands back."""

import textwrap
from dataclasses import dataclass


class CheckFailed(AssertionError):  # noqa: N818
    """Raised by `Report.require` when a check failed; its text is that of the report."""


@dataclass(frozen=True, repr=False)
class Report:
    """The result of checking one function.

    It is true if the function is right in at least one array library, and shows itself as a short
    text. For a function written for NumPy that text is the same whatever else is installed.

    Attributes
    ----------
    check : str
        Name of the check, such as ``"attention"``.
    passed : bool
    mistake : str or None
        Short name of the mistake, such as ``"no scale"``; None if the function passed or its
        mistake is not a known one.
    message : str
        What to tell the author of the function.
    detail : str
        The smallest failing case: shapes, first differing index, got and expected.
    remarks : tuple of str
        What else the check saw, such as an argument that it could not test.
    library_remarks : tuple of str
        Remarks that hold for one array library only. They are not part of the text shown.
    cases : int
        How many cases ran, over all libraries.
    libraries : tuple of str
        The array libraries in which every case is right.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> report = check.attention(attention)
    >>> report
    ✓ attention: agrees with the reference
    >>> bool(report)
    True
    """

    check: str
    passed: bool
    mistake: str | None
    message: str
    detail: str
    remarks: tuple[str, ...]
    library_remarks: tuple[str, ...]
    cases: int
    libraries: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """All remarks, those of single libraries last."""
        return self.remarks + self.library_remarks

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        mark = "✓" if self.passed else "✗"
        paragraphs = [f"{mark} {self.check}: {self.message}"]
        if self.detail:
            paragraphs.append(f"  {self.detail}")
        paragraphs += [f"  Note: {remark}" for remark in self.remarks]
        return "\n".join(
            textwrap.fill(text, 78, subsequent_indent="  ", break_on_hyphens=False)
            for text in paragraphs
        )

    def require(self) -> "Report":
        """Return this report, or raise `CheckFailed` with its text if the function failed.

        For automatic grading: ``check.attention(my_attention).require()``.
        """
        if not self.passed:
            raise CheckFailed(repr(self))
        return self
