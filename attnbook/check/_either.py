"""Run checks that differ by a convention: a function that passes one of them is right."""

from collections.abc import Callable
from dataclasses import replace

from attnbook.check._engine import run
from attnbook.check._model import Check
from attnbook.check._report import Report


def either(checks: dict[str, Check], function: Callable, time_limit: float) -> Report:
    """Return the report of the first check that passes, with a remark, else the most telling.

    `checks` are keyed by the remark that says which convention it is. A report is telling if its
    mistake is one that the check knows.
    """
    failed: list[Report] = []
    telling: list[Report] = []
    for remark, check in checks.items():
        report = run(check, function, time_limit)
        if report.passed:
            return replace(report, remarks=(remark, *report.remarks))
        failed.append(report)
        if report.mistake in {mistake.name for mistake in check.mistakes}:
            telling.append(report)
        elif report.mistake not in (None, "wrong shape", "NaN"):  # in every convention the same
            break
    return (telling or failed)[0]
