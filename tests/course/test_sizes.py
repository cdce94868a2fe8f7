"""Hidden sizes: the solutions of the book are right for them, and they differ from what is seen."""

import dataclasses

import numpy as np
import pytest
from cases import every_day
from samples import SQUARES, WRITTEN

from course import exercises, hidden, notebooks, sizes
from course.exercises import replaced
from course.sizes import SIZES, resized


def test_passages_are_replaced_all_at_once():
    assert replaced("a ab b", {"a": "b", "b": "c", "ab": "a"}) == "b a c"


def test_sizes_follow_from_the_seed(monkeypatch):
    passages = {"size=5": "size={0}", "arange(3.0)": "arange({0} + 1.0)"}
    exercise = dataclasses.replace(SQUARES, label="sized", sizes=passages)  # kept by label
    monkeypatch.setitem(SIZES, "sized", sizes.distinct(2, 90, 1))
    assert resized(exercise, 0) == exercise
    once, again, other = (resized(exercise, seed).check for seed in (7, 7, 8))
    assert once == again != other
    assert "size=5" not in once
    cell = notebooks.hidden_test(exercise, "s")
    n = len({line for line in cell.splitlines() if "size=" in line or "arange" in line})
    assert n == 2
    assert "size=5" not in cell


def test_models_that_are_counted_can_be_made():
    for seed in range(50):
        for V, d, d_ff, N, h, h_kv in sizes.grouped(np.random.default_rng(seed)):
            assert min(V, d, d_ff, N, h, h_kv) > 0
            assert d % h == h % h_kv == (d // h) % 2 == 0


def asked():
    found = exercises.read(WRITTEN).values() if WRITTEN.is_dir() else ()
    return [e for chapter in found for e in chapter if e.sizes]


@pytest.mark.site
def test_each_draw_has_an_exercise_and_passages():
    assert {e.label for e in asked()} == set(SIZES)


@pytest.mark.site
@pytest.mark.parametrize(
    "exercise", every_day(asked()[::3], asked()), ids=lambda exercise: exercise.label
)
def test_solutions_are_right_for_hidden_sizes(exercise):
    if "torch" in exercise.given + exercise.check:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    space = {"__name__": "answer"}
    exec(exercise.given, space)
    exec(exercise.answer, space)
    answers = {name: space[name] for name in exercise.names}
    usual = hidden.outcome(exercise, answers, 0)
    seen = {exercise.check + exercise.block}
    for seed in (1, 2, 3):
        found = hidden.outcome(exercise, answers, seed)
        if isinstance(found[0], dict):  # its names are sizes
            assert all(found[0].values())
        else:
            assert str(found) == str(usual)
        other = resized(exercise, seed)
        seen.add(other.check + other.block)
    assert len(seen) > 1
