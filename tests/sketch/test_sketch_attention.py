"""Sketch attention against dictionaries of buckets in float64, in every array library."""

import gc
import math
import re
import weakref

import numpy as np
import pytest
from cases import need
from hypothesis import given
from hypothesis import strategies as st

from attnbook import attention, masking
from attnbook.sketch import (
    GivenHash,
    LiftedHash,
    SimHash,
    SketchAttention,
    StableHash,
    plan,
    sketch_attention,
)
from attnbook.sketch.estimators import ESTIMATORS
from attnbook.sketch.summary import moments_of

N, D, D_V, N_Q, TABLES = 211, 7, 5, 13, 3


def drawn(seed=0, n=N, d=D, d_v=D_V, n_q=N_Q):
    """Return queries, keys and values."""
    rng = np.random.default_rng(seed)
    return (
        1.5 * rng.standard_normal((n_q, d)),
        rng.standard_normal((n, d)),
        rng.standard_normal((n, d_v)) + 0.5,
    )


HASHES = {
    "signs": SimHash.init(1, D, TABLES, 4),
    "stable": StableHash.init(2, D, 4.0, TABLES, 2),
}
ONE_BUCKET = GivenHash(lambda x: np.zeros(x.shape[0], dtype=np.int64))


def buckets(hash, query, key, alive=None, visible=None):
    """Return for each query the list of keys in each table, by comparing all signatures."""
    theirs, ours = hash.signatures(key), hash.signatures(query)
    alive = range(len(key)) if alive is None else alive
    return [
        [
            [j for j in alive if theirs[j, t] == ours[i, t] and (visible is None or visible[i, j])]
            for t in range(hash.n_tables)
        ]
        for i in range(len(query))
    ]


def expected(name, hash, query, key, value, scale=None, **which):
    """Return the output of an estimator, query by query and key by key, in float64."""
    scale = 1 / math.sqrt(key.shape[1]) if scale is None else scale
    output = np.zeros((len(query), value.shape[1]))
    for i, tables in enumerate(buckets(hash, query, key, **which)):
        terms = []  # of a softmax each: pairs of a weight before normalisation and a key
        mass = [math.exp(scale * float(query[i] @ k)) for k in key]
        union = sorted({j for bucket in tables for j in bucket})
        if name == "union":
            terms = [[(mass[j], j) for j in union]]
        elif name == "duplicates":
            terms = [[(mass[j], j) for bucket in tables for j in bucket]]
        elif name == "importance":
            chance = hash.retrieval_probability(query[i], key)
            terms = [[(mass[j] / float(chance[j]), j) for j in union]]
        else:
            terms = [[(mass[j], j) for j in bucket] for bucket in tables if bucket]
        for term in terms:
            total = sum(weight for weight, _ in term)
            for weight, j in term:
                output[i] += weight / total * value[j]
        if name == "per_table_mean" and terms:
            output[i] /= len(terms)
    return output


def filled(library, hash, key, value, dtype="float64", **options):
    """Return a sketch of these keys in `library`, and the function that moves arrays there."""
    here = library.place(hash)
    sketch = SketchAttention(here, **options)
    sketch.update(library.array(key, dtype), library.array(value, dtype))
    return sketch


