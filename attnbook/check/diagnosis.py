"""Find out which mistake was made: compute each of a check's, then two together, and compare."""

import itertools
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attnbook.check.calls import Attempt
from attnbook.check.relations import multiples, related, relations
from attnbook.check.remembered import digest, digests_of, near
from attnbook.check.report import show
from attnbook.check.steps import WHOLE, Case, Check, Mistake, Values, Way, agree

MOST_PAIRS = 22_000
"""How many pairs of ways are computed at most."""


def explain(check: Check, attempts: list[Attempt]) -> tuple[Mistake, ...]:
    """Return the mistake, or the two, whose numbers are those of all `attempts`; none if unknown.

    The mistakes that are listed first win, and one wins over two. Before two, it is asked whether
    the function computes anything, and whether its results are simply related to the right ones.
    """
    # where the function is wrong most models differ, and small inputs are cheap
    attempts = sorted(attempts, key=lambda attempt: (not attempt.wrong, attempt.case.size))
    ways = [(mistake, way) for mistake in check.mistakes for way in mistake.ways]
    for mistake, way in ways:
        if _matches(check, way, attempts):
            return (mistake,)
    for mistake, way in ways:
        for variant in check.variants:
            if _disjoint(way, variant) and _matches(check, {**variant, **way}, attempts):
                return (mistake,)
    if all(map(_is_nan, (attempt for attempt in attempts if attempt.wrong))):
        return ()  # two mistakes make NaN of anything
    unfinished = _unfinished(check, attempts)
    simple = unfinished or related(check, attempts, relations)
    if simple:  # two mistakes that cancel each other may give the same
        return (simple,)
    seen = [(m, way) for m, way in ways if WHOLE not in way and _shows(check, way, attempts)]
    pairs = itertools.islice(_pairs(check, seen), MOST_PAIRS)
    for mistakes, way in _candidates(check, pairs, attempts):
        if _matches(check, way, attempts):
            return mistakes
    multiple = related(check, attempts, multiples)
    return (multiple,) if multiple else ()


def _is_nan(attempt: Attempt) -> bool:
    return any(np.isnan(x).all() for x in attempt.values if x.dtype.kind == "f")


def _unfinished(check: Check, attempts: list[Attempt]) -> Mistake | None:
    """Return the mistake of a function that gives one number, or its input, for all `attempts`."""
    if len(attempts) == 1:
        return None
    for name in check.parameters:
        if all(_is_returned(attempt.case.input.get(name), attempt.values) for attempt in attempts):
            return Mistake("input returned", f"You return `{name}` as it came.")
    values = [value for attempt in attempts for value in attempt.values if value.size]
    if values and all(np.all(value == values[0].flat[0]) for value in values):
        returned = f"Your function returns {show(values[0].flat[0])} for every input."
        return Mistake("constant", f"{returned} Is it finished?")
    return None


def _is_returned(x: Any, values: Values) -> bool:
    return len(values) == 1 and any(np.array_equal(values[0], given) for given in (x, [x]))


def _candidates(
    check: Check, pairs: Iterable[tuple[tuple[Mistake, ...], Way]], attempts: list[Attempt]
) -> Iterator[tuple[tuple[Mistake, ...], Way]]:
    """Yield the pairs that may give the values of the first attempt.

    A few numbers of what each gives are remembered: to compare them is a thousand times cheaper
    than to compute the pairs again for the next wrong answer.
    """
    first = attempts[0]
    known = digests_of(check, first.case, frozenset(attempt.case for attempt in attempts[1:]))
    fits = near(first, known)
    for i, (mistakes, way) in enumerate(pairs):
        if i < len(fits):
            if fits[i]:
                yield mistakes, way
            continue
        found = _digest(check, way, first.case)
        known.extend(found)
        if near(first, found)[0]:
            yield mistakes, way


def _digest(check: Check, way: Way, case: Case) -> array:
    try:
        return digest(check.model(way)(case))
    except Exception:  # the mistake does not fit this input
        return digest(None)


def _pairs(
    check: Check, ways: list[tuple[Mistake, Way]]
) -> Iterator[tuple[tuple[Mistake, ...], Way]]:
    """Yield two ways together: first two of one mistake, then of two, then beside a variant.

    A pair comes before another one if the later of its two is listed earlier.
    """
    pairs = [
        ((first, second), {**a, **b})
        for i, (second, b) in enumerate(ways)
        for first, a in ways[:i]
        if _disjoint(a, b)
    ]
    yield from (((first,), way) for (first, second), way in pairs if first is second)
    different = [(mistakes, way) for mistakes, way in pairs if mistakes[0] is not mistakes[1]]
    yield from different
    for variant in check.variants:
        yield from ((m, {**variant, **way}) for m, way in different if _disjoint(way, variant))


def _disjoint(a: Way, b: Way) -> bool:
    return WHOLE not in a and not a.keys() & b.keys()


def _shows(check: Check, way: Way, attempts: list[Attempt]) -> bool:
    """Tell whether a way changes any of the right results."""
    return not _gives(check, way, ((attempt, attempt.expected) for attempt in attempts))


def _matches(check: Check, way: Way, attempts: list[Attempt]) -> bool:
    return _gives(check, way, ((attempt, attempt.values) for attempt in attempts))


def _gives(check: Check, way: Way, wanted: Iterable[tuple[Attempt, Values]]) -> bool:
    model = check.model(way)
    try:
        return all(agree(values, model(a.case), a.case) for a, values in wanted)
    except Exception:  # the mistake does not fit these inputs
        return False
