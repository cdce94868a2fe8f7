"""The engine of all checks: cases in stages, in every array library.

The stages of a check run in order and the first that fails ends it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from attnbook.arrays.arguments import check_number
from attnbook.check.engine import findings
from attnbook.check.engine.calls import (
    PRETTY,
    Attempt,
    Caller,
    Finding,
    Found,
    accepted_options,
    class_passed,
)
from attnbook.check.engine.diagnosis import patience
from attnbook.check.engine.growth import grown
from attnbook.check.engine.lending import uses_torch
from attnbook.check.engine.report import Report
from attnbook.check.engine.sandbox import describe_error, error_text, how_far
from attnbook.check.engine.steps import Case, Check, Stage, agree, difference
from attnbook.kernels.backends import devices

F = TypeVar("F", bound=Callable)
ONE_NAME = (
    "One name can mean two things: `x.var(-1)`, for example, divides by n in NumPy and by n − 1 in "
    "PyTorch."
)
FOR_ALL = """
time_limit : float
    Seconds of computing for all calls together.

Returns
-------
Report

Raises
------
TypeError, ValueError
    If `f` is not callable, or `time_limit` is not a finite number of at least 0.

Examples
"""


def documented(function: F) -> F:
    """Add to the docstring of a check what holds for each of them."""
    function.__doc__ = (inspect.getdoc(function) or "").replace("\n\nExamples\n", FOR_ALL)
    return function


def present() -> list[str]:
    """Return the array libraries that can run here, NumPy first."""
    return list(dict.fromkeys(library for library, _ in devices()))


class Raises(Exception):  # noqa: N818
    """The function raises in one library, after so many calls; it may be right in another."""

    def __init__(self, finding: Finding, error: BaseException, after: int):
        self.finding, self.error, self.after = finding, error, after


@patience()
def run(check: Check, function: Callable, time_limit: float) -> Report:
    """Check `function` in every array library that is present."""
    seconds = check_number("time_limit", time_limit)
    call = f"check.{check.name.split(',')[0]}"
    if inspect.isclass(function):
        return class_passed(function, f"{call}({{}})").report(check.name)
    if callable(function):
        return Examination(check, function, seconds).report()
    if _is_result(function):
        message = (
            "You pass what your function returned. Pass the function itself, without calling it: "
            f"{call}(my_function), and no brackets after its name."
        )
        return Finding("called already", message).report(check.name)
    takes, kind = ", ".join(check.parameters), type(function).__name__
    raise TypeError(f"f must be a function of ({takes}), got {kind}")


def _is_result(x: Any) -> bool:
    """Tell whether `x` looks like what a function has returned: an array, or several."""
    several = isinstance(x, (tuple, list)) and len(x) > 0
    return hasattr(x, "shape") or (several and all(_is_result(part) for part in x))


@patience()
def either(checks: dict[str, Check], function: Callable, time_limit: float) -> Report:
    """Run checks that differ by a convention: a function that passes one of them is right.

    Return the report of the first that passes, with a remark, else the most telling. `checks` are
    keyed by the remark that says which convention it is. A report is telling if its mistake is one
    that the check knows.
    """
    failed: list[Report] = []
    telling: list[Report] = []
    for remark, check in checks.items():
        report = run(check, function, time_limit)
        if report.passed:
            return replace(report, remarks=(remark, *report.remarks))
        failed.append(report)
        if {*report.mistakes} & {mistake.name for mistake in check.mistakes}:
            telling.append(report)
        elif report.mistake not in (None, "wrong shape", "NaN"):  # in every convention the same
            break
    begun = [report for report in failed if report.began_right]  # their convention is the reader's
    one = [report for report in telling if len(report.mistakes) == 1]
    named = [report for report in failed if report.mistake]
    return (begun or one or telling or named or failed)[0]


class Examination:
    """One run of one check over one function."""

    def __init__(self, check: Check, function: Callable, seconds: float):
        self.check = check
        self.function = check.adapt(function)
        self.cases = 0
        self.general: list[str] = []
        self.failed_beyond: set[str] = set()
        self.began_right = False
        self.later: list[Stage] = []
        self.settled = False  # an earlier library decides what is reported
        libraries = present()
        if not check.stages[0].cases[0].has_library:  # then the function chooses the library
            libraries = libraries[:1]
        self.calls = Caller(check, self.function, seconds, libraries)

    def report(self) -> Report:
        raised: dict[str, Raises] = {}
        wrong: dict[str, Finding] = {}
        right: list[str] = []
        try:
            takes = accepted_options(self.check, self.function)
            self.general = [
                f"`{option}` was not checked: your function takes no argument of that name."
                for option in self.check.remarked_options
                if option not in takes
            ]
            for name in self.calls.remarks:
                try:
                    self._library(name, takes)
                    right.append(name)
                except Raises as raises:
                    raised[name] = raises
                except Found as found:
                    wrong[name] = found.finding
                self.settled = bool(right or wrong)
        except Found as found:
            return self._report(found.finding, (), next(iter(self.calls.remarks)))
        where = " and ".join(PRETTY[name] for name in right)
        if not right:
            home = next(iter(wrong), "") or _home(raised, self.function)
            return self._report(wrong.get(home) or self._of_errors(home, raised), (), home)
        # it is judged by the library that it is written for: the functions of that one can return
        # anything on the arrays of another
        message = "agrees with the reference"
        for name, finding in wrong.items():
            differs = f"right on {where}; on {PRETTY[name]} its result differs. {finding.detail}"
            self.calls.remarks[name] = [f"{differs} {ONE_NAME}".replace("  ", " ")]
            # a name may return something of another shape there, as x.max(-1) does
            if finding.mistake != "another shape":
                self.general += self.calls.remarks[name]
                message = f"{message} on {where} arrays, but not on {PRETTY[name]}'s"
        for name, problem in raised.items():
            text = describe_error(problem.error)
            self.calls.remarks[name] = [f"right on {where}; on {PRETTY[name]} it raises {text}."]
        return self._report(
            Finding(None, message), tuple(sorted(self.calls.homes) or right), right[0]
        )

    def _of_errors(self, home: str, raised: dict[str, Raises]) -> Finding:
        """Return the finding in the library `home`, with what is raised in the others.

        For a function for NumPy, that is no part of the text, which is the same without them.
        """
        finding = raised[home].finding
        for name, raises in raised.items():
            text = error_text(raises.error)
            if text == error_text(raised[home].error) or finding.mistake != "raises":
                continue
            if home == "numpy":
                self.calls.remark(name, f"on {PRETTY[name]} arrays it raises {text}.")
            else:
                more = f"On {PRETTY[name]} arrays it raises {text}."
                finding = replace(finding, message=f"{finding.message} {more}")
        return finding

    def _report(self, finding: Finding, libraries: tuple[str, ...], home: str) -> Report:
        """Return the report of a function that is right in `libraries`, written for `home`."""
        remarks = (self.general if libraries else []) + self.calls.remarks[home]
        remarks = [*remarks, *self.calls.budget.remarks]
        others = dict.fromkeys(text for texts in self.calls.remarks.values() for text in texts)
        return finding.report(
            self.check.name,
            passed=bool(libraries),
            remarks=tuple(remarks),
            library_remarks=tuple(text for text in others if text not in remarks),
            cases=self.cases,
            libraries=libraries,
            began_right=self.began_right,
        )

    def _library(self, name: str, takes: frozenset[str]) -> None:
        first = self.check.stages[0].cases[0]
        self._find_batches_only(first, name)
        self._repeat(first, name)
        self._find_kept_tables(name)
        passed: list[Attempt] = []
        self.failed_beyond.clear()
        self.later = [stage for stage in self.check.stages if {*stage.option.split()} <= takes]
        while self.later:
            stage = self.later.pop(0)
            if stage.within not in self.failed_beyond:
                passed += self._stage(stage, name, passed)
                self.began_right = True

    def _find_batches_only(self, case: Case, name: str) -> None:
        """Find out whether the function takes one sequence, or else batches alone.

        If it raises on all of them, it is for those on which it gets furthest.
        """
        tried: dict[int, Attempt] = {}
        for axes in (0, 1, 2) if self.check.sequence_axes else (0,):
            self.calls.lifted = axes
            tried[axes] = batch = self.calls.attempt(case, name)
            alone = tried[0]
            if batch.error is None and batch.fits:
                # what sums over the first axis fits a batch of one by chance
                pairs = zip(alone.values, alone.expected, strict=True)
                if not any(x.ndim < e.ndim for x, e in pairs):
                    break
            if batch.error is None and alone.error is not None:
                break
        else:
            raised = {n: how_far(a.error) for n, a in tried.items() if a.error is not None}
            self.calls.lifted = max(raised, key=raised.__getitem__) if tried[0].error else 0
            return
        if self.calls.lifted:
            happens = findings.what_happens(alone.error)
            self.calls.remark(name, f"on one sequence without a batch axis {happens}.")

    def _repeat(self, case: Case, name: str) -> None:
        first, second = self.calls.attempt(case, name), self.calls.attempt(case, name)
        raised = any(attempt.error is not None for attempt in (first, second))
        if raised:
            return
        if agree(first.values, second.values, case):
            self._find_memory(first, name)
            return
        finding = Finding(
            "not deterministic",
            "Your function gives two results for one input. Look for random numbers, a dropout "
            "that is still on, a variable outside the function that it changes, or, in a kernel, "
            "memory beyond the end of an array.",
            difference(self.check, case, second.values, first.values),
            replace(second, expected=first.values).failing,
        )
        raise Found(finding)

    def _find_memory(self, first: Attempt, name: str) -> None:
        """Find out whether other numbers of the same shapes give the old result."""
        if first.wrong or not self.check.legible:
            return
        other = self._again(name, first.case, **findings.rounded(first.case))
        if other.wrong and agree(other.values, first.values, first.case):
            finding = Finding(
                "earlier result returned",
                "Your function returns the result of an earlier input, which had the same shapes "
                "and other numbers. Look for a cache whose key is the shape, or for a variable "
                "outside the function that keeps the first result.",
                difference(self.check, other.case, other.values, other.expected),
                other.failing,
            )
            raise Found(finding)

    def _find_kept_tables(self, name: str) -> None:
        """Find out whether what is kept of one input is taken for one of other sizes."""
        for i, (case, longer, anew) in enumerate(grown(self.check)):
            if i == 0 and not self.calls.attempt(case, name).right:  # the same for all sizes
                return
            after = [self.calls.attempt(one, name) for one in longer[:1]]
            if after[0].right:
                continue
            after += [self.calls.attempt(one, name) for one in longer[1:]]
            if not any(one.right for one in after) and all(
                self.calls.attempt(one, name).right for one in anew
            ):
                raise Found(findings.finding_of_a_kept_table(self.check, after[0]))

    def _stage(self, stage: Stage, name: str, passed: list[Attempt]) -> list[Attempt]:
        attempts = [self.calls.attempt(case, name) for case in stage.cases]
        self.cases += len(attempts)
        returned = [attempt for attempt in attempts if attempt.error is None]
        wrong = [attempt for attempt in returned if attempt.wrong]
        error = next((a.error for a in attempts if a.error is not None), None)
        optional = stage.beyond or stage.may_raise
        if optional and (error or wrong) and (not wrong or stage.excuses(attempts[0].error)):
            self.failed_beyond.add(optional)
            finding = self._diagnose(wrong, returned + passed, name) if wrong else None
            self.calls.remark(name, findings.remark_beyond(self.check, optional, error, finding))
            return [attempt for attempt in returned if not attempt.wrong]
        if wrong and self.settled:
            fits = [attempt for attempt in wrong if attempt.fits]
            smallest = min(fits or wrong, key=lambda attempt: attempt.case.size)
            detail = difference(self.check, smallest.case, smallest.values, smallest.expected)
            raise Found(Finding(None if fits else "another shape", "", detail))
        if wrong:
            finding = self._diagnose(wrong, returned + passed, name, self._later(name))
            raise Found(findings.beyond_the_first(finding, stage.may_raise))
        if error is None:
            return returned
        axes = {0: "", 1: ", each with a leading axis of length 1"}
        lifted = self.calls.lifted
        about = axes.get(lifted, f", each with {lifted} leading axes of length 1")
        finding = findings.finding_of_error(self.check, stage, attempts, name, about)
        raise Raises(finding, error, len(passed) + len(returned))

    def _diagnose(
        self,
        wrong: list[Attempt],
        returned: list[Attempt],
        name: str,
        later: Iterable[list[Attempt]] = (),
    ) -> Finding:
        again = partial(self._again, name)
        return findings.finding_of_results(self.check, wrong, returned, again, later)

    def _later(self, name: str) -> Iterator[list[Attempt]]:
        """Yield what the function returns in the stages that come after one that it fails."""
        remarks = [*self.calls.remarks[name]]
        try:
            for stage in self.later:
                if not stage.within:
                    attempts = [self.calls.attempt(case, name) for case in stage.cases]
                    if not stage.excuses(attempts[0].error):
                        yield [attempt for attempt in attempts if attempt.error is None]
        except Found:  # it does not end, or returns something else
            return
        finally:
            self.calls.remarks[name] = remarks

    def _again(self, name: str, case: Case, **arrays: np.ndarray) -> Attempt:
        return self.calls.attempt(replace(case, arguments={**case.arguments, **arrays}), name)


def _home(raised: dict[str, Raises], function: Callable) -> str:
    """Return the library for which a function is written that raises in all of them.

    It is the one in which it gets furthest. Where that is one place, what NumPy's arrays raise for
    not being tensors decides, then the names in the code.
    """

    def fits(name: str) -> tuple:
        error = raised[name].error
        text = error_text(error)
        of_tensors = name == "numpy" and "tensor" in text.lower()
        of_types = (
            isinstance(error, (AttributeError, TypeError)) and findings.ONE_NUMBER not in text
        )
        named = name == "torch" and uses_torch(function)
        return raised[name].after, how_far(error), -of_tensors - of_types, named

    return max(raised, key=fits)