# Estimators.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", HASHES)
def test_estimators_agree_with_dictionaries(library, kind, estimator):
    query, key, value = drawn()
    sketch = filled(library, HASHES[kind], key, value, estimator=estimator)
    q = library.array(query, "float64")
    got = sketch.attention_output(q)
    assert library.same_kind(got, q)
    wanted = expected(estimator, HASHES[kind], query, key, value)
    np.testing.assert_allclose(library.numpy(got), wanted, atol=1e-12)
    ids, weights = sketch.attention_weights(q)
    ids, weights = library.numpy(ids), library.numpy(weights)
    assert (weights[ids < 0] == 0).all()
    again = np.stack([w @ value[i] for w, i in zip(weights, ids, strict=True)])
    np.testing.assert_allclose(again, wanted, atol=1e-12)
    found = buckets(HASHES[kind], query, key)
    sums = [
        sum(map(bool, tables)) if estimator == "per_table_sum" else float(any(tables))
        for tables in found
    ]
    np.testing.assert_allclose(weights.sum(1), sums, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_low_precision_is_computed_in_float32(library, dtype):
    need(library, dtype)
    query, key, value = (x.astype(dtype) for x in drawn())
    # codes are taken from the rounded vectors, so the oracle must see the same
    wide = [x.astype("float32") for x in (query, key)]
    hash = HASHES["signs"].to("numpy", dtype="float32")
    output = filled(library, hash, key, value, dtype).attention_output(library.array(query, dtype))
    assert str(output.dtype).split(".")[-1] == dtype
    wanted = expected("union", hash, *wide, value.astype(float))
    np.testing.assert_allclose(library.numpy(output), wanted, atol=2e-3)


def test_query_returns_the_union_in_order(library):
    query, key, value = drawn()
    sketch = filled(library, HASHES["signs"], key, value)
    ids, found = (library.numpy(x) for x in sketch.query(library.array(query, "float64")))
    for i, tables in enumerate(buckets(HASHES["signs"], query, key)):
        union = sorted({j for bucket in tables for j in bucket})
        assert ids[i][found[i]].tolist() == union
        assert (ids[i][~found[i]] == -1).all()
        assert not found[i, len(union) :].any()


def test_blocks_of_queries_change_nothing(monkeypatch):
    query, key, value = drawn(n_q=29)
    outputs = []
    for numbers in (2**22, 1):
        monkeypatch.setattr("attnbook.sketch.near_keys.GATHERED", numbers)
        sketch = SketchAttention(HASHES["signs"])
        sketch.update(key, value)
        outputs.append(
            [sketch.attention_output(query), *sketch.attention_weights(query), *sketch.query(query)]
        )
    np.testing.assert_allclose(outputs[0][0], outputs[1][0], atol=1e-14)
    for one, other in zip(outputs[0][3:], outputs[1][3:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_scale_and_a_context_of_its_own_values(library):
    query, key, _ = drawn()
    here = library.place(HASHES["stable"])
    sketch = SketchAttention(here, scale=0.3)
    sketch.update(library.array(key, "float64"))  # the sources have one context
    wanted = expected("union", HASHES["stable"], query, key, key, scale=0.3)
    got = library.numpy(sketch.attention_output(library.array(query, "float64")))
    np.testing.assert_allclose(got, wanted, atol=1e-12)


# The kernels: the same numbers, and the same evidence.


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", HASHES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "duplicates"},
        {"estimator": "importance"},
        {"max_bucket": 4},
        {"n_heavy": 9},
        {"tail": "moments"},
        {"tail": "moments", "n_heavy": 9, "n_cells": 3},
        {"tail": "uniform", "n_samples": 40},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_numba_agrees_with_the_reference(kind, dtype, options):
    pytest.importorskip("numba")
    query, key, value = (x.astype(dtype) for x in drawn(n=401, n_q=29))
    sketches = [
        SketchAttention(HASHES[kind], impl=impl, **options) for impl in ("reference", "numba")
    ]
    # the kernel reads P of the p-stable hash from a table, to 1e-5
    exact = dtype == "float64" and options.get("estimator") != "importance"
    close = {"rtol": 1e-9, "atol": 1e-11} if exact else {"rtol": 2e-4, "atol": 2e-5}
    for step in range(3):
        for sketch in sketches:
            if step < 2:
                sketch.update(
                    key[200 * step : 200 * (step + 1)], value[200 * step : 200 * step + 200]
                )
            else:
                sketch.remove(np.arange(0, 400, 3))
        one, other = (s.attention_output(query, return_evidence=True) for s in sketches)
        assert other[0].dtype == dtype
        np.testing.assert_allclose(other[0], one[0], **close)
        for name in ("candidates", "found_probability", "missed_mass", "bound"):
            wanted, got = (getattr(e, name) for _, e in (one, other))
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
    for method in ("query", "attention_weights"):
        ids = [np.sort(getattr(s, method)(query)[0], axis=1) for s in sketches]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("options", [{}, {"window": 16}, {"tail": "moments", "window": 8}])
def test_numba_is_causal_too(options):
    pytest.importorskip("numba")
    query, key, value = drawn(n=90, n_q=90)
    one, other = (
        sketch_attention(
            query, key, value, hash=HASHES["signs"], is_causal=True, impl=impl, **options
        )
        for impl in ("reference", "numba")
    )
    np.testing.assert_allclose(one, other, atol=1e-11)


def test_numba_takes_hashes_of_the_reader():
    pytest.importorskip("numba")
    query, key, value = drawn()
    for hash in (ONE_BUCKET, LiftedHash(SimHash.init(0, D + 1, 2, 3), 10.0)):
        outputs = []
        for impl in ("reference", "numba"):
            sketch = SketchAttention(hash, impl=impl)
            sketch.update(key, value)
            outputs.append(sketch.attention_output(query))
        np.testing.assert_allclose(*outputs, atol=1e-12)


def test_numba_refuses_what_is_not_finite():
    pytest.importorskip("numba")
    query, key, value = drawn()
    for hash in HASHES.values():
        sketch = SketchAttention(hash, impl="numba")
        for bad in (math.nan, math.inf):
            for name, x in (("key", key), ("value", value)):
                wrong = {"key": key, "value": value, name: np.where(x == x[3, 2], bad, x)}
                with pytest.raises(ValueError, match=f"{name} must be finite, got NaN or infinity"):
                    sketch.update(**wrong)
            assert len(sketch) == 0
        sketch.update(key, value)
        for bad in (math.nan, -math.inf):
            with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
                sketch.attention_output(np.where(query == query[0, 0], bad, query))


def test_kernels_take_the_arrays_of_their_library():
    pytest.importorskip("numba")
    torch = pytest.importorskip("torch")
    sketch = SketchAttention(HASHES["signs"], impl="numba")
    with pytest.raises(TypeError, match="key must be an array of numpy for impl 'numba', got tor"):
        sketch.update(torch.ones(2, D))
    mask = np.random.default_rng(0).random((N_Q, N)) < 0.5
    with pytest.raises(ValueError, match="mask must be the same for all queries"):
        sketch_attention(*drawn(), mask, hash=HASHES["signs"], impl="numba")


# Growing and shrinking.


@given(data=st.data())
def test_updates_and_removals_agree_with_dictionaries(data):
    query, key, value = drawn(3, n=60, n_q=5)
    sketch, alive, n = SketchAttention(HASHES["signs"]), [], 0
    while n < 60:
        m = data.draw(st.integers(0, 60 - n))
        ids = sketch.update(key[n : n + m], value[n : n + m])
        assert ids.tolist() == list(range(n, n + m))
        alive += ids.tolist()
        n += max(m, 1) if m else data.draw(st.integers(0, 1)) * 0 + 0 or 0
        if m == 0:
            break
        gone = data.draw(st.lists(st.sampled_from(alive), unique=True, max_size=5))
        sketch.remove(np.asarray(gone, dtype=np.int64))
        alive = [j for j in alive if j not in gone]
        if data.draw(st.booleans()):
            sketch.merge()
        if not alive:
            break
    assert len(sketch) == len(alive)
    wanted = expected("union", HASHES["signs"], query, key[: max(n, 1)], value, alive=alive)
    np.testing.assert_allclose(sketch.attention_output(query), wanted, atol=1e-12)


def test_initialize_forgets_everything():
    _, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"])
    sketch.update(key, value)
    assert sketch.memory_bytes > 0
    assert sketch.initialize() is sketch
    assert (len(sketch), sketch.memory_bytes) == (0, 0)
    assert sketch.update(key[:3], value[:3]).tolist() == [0, 1, 2]


def test_an_empty_sketch_says_so(library):
    query = library.array(drawn()[0], "float64")
    sketch = SketchAttention(library.place(HASHES["signs"]))
    output, evidence = sketch.attention_output(query, return_evidence=True)
    assert tuple(output.shape) == (N_Q, D)
    assert not library.numpy(output).any()
    assert evidence.n_keys == 0
    for name in ("candidates", "missed_mass", "bound"):
        assert not library.numpy(getattr(evidence, name)).any()
    assert np.isnan(library.numpy(evidence.found_probability)).all()
    ids, weights = sketch.attention_weights(query)
    assert tuple(ids.shape) == tuple(weights.shape) == (N_Q, 0)
    assert tuple(sketch.query(query)[0].shape) == (N_Q, 0)


def test_keys_that_are_all_removed_leave_zeros():
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"])
    sketch.remove(sketch.update(key, value))
    output, evidence = sketch.attention_output(query, return_evidence=True)
    assert output.shape == (N_Q, D_V)
    assert not output.any()
    assert evidence.n_keys == 0
    assert not evidence.candidates.any()


@pytest.mark.parametrize("tail", ["none", "moments", "uniform"])
def test_no_queries_and_no_keys(tail):
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"], tail=tail)
    sketch.update(key[:0], value[:0])
    assert not sketch.attention_output(query).any()
    sketch.update(key, value)
    output, evidence = sketch.attention_output(query[:0], return_evidence=True)
    assert output.shape == (0, D_V)
    assert evidence.bound.shape == (0,)


def test_an_update_that_raises_changes_nothing():
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"], tail="moments", n_heavy=3)
    sketch.update(key, value)
    before = sketch.attention_output(query)
    bad_key, bad_value = key[:2].copy(), value[:2].copy()
    bad_key[1, 1], bad_value[0, 0] = math.nan, math.inf
    wrong = [
        (bad_key, value[:2], "key must be finite"),
        (key[:2], bad_value, "value must be finite"),
        (key[:2, :3], value[:2], r"key must have shape \(\.\.\., 7\) to match the sketch"),
        (key[:2], value[:2, :2], r"value must have shape \(\.\.\., 5\) to match the sketch"),
        (key[:2], value[:3], r"value must have shape \(2, d_v\) to match key, got \(3, 5\)"),
        (key[0], value[:2], r"key must have shape \(m, d\), got \(7,\)"),
    ]
    for k, v, message in wrong:
        with pytest.raises(ValueError, match=message):
            sketch.update(k, v)
    with pytest.raises(TypeError, match="value must have the dtype of key"):
        sketch.update(key[:2], value[:2].astype("float32"))
    with pytest.raises(TypeError, match="key must have the dtype of the rows of the sketch"):
        sketch.update(key[:2].astype("float32"), value[:2].astype("float32"))
    assert len(sketch) == N
    np.testing.assert_array_equal(sketch.attention_output(query), before)
    assert sketch.update(key[:1], value[:1]).tolist() == [N]


def test_a_hash_that_raises_changes_nothing():
    query, key, value = drawn()
    longest = float(np.linalg.norm(key, axis=1).max())
    sketch = SketchAttention(LiftedHash(SimHash.init(0, D + 1, 2, 3), longest))
    sketch.update(key, value)
    with pytest.raises(ValueError, match="longest must be at least the length of every key"):
        sketch.update(2 * key, value)
    assert len(sketch) == N
    assert sketch.attention_output(query).shape == (N_Q, D_V)


# One bucket: everything is found, so all of it must agree with exact attention.


@pytest.mark.parametrize("options", [{}, {"n_heavy": 7}, {"n_heavy": N + 1}, {"tail": "uniform"}])
def test_one_bucket_is_exact_attention(options):
    query, key, value = drawn()
    sketch = SketchAttention(ONE_BUCKET, **options)
    sketch.update(key, value)
    output, evidence = sketch.attention_output(query, return_evidence=True)
    np.testing.assert_allclose(output, attention(query, key, value), atol=1e-13)
    assert (evidence.candidates == N).all()
    if options.get("tail") == "uniform":
        np.testing.assert_array_equal(evidence.missed_mass, 0)


def test_identical_vectors_share_a_bucket_and_a_cap_bounds_the_work():
    n = 20_011
    key, value = np.ones((n, D)), np.random.default_rng(0).standard_normal((n, D_V))
    for cap, taken in ((None, n), (50, 50)):
        sketch = SketchAttention(HASHES["stable"], max_bucket=cap)
        sketch.update(key, value)
        output, evidence = sketch.attention_output(key[:3], return_evidence=True)
        np.testing.assert_allclose(output, np.tile(value[:taken].mean(0), (3, 1)), atol=1e-12)
        assert (evidence.candidates == taken).all()


# Heavy keys and tails.


def test_heavy_keys_are_the_longest_and_are_always_scored(library):
    query, key, value = drawn()
    key[[5, 90, 200]] *= 4
    nothing = SimHash.init(0, D, 1, 63)  # no query finds anything
    sketch = filled(library, nothing, key, value, n_heavy=3)
    output = library.numpy(sketch.attention_output(library.array(query, "float64")))
    rows = np.sort(np.argsort(-np.linalg.norm(key, axis=1))[:3])
    np.testing.assert_allclose(output, attention(query, key[rows], value[rows]), atol=1e-12)
    ids, weights = sketch.attention_weights(library.array(query, "float64"))
    assert set(library.numpy(ids)[:, -3:].ravel()) == set(rows.tolist())
    np.testing.assert_allclose(library.numpy(weights).sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("tail", ["none", "moments", "uniform"])
def test_what_all_keys_have_together_is_the_same_however_they_came(tail):
    query, key, value = drawn(n=331)
    options = {"tail": tail, "n_heavy": 5, "n_samples": 64}
    whole = SketchAttention(HASHES["signs"], **options)
    whole.update(key[:300], value[:300])
    parts = SketchAttention(HASHES["signs"], **options)
    for start in range(0, 300, 50):
        parts.update(key[start : start + 50], value[start : start + 50])
        parts.attention_output(query, return_evidence=True)  # so that all of it is worked out
    first, second = (s.attention_output(query, return_evidence=True) for s in (whole, parts))
    np.testing.assert_allclose(first[0], second[0], atol=1e-11)
    for name in ("candidates", "missed_mass", "bound"):
        one, other = (getattr(e, name) for _, e in (first, second))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    parts.update(key[300:], value[300:])
    parts.remove(np.arange(300, 331))
    np.testing.assert_allclose(parts.attention_output(query), first[0], atol=1e-11)


def test_moments_are_nearly_exact_on_gaussian_keys():
    rng = np.random.default_rng(0)
    key = rng.standard_normal((4001, D))
    value = key @ rng.standard_normal((D, D_V))
    query = rng.standard_normal((N_Q, D))
    sketch = SketchAttention(SimHash.init(0, D, 2, 8), tail="moments")
    sketch.update(key, value)
    exact = attention(query, key, value)
    error = np.linalg.norm(sketch.attention_output(query) - exact) / np.linalg.norm(exact)
    assert error < 0.06
    without = SketchAttention(SimHash.init(0, D, 2, 8))
    without.update(key, value)
    assert np.linalg.norm(without.attention_output(query) - exact) > 5 * error


def test_a_sample_of_all_keys_is_exact():
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"], tail="uniform", n_samples=N)
    sketch.update(key, value)
    output, evidence = sketch.attention_output(query, return_evidence=True)
    np.testing.assert_allclose(output, attention(query, key, value), atol=1e-12)
    np.testing.assert_allclose(evidence.bound, 0, atol=1e-12)


def test_the_bound_of_a_sample_holds_as_often_as_it_says():
    query, key, value = drawn(n=701, n_q=61)
    exact, held = attention(query, key, value), []
    for seed in range(40):
        sketch = SketchAttention(
            HASHES["signs"], tail="uniform", n_samples=128, delta=0.1, seed=seed
        )
        sketch.update(key, value)
        output, evidence = sketch.attention_output(query, return_evidence=True)
        held.append(np.linalg.norm(output - exact, axis=1) <= evidence.bound)
    assert np.mean(held) > 0.9


# Evidence.


def test_evidence_against_the_exact_weights():
    query, key, value = drawn()
    hash = HASHES["stable"]
    sketch = SketchAttention(hash)
    sketch.update(key, value)
    _, evidence = sketch.attention_output(query, return_evidence=True)
    box = np.linalg.norm(value.max(0) - value.min(0))
    for i, tables in enumerate(buckets(hash, query, key)):
        found = sorted({j for bucket in tables for j in bucket})
        assert evidence.candidates[i] == len(found)
        mass = np.exp(query[i] @ key[found].T / math.sqrt(D))
        chance = hash.retrieval_probability(query[i], key[found])
        assert evidence.found_probability[i] == pytest.approx(chance[np.argmax(mass)])
        missed = 1 - mass.sum() / (mass / chance).sum()
        assert evidence.missed_mass[i] == pytest.approx(missed)
        assert evidence.bound[i] == pytest.approx(missed * box)


def test_missed_mass_is_right_on_average():
    query, key, value = drawn(n=401, n_q=1)
    weights = np.exp(query @ key.T / math.sqrt(D))[0]
    estimates, truth = [], []
    for seed in range(300):
        hash = SimHash.init(seed, D, 4, 4)
        sketch = SketchAttention(hash)
        sketch.update(key, value)
        _, evidence = sketch.attention_output(query, return_evidence=True)
        ids, found = sketch.query(query)
        estimates.append(evidence.missed_mass[0])
        truth.append(1 - weights[ids[found]].sum() / weights.sum())
    spread = np.std(np.subtract(estimates, truth)) / math.sqrt(300)
    assert abs(np.mean(estimates) - np.mean(truth)) < 4 * spread + 0.02


def test_nothing_found_has_no_bound():
    query, key, value = drawn()
    sketch = SketchAttention(SimHash.init(0, D, 1, 63))
    sketch.update(key, value)
    output, evidence = sketch.attention_output(query, return_evidence=True)
    assert not output.any()
    assert (evidence.candidates == 0).all()
    assert (evidence.missed_mass == 1).all()
    assert (evidence.bound == math.inf).all()
    assert np.isnan(evidence.found_probability).all()


def test_a_given_hash_tells_no_probabilities():
    query, key, value = drawn()
    sketch = SketchAttention(ONE_BUCKET)
    sketch.update(key, value)
    _, evidence = sketch.attention_output(query, return_evidence=True)
    assert np.isnan(evidence.found_probability).all()
    assert np.isnan(evidence.missed_mass).all()
    assert np.isnan(evidence.bound).all()


def test_a_heavy_key_is_always_found():
    query, key, value = drawn()
    key[5] = 20 * query[0]
    sketch = SketchAttention(HASHES["signs"], n_heavy=1)
    sketch.update(key, value)
    _, evidence = sketch.attention_output(query[:1], return_evidence=True)
    assert evidence.found_probability[0] == 1
    assert evidence.missed_mass[0] == pytest.approx(0, abs=1e-6)


def test_keys_in_the_window_are_evidence():
    query, key, value = drawn(n=97, n_q=97)
    _, evidence = sketch_attention(
        query, key, value, hash=HASHES["signs"], is_causal=True, window=10, return_evidence=True
    )
    near = buckets(HASHES["signs"], query, key, visible=masking.causal(97))
    scores = query @ key.T
    for i in range(97):
        first = max(i // 10 * 10 + 1 - 10, 0)
        rows = {j for b in near[i] for j in b if j < first} | set(range(first, i + 1))
        assert evidence.candidates[i] == len(rows)
        best = max(rows, key=lambda j: scores[i, j])
        chance = HASHES["signs"].retrieval_probability(query[i], key[best])
        assert evidence.found_probability[i] == pytest.approx(1.0 if best >= first else chance)


@pytest.mark.parametrize("n", [1, 50])
@pytest.mark.parametrize("scale", [None, 0.0])
@pytest.mark.parametrize("options", [{}, {"n_cells": 3}, {"impl": "numba"}])
def test_moments_of_keys_that_all_score_alike(n, scale, options):
    if "impl" in options:
        pytest.importorskip("numba")
    query, key, value = drawn(n=n)
    key = key if scale == 0 else key[:1] + 0 * key
    sketch = SketchAttention(HASHES["signs"], tail="moments", scale=scale, **options)
    sketch.update(key, value)
    wanted = np.broadcast_to(value.mean(axis=0), (N_Q, D_V))
    np.testing.assert_allclose(sketch.attention_output(query), wanted, atol=1e-9)


# A promise, kept over the draw of the tables.


def test_the_promise_of_a_plan_holds_over_draws():
    rng = np.random.default_rng(0)
    d, draws = 16, 1500
    query = rng.standard_normal((1, d))
    step = rng.standard_normal(d)
    near = query + 0.5 * step / np.linalg.norm(step)
    for n_projections in (1, 6):
        chosen = plan(1000, n_projections=n_projections)
        missed = 0
        for seed in range(draws):
            hash = chosen.hash(seed, d)
            missed += not (hash.signatures(query) == hash.signatures(near)).any()
        predicted = chosen.miss_probability(0.5)
        assert predicted <= 0.01 + 1e-12
        assert abs(missed - draws * predicted) < 4 * math.sqrt(draws * predicted)


# Errors.


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"estimator": "best"}, ValueError, "estimator must be one of union, importance"),
        ({"tail": "long"}, ValueError, "tail must be one of none, moments, uniform, got 'long'"),
        ({"impl": "fast"}, ValueError, "impl must be one of reference, numba, cupy, got 'fast'"),
        ({"n_heavy": -1}, ValueError, "n_heavy must be at least 0, got -1"),
        ({"n_cells": 0}, ValueError, "n_cells must be at least 1, got 0"),
        ({"n_samples": 1}, ValueError, "n_samples must be at least 2, got 1"),
        ({"n_samples": 2.0}, TypeError, "n_samples must be an int, got float"),
        ({"max_bucket": 0}, ValueError, "max_bucket must be at least 1, got 0"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"scale": math.nan}, ValueError, "scale must be finite and at least 0, got nan"),
        ({"delta": 0.0}, ValueError, "delta must be above 0 and at most 0.2, got 0"),
        ({"delta": 0.3}, ValueError, "delta must be above 0 and at most 0.2, got 0.3"),
        (
            {"estimator": "duplicates", "tail": "moments"},
            ValueError,
            "estimator must be 'union' with a tail or heavy keys, got 'duplicates'",
        ),
        (
            {"estimator": "importance", "n_heavy": 1},
            ValueError,
            "estimator must be 'union' with a tail or heavy keys, got 'importance'",
        ),
        (
            {"tail": "uniform", "max_bucket": 9},
            ValueError,
            "max_bucket must be None with tail 'uniform'",
        ),
        (
            {"impl": "numba", "estimator": "per_table_sum"},
            ValueError,
            "estimator must be union, importance or duplicates for impl 'numba'",
        ),
    ],
)
def test_options_are_checked(options, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        SketchAttention(HASHES["signs"], **options)


def test_hashes_are_checked():
    for wrong in (None, 3, SimHash):
        with pytest.raises(TypeError, match="hash must have n_tables and signatures, got"):
            SketchAttention(wrong)
    with pytest.raises(ValueError, match="hash must have retrieval_probability"):
        SketchAttention(ONE_BUCKET, estimator="importance")


@pytest.mark.parametrize("method", ["query", "attention_weights", "attention_output"])
def test_queries_are_checked(method):
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"])
    sketch.update(key, value)
    ask = getattr(sketch, method)
    with pytest.raises(
        ValueError, match=r"query must have shape \(\.\.\., 7\) to match the sketch"
    ):
        ask(query[:, :3])
    with pytest.raises(ValueError, match=r"query must have shape \(n_q, d\), got \(7,\)"):
        ask(query[0])
    with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
        ask(np.full((1, D), math.nan))
    with pytest.raises(TypeError, match="query must have the dtype of the rows of the sketch"):
        ask(query.astype("float32"))
    with pytest.raises(TypeError, match="query must be an array"):
        ask(query.tolist())


def test_removals_are_checked():
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"])
    with pytest.raises(ValueError, match="ids must be of keys that are there, and there is none"):
        sketch.remove([0])
    sketch.update(key, value)
    before = sketch.attention_output(query)
    for wrong in ([N], [-1], [2, 2]):
        with pytest.raises(ValueError, match="row"):
            sketch.remove(np.asarray(wrong))
    assert len(sketch) == N
    np.testing.assert_array_equal(sketch.attention_output(query), before)


# The function.


def everything(x):
    """Put all vectors into one bucket, in any library."""
    return (x[:, 0] * 0) != 0


def test_the_function_with_one_bucket_is_attention(library):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 11, D)), rng.standard_normal((3, 17, D))
    value = rng.standard_normal((2, 3, 17, D_V))
    arrays = [library.array(x, "float64") for x in (query, key, value)]
    got = sketch_attention(*arrays, hash=GivenHash(everything))
    assert library.same_kind(got, arrays[0])
    np.testing.assert_allclose(library.numpy(got), attention(query, key, value), atol=1e-13)
    for shape in ((17,), (1, 17), (11, 17), (3, 1, 17), (2, 1, 11, 17)):
        mask = rng.random(shape) < 0.5
        got = sketch_attention(*arrays, library.array(mask), hash=GivenHash(everything))
        np.testing.assert_allclose(
            library.numpy(got), attention(query, key, value, mask), atol=1e-13
        )


