"""The check of a merge: wrong answers hear their sentence, right ones in any style pass."""

import importlib
import inspect
import math
import re
import sys
import time

import numpy as np
import pytest

import attnbook as ab
from attnbook import check
from attnbook.arrays.arguments import array_namespace
from attnbook.check._model import draw

MODULES = ("_merge_mistakes", "_merge_attention")


@pytest.fixture(scope="module")
def built_afresh():
    """The check, built again: what its tables compute is tested too."""
    kept = {name: sys.modules.pop(f"attnbook.check.{name}") for name in MODULES}
    draw.cache_clear()
    try:
        modules = [importlib.import_module(f"attnbook.check.{name}") for name in MODULES]
    finally:
        sys.modules.update({f"attnbook.check.{name}": module for name, module in kept.items()})
        for name, module in kept.items():
            setattr(check, name, module)
    return modules[1]


# Wrong answers, as a reader would write them.


def answer(
    maximum="xp.maximum(m1, m2)",
    f1="xp.exp(m1 - safe)",
    f2="xp.exp(m2 - safe)",
    total="f1 * z1 + f2 * z2",
    weighted="f1 * u1 + f2 * u2",
    result="(m, z, u)",
    safe="xp.where(m == -xp.inf, xp.zeros_like(m), m)",
):
    """Return a merge whose lines are these."""
    lines = [
        compile(line, "answer", "eval") for line in (maximum, safe, f1, f2, total, weighted, result)
    ]

    def my_merge(first, second):
        names = dict(zip(("m1", "z1", "u1"), first, strict=True))
        names |= dict(zip(("m2", "z2", "u2"), second, strict=True))
        names["xp"] = array_namespace(first[0])
        for name, line in zip(("m", "safe", "f1", "f2", "z", "u", "result"), lines, strict=True):
            names[name] = eval(line, names)
        return names["result"]

    return my_merge


DIVIDED = {"weighted": "u / z"}
WRONG = {
    "no rescaling": answer(total="z1 + z2", weighted="u1 + u2"),
    "total not rescaled": answer(total="z1 + z2"),
    "weighted not rescaled": answer(weighted="u1 + u2"),
    "one part rescaled": answer(f2="xp.ones_like(m2)"),
    "one part rescaled 2": answer(f1="xp.ones_like(m1)"),
    "factors exchanged": answer(f1="xp.exp(m2 - m)", f2="xp.exp(m1 - m)"),
    "sign of the exponent": answer(f1="xp.exp(m - m1)", f2="xp.exp(m - m2)"),
    "minimum": answer("xp.minimum(m1, m2)"),
    "minimum 2": answer(f1="xp.exp(m1 - xp.minimum(m1, m2))", f2="xp.exp(m2 - xp.minimum(m1, m2))"),
    "one part's maximum for both": answer("m2", f2="1"),
    "one part's maximum for both 2": answer("m1", f1="1", f2="xp.exp(m2 - m1)"),
    "one part's maximum for both 3": answer(f1="xp.exp(m1 - m2)", f2="1"),
    "sum or mean of the maxima": answer("(m1 + m2) / 2"),
    "sum or mean of the maxima 2": answer("m1 + m2"),
    "one maximum for all rows": answer("xp.max(xp.maximum(m1, m2)) + xp.zeros_like(m1)"),
    "maximum not updated": answer(result="(m1, z, u)"),
    "maximum not updated 2": answer(result="(m2, z, u)"),
    "no maximum": answer(f1="xp.exp(m1)", f2="xp.exp(m2)"),
    "no maximum 2": answer("xp.zeros_like(m1)", f1="xp.exp(m1)", f2="xp.exp(m2)"),
    "no maximum 3": answer(f1="xp.exp(m1) / xp.exp(m)", f2="xp.exp(m2) / xp.exp(m)"),
    "one part dropped": answer(result="(m1, z1, u1)"),
    "one part dropped 2": answer(result="(m2, z2, u2)"),
    "one part dropped 3": answer(
        result="tuple(xp.where(m1 > m2, a, b) for a, b in ((m1, m2), (z1, z2), (u1, u2)))"
    ),
    "outputs added": answer(weighted="u1 / z1 + u2 / z2"),
    "outputs added 2": answer(weighted="(u1 / z1 + u2 / z2) / 2"),
    "outputs added 3": answer(weighted="f1 * u1 / z1 + f2 * u2 / z2"),
    "divided already": answer(weighted="(f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2)"),
    "divided already 2": answer(
        weighted="(f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2)", result="(m, xp.ones_like(z), u)"
    ),
    "log-sum-exp for the maximum": answer(result="(m + xp.log(z), xp.ones_like(z), u / z)"),
    "weighted taken for an output": answer(weighted="f1 * z1 * u1 + f2 * z2 * u2"),
    "weighted taken for an output 2": answer(
        weighted="(f1 * z1 * u1 + f2 * z2 * u2) / (f1 * z1 + f2 * z2)"
    ),
    "rescaled twice": answer(f1="xp.exp(m1 - m) ** 2", f2="xp.exp(m2 - m) ** 2"),
    "rescaled twice 2": answer(weighted="f1 * f1 * u1 + f2 * f2 * u2"),
    "base 2": answer(f1="2 ** (m1 - safe)", f2="2 ** (m2 - safe)"),
    "no exponential": answer(f1="m1 - m", f2="m2 - m"),
    "no exponential 2": answer(f1="m1 / m", f2="m2 / m"),
    "maximum and total exchanged": answer(result="(z, m, u)"),
    "empty parts NaN": answer(safe="m"),
    "empty parts NaN 2": answer(
        f1="xp.exp(xp.minimum(m1 - m2, xp.zeros_like(m1)))",
        f2="xp.exp(xp.minimum(m2 - m1, xp.zeros_like(m1)))",
    ),
    "maximum of nothing": answer(result="(safe, z, u)"),
    "maximum of nothing 2": answer(
        result="(xp.where(m == -xp.inf, xp.full_like(m, -1e9), m), z, u)"
    ),
}


