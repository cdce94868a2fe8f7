"""The engine of all checks: cases in stages, a reference, and models of the known mistakes.

A check is data. Its stages run in order and the first that fails ends it, so a function with two
mistakes hears of one at a time. A mistake is recognised by computing it: its model must agree with
every number that the reader's function returned, in the stage that failed and before.
"""

import threading
from collections.abc import Callable

import numpy as np

from attnbook.arrays.arguments import check_number
from attnbook.check._calls import PRETTY, Attempt, Caller, Finding, Found, accepted_options
from attnbook.check._model import Case, Check, Stage, Values, agree, as_tuple, difference
from attnbook.check._report import Report
from attnbook.check._sandbox import describe_error, error_text
from attnbook.kernels.backends import backends

HINTS = {
    RecursionError: " It calls itself without end.",
    SystemExit: " A function hands back its result with return; exit ends the whole program.",
    KeyboardInterrupt: " Only the person at the keyboard should raise this one.",
}


class Raises(Exception):  # noqa: N818
    """The function raises in one library; it may still be right in another."""

    def __init__(self, finding: Finding, error: BaseException):
        self.finding, self.error = finding, error


def run(check: Check, function: Callable, time_limit: float) -> Report:
    """Check `function` in every array library that is present."""
    if not callable(function):
        raise TypeError(
            f"f must be a function of ({', '.join(check.parameters)}), "
            f"got {type(function).__name__}"
        )
    seconds = min(check_number("time_limit", time_limit), threading.TIMEOUT_MAX)
    return Examination(check, function, seconds).report()


def present() -> list[str]:
    """Return the array libraries that can run here, NumPy first."""
    ready = {backend.name for backend in backends() if backend.available}
    names = {"NumPy, CPU": "numpy", "PyTorch, CPU": "torch", "CuPy, CUDA": "cupy"}
    return [library_name for name, library_name in names.items() if name in ready]