@pytest.mark.parametrize("n_q", [1, 23, 41, 60])
@pytest.mark.parametrize("window", [0, 1, 8, 100])
@pytest.mark.parametrize("masked", [False, True])
def test_causal_with_one_bucket_is_causal_attention(n_q, window, masked):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((n_q, D)), rng.standard_normal((41, D))
    value = rng.standard_normal((41, D_V))
    mask = rng.random((n_q, 41)) < 0.6 if masked else np.ones((1, 41), dtype=bool)
    output, evidence = sketch_attention(
        query, key, value, mask, hash=ONE_BUCKET, is_causal=True, window=window,
        return_evidence=True,
    )  # fmt: skip
    wanted = attention(query, key, value, mask & masking.causal(n_q, 41))
    np.testing.assert_allclose(output, wanted, atol=1e-13)
    assert evidence.candidates.shape == (n_q,)


def test_causal_agrees_with_dictionaries():
    query, key, value = drawn(n=97, n_q=97)
    visible = masking.causal(97)
    wanted = expected("union", HASHES["signs"], query, key, value, visible=visible)
    got = sketch_attention(query, key, value, hash=HASHES["signs"], is_causal=True)
    np.testing.assert_allclose(got, wanted, atol=1e-12)
    # a window scores the run of the query and the run before it, whatever the tables say
    hash, window = HASHES["signs"], 10
    near = buckets(hash, query, key, visible=visible)
    for i in range(97):
        first = max(i // window * window + 1 - window, 0)
        rows = sorted({j for b in near[i] for j in b if j < first} | set(range(first, i + 1)))
        wanted[i] = attention(query[i : i + 1], key[rows], value[rows])[0]
    got = sketch_attention(query, key, value, hash=hash, is_causal=True, window=window)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 16},
        {"tail": "moments"},
        {"tail": "moments", "window": 16},
        {"tail": "uniform"},
        {"estimator": "importance"},
        {"max_bucket": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_the_future_does_not_leak(options):
    query, key, value = drawn(n=150, n_q=150)
    changed = [x.copy() for x in (query, key, value)]
    rng = np.random.default_rng(1)
    for x in changed:
        x[100:] = 3 * rng.standard_normal(x[100:].shape)
    outputs = [
        sketch_attention(*x, hash=HASHES["signs"], is_causal=True, **options)
        for x in ((query, key, value), changed)
    ]
    np.testing.assert_allclose(outputs[0][:100], outputs[1][:100], atol=1e-12)
    assert np.abs(outputs[0][100:] - outputs[1][100:]).max() > 0.1


def test_moments_of_the_past_are_those_of_a_sketch_of_the_past():
    query, key, value = drawn(n=150, n_q=150)
    options = {"hash": HASHES["signs"], "tail": "moments"}
    got = sketch_attention(query, key, value, is_causal=True, window=50, **options)
    # the last run: keys before place 51 in tables and moments, the rest scored
    sketch = SketchAttention(HASHES["signs"], tail="moments")
    sketch.update(key[:51], value[:51])
    far = moments_of(sketch.state)
    q = query[120:121]
    below = far.limit(q, 1 / math.sqrt(D))
    mass, mean = far.tail(q, 1 / math.sqrt(D), below=below)
    ids, found = sketch.query(q)
    rows = [j for j in ids[0][found[0]] if q[0] @ key[j] / math.sqrt(D) > below[0]]
    rows += list(range(51, 121))
    scores = np.append(q[0] @ key[rows].T / math.sqrt(D), mass[0])
    weights = np.exp(scores - scores.max())
    wanted = weights @ np.vstack([value[rows], mean]) / weights.sum()
    np.testing.assert_allclose(got[120], wanted, atol=1e-12)


def test_gradients_flow_through_the_scores():
    torch = pytest.importorskip("torch")
    query, key, value = drawn(n=19, n_q=5)
    hash = HASHES["signs"].to("torch")
    inputs = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    for options in ({}, {"is_causal": True, "window": 4}, {"n_heavy": 3}):
        assert torch.autograd.gradcheck(
            lambda *x, options=options: sketch_attention(*x, hash=hash, **options),
            inputs,
            fast_mode=True,
        )


def test_the_function_checks_its_arguments():
    query, key, value = drawn()
    mask = np.ones((N_Q, N), dtype=bool)
    wrong = [
        ({"window": 3}, "window must be 0 without is_causal, got 3"),
        (
            {"window": 3, "is_causal": True, "estimator": "duplicates"},
            "estimator must be 'union' with a window, got 'duplicates'",
        ),
        ({"is_causal": True, "n_heavy": 2}, "n_heavy must be 0 with is_causal"),
        (
            {"is_causal": True, "tail": "moments", "n_cells": 2},
            "n_cells must be 1 with is_causal",
        ),
        ({"mask": mask, "tail": "moments"}, "mask must be the same for all queries"),
        ({"key": key[:, :3]}, "key must have shape (..., n_k, 7) to match query"),
    ]
    for options, message in wrong:
        arrays = {"query": query, "key": key, "value": value} | options
        mask_of = arrays.pop("mask", None)
        if mask_of is not None:
            mask_of = mask_of.copy()
            mask_of[0, 0] = False
        with pytest.raises(ValueError, match=re.escape(message)):
            sketch_attention(**arrays, mask=mask_of, hash=HASHES["signs"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_the_function_with_nothing_to_do(shape):
    batch, n_q = shape
    output, evidence = sketch_attention(
        np.ones((batch, n_q, D)), np.ones((batch, 5, D)), np.ones((batch, 5, D_V)),
        hash=HASHES["signs"], return_evidence=True,
    )  # fmt: skip
    assert output.shape == (batch, n_q, D_V)
    assert evidence.candidates.shape == (batch, n_q)
    assert evidence.n_keys == 5


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize("options", [{}, {"tail": "moments"}, {"tail": "uniform"}, {"n_heavy": 2}])
def test_no_keys_from_the_first_update_on(impl, options):
    if impl == "numba":
        pytest.importorskip("numba")
    hash, query = SimHash.init(0, 4, 3, 2), np.random.default_rng(0).standard_normal((3, 4))
    sketch = SketchAttention(hash, impl=impl, **options)
    sketch.update(query[:0], np.ones((0, 5)))
    output, evidence = sketch.attention_output(query, return_evidence=True)
    assert np.array_equal(output, np.zeros((3, 5)))
    assert np.isnan(evidence.found_probability).all()
    for name in ("candidates", "missed_mass", "bound"):
        assert np.array_equal(getattr(evidence, name), np.zeros(3))


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "window": 2}])
def test_function_without_keys(impl, options):
    if impl == "numba":
        pytest.importorskip("numba")
    x, hash = np.random.default_rng(0).standard_normal((2, 7, 4)), SimHash.init(0, 4, 3, 2)
    options = {**options, "impl": impl, "hash": hash, "return_evidence": True}
    output, evidence = sketch_attention(x, x[:, :0], np.ones((2, 0, 3)), **options)
    assert np.array_equal(output, np.zeros((2, 7, 3)))
    assert evidence.candidates.shape == (2, 7)
    assert np.isnan(evidence.found_probability).all()
    output, evidence = sketch_attention(x, x, x, np.zeros(7, dtype=bool), **options)
    assert np.array_equal(output, np.zeros((2, 7, 4)))
    assert np.array_equal(evidence.missed_mass, np.zeros((2, 7)))