def mistake_of(wrong):
    """Drop the number that tells several answers with one mistake apart."""
    return wrong if wrong == "base 2" else re.sub(r" \d$", "", wrong)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_merge_is_rejected_with_its_own_sentence(wrong, built_afresh, monkeypatch):
    monkeypatch.setattr("attnbook.check._engine.present", lambda: ["numpy"])  # the next has PyTorch
    messages = {m.name: m.message for m in built_afresh.MERGE_ATTENTION.mistakes}
    report = built_afresh.merge_attention(WRONG[wrong], time_limit=60)
    mistake = mistake_of(wrong)
    assert not report
    assert (report.mistake, report.message) == (mistake, messages[mistake])
    assert re.search(r"^With .* is .*, expected ", report.detail)
    assert report.libraries == ()


@pytest.mark.parametrize("wrong", list(WRONG)[::4])
def test_a_wrong_merge_written_for_pytorch_alone_is_recognised(wrong):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def my_merge(first, second):
        if not isinstance(first[0], torch.Tensor):
            raise TypeError("a tensor please")
        return WRONG[wrong](first, second)

    assert check.merge_attention(my_merge).mistake == mistake_of(wrong)


def test_every_mistake_has_a_wrong_merge_and_one_sentence(built_afresh):
    mistakes = built_afresh.MERGE_ATTENTION.mistakes
    assert {mistake_of(wrong) for wrong in WRONG} == {mistake.name for mistake in mistakes}
    assert len({mistake.message for mistake in mistakes}) == len(mistakes) >= 20


# Right answers.


def by_the_package(first, second):
    parts = (ab.RunningSoftmax(*part, part[0].dtype) for part in (first, second))
    merged = next(parts).merge(next(parts))
    return merged.maximum, merged.total, merged.weighted


def in_loops(first, second):
    (m1, z1, u1), (m2, z2, u2) = first, second
    m, z, u = np.empty_like(m1), np.empty_like(z1), np.empty_like(u1)
    for i in range(len(m)):
        a, b = float(m1[i, 0]), float(m2[i, 0])
        m[i] = max(a, b)
        f1 = 0.0 if a == -math.inf else math.exp(a - max(a, b))
        f2 = 0.0 if b == -math.inf else math.exp(b - max(a, b))
        z[i] = f1 * z1[i] + f2 * z2[i]
        u[i] = f1 * u1[i] + f2 * u2[i]
    return [m, z, u]


