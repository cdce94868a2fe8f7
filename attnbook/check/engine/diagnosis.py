"""Find out which mistake was made: compute each of a check's, then two together, and compare."""

import contextlib
import itertools
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.check.engine.calls import Attempt
from attnbook.check.engine.relations import beside, multiples, related, relations
from attnbook.check.engine.remembered import digest, digests_of, near
from attnbook.check.engine.report import show
from attnbook.check.engine.sandbox import seconds_of_this_thread
from attnbook.check.engine.steps import WHOLE, Case, Check, Mistake, Values, Way, agree

MOST_PAIRS = 22_000
"""How many pairs of ways are computed at most."""

PATIENCE = 5.0
"""After how many seconds of computing, for one report, no more pairs are tried."""

_until: ContextVar[tuple[int, float]] = ContextVar("_until", default=(0, 0.0))


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Let all searches within, in this thread, share so many seconds."""
    here = threading.get_ident()
    began = _until.get()[0] == here
    token = _until.set(_until.get() if began else (here, computed() + PATIENCE))
    try:
        yield
    finally:
        _until.reset(token)


def is_patient() -> bool:
    """Tell whether there is time to look for more."""
    thread, until = _until.get()
    return thread != threading.get_ident() or computed() < until


def computed() -> float:
    """Return the seconds that this thread has computed."""
    seconds = seconds_of_this_thread()
    return time.process_time() if seconds is None else seconds


One = tuple[Mistake, Way]
Explanation = tuple[tuple[Mistake, ...], Way]


def explain(
    check: Check, attempts: list[Attempt], later: Iterable[list[Attempt]] = ()
) -> tuple[Mistake, ...]:
    """Return the mistake, or the two, whose numbers are those of all `attempts`; none if unknown.

    The mistakes that are listed first win, and one wins over two. Before two, it is asked whether
    the function computes anything, and whether its results are simply related to the right ones.
    What one mistake explains may hold a second one that shows in the stages of `later` alone.
    """
    attempts = _in_order(attempts)
    ways = [(mistake, way) for mistake in check.mistakes for way in mistake.ways]
    held = _held(check, ways, attempts)
    for first in held:
        return _through(check, itertools.chain([first], held), ways, attempts, later)
    if all(map(_is_nan, (attempt for attempt in attempts if attempt.wrong))):
        return ()  # two mistakes make NaN of anything
    unfinished = _unfinished(check, attempts)
    simple = unfinished or related(check, attempts, relations)
    if simple and simple.name != "result scaled":  # two that cancel each other may give the same
        return (simple,)
    seen = [(m, way) for m, way in ways if WHOLE not in way and _shows(check, way, attempts)]
    pairs = _in_time(_pairs(check, seen))
    for mistakes, way in _candidates(check, pairs, attempts):
        if _matches(check, way, attempts):
            return mistakes
    near = simple or related(check, attempts, multiples)
    return (near,) if near else _beside(check, ways, attempts)


def _in_order(attempts: list[Attempt]) -> list[Attempt]:
    """Sort attempts: where the function is wrong most models differ, and small inputs are cheap."""
    return sorted(attempts, key=lambda attempt: (not attempt.wrong, attempt.case.size))


def _held(check: Check, ways: list[One], attempts: list[Attempt]) -> Iterator[Explanation]:
    """Yield the single mistakes that explain `attempts`: alone, then beside variants."""
    every = {step: new for variant in check.variants for step, new in variant.items()}
    for style in ({}, *check.variants, every):
        if style and _matches(check, style, attempts):
            continue  # it is the mistake itself
        for mistake, way in ways:
            if style and not _disjoint(way, style):
                continue
            if _matches(check, {**style, **way}, attempts):
                yield (mistake,), {**style, **way}


def _through(
    check: Check,
    single: Iterator[Explanation],
    ways: list[One],
    attempts: list[Attempt],
    later: Iterable[list[Attempt]],
) -> tuple[Mistake, ...]:
    """Return what explains the later stages too, for as long as one mistake or two do.

    `single` mistakes explain `attempts`, and the first of them is told. A variant that is wrong in
    a later stage is a mistake of its own there.
    """
    held, variants = [next(single)], check.variants
    mistakes, way = held[0]
    for stage in later:
        off = _in_order([attempt for attempt in stage if not _matches(check, way, [attempt])])
        attempts = [*off, *stage, *attempts]
        if not off:
            continue
        if len(mistakes) > 1 or all(map(_is_nan, off)):
            break
        held += single
        lost = all(attempt.lost for attempt in off)
        both = [
            (_both(first, other), joined, b in variants)
            for other, b in ways
            if not lost or _loses(check, b, off[0])
            for (first,), a in held
            for joined in _joined(check, a, b)
        ]
        plain = (one for one in held if not any(v.items() <= one[1].items() for v in variants))
        known = (
            *plain,
            *((m, joined) for m, joined, variant in both if variant),
            *held,
            *((m, joined) for m, joined, variant in both if not variant),
        )
        found = next((one for one in _in_time(known) if _matches(check, one[1], attempts)), None)
        if not found:
            break
        mistakes, way = found
    return mistakes


def _in_time(pairs: Iterable[Explanation]) -> Iterator[Explanation]:
    """Yield pairs while there is time, and not too many."""
    return itertools.takewhile(lambda _: is_patient(), itertools.islice(pairs, MOST_PAIRS))


def _loses(check: Check, way: Way, attempt: Attempt) -> bool:
    """Tell whether a way by itself makes something infinite or NaN that is not."""
    try:
        return replace(attempt, values=check.model(way)(attempt.case)).lost
    except Exception:  # the mistake does not fit this input
        return False


def _beside(check: Check, ways: list[One], attempts: list[Attempt]) -> tuple[Mistake, ...]:
    """Return a mistake, and what the results have to do with those that it alone would give."""
    for mistake, way in ways:
        of_it: list[Attempt] = []
        relation = None
        for attempt in attempts:
            try:
                of_it.append(replace(attempt, expected=check.model(way)(attempt.case)))
            except Exception:  # the mistake does not fit this input
                break
            if len(of_it) in (2, len(attempts)):
                relation = related(check, of_it, beside, "what that alone gives")
                if not relation:
                    break
        if relation and len(of_it) == len(attempts):
            return (mistake, relation)
    return ()


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
    check: Check, pairs: Iterable[Explanation], attempts: list[Attempt]
) -> Iterator[Explanation]:
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


def _pairs(check: Check, ways: list[One]) -> Iterator[Explanation]:
    """Yield two ways together: first two of one mistake, then of two, then beside a variant.

    A pair comes before another one if the later of its two is listed earlier. Ways that change one
    step in turn come last.
    """
    pairs = [
        (_both(first, second), way, a.keys() & b.keys())
        for i, (second, b) in enumerate(ways)
        for first, a in ways[:i]
        for way in _joined(check, a, b)
    ]
    yield from ((both, way) for both, way, shared in pairs if len(both) == 1 and not shared)
    different = [(both, way) for both, way, shared in pairs if len(both) == 2 and not shared]
    yield from different
    yield from ((both, way) for both, way, shared in pairs if len(both) == 2 and shared)
    for variant in check.variants:
        yield from ((m, {**variant, **way}) for m, way in different if _disjoint(way, variant))


def _both(first: Mistake, second: Mistake) -> tuple[Mistake, ...]:
    return (first,) if first is second else (first, second)


def _joined(check: Check, a: Way, b: Way) -> Iterator[Way]:
    """Yield two ways in one. A step that hands on what it is given may be changed twice."""
    shared = a.keys() & b.keys()
    if WHOLE in {*a, *b} or not shared <= check.handed_on.keys():
        return
    for first, second in ((a, b), (b, a)) if shared else ((a, b),):
        twice = {step: check.handed_on[step](first[step], second[step]) for step in shared}
        yield {**first, **second, **twice}


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