def test_importance_of_a_lifted_hash_with_kernels():
    pytest.importorskip("numba")
    key, query = np.random.default_rng(0).standard_normal((2, 60, 4))
    hash = LiftedHash(SimHash.init(0, 5, 3, 2), longest=20.0)
    outputs = []
    for impl in ("reference", "numba"):
        sketch = SketchAttention(hash, estimator="importance", impl=impl)
        sketch.update(key)
        sketch.update(2 * key)
        outputs.append(sketch.attention_output(query))
    np.testing.assert_allclose(*outputs, rtol=1e-9, atol=1e-12)


def test_evidence_of_arrays_that_need_gradients():
    torch = pytest.importorskip("torch")
    x = torch.randn(30, 4, requires_grad=True, generator=torch.Generator().manual_seed(0))
    sketch = SketchAttention(SimHash.init(0, 4, 3, 2).to("torch"))
    sketch.update(x)
    _, evidence = sketch.attention_output(x, return_evidence=True)  # a warning is an error
    assert bool(torch.isfinite(evidence.bound).all())


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 1), (5, 3), (50, 4)])
def test_half_precision(impl, shape):
    if impl == "numba":
        pytest.importorskip("numba")
    key = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    sketch = SketchAttention(SimHash.init(0, shape[1], 3, 2), impl=impl)
    assert sketch.update(key).shape == shape[:1]
    query = np.ones((2, shape[1]), dtype=np.float16)
    output, evidence = sketch.attention_output(query, return_evidence=True)
    assert output.dtype == np.float16
    assert evidence.bound.shape == (2,)
    bad = np.full((1, shape[1]), np.nan, dtype=np.float16)
    for arrays in ((bad, query[:1]), (query[:1], bad)):
        with pytest.raises(ValueError, match=r"(key|value) must be finite, got NaN or infinity"):
            sketch.update(*arrays)
    assert len(sketch) == shape[0]