def with_one_factor(first, second):
    """Only the smaller part is rescaled, and a list comes back."""
    (m1, z1, u1), (m2, z2, u2) = first, second
    gap = np.where(m1 == m2, 0, m1 - np.where(m1 == m2, 0, m2))
    f = np.exp(-np.abs(gap))
    larger = m1 >= m2
    f1, f2 = np.where(larger, 1, f), np.where(larger, f, 1)
    return [np.maximum(m1, m2), z1 * f1 + z2 * f2, u1 * f1 + u2 * f2]


def by_logarithms(first, second):
    """Through the logarithms of the two totals, and back."""
    (m1, z1, u1), (m2, z2, u2) = first, second
    with np.errstate(divide="ignore"):
        log_1, log_2 = m1 + np.log(z1), m2 + np.log(z2)
        m = np.maximum(m1, m2)
        z = np.exp(np.logaddexp(log_1, log_2) - np.where(m == -np.inf, 0, m))
    shift = np.where(m == -np.inf, 0, m)
    return m, z, np.exp(m1 - shift) * u1 + np.exp(m2 - shift) * u2


@pytest.mark.parametrize("right", [by_the_package, in_loops, with_one_factor, by_logarithms])
def test_a_right_merge_in_any_style_passes(right):
    report = check.merge_attention(right)
    assert report, report
    assert (report.mistake, report.detail) == (None, "")
    assert report.message == "agrees with the reference"
    assert "numpy" in report.libraries
    assert report.cases > 8


def test_the_package_passes_in_every_library_without_a_note():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    report = check.merge_attention(by_the_package)
    assert report.libraries[:2] == ("numpy", "torch")
    assert report.notes == ()


# Whatever else comes back.


def test_functions_that_fail_in_every_way():
    def hangs(first, second):
        while True:
            time.sleep(0.001)

    def raises(first, second):
        raise KeyError("so")

    def changes(first, second):
        first[1][...] = 0
        return first

    with pytest.raises(TypeError, match=r"^f must be a function of \(first, second\), got int$"):
        check.merge_attention(5)
    with pytest.raises(ValueError, match=r"^time_limit must be finite and at least 0, got -1.0$"):
        check.merge_attention(print, time_limit=-1)
    of_six = check.merge_attention(lambda a, b, c, d, e, f: (a, b, c))
    assert of_six.mistake == "wrong arguments"
    assert "2 arguments by position: (first, second)" in of_six.message
    assert check.merge_attention(hangs, time_limit=0.1).mistake == "hangs"
    assert check.merge_attention(raises).mistake == "raises"
    assert check.merge_attention(changes).mistake == "changes first_total"
    assert check.merge_attention(lambda a, b: None).mistake == "no return"
    assert check.merge_attention(lambda a, b: a[:2]).mistake == "wrong number of results"
    flat = check.merge_attention(lambda a, b: tuple(x[:, 0] for x in WRONG["no maximum"](a, b)))
    assert flat.mistake == "wrong shape"
    assert "maximum must have shape (..., n_q, 1)" in flat.message


def test_math_of_one_number_overflows_as_arrays_do():
    def with_math(first, second):
        (m1, z1, u1), (m2, z2, u2) = first, second
        f1 = np.array([[math.exp(x)] for x in m1[:, 0]])
        f2 = np.array([[math.exp(x)] for x in m2[:, 0]])
        m = np.maximum(m1, m2)
        return m, np.exp(-m) * (f1 * z1 + f2 * z2), np.exp(-m) * (f1 * u1 + f2 * u2)

    assert check.merge_attention(with_math).mistake == "no maximum"


def test_numbers_that_no_model_explains_name_the_property_that_fails():
    unknown = "Your numbers differ from the reference, and not in a way that this check knows. "

    def message(change):
        def my_merge(first, second):
            return change(first, second, by_the_package(first, second))

        report = check.merge_attention(my_merge)
        assert report.mistake is None
        assert report.message.startswith(unknown.strip())
        return report.message.removeprefix(unknown)

    assert "Exchanging" in message(lambda a, b, out: (out[0], out[1] + a[0] / 7, out[2]))
    assert "read nothing" in message(lambda a, b, out: (out[0], 3 * out[1], out[2]))
    assert "1 added" in message(
        lambda a, b, out: (
            out[0],
            out[1],
            out[2] + a[1] * b[1] * array_namespace(a[0]).exp(-abs(a[0] + b[0])),
        )
    )
    assert inspect.signature(check.merge_attention).parameters["time_limit"].default == 10.0
