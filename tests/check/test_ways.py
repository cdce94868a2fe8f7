"""Each way to make a mistake that a text has, given as an answer, is told by its own name."""

import inspect
from dataclasses import replace

import pytest
from all_answers import CHECKS
from cases import every_day

from attnbook.check.engine import run as engine
from attnbook.check.engine.steps import WHOLE, Case

ALIKE = {
    # −20 is as good as −∞ where the visible scores are large, and −5 is not
    "hidden scores not low enough": {"mask with a large negative number", "mask with −10⁴"},
    "mask with a large negative number": {"mask with −10⁴"},
    # what is log Σ exp of scores is no weight, and has one number a row
    "log-sum-exp returned": {"no softmax"},
    # one of the numbers is that of a library, or too small to matter, and is told as that
    "epsilon of another size": {"epsilon of another library", "no epsilon"},
    "epsilon outside the root": {"epsilon of another library"},
    "no epsilon": {"epsilon of another library"},
    "another base": {"base of long contexts"},
    # all pairs of factors are tried, and one of them is a mistake with a better name
    "another product": {
        *("scores transposed in grad_query", "scores not transposed in grad_key"),
        *("weights not transposed in grad_value", "value not transposed"),
        *("W not transposed in grad_x", "x not transposed in grad_W"),
    },
    "one part rescaled": {"not rescaled", "old total not rescaled", "old sums not rescaled"},
    "keys of another head": {"groups in reverse"},
    # the same numbers in the cases of this check
    "argument of Φ": {"erf for Φ"},
    "largest logit of all rows": {"logarithm of 0"},
    "logits averaged": {"argmax over everything"},
    "last token not read": {"position before the last"},
    "not the maximum": {
        *("rows with a hidden key NaN", "rows with a hidden key emptied"),
        "+∞ or NaN for hidden scores",
    },
    "temperature": {"best candidate alone"},  # a hundred times as sharp
    # a query without candidates has these, and comes before the rest
    "maximum over all keys": {"query without candidates"},
    "empty row uniform": {"empty row sees everything"},
    # where there are two processes, and as many runs as places
    "neighbouring runs": {"contiguous"},
    "runs of half the length": {"run numbers"},
    "output divided again": {"scaled before and after"},
    "root cut to an integer": {"no scale"},
    "softmax over the query axis": {"softmax over the heads"},
    "0 times infinity": {"−∞ after the softmax"},
    "+∞ or NaN for hidden scores": {"−∞ after the softmax", "0 times infinity"},
    "logarithm forgotten": {"another base"},
    "positions backwards": {"sign of a wave"},
    "padded": {"rolled"},  # with the very token that a roll brings back
    "exponent not divided by d": {"part of the features rotated"},
}
"""Mistakes of which some way gives the numbers of another one, by the other one's name."""

WAYS = [
    pytest.param(name, j, i, id=f"{name}-{mistake.name}-{i}")
    for name, checked in CHECKS.items()
    for j, mistake in enumerate(checked.mistakes)
    for i, way in enumerate(mistake.ways)
    if checked.compute or WHOLE in way
]


def answer_of(checked, way):
    """Return the computation of a way as a function of the parameters and options of its check."""
    model, kind = checked.model(way), inspect.Parameter
    names = checked.parameters
    arrays = checked.stages[0].cases[0].arguments
    all_names = arrays if len(arrays) > len(names) else names  # two parts, say, of three arrays

    def answer(*given, **options):
        arguments = {n: x for n, x in zip(all_names, given, strict=False) if x is not None}
        values = model(Case(arguments, options))
        return values if len(values) > 1 else values[0]

    may_miss = {name: None if name in checked.options else kind.empty for name in names}
    answer.__signature__ = inspect.Signature(
        [kind(name, kind.POSITIONAL_OR_KEYWORD, default=may_miss[name]) for name in names]
        + [kind(n, kind.KEYWORD_ONLY, default=None) for n in checked.options if n not in names]
    )
    return answer


def raises(checked, way):
    model = checked.model(way)
    for case in (case for stage in checked.stages for case in stage.cases):
        try:
            model(case)
        except Exception:
            return True
    return False


@pytest.mark.parametrize(("name", "j", "i"), every_day(WAYS[::13], WAYS))
def test_a_way_is_told_by_its_own_name(name, j, i, monkeypatch):
    monkeypatch.setattr(engine, "present", lambda: ["numpy"])
    checked = replace(CHECKS[name], adapt=lambda function: function)
    made = checked.mistakes[j]
    report = engine.run(checked, answer_of(checked, made.ways[i]), time_limit=60)
    if report.passed:  # it shows where an answer may raise, or need not be right
        told = any(note.endswith(made.message) for note in report.remarks)
        assert told or raises(checked, made.ways[i]), report
        return
    piece, _, own = made.name.rpartition(": ")
    others = {f"{piece}: {other}" if piece else other for other in ALIKE.get(own, ())}
    if not {*report.mistakes} & {made.name, *others}:
        assert report.mistake in ("raises", "wrong shape", "wrong number of results"), report
        assert raises(checked, made.ways[i]) or report.mistake != "raises"