@pytest.mark.parametrize("kind", ["signs", "stable", "lifted"])
@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0, 0.0])
def test_importance_has_gradients_where_a_query_is_a_key(kind, factor):
    torch = pytest.importorskip("torch")
    hash = {
        "signs": SimHash.init(0, 4, 3, 2),
        "stable": StableHash.init(0, 4, 2.0, 3, 2),
        "lifted": LiftedHash(SimHash.init(0, 5, 3, 2), 9.0),
    }[kind].to("torch")
    drawn = np.random.default_rng(0).standard_normal((20, 4))
    key = torch.tensor(drawn, requires_grad=True)
    query = torch.tensor(factor * drawn, requires_grad=True)
    sketch = SketchAttention(hash, estimator="importance")
    sketch.update(key)
    sketch.attention_output(query).sum().backward()
    assert bool(torch.isfinite(query.grad).all())
    assert bool(torch.isfinite(key.grad).all())


def test_a_sketch_goes_with_its_last_user():
    query, key, value = drawn()
    sketch = SketchAttention(HASHES["signs"], tail="moments", n_heavy=2)
    sketch.update(key, value)
    sketch.attention_output(query, return_evidence=True)
    gone = weakref.ref(sketch)
    gc.disable()  # counting references has to be enough
    try:
        del sketch
        assert gone() is None
    finally:
        gc.enable()