class Examination:
    """One run of one check over one function."""

    def __init__(self, check: Check, function: Callable, seconds: float):
        self.check = check
        self.function = check.adapt(function)
        self.cases = 0
        self.general: list[str] = []
        self.failed_beyond: set[str] = set()
        libraries = present()  # before the clock starts: it may import for seconds
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
        except Found as found:
            return self._report(found.finding, ())
        where = " and ".join(PRETTY[name] for name in right)
        if not right:
            return self._report(_first_finding(wrong, raised), ())
        # it is judged by the library that it is written for: the functions of that one can return
        # anything on the arrays of another
        for name in wrong:
            self.calls.remarks[name] = [f"right on {where}; on {PRETTY[name]} its result differs."]
        for name, problem in raised.items():
            text = describe_error(problem.error)
            self.calls.remarks[name] = [f"right on {where}; on {PRETTY[name]} it raises {text}."]
        message = "agrees with the reference"
        return self._report(
            Finding(None, message), tuple(sorted(self.calls.homes) or right), passed=True
        )

    def _report(self, finding: Finding, libraries: tuple[str, ...], passed: bool = False) -> Report:
        remarks = self.general if passed else []
        # of a function that is right elsewhere alone, they would speak of NumPy, not of it
        if not passed or "numpy" in libraries or self.calls.homes:
            remarks = remarks + self.calls.remarks["numpy"]
        others = dict.fromkeys(text for texts in self.calls.remarks.values() for text in texts)
        return Report(
            check=self.check.name,
            passed=passed,
            mistake=finding.mistake,
            message=finding.message,
            detail=finding.detail,
            remarks=tuple(remarks),
            library_remarks=tuple(text for text in others if text not in remarks),
            cases=self.cases,
            libraries=libraries,
        )

    def _library(self, name: str, takes: frozenset[str]) -> None:
        first = self.check.stages[0].cases[0]
        self._find_batches_only(first, name)
        self._repeat(first, name)
        passed: list[Attempt] = []
        self.failed_beyond.clear()
        for stage in self.check.stages:
            if stage.within in self.failed_beyond:
                continue
            if not stage.option or stage.option in takes:
                passed += self._stage(stage, name, passed)

    def _find_batches_only(self, case: Case, name: str) -> None:
        """Find out whether the function takes one sequence, or else batches alone."""
        self.calls.batches_only = False
        if not self.check.sequences:
            return
        alone = self.calls.attempt(case, name)
        if alone.error is None and alone.fits:
            return
        self.calls.batches_only = True
        batch = self.calls.attempt(case, name)
        self.calls.batches_only = batch.error is None and (alone.error is not None or batch.fits)
        if self.calls.batches_only:
            error = alone.error
            happens = f"it raises {type(error).__name__}" if error else "its result is wrong"
            self.calls.remark(name, f"on one sequence without a batch axis {happens}.")

    def _repeat(self, case: Case, name: str) -> None:
        first, second = self.calls.attempt(case, name), self.calls.attempt(case, name)
        if (
            first.error is None
            and second.error is None
            and not agree(first.values, second.values, case)
        ):
            raise Found(
                Finding(
                    "not deterministic",
                    "Your function gives two results for one input. Look for random numbers, a "
                    "dropout that is still on, or a variable outside the function that it changes.",
                    difference(self.check, case, second.values, first.values),
                )
            )

    def _stage(self, stage: Stage, name: str, passed: list[Attempt]) -> list[Attempt]:
        attempts = [self.calls.attempt(case, name) for case in stage.cases]
        self.cases += len(attempts)
        returned = [attempt for attempt in attempts if attempt.error is None]
        wrong = [attempt for attempt in returned if attempt.wrong]
        errors = [(a.case, a.error) for a in attempts if a.error is not None]
        if stage.beyond and (errors or wrong):
            self.failed_beyond.add(stage.beyond)
            self.calls.remark(name, self._beyond(stage, errors, wrong, returned + passed, name))
            return [attempt for attempt in returned if not attempt.wrong]
        if wrong:
            raise Found(self._diagnose(wrong, returned + passed, name))
        if not errors:
            return returned
        case, error = errors[0]
        if stage.may_raise:
            self.failed_beyond.add(stage.may_raise)
            kind = type(error).__name__
            self.calls.remark(name, f"on {stage.may_raise} it raises {kind}.")
            return returned
        known = [m for m in self.check.mistakes if m.name == stage.errors.get(type(error))]
        if known:
            finding = Finding(known[0].name, known[0].message, f"It was given {case}.")
        else:
            finding = _explain(case, error, attempts, name)
        raise Raises(finding, error)

    def _beyond(
        self,
        stage: Stage,
        errors: list[tuple[Case, BaseException]],
        wrong: list[Attempt],
        returned: list[Attempt],
        name: str,
    ) -> str:
        """Say what happens on inputs that a function for matrices need not take."""
        happens = f"it raises {type(errors[0][1]).__name__}" if errors else "its result is wrong"
        text = f"on {stage.beyond} {happens}."
        finding = self._diagnose(wrong, returned, name) if wrong else None
        if finding and finding.mistake in {mistake.name for mistake in self.check.mistakes}:
            text += f" {finding.message}"
        return text

    def _diagnose(self, wrong: list[Attempt], returned: list[Attempt], name: str) -> Finding:
        shaped = [attempt for attempt in wrong if not attempt.fits]
        smallest = min(shaped or wrong, key=lambda attempt: attempt.case.size)
        detail = difference(self.check, smallest.case, smallest.values, smallest.expected)
        for mistake in self.check.mistakes:
            for model in mistake.models:
                if all(_matches(model, attempt) for attempt in returned):
                    return Finding(mistake.name, mistake.message, detail)
        if shaped and not self.check.any_length:
            return Finding("wrong shape", f"Your result has the wrong shape. {detail}")
        if not all(np.isfinite(x).all() for x in smallest.values):
            return Finding(
                "NaN",
                "Your result holds NaN or infinity where the right numbers are finite. The usual "
                "causes: exp overflows, a sum that underflows to 0 is divided by, ∞ − ∞, or 0 · ∞.",
                detail,
            )
        return Finding(None, self._describe(smallest, name), detail)

    def _describe(self, attempt: Attempt, name: str) -> str:
        message = "Your numbers differ from the reference, and not in a way that this check knows."

        def again(**arrays: np.ndarray) -> Values:
            return self.calls.attempt(attempt.case, name, **arrays).values

        for holds in self.check.properties:
            sentence = holds(attempt.case, attempt.values, again)
            if sentence:
                return f"{message} {sentence}"
        return message


def _first_finding(wrong: dict[str, Finding], raised: dict[str, Raises]) -> Finding:
    """Return what NumPy says, unless the function is written for another library."""
    if wrong:
        return next(iter(wrong.values()))

    def is_foreign(raises: Raises) -> bool:  # then another library got further
        unknown = isinstance(raises.error, AttributeError)
        return unknown or "tensor" in error_text(raises.error).lower()

    return min(raised.values(), key=is_foreign).finding


def _explain(case: Case, error: BaseException, attempts: list[Attempt], name: str) -> Finding:
    message = f"Your function raises {describe_error(error)}."
    for kind, hint in HINTS.items():
        if isinstance(error, kind):
            message += hint
    if "only 0-dimensional arrays" in error_text(error):
        message += " The functions of math take one number; NumPy's take arrays."
    square = [attempt for attempt in attempts if attempt.case.is_square]
    if square and all(attempt.error is None for attempt in square):
        message += " It runs where all sizes are equal, so somewhere one axis is taken for another."
    arrays = f", as {PRETTY[name]} arrays" if case.arrays else ""
    return Finding("raises", message, f"It was given {case}{arrays}.")


def _matches(model: Callable, attempt: Attempt) -> bool:
    case = attempt.case
    try:
        with np.errstate(all="ignore"):
            values = as_tuple(model(*case.arguments.values(), **case.options))
    except ValueError:  # the mistake does not fit these shapes
        return False
    return agree(attempt.values, values, case)
