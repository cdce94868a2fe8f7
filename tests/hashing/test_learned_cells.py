"""Learned cells against loops in float64, and against the inverted files of faiss."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.hashing import LearnedCells
from attnbook.sketch import SketchAttention


def distances(x, centres):
    """The distances of vectors (n, d) from centres (L, C, d), in float64."""
    x, centres = np.asarray(x, np.float64), np.asarray(centres, np.float64)
    return np.linalg.norm(x[:, None, None, :] - centres, axis=-1)


def clusters(n=301, n_clusters=7, d=5):
    """Points close around a few far centres, and which is whose."""
    rng = np.random.default_rng(0)
    centre, own = 50 * rng.standard_normal((n_clusters, d)), rng.integers(n_clusters, size=n)
    return centre[own] + 0.1 * rng.standard_normal((n, d)), own, centre


def test_buckets_are_those_of_the_nearest_centres(library):
    rng = np.random.default_rng(1)
    centres, x = rng.standard_normal((2, 13, 5)), rng.standard_normal((37, 5))
    hash = LearnedCells(library.array(centres))
    wanted = np.argsort(distances(x, centres), axis=-1)
    signatures, probes = hash.signatures(library.array(x)), hash.probes(library.array(x), 4)
    assert library.same_kind(probes, library.array(np.zeros(1, dtype=np.int64)))
    np.testing.assert_array_equal(library.numpy(signatures), wanted[..., 0])
    np.testing.assert_array_equal(library.numpy(probes), wanted[..., :4])
    assert (hash.n_tables, hash.n_cells, hash.d) == (2, 13, 5)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20)),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_compiled_cells_are_the_nearest_ones(sizes, seed, dtype):
    compiled = pytest.importorskip("attnbook.hashing.numba_signatures")
    (n, n_cells, d), rng = sizes, np.random.default_rng(seed)
    n_probes = int(rng.integers(1, n_cells + 1))
    # small integers: no product is rounded, and many distances are equal
    centres, x = (
        rng.integers(-2, 3, size=shape).astype(dtype) for shape in ((2, n_cells, d), (n, d))
    )
    wanted = np.argsort((distances(x, centres) ** 2).round(6), axis=-1, kind="stable")
    found = compiled.probes(LearnedCells(centres), x, n_probes)
    np.testing.assert_array_equal(found, wanted[..., :n_probes])
    one = compiled.probes(LearnedCells(centres), x[:1], n_probes)
    np.testing.assert_array_equal(one, found[:1])


def test_separate_clusters_become_cells(library):
    key, own, centre = clusters()
    hash = LearnedCells.fit(0, library.array(key), 40)
    assert library.same_kind(hash.centres, library.array(key))
    cells = library.numpy(hash.signatures(library.array(key)))[:, 0]
    for cell in np.unique(cells):
        assert len(np.unique(own[cells == cell])) == 1
    assert distances(centre, library.numpy(hash.centres)).min(axis=(1, 2)).max() < 1


def test_steps_make_distances_smaller_and_tables_differ():
    key = np.random.default_rng(2).standard_normal((997, 7))
    errors = [
        (distances(key, LearnedCells.fit(3, key, 19, n_steps=n).centres).min(-1) ** 2).sum()
        for n in (0, 1, 10)
    ]
    assert errors[0] > errors[1] > errors[2]
    two = LearnedCells.fit(3, key, 19, 2)
    np.testing.assert_array_equal(two.centres, LearnedCells.fit(3, key, 19, 2).centres)
    assert not np.array_equal(two.centres[0], two.centres[1])


def test_half_precision_is_learned_in_float32():
    key = clusters()[0].astype(np.float16)
    hash = LearnedCells.fit(0, key, 7)
    assert hash.centres.dtype == np.float32
    assert hash.signatures(key).shape == (301, 1)


def scores_of(query, key, value, seen, scale):
    """Attention over the keys that each query sees, in float64."""
    output = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        if seen[i].any():
            scores = scale * key[seen[i]].astype(np.float64) @ query[i].astype(np.float64)
            weights = np.exp(scores - scores.max())
            output[i] = weights @ value[seen[i]] / weights.sum()
    return output


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_answers_are_those_of_the_keys_in_the_cells_through_every_change(dtype, scale):
    """Sorted part, newest keys, removed ones, and the copies of both after each change."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(5)
    key, value = rng.standard_normal((1601, 6)), rng.standard_normal((1601, 3))
    query = rng.standard_normal((37, 6))
    key, value, query = (x.astype(dtype) for x in (key, value, query))
    hash = LearnedCells.fit(0, key[:400], 23)
    near = np.argsort(distances(query, hash.centres)[:, 0], axis=-1)[:, :5]
    cell = distances(key, hash.centres)[:, 0].argmin(-1)
    sketch = SketchAttention(hash, scale=scale, impl="numba", n_probes=5)
    alive = np.zeros(1601, dtype=bool)

    def check():
        seen = (near[:, :, None] == cell).any(axis=1) & alive
        expected = scores_of(query, key, value, seen, scale)
        output, evidence = sketch.attention_output(query, return_evidence=True)
        tolerance = 2e-5 if dtype == "float32" else 1e-11
        np.testing.assert_allclose(output, expected, atol=tolerance)
        np.testing.assert_array_equal(sketch.attention_output(query), output)
        np.testing.assert_array_equal(sketch.attention_output(query[:1]), output[:1])
        assert evidence.candidates.tolist() == seen.sum(1).tolist()

    for start, stop in ((0, 300), (300, 340), (340, 1601)):
        sketch.update(key[start:stop], value[start:stop])
        alive[start:stop] = True
        check()
        gone = np.arange(start, stop, 7)
        sketch.remove(gone)
        alive[gone] = False
        check()
    sketch.merge()
    check()


