"""Sketch attention against dictionaries of buckets in float64, by every engine and library."""

import gc
import itertools
import math
import re
import weakref
from fractions import Fraction

import numpy as np
import pytest
import slow_sketch
from cases import every_day, need
from hypothesis import given
from hypothesis import strategies as st
from slow_sketch import mix, union

from attnbook import attention
from attnbook.hashing import GivenHash, LiftedHash, SimHash, StableHash, plan
from attnbook.sketch import SketchAttention, index
from attnbook.sketch.estimators import ESTIMATORS

N, D, D_V, N_Q, TABLES = 211, 7, 5, 13, 3


def drawn(seed=0, n=N, d=D, d_v=D_V, n_q=N_Q):
    """Return queries, keys and values."""
    rng = np.random.default_rng(seed)
    return (
        1.5 * rng.standard_normal((n_q, d)),
        rng.standard_normal((n, d)),
        rng.standard_normal((n, d_v)) + 0.5,
    )


SIGNS, STABLE = SimHash.init(1, D, TABLES, 4), StableHash.init(2, D, 4.0, TABLES, 2)
LIFTED = LiftedHash(SimHash.init(3, D + 1, TABLES, 4), 12.0)
ONE_BUCKET = GivenHash(lambda x: np.zeros(x.shape[0], dtype=np.int64))
NOTHING = SimHash.init(0, D, 1, 63)  # no query finds anything
HASHES = {"signs": SIGNS, "stable": STABLE, "lifted": LIFTED}
FIELDS = ("candidates", "found_probability", "missed_mass", "bound")


def sketch_of(hash, *arrays, **options):
    """Return a sketch of keys and values."""
    sketch = SketchAttention(hash, **options)
    sketch.update(*arrays)
    return sketch


def buckets(hash, query, key, alive=None):
    """Return for each query the list of keys in each table, by comparing all signatures."""
    ours = getattr(hash, "query_signatures", hash.signatures)(query)
    return slow_sketch.buckets(ours, hash.signatures(key), alive)


def expected(name, hash, query, key, value, scale=None, alive=None):
    """Return the output of an estimator, query by query and key by key, in float64."""
    scale = 1 / math.sqrt(key.shape[1]) if scale is None else scale
    output = []
    for q, tables in zip(query, buckets(hash, query, key, alive), strict=True):
        chance = hash.retrieval_probability(q[None], key) if name == "importance" else None
        output.append(mix(name, tables, scale * (key @ q), value, chance))
    return np.stack(output)


def evidence_of(sketch, query):
    """Return the output and the fields of the evidence, by name."""
    output, evidence = sketch.attention_output(query, return_evidence=True)
    return {"output": output} | {name: getattr(evidence, name) for name in FIELDS}


# What every engine and library returns


@pytest.mark.parametrize(
    ("kind", "dtype"),
    every_day(
        [("signs", "float32"), ("stable", "float64"), ("lifted", "float16")],
        itertools.product(HASHES, ["float64", "float32", "float16"]),
    ),
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_agree_with_dictionaries(library, kind, estimator, dtype):
    need(library, dtype)
    wide = "float32" if dtype == "float16" else dtype
    arrays = [x.astype(dtype) for x in drawn()]
    query, key, value = (x.astype(wide) for x in arrays)  # codes are taken of the rounded vectors
    here = library.place(HASHES[kind], wide)
    q, *given_arrays = (library.array(x, dtype) for x in arrays)
    sketch = sketch_of(here, *given_arrays, estimator=estimator)
    got = sketch.attention_output(q)
    assert library.same_kind(got, q)
    close = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3}[dtype]
    there = HASHES[kind].to("numpy", dtype=wide)
    wanted = expected(estimator, there, query, key, value.astype(float))
    np.testing.assert_allclose(library.numpy(got), wanted, atol=close)
    ids, weights = (library.numpy(x) for x in sketch.attention_weights(q))
    assert (weights[ids < 0] == 0).all()
    again = np.stack([w @ value[i] for w, i in zip(weights, ids, strict=True)])
    np.testing.assert_allclose(again, wanted, atol=5 * close)
    found = buckets(there, query, key)
    sums = [
        sum(map(bool, tables)) if estimator == "per_table_sum" else float(any(tables))
        for tables in found
    ]
    np.testing.assert_allclose(weights.sum(1), sums, atol=20 * close)
    ids, there_are = (library.numpy(x) for x in sketch.query(q))
    for i, tables in enumerate(found):
        assert ids[i][there_are[i]].tolist() == union(tables)
        assert (ids[i][~there_are[i]] == -1).all()
        assert not there_are[i, len(union(tables)) :].any()


