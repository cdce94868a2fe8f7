"""The laziest answers to each exercise of the book get no points but those of a number guessed.

What they hand in is no danger, so it runs in this process, and a class of them is cheap.
"""

import ast
import functools
import inspect

import numpy as np
import pytest
from cases import WEEKLY, every_day
from samples import SQUARES, WEIGHTS, WRITTEN

from course import exercises, judge
from course.judge import WITHOUT, solved, weighed

CONSTANTS = [1, 10**15, 0, -1, 0.5, True, False, None, [], "0", np.zeros(3), np.array(0.0)]
"""Those above are tried in each run, the others weekly."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def of_book():
    """Return the exercises that are checked, where the site has been built."""
    if not WRITTEN.is_dir():
        return [pytest.param(None, marks=pytest.mark.site, id="site")]
    found = (one for chapter in exercises.read(WRITTEN).values() for one in chapter)
    checked = [one for one in found if one.is_checked]
    return [pytest.param(one, marks=pytest.mark.site, id=one.label) for one in checked]


def heads_of(exercise):
    """Return the functions and classes of the stub by name, each with its arguments."""
    defined = (ast.FunctionDef, ast.ClassDef)
    nodes = (node for node in ast.parse(exercise.stub).body if isinstance(node, defined))
    return {node.name: judge._arguments(node) for node in nodes}


def like(x, number):
    """Return a number in the shape of an argument."""
    if isinstance(x, (list, tuple)):
        return type(x)(like(part, number) for part in x)
    try:
        return 0 * x + number
    except TypeError:
        return number


def answers_that_return(exercise, of_given, number=0):
    """Return answers whose functions make of what they are given what this one does."""
    heads = heads_of(exercise)

    def function(*given, **options):
        return of_given([*given, *options.values()])

    return {name: function if name in heads else number for name in exercise.names}


def given(i, given):
    """Return the argument in a place, the last one where there are fewer."""
    return given[min(i, len(given) - 1)] if given else None


def lazy_answers(exercise):
    """Return lazy answers, each by what it does."""
    heads = heads_of(exercise)
    constants = every_day(CONSTANTS[:2], CONSTANTS)
    found = {
        f"returns {x!r}": answers_that_return(exercise, lambda _, x=x: x, x) for x in constants
    }
    for i in range(max(map(len, heads.values()), default=0)):
        same = functools.partial(given, i)
        found[f"returns argument {i}"] = answers_that_return(exercise, same)
        for name, number in every_day([("zeros", 0)], [("zeros", 0), ("ones", 1)]):
            found[f"returns {name} like argument {i}"] = answers_that_return(
                exercise, lambda every, same=same, number=number: like(same(every), number)
            )
    return found


def solution_of(exercise):
    """Return what the solution hands in, by name."""
    space = {"__name__": "answer"}
    exec(compile(exercise.given, "<given>", "exec"), space)
    exec(compile(exercise.answer, "<answer>", "exec"), space)
    return {name: space[name] for name in exercise.names}


def without_each(exercise):
    """Return the solution without each argument of each of its functions, by what is missing.

    What a check must pass it misses at once, so in every run only those with a default are left.
    """
    some = {name: arguments for name, arguments in heads_of(exercise).items() if arguments}
    if not WEEKLY and "=" not in exercise.stub.split("\n")[0]:
        return {}
    right = solution_of(exercise)
    found = {}
    for name, arguments in some.items():
        for lost in (a for a in arguments if a in inspect.signature(right[name]).parameters):
            found[f"{name} without {lost}"] = {**right, name: without(right[name], lost)}
    return found


def without(function, lost):
    """Return the function without an argument, in whose place is what it has by default."""
    signature = inspect.signature(function)
    rest = [p for p in signature.parameters.values() if p.name != lost]
    default = signature.parameters[lost].default
    instead = {} if default is not inspect.Parameter.empty else {lost: None}

    def shorter(*given, **options):
        own = signature.replace(parameters=rest).bind(*given, **options).arguments
        return function(**own, **instead)

    shorter.__signature__ = signature.replace(parameters=rest)
    return shorter


def share(exercise, answers, seed):
    """Return what answers are worth, of 1."""
    try:
        return weighed(exercise, answers, solved(exercise, seed), seed, {})[0]
    except Exception:  # as it is where they are marked
        return 0.0


def guessed(exercise, answers, seed):
    """Return the share of an exercise's answers that are numbers and right."""
    right = solved(exercise, seed).numbers
    hits = [n for n in right if np.array_equal(right[n], answers[n])]
    return len(hits) / len(exercise.names)


@pytest.mark.parametrize("seed", every_day([7], [7, 8]))
@pytest.mark.parametrize("exercise", every_day(of_book()[::5], of_book()))
def test_a_lazy_answer_gets_nothing_and_one_without_an_argument_half(exercise, seed):
    for name, answers in lazy_answers(exercise).items():
        most = guessed(exercise, answers, seed)
        assert share(exercise, answers, seed) <= most + 1e-9, (exercise.label, name)
    for name, answers in without_each(exercise).items():
        assert share(exercise, answers, seed) <= WITHOUT, (exercise.label, name)


def test_these_answers_would_be_seen():
    """The solution has all points in the same way, and a check that asks for little is found."""
    for exercise in (WEIGHTS, SQUARES):
        assert share(exercise, solution_of(exercise), 7) == 1
    lazy = lazy_answers(SQUARES)
    assert share(SQUARES, lazy["returns argument 0"], 7) == pytest.approx(2 / 3)
    assert share(WEIGHTS, without_each(WEIGHTS)["my_weights without mask"], 7) == WITHOUT
    assert share(WEIGHTS, without_each(WEIGHTS)["my_weights without key"], 7) == 0
