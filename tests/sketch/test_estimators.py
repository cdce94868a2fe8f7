"""What estimators refuse; what they return is tested with `SketchAttention`."""

import re

import numpy as np
import pytest

from attnbook.sketch import Candidates, estimators

ROWS = np.array([[[4, 0], [4, 7]]])
FOUND = np.array([[[True, False], [True, True]]])
HELD = Candidates.of(ROWS, FOUND)
SCORES = np.ones((1, 2, 2))


@pytest.mark.parametrize("name", estimators.ESTIMATORS)
def test_scores_have_the_shape_of_the_candidates(name):
    more = [SCORES] if name == "importance" else []
    estimate = estimators.ESTIMATORS[name]
    assert estimate(SCORES, HELD, *more).shape == SCORES.shape
    for scores, held, error, message in (
        (SCORES, 3, TypeError, "candidates must be Candidates, got int"),
        (SCORES[0], HELD, ValueError, "scores must have shape (1, 2, 2) to match candidates, got"),
        (ROWS, HELD, TypeError, "scores must have a real floating dtype, got int64"),
        ([1.0], HELD, TypeError, "scores must be an array of NumPy"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            estimate(scores, held, *more)


def test_candidates_are_rows_and_where_they_are():
    for dtype in (np.uint8, np.int16, np.uint64):
        held = Candidates.of(ROWS.astype(dtype), FOUND)
        assert held.rows.dtype == np.int64
        assert held.distinct.tolist() == HELD.distinct.tolist()
    assert HELD.distinct.tolist() == [[[True, False], [False, True]]]
    for rows, found, message in (
        (ROWS * 1.0, FOUND, "rows must have integral dtype, got float64"),
        (ROWS, ROWS, "found must have bool dtype, got int64"),
        (ROWS[0], FOUND[0], "rows and found must have one shape (n_q, n_tables, C), got (2, 2)"),
        ([1], FOUND, "rows must be an array"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            Candidates.of(rows, found)


def test_candidates_of_two_libraries_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    message = r"^found must be an array of the same library as rows \(numpy\), got torch$"
    with pytest.raises(TypeError, match=message):
        Candidates.of(ROWS, torch.tensor(FOUND))