OPTIONS = [
    {},
    {"estimator": "duplicates"},
    {"estimator": "importance"},
]
options = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())) or "plain"
)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    every_day(
        [
            *[("signs", "float32"), ("stable", "float64"), ("lifted", "float32")],
            *[("given", "float64"), ("stable", "float16"), ("signs", ">f4")],
        ],
        itertools.product([*HASHES, "given"], ["float64", "float32", "float16", ">f4"]),
    ),
)
@options
def test_numba_agrees_with_the_reference(kind, dtype, options):
    pytest.importorskip("numba")
    hash = HASHES.get(kind, ONE_BUCKET)
    by_chance = options.get("estimator") == "importance"
    if by_chance and hash is ONE_BUCKET:
        pytest.skip("it knows no chances")
    query, key, value = (x.astype(dtype) for x in drawn(n=401, n_q=29))
    if hash is not ONE_BUCKET:  # codes within rounding of an end would differ
        hash = hash.to("numpy", dtype="float64" if dtype == "float64" else "float32")
    sketches = [SketchAttention(hash, impl=impl, **options) for impl in ("reference", "numba")]
    # the kernel reads P of the p-stable hash from a table, to 1e-5
    close = 1e-9 if dtype == "float64" and not by_chance else 2e-4
    close = 4e-3 if dtype == "float16" else close
    for step in range(3):
        for sketch in sketches:
            if step < 2:
                part = slice(200 * step, 200 * (step + 1))
                sketch.update(key[part], value[part])
            else:
                sketch.remove(np.arange(0, 400, 3))
        one, other = (evidence_of(sketch, query) for sketch in sketches)
        assert other["output"].dtype == dtype
        np.testing.assert_allclose(other["output"], one["output"], rtol=close, atol=close)
        for name in FIELDS:
            np.testing.assert_allclose(other[name], one[name], rtol=2e-3, atol=2e-4)
    for method in ("query", "attention_weights"):
        ids = [np.sort(getattr(s, method)(query)[0], axis=1) for s in sketches]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("method", ["query", "attention_weights", "attention_output"])
def test_signatures_are_checked_once_a_query(monkeypatch, impl, method):
    query, key, value = drawn()
    sketch, checked = sketch_of(SIGNS, key, value, impl=impl), []
    check = index.check_signatures
    monkeypatch.setattr(
        index, "check_signatures", lambda *given: checked.append(given) or check(*given)
    )
    getattr(sketch, method)(query)
    in_one_call = impl == "numba" and method == "attention_output"  # they never leave the kernel
    assert len(checked) == (0 if in_one_call else 1)


@pytest.mark.parametrize("kind", HASHES)
def test_the_output_is_the_same_without_evidence(impl, kind):
    query, key, value = drawn()
    sketch = sketch_of(HASHES[kind], key, value, impl=impl, estimator="importance")
    wanted, _ = sketch.attention_output(query, return_evidence=True)
    np.testing.assert_allclose(sketch.attention_output(query), wanted, rtol=1e-12)


