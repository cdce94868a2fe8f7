"""What is said of a function that fails: the mistake or the property, and the input that shows it.

A mistake is recognised by computing it: its numbers must be those of the reader's function in the
stage that failed and in all before. What no mistake explains is described by the properties that do
not hold.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from attnbook.check.engine import diagnosis
from attnbook.check.engine.calls import PRETTY, Attempt, Finding
from attnbook.check.engine.diagnosis import explain, is_patient
from attnbook.check.engine.report import FailingCase, names_in
from attnbook.check.engine.sandbox import describe_error, error_text, is_deliberate
from attnbook.check.engine.steps import Case, Check, Stage, Values, agree, difference

HINTS = {
    RecursionError: " It calls itself without end.",
    SystemExit: " A function hands back its result with return; exit ends the whole program.",
    KeyboardInterrupt: " Only the person at the keyboard should raise this one.",
}
AT_ONCE = (
    "Two mistakes at once.",
    "A mistake and another convention at once.",
    "Two other conventions at once.",
)
"""How the message of two begins, by how many of them are conventions."""
ONE_NUMBER = "only 0-dimensional arrays"
"""What NumPy says where a function of Python wants one number."""
DTYPES_DIFFER = re.compile("scalar type|same dtype|dtypes match|dtype to be equal")
"""What PyTorch says where two dtypes meet."""
PLACES = re.compile(r"(dimension|axis|operand|position|argument|index) \d+")
"""Numbers in the text of an error that are no sizes."""
UNKNOWN = "Your numbers differ from the reference, and not in a way that this check knows."

Again = Callable[..., Attempt]
"""``again(case, **arrays)`` calls the function once more with some arrays of a case replaced."""


def finding_of_results(
    check: Check,
    wrong: list[Attempt],
    returned: list[Attempt],
    again: Again,
    later: Iterable[list[Attempt]] = (),
) -> Finding:
    """Say what is wrong with the results of a stage.

    `returned` holds all attempts of this stage and of those before that raised no error, and
    `wrong` those of them that are wrong. In the stages of `later` a second mistake may show.
    """
    shaped = [attempt for attempt in wrong if not attempt.fits]
    smallest = min(shaped or wrong, key=lambda attempt: attempt.case.size)
    shown = smallest if shaped else _legible(check, smallest, again)
    detail = difference(check, shown.case, shown.values, shown.expected)
    mistakes = explain(check, returned, later)
    if mistakes:
        others = sum(mistake.convention for mistake in mistakes)
        messages = [AT_ONCE[others]] if len(mistakes) > 1 else []
        message = " ".join([*messages, *(mistake.message for mistake in mistakes)])
        name = "; ".join(mistake.name for mistake in mistakes)
        return Finding(name, message, detail, shown.failing)
    if shaped and not check.any_length:
        pairs = zip(shown.values, shown.expected, strict=True)
        misfit = tuple(e if x.shape == e.shape else x for x, e in pairs)
        detail = difference(check, shown.case, misfit, shown.expected)
        message = f"Your result has the wrong shape. {detail}"
        return Finding("wrong shape", message, case=shown.failing)
    if smallest.lost:
        return Finding(
            "NaN",
            "Your result holds NaN or infinity where the right numbers are finite. The usual "
            "causes: exp overflows, a sum that underflows to 0 is divided by, ∞ − ∞, or 0 · ∞.",
            detail,
            shown.failing,
        )
    message = f"{_described(check, smallest, again)}{_partly(check, shown)}"
    if not is_patient():
        seconds = f"{diagnosis.PATIENCE:g} seconds of computing"
        message += f" The search for two mistakes at once ended after {seconds}."
    return Finding(None, message, detail, shown.failing)


def finding_of_a_kept_table(check: Check, after: Attempt) -> Finding:
    """Say that something of an earlier call is used, whose sizes are others."""
    does = f"raises {error_text(after.error)}" if after.error else "returns other numbers"
    message = (
        f"After an input of other sizes your function {does}, although it is right on sizes that "
        "are all new to it. It keeps something of an earlier call, such as a table or a mask, and "
        "finds it again by a part of the sizes. Put every size into the key, or keep nothing."
    )
    case = after.failing
    detail = difference(check, after.case, after.values, after.expected) if not after.error else ""
    return Finding("table of other sizes", message, detail or f"It was given {after.case}.", case)


def finding_of_error(
    check: Check, stage: Stage, attempts: list[Attempt], name: str, about: str = ""
) -> Finding:
    """Say what the first error in a stage means, on arrays of library `name`."""
    case, error = next((a.case, a.error) for a in attempts if a.error is not None)
    given = FailingCase(case.arguments, case.options)
    for mistake in check.mistakes:
        if mistake.name == stage.errors.get(type(error)):
            return Finding(mistake.name, mistake.message, f"It was given {case}.", given)
    message = f"Your function raises {describe_error(error)}."
    for kind, hint in HINTS.items():
        if isinstance(error, kind):
            message += hint
    if ONE_NUMBER in error_text(error):
        message += " The functions of math take one number; NumPy's take arrays."
    if DTYPES_DIFFER.search(error_text(error)):
        message += (
            f" The input is {case.dtype}, and something else in your code is of another dtype. "
            "Convert that to the dtype of the input, for example by `.to(x.dtype)` in PyTorch."
        )
    if _takes_an_axis_for_another(attempts, error, case):
        message += " It runs where all sizes are equal, so somewhere one axis is taken for another."
    arrays = f"{about}, as {PRETTY[name]} arrays" if case.arrays else ""
    return Finding("raises", message, f"It was given {case}{arrays}.", given)


def _takes_an_axis_for_another(attempts: list[Attempt], error: BaseException, case: Case) -> bool:
    """Tell whether an error is about two sizes of the input, and only where these differ.

    Sizes of the input alone are named, so that no table or number in the code is too small, and it
    is a library that complains.
    """
    square = [attempt for attempt in attempts if attempt.case.is_square]
    if not square or any(attempt.error is not None for attempt in square) or is_deliberate(error):
        return False
    text = PLACES.sub("", re.sub(r"(?<=\d)x(?=\d)", " ", error_text(error)))
    named = {int(n) for n in re.findall(r"(?<!\w)\d+", text)} - {1}
    sizes = {n for x in case.arrays.values() for n in x.shape}
    return len(named & sizes) > 1 and named <= sizes | {x.size for x in case.arrays.values()}


def remark_beyond(
    check: Check, what: str, error: BaseException | None, finding: Finding | None
) -> str:
    """Say what happens on inputs that a function for matrices need not take."""
    known = {mistake.name for mistake in check.mistakes}
    is_known = finding is not None and known.intersection(names_in(finding.mistake))
    more = f" {finding.message}" if finding and is_known else ""
    return f"on {what} {what_happens(error)}.{more}"


def beyond_the_first(finding: Finding, what: str) -> Finding:
    """Say of numbers without a name that they are wrong on `what`, which may raise."""
    if finding.mistake or not what:
        return finding
    message = (
        f"{finding.message} Without {what.rstrip(',')} it is right. With it your function may "
        "raise an error, but it must not return other numbers."
    )
    return replace(
        finding, mistake=f"wrong on {what.partition(' (')[0].rstrip(',')}", message=message
    )


def what_happens(error: BaseException | None) -> str:
    """Say that a result is wrong, or that an error is raised, where both are allowed."""
    if error is None:
        return "its result is wrong"
    return f"it raises {type(error).__name__}, which is allowed"


def rounded(case: Case) -> dict[str, np.ndarray]:
    """Return other numbers for the arrays of floats in a case, which are easy to read."""
    return {key: np.round(2 * x) + 0 for key, x in _floats_of(case).items()}  # no -0


def _floats_of(case: Case) -> dict[str, np.ndarray]:
    return {key: x for key, x in case.arrays.items() if x.dtype.kind == "f"}


def _legible(check: Check, attempt: Attempt, again: Again) -> Attempt:
    """Return what the function makes of rounded numbers, if it is wrong on these as well."""
    floats = _floats_of(attempt.case).values()
    if not check.legible or any(np.max(np.abs(x)) > 8 for x in floats if x.size):
        return attempt
    plain = again(attempt.case, **rounded(attempt.case))
    return plain if plain.wrong else attempt


def _described(check: Check, attempt: Attempt, again: Again) -> str:
    def values(**arrays: np.ndarray) -> Values:
        return again(attempt.case, **arrays).values

    for holds in check.properties:
        sentence = holds(attempt.case, attempt.values, values)
        if sentence:
            return f"{UNKNOWN} {sentence}"
    if not attempt.fits:
        got, wanted = attempt.values[0].shape, attempt.expected[0].shape
        if len(got) != 1 or len(wanted) != 1:
            return f"Your result has the wrong shape: {got}, where {wanted} is right."
        return f"Your result holds {got[0]} numbers where {wanted[0]} are right."
    return UNKNOWN


def _partly(check: Check, attempt: Attempt) -> str:
    """Say which of several results are right, where some are."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name, got, wanted in zip(check.results, attempt.values, attempt.expected, strict=True):
        names[agree((got,), (wanted,), attempt.case)].append(f"`{name}`")
    if not names[True]:
        return ""
    right, wrong = (" and ".join(names[key]) for key in (True, False))
    return f" Here you return {right} right, and only {wrong} wrong."
