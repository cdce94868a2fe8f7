"""Scores of heads against loops, on every library."""

import numpy as np
import pytest
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

from attnbook import attention_weights, masking
from attnbook.models import heads

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=11)
JOBS = (heads.previous_token, heads.first_token, heads.same_token, heads.induction)


def looked_at(job, ids, i, j):
    """Say whether query i of `ids` looks at key j, from the words of the docstrings."""
    if job is heads.previous_token:
        return j == i - 1
    if job is heads.first_token:
        return j == 0 and i >= 2
    if not 0 < j < i - 1:
        return False
    return ids[j] == ids[i] if job is heads.same_token else ids[j - 1] == ids[i]


@pytest.mark.parametrize("job", JOBS)
@given(IDS)
def test_targets_agree_with_a_loop(library, job, ids):
    got = job(library.array(np.array(ids)))
    n = len(ids)
    expected = [[looked_at(job, ids, i, j) for j in range(n)] for i in range(n)]
    np.testing.assert_array_equal(library.numpy(got), np.array(expected, bool).reshape(n, n))
    assert not (library.numpy(got) & ~masking.causal(n)).any()


@given(IDS, st.integers(0, 2**16), st.lists(st.integers(0, 3), max_size=2))
def test_scores_agree_with_a_loop(library, ids, seed, leading):
    rng, n = np.random.default_rng(seed), len(ids)
    A = attention_weights(*rng.normal(size=(2, *leading, n, 5)), masking.causal(n))
    for job in JOBS:
        targets = job(np.array(ids))
        got = heads.head_scores(library.array(A), library.array(targets))
        assert tuple(got.shape) == tuple(leading)
        rows = [i for i in range(n) if targets[i].any()]
        expected = np.full(leading, np.nan)
        for index in np.ndindex(*leading) if rows else ():
            there = [A[(*index, i, j)] for i in rows for j in range(n) if targets[i, j]]
            expected[index] = sum(there) / len(rows)
        np.testing.assert_allclose(library.numpy(got), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("\n|KING| LEAR|:|\n|No|.|\n\n|FOOL|:|\n|Yes|\n", {3: "", 4: "KING LEAR", 6: "KING LEAR"}),
        ("\n|KING| LEAR|:|\n|No|.|\n\n|FOOL|:|\n|Yes|\n", {7: "KING LEAR", 8: "", 11: "FOOL"}),
        ("and|:| no|\n\n|FOOL|:|\n|Note|:| no", {0: "", 9: "FOOL", 7: "FOOL"}),
        ("no| name|\n|a|:|\n|b|c", {7: ""}),
    ],
)
def test_who_speaks(text, looks):
    tokens = text.split("|")
    targets = heads.own_speaker(tokens)
    for i, name in looks.items():
        assert "".join(np.array(tokens)[targets[i]]) == name
    assert not (targets & ~masking.causal(len(tokens))).any()


@given(st.lists(st.sampled_from(["no", "\n", "\n\n", " Lord"]), max_size=9))
def test_where_the_line_begins(tokens):
    targets, n = heads.line_start(tokens), len(tokens)
    assert targets.shape == (n, n)
    for i in range(n):
        breaks = [j for j in range(i) if "\n" in tokens[j]]
        wanted = [j for j in breaks[-1:] if 0 < j < i - 1]
        assert np.flatnonzero(targets[i]).tolist() == wanted


def test_each_head_may_have_targets_of_its_own():
    A = np.array([[[1.0, 0], [0.25, 0.75]], [[1.0, 0], [0.5, 0.5]]])
    targets = np.array([[[False, False], [True, False]], [[False, False], [False, False]]])
    np.testing.assert_array_equal(heads.head_scores(A, targets), [0.25, np.nan])


ERRORS = error_rows("""
heads.head_scores([[1.0]], np.ones((1, 1), bool))
    TypeError: A must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
heads.head_scores(np.ones((2, 2)), np.ones((2, 2)))
    TypeError: targets must be boolean, got float64
heads.head_scores(np.ones(2), np.ones(2, bool))
    ValueError: A must have shape (..., n_q, n_k), got (2,)
heads.head_scores(np.ones((2, 2)), np.ones((3, 2), bool))
    ValueError: targets must broadcast to the shape of A, (2, 2), got (3, 2)
heads.head_scores(np.ones((2, 2)), np.ones((4, 2, 2), bool))
    ValueError: targets must broadcast to the shape of A, (2, 2), got (4, 2, 2)
heads.induction([1, 2])
    TypeError: ids must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
heads.own_speaker("FOOL:")
    TypeError: tokens must be a sequence of str, got str
heads.line_start(3)
    TypeError: tokens must be a sequence of str, got int
heads.induction(np.ones(3))
    TypeError: ids must be an array of integers, got float64
heads.induction(np.ones((2, 3), int))
    ValueError: ids must have shape (n,), got (2, 3)
""")


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_what_is_wrong_is_said(call, kind, message):
    assert_raises(call, kind, message, {"heads": heads, "np": np})


def test_weights_and_targets_are_of_one_library():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match="targets must be an array of the same library as A "):
        heads.head_scores(np.ones((2, 2)), torch.ones((2, 2), dtype=bool))
