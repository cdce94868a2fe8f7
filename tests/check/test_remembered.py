"""A pair of mistakes that is remembered is found as one that is computed."""

import itertools

import numpy as np
import pytest

from attnbook.check.engine import remembered
from attnbook.check.engine import run as engine
from attnbook.check.engine.calls import Attempt
from attnbook.check.engine.steps import Case, Check, Mistake, Stage, agree, draw

CASE = Case({"x": np.ones(3)})
NARROW = Case({"x": np.ones(3, "f4")})
RESULTS = [
    (np.array([1.0, 2.0]),),
    (np.array([1.0, 2.0 + 1e-8]),),
    (np.array([1.0, 2.001]),),
    (np.array([1.0, 7.0, 2.0]),),
    (np.array([[1.0, 2.0]]),),
    (np.array([np.nan, np.inf]),),
    (np.array([np.nan, -np.inf]),),
    (np.array([1, 2]),),
    (np.array([1.0, 2.00005], "f4"),),
    (np.array([True, False]),),
    (np.array(3.0),),
    (np.zeros(0),),
    (np.ones(2), np.ones(3), np.ones(4), np.ones(5)),
    (np.ones(2), np.ones(3), np.ones(4), np.zeros(5)),
    (),
]


@pytest.mark.parametrize("case", [CASE, NARROW])
def test_what_agrees_is_near(case):
    found = 0
    for got, expected in itertools.product(RESULTS, repeat=2):
        attempt = Attempt(case, got, expected, None)
        is_near = remembered.near(attempt, remembered.digest(expected))
        assert is_near.shape == (1,)
        assert is_near[0] or not agree(got, expected, case), (got, expected)
        found += not is_near[0]
    assert found > 180  # of 225: hardly anything else is near


def test_what_could_not_be_computed_is_near_nothing():
    for got in RESULTS:
        attempt = Attempt(CASE, got, got, None)
        rows = remembered.digest(None) + remembered.digest(got)
        assert remembered.near(attempt, rows).tolist() == [False, True]


def counting(told):
    """Return a check of x ↦ ((x · 2) + 1) · 3, each step of which can be left out."""

    def left_out(x):
        told.append(1)
        return x

    steps = {"double": lambda x: 2 * x, "add": lambda x: x + 1, "triple": lambda x: 3 * x}
    return Check(
        *("toy", ("x",), {"y": "x.shape"}),
        (Stage(tuple(Case({"x": draw(3, n, 2)}) for n in (3, 1))),),
        tuple(Mistake(f"no {name}", f"{name}.", ({name: left_out},)) for name in steps),
        compute=lambda s, x: s.triple(s.add(s.double(x))),
        steps=steps,
    )


def test_pairs_are_computed_once_for_all_wrong_answers():
    remembered.digests_of.cache_clear()
    told = []
    check = counting(told)
    seen = []
    for wrong in (np.exp, np.square, lambda x: 3 * x, lambda x: x + 1):
        told.clear()
        seen.append((engine.run(check, wrong, 9).mistakes, len(told)))
    assert [mistakes for mistakes, _ in seen] == [
        (),
        (),
        ("no double", "no add"),
        ("no double", "no triple"),
    ]
    assert remembered.digests_of.cache_info().maxsize == remembered.MOST
    # each of three pairs leaves out two steps; of a pair that fits, every case is computed, and
    # where none does, each of three ways on two cases once more
    first, second, third, fourth = (n for _, n in seen)
    assert first - second == 6
    assert third - second == fourth - second == 4 - 6