def test_blocks_of_queries_change_nothing(monkeypatch):
    query, key, value = drawn(n_q=29)
    outputs = []
    for numbers in (2**22, 1):
        monkeypatch.setattr("attnbook.sketch.reference_query.GATHERED", numbers)
        sketch = SketchAttention(SIGNS)
        sketch.update(key, value)
        outputs.append(
            [sketch.attention_output(query), *sketch.attention_weights(query), *sketch.query(query)]
        )
    np.testing.assert_allclose(outputs[0][0], outputs[1][0], atol=1e-14)
    for one, other in zip(outputs[0][3:], outputs[1][3:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_scale_and_a_context_of_its_own_values(library):
    query, key, _ = drawn()
    here = library.place(STABLE)
    sketch = sketch_of(here, library.array(key, "float64"), scale=0.3)  # one context, as E1 has it
    got = library.numpy(sketch.attention_output(library.array(query, "float64")))
    np.testing.assert_allclose(got, expected("union", STABLE, query, key, key, 0.3), atol=1e-12)


@pytest.mark.parametrize("hash", [SIGNS, STABLE, ONE_BUCKET], ids=["signs", "stable", "given"])
def test_what_is_not_finite_is_refused(impl, hash):
    query, key, value = drawn()
    sketch = SketchAttention(hash, impl=impl)
    for bad in (math.nan, math.inf):
        for name, x in (("key", key), ("value", value)):
            wrong = {"key": key, "value": value, name: np.where(x == x[3, 2], bad, x)}
            with pytest.raises(ValueError, match=f"{name} must be finite, got NaN or infinity"):
                sketch.update(**wrong)
        assert len(sketch) == 0
    for n in (0, len(key)):  # also before the first key
        if n:
            sketch.update(key, value)
        for bad in (math.nan, -math.inf):
            with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
                sketch.attention_output(np.where(query == query[0, 0], bad, query))


@pytest.mark.parametrize("scale", [Fraction(1, 2), np.float64(0.5), np.float32(0.5)])
def test_a_scale_of_any_kind_is_that_number(impl, scale):
    query, key, value = (x.astype(np.float32) for x in drawn())
    found = []
    for number in (scale, 0.5):
        sketch = SketchAttention(SIGNS.to(dtype="float32"), impl=impl, scale=number)
        sketch.update(key, value)
        found.append(sketch.attention_output(query))
        assert found[-1].dtype == np.float32
    np.testing.assert_array_equal(*found)


# Growing and shrinking


@given(data=st.data())
def test_updates_and_removals_agree_with_dictionaries(data):
    query, key, value = drawn(3, n=60, n_q=5)
    sketch, alive, n = SketchAttention(SIGNS), [], 0
    for m in data.draw(st.lists(st.integers(0, 20), max_size=3)):
        ids = sketch.update(key[n : n + m], value[n : n + m])
        assert ids.tolist() == list(range(n, n + m))
        n, alive = n + m, alive + ids.tolist()
        gone = data.draw(st.sets(st.sampled_from(alive), max_size=5)) if alive else set()
        sketch.remove(np.asarray(sorted(gone), dtype=np.int64)) if n else None
        alive = [j for j in alive if j not in gone]
        if data.draw(st.booleans()):
            sketch.merge()
    assert len(sketch) == len(alive)
    if n:
        wanted = expected("union", SIGNS, query, key[:n], value, alive=alive)
        np.testing.assert_allclose(sketch.attention_output(query), wanted, atol=1e-12)


def test_initialize_forgets_everything():
    _, key, value = drawn()
    sketch = sketch_of(SIGNS, key, value)
    sketch.merge()
    assert sketch.memory_bytes > 0
    assert sketch.initialize() is sketch
    assert (len(sketch), sketch.memory_bytes) == (0, 0)
    sketch.merge()
    assert sketch.update(key[:3], value[:3]).tolist() == [0, 1, 2]


def test_an_empty_sketch_says_so(library):
    query = library.array(drawn()[0], "float64")
    sketch = SketchAttention(library.place(SIGNS))
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


@pytest.mark.parametrize("were", [0, 3])
def test_a_sketch_without_keys_returns_zeros(impl, were):
    query, key, value = drawn()
    sketch = SketchAttention(SIGNS, impl=impl)
    sketch.remove(sketch.update(key[:were], value[:were]))
    found = evidence_of(sketch, query)
    assert np.array_equal(found["output"], np.zeros((N_Q, D_V)))
    assert np.isnan(found["found_probability"]).all()
    for name in ("candidates", "missed_mass", "bound"):
        assert np.array_equal(found[name], np.zeros(N_Q))
    sketch.update(key, value)
    found = evidence_of(sketch, query[:0])
    assert found["output"].shape == (0, D_V)
    assert found["bound"].shape == (0,)


@pytest.mark.parametrize(
    "options",
    [
        *({"estimator": name} for name in ("union", "importance", "duplicates")),
        {"n_probes": 2},
    ],
)
def test_no_queries_have_no_answers_whatever_was_added(impl, options):
    query, key, value = drawn()
    sketch = SketchAttention(SIGNS, impl=impl, **options)
    for keys, width in ((None, D), (0, D_V), (1, D_V), (N, D_V)):
        if keys is not None:
            sketch.update(key[:keys], value[:keys])
        assert [x.shape for x in sketch.query(query[:0])] == [(0, 0)] * 2
        assert len(sketch.attention_weights(query[:0])[0]) == 0
        assert sketch.attention_output(query[:0]).shape == (0, width)
        output, evidence = sketch.attention_output(query[:0], return_evidence=True)
        assert output.shape == (0, width)
        assert all(getattr(evidence, name).shape == (0,) for name in FIELDS)
        for ask in (sketch.query, sketch.attention_weights, sketch.attention_output):
            for n in (0, 2):
                with pytest.raises(ValueError, match=rf"query must have shape .*, got \({n}, 0\)"):
                    ask(query[:n, :0])
            for x in (math.nan, math.inf, -math.inf):
                with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
                    ask(np.full((200, D), x))


def test_an_update_that_raises_changes_nothing():
    query, key, value = drawn()
    sketch = sketch_of(SIGNS, key, value)
    before = sketch.attention_output(query)
    wrong = [
        (key[:2] * math.nan, value[:2], "key must be finite"),
        (key[:2, :3], value[:2], r"key must have shape \(\.\.\., 7\) to match the sketch"),
        (key[:2], value[:2, :2], r"value must have shape \(\.\.\., 5\) to match the sketch"),
        (key[:2], value[:3], r"value must have shape \(2, d_v\) to match key, got \(3, 5\)"),
        (key[0], value[:2], r"key must have shape \(m, d\), got \(7,\)"),
        (key[:2], value[0], r"value must have shape \(m, d_v\), got \(5,\)"),
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
    sketch = sketch_of(LiftedHash(SimHash.init(0, D + 1, 2, 3), longest), key, value)
    with pytest.raises(ValueError, match="longest must be at least the length of every key"):
        sketch.update(2 * key, value)
    assert len(sketch) == N
    assert sketch.attention_output(query).shape == (N_Q, D_V)


def test_removals_are_checked(impl):
    query, key, value = drawn()
    sketch = SketchAttention(SIGNS, impl=impl)
    with pytest.raises(ValueError, match="ids must be of keys that are there, and there is none"):
        sketch.remove([0])
    sketch.update(key, value)
    before = sketch.attention_output(query)
    for wrong, message in (
        ([N], f"ids must be in the index, each named once, got {N}"),
        ([-1], "ids must be at least 0, got -1"),
        ([2, 2], "ids must be in the index, each named once, got 2"),
        (np.array([2**64 - 1], dtype=np.uint64), r"ids must be at most 2\*\*63 - 1"),
        *(([x], "ids must be ints, got float64") for x in (0.5, math.nan, math.inf)),
        (np.full(2, math.nan), "ids must be ints, got float64"),
        (math.nan, "ids must be ints, got float64"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            sketch.remove(wrong)
    assert len(sketch) == N
    np.testing.assert_array_equal(sketch.attention_output(query), before)


# One bucket: everything is found, so all of it must agree with exact attention


def test_where_all_is_seen_attention_is_exact(impl):
    query, key, value = drawn()
    found = evidence_of(sketch_of(ONE_BUCKET, key, value, impl=impl), query)
    np.testing.assert_allclose(found["output"], attention(query, key, value), atol=1e-12)
    assert (found["candidates"] == N).all()


def test_identical_vectors_share_a_bucket():
    n = 20_011
    key, value = np.ones((n, D)), np.random.default_rng(0).standard_normal((n, D_V))
    found = evidence_of(sketch_of(STABLE, key, value), key[:3])
    np.testing.assert_allclose(found["output"], np.tile(value.mean(0), (3, 1)), atol=1e-12)
    assert (found["candidates"] == n).all()


def test_what_all_keys_have_together_is_the_same_however_they_came():
    query, key, value = drawn(n=331)
    whole, parts = sketch_of(SIGNS, key[:300], value[:300]), SketchAttention(SIGNS)
    for start in range(0, 300, 50):
        parts.update(key[start : start + 50], value[start : start + 50])
        evidence_of(parts, query)  # so that all of it is worked out
    first, second = (evidence_of(s, query) for s in (whole, parts))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-9, atol=1e-11)
    parts.update(key[300:], 9 * value[300:])
    parts.remove(np.arange(300, 331))
    for name, x in evidence_of(parts, query).items():
        np.testing.assert_allclose(x, first[name], rtol=1e-9, atol=1e-11)


# Evidence


@pytest.mark.parametrize("kind", HASHES)
def test_evidence_against_the_exact_weights(impl, kind):
    query, key, value = drawn()
    hash = HASHES[kind]
    evidence = evidence_of(sketch_of(hash, key, value, impl=impl), query)
    box = np.linalg.norm(value.max(0) - value.min(0))
    for i, tables in enumerate(buckets(hash, query, key)):
        found = union(tables)
        assert evidence["candidates"][i] == len(found)
        if not found:
            continue
        mass = np.exp(query[i] @ key[found].T / math.sqrt(D))
        chance = hash.retrieval_probability(query[i : i + 1], key[found])
        likely = pytest.approx(chance[np.argmax(mass)])
        assert evidence["found_probability"][i] == likely
        missed = 1 - mass.sum() / (mass / chance).sum()
        assert evidence["missed_mass"][i] == pytest.approx(missed, rel=1e-4)
        assert evidence["bound"][i] == pytest.approx(missed * box, rel=1e-4)


def test_missed_mass_is_right_on_average():
    query, key, value = drawn(n=401, n_q=1)
    weights = np.exp(query @ key.T / math.sqrt(D))[0]
    apart = []
    for seed in range(80):
        sketch = sketch_of(SimHash.init(seed, D, 4, 4), key, value)
        ids, found = sketch.query(query)
        truth = 1 - weights[ids[found]].sum() / weights.sum()
        apart.append(evidence_of(sketch, query)["missed_mass"][0] - truth)
    assert abs(np.mean(apart)) < 4 * np.std(apart) / math.sqrt(80) + 0.02


@pytest.mark.parametrize(
    ("hash", "missed", "bound", "chance"),
    [
        (NOTHING, 1, math.inf, math.nan),  # nothing found
        (ONE_BUCKET, math.nan, math.nan, math.nan),  # no probabilities are known
    ],
)
def test_evidence_at_its_limits(impl, hash, missed, bound, chance):
    query, key, value = drawn()
    found = evidence_of(sketch_of(hash, key, value, impl=impl), query)
    names = ("missed_mass", "bound", "found_probability")
    for name, wanted in zip(names, (missed, bound, chance), strict=True):
        np.testing.assert_allclose(found[name], wanted, atol=1e-12, err_msg=name)
    assert found["output"].any() == (hash is not NOTHING)


def test_evidence_of_arrays_that_need_gradients():
    torch = pytest.importorskip("torch")
    x = torch.randn(30, 4, requires_grad=True, generator=torch.Generator().manual_seed(0))
    found = evidence_of(sketch_of(SimHash.init(0, 4, 3, 2).to("torch"), x), x)
    assert bool(torch.isfinite(found["bound"]).all())  # and a warning is an error


@pytest.mark.parametrize("kind", HASHES)
@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0, 0.0])
def test_importance_has_gradients_where_a_query_is_a_key(kind, factor):
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(0).standard_normal((20, D))
    key = torch.tensor(numbers, requires_grad=True)
    query = torch.tensor(factor * numbers, requires_grad=True)
    sketch = sketch_of(HASHES[kind].to("torch"), key, estimator="importance")
    sketch.attention_output(query).sum().backward()
    assert bool(torch.isfinite(query.grad).all())
    assert bool(torch.isfinite(key.grad).all())


def test_the_promise_of_a_plan_holds_over_draws():
    rng = np.random.default_rng(0)
    d, draws = 16, 300
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


def test_a_sketch_goes_with_its_last_user():
    query, key, value = drawn()
    sketch = sketch_of(SIGNS, key, value)
    evidence_of(sketch, query)
    gone = weakref.ref(sketch)
    gc.disable()  # counting references has to be enough
    try:
        del sketch
        assert gone() is None
    finally:
        gc.enable()


# What is refused


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"estimator": "best"}, ValueError, "estimator must be one of union, importance"),
        ({"impl": "fast"}, ValueError, "impl must be one of reference, numba, cupy, got 'fast'"),
        ({"impl": {}}, ValueError, "impl must be one of reference, numba, cupy, got"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"scale": math.nan}, ValueError, "scale must be finite and at least 0, got nan"),
        (
            {"impl": "numba", "estimator": "per_table_sum"},
            ValueError,
            "estimator must be union, importance or duplicates for impl 'numba'",
        ),
    ],
)
def test_options_are_checked(options, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        SketchAttention(SIGNS, **options)


def test_hashes_are_checked():
    for wrong in (None, 3, SimHash):
        with pytest.raises(TypeError, match="hash must have n_tables and signatures, got"):
            SketchAttention(wrong)
    with pytest.raises(ValueError, match="hash must have retrieval_probability"):
        SketchAttention(ONE_BUCKET, estimator="importance")


@pytest.mark.parametrize("method", ["query", "attention_weights", "attention_output"])
def test_queries_are_checked(method):
    query, key, value = drawn()
    ask = getattr(sketch_of(SIGNS, key, value), method)
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


def test_arrays_and_flags_of_other_kinds_are_refused():
    torch = pytest.importorskip("torch")
    pytest.importorskip("numba")
    sketch = SketchAttention(SIGNS, impl="numba")
    with pytest.raises(TypeError, match="key must be an array of numpy for impl 'numba', got tor"):
        sketch.update(torch.ones(2, D))
    with pytest.raises(TypeError, match="return_evidence must be a bool, got str"):
        sketch.attention_output(np.ones((2, D)), return_evidence="no")
