"""Call the reader's function on one case, and turn whatever comes back into arrays or a finding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.array import dtype_name, library
from attnbook.arrays.move import move
from attnbook.arrays.weights import Weights
from attnbook.check.engine.report import FailingCase, Report
from attnbook.check.engine.sandbox import PRINTS, Budget, Outcome, call
from attnbook.check.engine.signatures import bare, binds, named_options, signature_of
from attnbook.check.engine.steps import Case, Check, Values, agree

PRETTY = {"numpy": "NumPy", "torch": "PyTorch", "cupy": "CuPy"}
NUMBERS = {
    "bool": "booleans",
    "real floating": "floating-point numbers",
    "integral": "integers",
}
HALF = {"float16": "three", "bfloat16": "two"}
"""The formats of 16 bits, and how many decimal digits they keep."""


@dataclass(frozen=True)
class Attempt:
    """What the reader's function made of one case: values, or the error it raised."""

    case: Case
    values: Values
    expected: Values
    error: BaseException | None

    @property
    def fits(self) -> bool:
        """Whether the values have the shapes that they should have."""
        return [x.shape for x in self.values] == [x.shape for x in self.expected]

    @property
    def wrong(self) -> bool:
        return self.error is None and not agree(self.values, self.expected, self.case)

    @property
    def right(self) -> bool:
        return self.error is None and not self.wrong

    @property
    def lost(self) -> bool:
        """Whether a value is NaN or infinite that should not be."""
        pairs = zip(self.values, self.expected, strict=True)
        return any(
            np.any(~np.isfinite(x) & (x.shape != right.shape or np.isfinite(right)))
            for x, right in pairs
        )

    @property
    def failing(self) -> FailingCase:
        """The case as a report holds it."""
        got, expected = map(_one_or_all, (self.values, self.expected))
        return FailingCase(self.case.arguments, self.case.options, got, expected)


def _one_or_all(values: Values) -> Any:
    return values[0] if len(values) == 1 else values or None


@dataclass(frozen=True)
class Finding:
    """What ends a check without success."""

    mistake: str | None
    message: str
    detail: str = ""
    case: FailingCase | None = None

    def report(self, check: str, *, passed: bool = False, **more: Any) -> Report:
        """Return the report of a check that ends with it."""
        told = (self.mistake, self.message, self.detail)
        return Report(check, passed, *told, case=self.case, **more)


def class_passed(cls: type, call: str = "{}") -> Finding:
    """Say what to pass in the place of a class; `call` holds {} where it belongs."""
    name = cls.__name__
    what, given = "that", f"{name}(…)"
    if not any("__call__" in vars(base) for base in cls.__mro__):
        methods = [m for m, x in vars(cls).items() if callable(x) and not m.startswith("_")]
        what, given = "its method", f"{given}.{methods[0] if len(methods) == 1 else 'method'}"
    return Finding(
        "class for an object",
        f"You pass the class `{name}`. Make an object of it first, and pass {what}: "
        f"{call.format(given)}.",
    )


class Found(Exception):  # noqa: N818
    """Carries a finding out of the examination."""

    def __init__(self, finding: Finding):
        self.finding = finding


