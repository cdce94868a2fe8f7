"""The checks of kernels: their cases, and kernels in Triton's interpreter."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest

from attnbook import check
from attnbook.check.exercises.grouped_attention import GROUPED_ATTENTION
from attnbook.check.exercises.tiled_attention import TILED_ATTENTION, unmoved_sums

HERE = Path(__file__).parent
CASES = [
    (checked, case)
    for checked in (TILED_ATTENTION, GROUPED_ATTENTION)
    for stage in checked.stages
    for case in stage.cases
    if "infinite" not in case.about
]


@pytest.mark.parametrize(("checked", "case"), CASES)
def test_what_is_expected_is_causal_attention(checked, case):
    query, key, value = (x.astype(float) for x in case.arrays.values())
    (expected,) = checked.expected(case)
    group = len(query) // len(key)
    seen = np.tri(query.shape[1], dtype=bool)
    for h, output in enumerate(expected):
        scores = oracle.scores(query[h], key[h // group], seen, None, 0.25)
        right = oracle.weighted_sum(oracle.softmax(scores), value[h // group])
        np.testing.assert_allclose(output, right, rtol=1e-9, atol=1e-9)


def test_an_infinite_value_tells_which_tiles_are_read():
    """Rows before it stay finite where their tile ends before its own, and are NaN in its own."""
    cases = [case for stage in TILED_ATTENTION.stages for case in stage.cases]
    places = {}
    for case in cases:
        if "infinite" in case.about:
            (place,) = np.argwhere(np.isinf(case.arrays["value"]))[:, 1]
            (output,) = TILED_ATTENTION.expected(case)
            column = output[0, :, 3]
            places[place // 16] = place
            assert np.isfinite(column[: place // 16 * 16]).all()
            assert np.isnan(column[place // 16 * 16 : place]).all()
            assert (column[place:] == np.inf).all()
    assert sorted(places) == [1, 2, 3]


def test_sums_in_half_precision_lose_what_is_added():
    given = unmoved_sums()
    value = given["value"][0, :, 0].reshape(5, 16)
    carried = np.float16(0)
    for tile in value:
        carried = np.float16(carried + np.float16(tile.sum(dtype=np.float32)))
    assert carried == 0
    assert value.sum(dtype=np.float64) == 24


@pytest.mark.parametrize("name", ["tiled_attention", "grouped_attention"])
def test_a_function_may_refuse_half_precision(name):
    def answer(query, key, value):
        if query.dtype == np.float16:
            raise TypeError("float32 alone")
        return kernel(query, key, value)

    from kernel_answers import kernel as make

    kernel = make()
    report = getattr(check, name)(answer)
    assert report.passed
    assert any(remark.startswith("on float16 ") for remark in report.remarks)


@pytest.mark.weekly
def test_kernels_in_triton():
    """One program runs them all, since Triton interprets or compiles for a whole process."""
    for name in ("triton", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-W", "error", str(HERE / "triton_answers.py")]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 7
    for name, (passed, mistake, libraries) in found.items():
        bug = name.partition(": ")[2]
        assert (passed, mistake) == (not bug, bug or None), name
        assert libraries == ([] if bug else ["torch"])