def test_recall_is_that_of_an_inverted_file_of_faiss():
    """At equal numbers of lists and probes, over clustered keys, both find the same neighbours."""
    faiss = pytest.importorskip("faiss")
    pytest.importorskip("numba")
    rng = np.random.default_rng(6)
    centre = rng.standard_normal((200, 32))
    key = centre[rng.integers(200, size=6007)] + 0.6 * rng.standard_normal((6007, 32))
    query = centre[rng.integers(200, size=503)] + 0.6 * rng.standard_normal((503, 32))
    key, query = key.astype(np.float32), query.astype(np.float32)
    squares = (query**2).sum(1)[:, None] - 2.0 * query @ key.T + (key**2).sum(1)
    nearest = squares.argmin(1)
    index = faiss.index_factory(32, "IVF64,Flat")
    index.train(key)
    index.add(key)
    given_ = faiss.SearchParametersIVF(nprobe=3)
    theirs = (index.search(query, 1, params=given_)[1][:, 0] == nearest).mean()
    hash = LearnedCells.fit(0, key, 64)
    own = hash.signatures(key[nearest])
    ours = (hash.probes(query, 3)[:, 0] == own).any(-1).mean()
    assert 0.7 < theirs < 0.995
    assert ours > theirs - 0.05


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LearnedCells(np.ones((2, 3))), ValueError, "centres must have shape (n_tables"),
        (lambda: LearnedCells(np.ones((1, 0, 3))), ValueError, "centres must have shape (n_tables"),
        (lambda: LearnedCells(np.full((1, 2, 3), np.inf)), ValueError, "centres must be finite"),
        (lambda: LearnedCells(np.ones((1, 2, 3), int)), TypeError, "centres must"),
        (lambda: LearnedCells.fit(0, np.ones(3), 1), ValueError, "key must have shape (n, d)"),
        (
            lambda: LearnedCells.fit(0, np.ones((3, 2)), 4),
            ValueError,
            "key must have at least n_cells = 4 rows, got 3",
        ),
        (
            lambda: LearnedCells.fit(0, np.full((3, 2), np.nan), 2),
            ValueError,
            "key must be finite, got NaN or infinity",
        ),
        (
            lambda: LearnedCells.fit(0, np.ones((3, 2)), 0),
            ValueError,
            "n_cells must be at least 1, got 0",
        ),
        (
            lambda: LearnedCells(np.ones((1, 2, 3))).probes(np.ones((1, 3)), 3),
            ValueError,
            "n_probes must be at most 2, the buckets that a table can have, got 3",
        ),
        (
            lambda: LearnedCells(np.ones((1, 2, 3))).signatures(np.ones((1, 4))),
            ValueError,
            "x must have shape (..., 3) to match the directions, got (1, 4)",
        ),
        (
            lambda: LearnedCells(np.ones((1, 2, 3))).signatures(np.full((1, 3), np.nan)),
            ValueError,
            "x must be finite",
        ),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_compiled_cells_refuse_what_is_not_finite():
    compiled = pytest.importorskip("attnbook.hashing.numba_signatures")
    for n in (1, 19):
        x = np.ones((n, 3))
        x[-1, 1] = np.nan
        with pytest.raises(ValueError, match="x must be finite"):
            compiled.signatures(LearnedCells(np.ones((1, 2, 3))), x)


def test_estimators_that_need_chances_refuse_cells():
    with pytest.raises(ValueError, match="hash must have retrieval_probability"):
        SketchAttention(LearnedCells(np.ones((1, 2, 3))), estimator="importance")