class Caller:
    """The reader's function, the time it has left, and what was remarked upon on the way."""

    def __init__(self, check: Check, function: Callable, seconds: float, libraries: list[str]):
        self.check = check
        self.function = function
        self.budget = Budget(seconds)
        self.lifted = 0  # leading axes that a function for batches alone gets
        self.homes: set[str] = set()  # the libraries of what comes back where no array goes in
        self.remarks: dict[str, list[str]] = {name: [] for name in libraries}

    def remark(self, name: str, text: str) -> None:
        if text not in self.remarks[name]:
            self.remarks[name].append(text)

    def attempt(self, case: Case, name: str) -> Attempt:
        """Call the function on `case` in the library of that name."""
        given = {key: _give(x, name) for key, x in case.input.items()}
        handed = self._lift(given, case)
        arguments = tuple(map(handed.__getitem__, case.arguments))
        keywords = {key: handed[key] for key in case.options}
        outcome = call(self.function, arguments, keywords, self.budget)
        if outcome.stopped:
            mistake = "waits" if outcome.stopped.startswith("waits") else "hangs"
            raise _found(mistake, f"Your function {outcome.stopped}", case)
        if outcome.printed:
            self.remark(name, PRINTS)
        if outcome.error is not None:
            return Attempt(case, (), (), outcome.error)
        values = self._values(outcome, case, name)
        expected = self.check.expected(case)
        values = tuple(map(self._without_lift, values, expected))
        for key, x in case.input.items():
            if _is_changed(x, given[key]):
                kind = "list" if isinstance(x, list) else "array"
                raise _found(
                    f"changes {key}",
                    f"Your function changes its input `{key}` in place, so the caller's {kind} "
                    f"is no longer what it was. Compute a new {kind} instead, without +=, *= "
                    "or an assignment to a slice of it.",
                    case,
                )
        return Attempt(case, values, expected, None)

    def _lift(self, given: dict[str, Any], case: Case) -> dict[str, Any]:
        """Return what is given with the leading axes that a function for batches alone gets.

        An option of the shape of a sequence, such as a mask of its tokens, gets them too.
        """
        if not self.lifted:
            return given
        axes = self.check.sequence_axes
        missing = {key: max(0, n + self.lifted - given[key].ndim) for key, n in axes.items()}
        for key in case.options:
            alike = (k for k in axes if np.shape(case.options[key]) == case.arrays[k].shape)
            missing[key] = next((missing[k] for k in alike), 0)
        return {
            key: x[(None,) * missing.get(key, 0)] if missing.get(key) else x
            for key, x in given.items()
        }

    def _without_lift(self, x: np.ndarray, expected: np.ndarray) -> np.ndarray:
        lead = min(self.lifted, x.ndim - expected.ndim)
        return x.reshape(x.shape[lead:]) if lead > 0 and x.shape[:lead] == (1,) * lead else x

    def _values(self, outcome: Outcome, case: Case, name: str) -> Values:
        returned, wanted = outcome.value, tuple(self.check.results)
        if self._is_stack(returned, case):
            returned = tuple(returned)
        problem = self._known(returned) or _unfit(returned, wanted)
        if problem:
            raise _found(*problem, case)
        results = (returned,) if len(wanted) == 1 else returned
        return tuple(
            self._array(x, label, case, name) for x, label in zip(results, wanted, strict=True)
        )

    def _is_stack(self, returned: Any, case: Case) -> bool:
        """Tell whether one array holds several results, one in each row."""
        if len(self.check.results) == 1 or not isinstance(getattr(returned, "shape", None), tuple):
            return False
        count, axes = len(self.check.results), {1 + x.ndim for x in self.check.expected(case)}
        return returned.shape[:1] == (count,) and {len(returned.shape)} == axes

    def _known(self, returned: Any) -> tuple[str, str] | None:
        """Return name and message of the mistake that such an object tells."""
        for mistake in self.check.told_by_type:
            if mistake.told_by and mistake.told_by(returned):
                return mistake.name, mistake.message
        return None

    def _array(self, x: Any, label: str, case: Case, name: str) -> np.ndarray:
        try:
            if isinstance(x, list) and self.check.kind == "integral":
                x = np.asarray(x)  # ids may stand in a list
            if type(x) in (np.matrix, np.ma.MaskedArray):
                raise TypeError
            home = library(x)
            # a copy: the next call may write into the same array
            value = np.array(x if home == "numpy" else move(x, "numpy"))
            fits = array_api_compat.array_namespace(value).isdtype(value.dtype, self.check.kind)
        except Exception:  # whatever the object does, it is no array that can be read
            source = ", of the library that the inputs come from" if case.has_library else ""
            wanted = f"as {label}, where an array is expected{source}."
            message = f"Your function returns {kind_of(x)} {wanted}"
            raise _found("wrong type", message, case) from None
        if not fits:
            problem = self._known(value) or (
                "wrong dtype",
                f"The dtype of your {label} is {value.dtype}, where {NUMBERS[self.check.kind]} "
                "are expected. An array made to be filled, or a comparison, may have set it.",
            )
            raise _found(*problem, case)
        got, given = dtype_name(x.dtype), case.dtype or "float64"
        if got in HALF and given not in HALF:
            message = (
                f"The dtype of your {label} is {got}, which keeps {HALF[got]} digits, where "
                f"{given} is expected. Return the dtype that came in."
            )
            raise _found("wrong dtype", message, case)
        if not case.has_library:
            self.homes.add(home)
            return value
        if home != name:
            self.remark(
                name, f"it returns an array of {PRETTY.get(home, home)} for one of {PRETTY[name]}."
            )
        same_kind = ("float" in given) == (self.check.kind == "real floating")
        if case.dtype and same_kind and got != case.dtype:
            self.remark(name, f"it returns {got} for {case.dtype}.")
        return value


def _found(mistake: str, message: str, case: Case) -> Found:
    given = FailingCase(case.arguments, case.options)
    return Found(Finding(mistake, message, f"It was given {case}.", given))


def _unfit(returned: Any, wanted: tuple[str, ...]) -> tuple[str, str] | None:
    """Return what is wrong with an object that does not hold as many results as are wanted."""
    if returned is None:
        return "no return", "Your function returns None: is the `return` missing?"
    if len(wanted) == 1:
        if not isinstance(returned, tuple):
            return None
        return (
            "returns a tuple",
            f"Your function returns a tuple of {len(returned)}; this exercise asks for one "
            f"array, the {wanted[0]} alone.",
        )
    several = isinstance(returned, (tuple, list))
    if several and len(returned) == len(wanted):
        return None
    return (
        "wrong number of results",
        f"Your function must return {len(wanted)} arrays, ({', '.join(wanted)}), in this "
        f"order; it returns {len(returned) if several else kind_of(returned)}.",
    )


def _give(x: Any, name: str) -> Any:
    """Return a copy of `x` in the library of that name."""
    if isinstance(x, Weights):
        return x.with_arrays({part: _give(array, name) for part, array in x.arrays().items()})
    if isinstance(x, np.ndarray):
        return x.copy() if name == "numpy" else move(x.copy(), name)
    if isinstance(x, list):
        return x.copy()
    return x.to(name) if hasattr(x, "to") else x


def _is_changed(before: Any, after: Any) -> bool:
    """Tell whether an array or a list, or one in a structure of weights, is no longer the same."""
    if isinstance(before, np.ndarray):
        there = after if isinstance(after, np.ndarray) else move(after, "numpy")
        return not np.array_equal(there, before)
    if isinstance(before, Weights):
        now = after.arrays()
        return any(_is_changed(x, now[name]) for name, x in before.arrays().items())
    return isinstance(before, list) and after != before


def kind_of(x: Any) -> str:
    """Return the type of `x` with its article, such as ``"a list"``."""
    kind = type(x).__name__
    return f"{'an' if kind.lower().startswith((*'aeiou', 'nd')) else 'a'} {kind}"


def accepted_options(check: Check, function: Callable) -> frozenset[str]:
    """Return the options that `function` takes by name; raise Found if it cannot be called."""
    signature = signature_of(function)
    if signature is None:
        return frozenset()
    required = [name for name in check.parameters if name not in check.options]
    if not binds(signature, len(required)):
        count = len(check.parameters)
        message = (
            f"Your function takes {bare(signature)}, but it is called with {count} "
            f"argument{'s' * (count > 1)} by position: ({', '.join(check.parameters)}). Every "
            "further argument needs a default value."
        )
        raise Found(Finding("wrong arguments", message))
    by_position = signature.bind(*required).arguments
    return named_options(signature, check.options) - frozenset(by_position)
