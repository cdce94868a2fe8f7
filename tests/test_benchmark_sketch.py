"""What the sketch's benchmark compares with is right: peers, inputs, fits and tables."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from attnbook import attention_weights

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package

from benchmarks import (
    harness,
    inputs,
    sketch_estimators,
    sketch_far_near,
    sketch_inputs,
    sketch_peers,
    sketch_rows,
    sketch_search,
    sketch_searchers,
    sketch_self_attention,
    sketch_tables,
)

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="Numba is not installed"
)


def heads(n=24, d=5, h=2, size=1.0):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    given = size * np.random.default_rng(11).standard_normal((3, h, n, d))
    return list(map(torch.tensor, given)), inputs.reference(*given)


def relative(found, expected):
    return inputs.errors(found, expected)["relative"]


# Peers


HYPER, LSH = sketch_peers.hyper_attention, sketch_peers.reformer_attention


@pytest.mark.parametrize(
    ("function", "options", "size"),
    [
        (HYPER, {"block": 24, "n_samples": 7, "seed": 0}, 1.0),
        (HYPER, {"block": 24, "n_samples": 7, "seed": 1}, 1.0),
        (LSH, {"chunk": 24, "n_rounds": 1}, 1.0),
        (LSH, {"chunk": 24, "n_rounds": 3}, 1.0),
        (LSH, {"chunk": 12, "n_rounds": 2}, 1.0),  # each of two chunks sees the other
        (LSH, {"chunk": 12, "n_rounds": 3}, 40.0),  # and nothing overflows
    ],
)
def test_peers_that_see_all_keys_are_exact(function, options, size):
    given, expected = heads(size=size)
    assert relative(function(*given, **options), expected) < 1e-12


def test_hyper_attention_finds_a_planted_key():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(5)
    key = rng.standard_normal((1, 64, 8))
    key *= 15 / np.linalg.norm(key, axis=-1, keepdims=True)
    value = rng.standard_normal((1, 64, 3))
    expected = inputs.reference(key, key, value)  # each query is a key
    given = [torch.tensor(x) for x in (key, key, value)]
    found = HYPER(*given, block=8, n_samples=2)
    assert relative(found, expected) < 0.05
    elsewhere = [given[0], given[1].roll(1, dims=1), given[2]]  # the neighbour's value
    assert relative(HYPER(*elsewhere, block=8), expected) > 0.5


FEATURES = sketch_peers.random_features


@pytest.mark.parametrize(
    ("function", "few", "many", "given", "factor"),
    [
        (HYPER, {"block": 4, "n_samples": 100}, {"n_samples": 100_000}, {"n": 32}, 4),
        (LSH, {"chunk": 8, "n_rounds": 1}, {"n_rounds": 16}, {"n": 96, "size": 2.0}, 2),
        # as 1 / sqrt(m): 16, if all features were independent
        (FEATURES, {"n_features": 64}, {"n_features": 64 * 256}, {"d": 3, "size": 0.5}, 4),
    ],
)
def test_peers_come_nearer_with_more_work(function, few, many, given, factor):
    given, expected = heads(**given)

    def error(options):
        return np.mean([relative(function(*given, **options, seed=s), expected) for s in range(4)])

    assert error(few | many) < error(few) / factor
    if function is not LSH:
        assert error(few | many) < 0.02


def test_random_features_are_orthogonal_and_as_long_as_normal_vectors():
    rows = sketch_peers._orthogonal(np.random.default_rng(0), 4000, 5)
    assert rows.shape == (4000, 5)
    group = rows[:5] / np.linalg.norm(rows[:5], axis=1, keepdims=True)
    np.testing.assert_allclose(group @ group.T, np.eye(5), atol=1e-12)
    # E[exp(w·q - |q|²/2) exp(w·k - |k|²/2)] = exp(q·k): unbiased
    q, k = np.array([0.3, -0.2, 0.5, 0.1, 0.0]), np.array([0.1, 0.4, 0.2, -0.3, 0.2])
    mean = np.exp(rows @ (q + k) - (q @ q + k @ k) / 2).mean()
    assert mean == pytest.approx(math.exp(q @ k), abs=0.05)


@pytest.mark.parametrize(("function", "name"), [(HYPER, "block"), (LSH, "chunk")])
def test_peers_refuse_a_block_that_does_not_divide(function, name):
    given, _ = heads(n=24)
    with pytest.raises(ValueError, match="block must divide n = 24, got 7"):
        function(*given, **{name: 7})


# Inputs


def test_planted_neighbours_are_where_they_should_be():
    key, query, row = sketch_inputs.planted(3, 101, 7)
    distances = np.linalg.norm(query[:, None] - key[None], axis=-1)
    np.testing.assert_allclose(distances[np.arange(7), row], 0.5, rtol=1e-5)
    assert np.sort(distances, axis=1)[:, 1].min() > 5


@pytest.mark.parametrize("values", sketch_inputs.VALUES)
@pytest.mark.parametrize("kind", sketch_inputs.KINDS)
def test_inputs_have_shape_and_seed(kind, values):
    given, again, other = (
        sketch_inputs.draw(kind, 129, 2, seed=seed, values=values) for seed in (3, 3, 4)
    )
    for x, same, different in zip(given, again, other, strict=True):
        assert (x.shape, x.dtype) == ((2, 129, sketch_inputs.WIDTH), np.float32)
        assert np.isfinite(x).all()
        assert np.array_equal(x, same)
        assert not np.array_equal(x, different)


@pytest.mark.parametrize("kind", sketch_inputs.COSINES)
def test_planted_keys_of_a_peaked_query_hold_about_half(kind):
    query, key, _ = (x[0].astype(float) for x in sketch_inputs.draw(kind, 2048, 1))
    weights = attention_weights(query, key)
    held = np.sort(weights, axis=1)[:, -sketch_inputs.GROUP :].sum(axis=1).mean()
    assert 0.35 < held < 0.7


def test_few_keys_of_heavy_tails_hold_everything():
    query, key, value = sketch_inputs.draw("heavy-tailed", 2048, 1)
    found = sketch_estimators._best(query[0], key[0], value[0], 20)
    expected = inputs.reference(query[0], key[0], value[0])
    assert relative(found, expected) < 0.1


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("odd", "following", r"kind must be one of random, .*, got 'odd'"),
        ("random", "odd", r"values must be one of following, .*, got 'odd'"),
    ],
)
def test_inputs_refuse_unknown_names(kind, values, message):
    with pytest.raises(ValueError, match=message):
        sketch_inputs.draw(kind, 17, 1, values=values)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_exact_attention_in_pieces(monkeypatch, scale):
    given = sketch_inputs.draw("clustered", 67, 2)
    rows = np.array([3, 5, 66])
    factor = 1 if scale is None else scale * math.sqrt(sketch_inputs.WIDTH)
    expected = inputs.reference(factor * given.query, given.key, given.value)[:, rows]
    np.testing.assert_allclose(sketch_inputs.exact(given, rows, scale), expected, atol=1e-5)


# Rows


def test_resident_rise_and_fall():
    made = []

    def allocate():
        made.append(np.ones(4_000_000))
        return made[0]

    def forget():
        made.clear()

    rise = sketch_rows.resident_rise(lambda: made.append(np.ones(4_000_000)))
    if rise is None:
        pytest.skip("the system does not tell the resident set")
    assert 31e6 < rise < 36e6
    assert 31e6 < sketch_rows.resident_fall(forget) < 36e6
    assert sketch_rows.resident_rise(allocate) < 4e6  # the result is not counted


def test_rows_compare_per_query(monkeypatch):
    monkeypatch.setattr(sketch_rows, "QUICK_SLICE_SECONDS", 1e-4)
    clock = iter(range(10**6))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(clock))
    candidates = [
        harness.Candidate(
            {"implementation": name, "library": "numpy", "queries": queries},
            lambda: np.ones(3),
            lambda output: {"max_abs": 0.0, "relative": 0.0},
        )
        for name, queries in (("a", 1), ("b", 10))
    ]
    ours, theirs = sketch_rows.rows(
        candidates, "cpu", about={"n": 7}, baseline={"implementation": "b"}, quick=True
    )
    assert ours["seconds"]["median"] == theirs["seconds"]["median"] == 1  # a tick
    assert (ours["ratio"], theirs["ratio"]) == (10, 1)
    assert (ours["per_query"], theirs["per_query"]) == (1, 0.1)


# Search


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_fit_recovers_an_exponent(exponent):
    sizes = [10, 30, 100, 1000]
    found = sketch_search.fit(sizes, [3.0 * n**exponent for n in sizes])
    assert found["exponent"] == pytest.approx(exponent, abs=1e-12)
    assert found["half_width"] == pytest.approx(0, abs=1e-9)


def test_interval_of_a_fit_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    sizes = np.array([10, 30, 100, 300, 1000, 3000, 10_000])
    covered = []
    for noise in 0.1 * rng.standard_normal((1000, 7)):
        found = sketch_search.fit(sizes, sizes**0.8 * np.exp(noise))
        covered.append(abs(found["exponent"] - 0.8) < found["half_width"])
    assert 0.93 < np.mean(covered) < 0.97


def test_recall_is_that_of_the_sketch(monkeypatch):
    monkeypatch.setattr(sketch_searchers, "implementation", lambda device: "reference")
    key, query, neighbour = sketch_inputs.planted(1, 600, 67)
    for searcher in sketch_searchers.sketches("cpu", key, (1, 8)):
        sketch = searcher.build()
        ids, found = sketch.query(query)
        holds = ((ids == neighbour[:, None]) & found).any(axis=1).mean()
        assert searcher.recall(sketch, query, neighbour) == pytest.approx(holds)
        others = searcher.other_recall(query, neighbour)
        promised = searcher.about["recall_promised"]
        assert promised >= 0.99
        assert abs(others["recall_over_draws"] - promised) < 6 * others["recall_error"] + 1e-3
        looked = searcher.look(sketch, query)
        assert looked["candidates"] == pytest.approx(found.sum(axis=1).mean())
        assert looked["candidates"] == pytest.approx(searcher.about["predicted"], rel=0.3)


def test_exact_searchers_agree():
    key, query, _ = sketch_inputs.planted(1, 67, 7)
    given = sketch_inputs.Inputs(query[None], key[None], key[None])
    expected = sketch_inputs.exact(given, np.arange(7), sketch_searchers.SCALE)[0]
    for searcher in sketch_searchers.exact("cpu", key):
        built = searcher.build()
        run = sketch_search._asking(searcher, built, query, "batch", 5)
        assert relative(run(), expected[:5]) < 1e-5
        run = sketch_search._asking(searcher, built, query, "single", 1)
        for i in (0, 1, 2):  # another query each time
            assert relative(run(), expected[i : i + 1]) < 1e-5


def test_faiss_reaches_the_recall_asked_for(monkeypatch):
    key, query, neighbour = sketch_inputs.planted(1, 257, 67)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "faiss", None)
        (one,) = sketch_searchers.faiss_indexes(key, query, neighbour, quick=True)
        with pytest.raises(ImportError, match=r"pip install 'attnbook\[bench\]'"):
            sketch_search.prepare(one, "cpu", query, neighbour, quick=True)
    pytest.importorskip("faiss", reason="faiss is not installed")
    monkeypatch.setattr(sketch_searchers, "QUICK_LISTS", 3)
    found = list(sketch_searchers.faiss_indexes(key, query, neighbour, quick=True))
    names = [one.about["implementation"].removeprefix("faiss ") for one in found]
    assert names == ["IVF3", "IVF3", "IndexLSH", "HNSW"]
    for one, least in zip(found, sketch_searchers.RECALLS, strict=False):
        built, facts = sketch_search.prepare(one, "cpu", query, neighbour, quick=True)
        assert facts["recall"] >= least
        assert np.array_equal(one.ask(built, query).shape, (67, 1))
    assert found[0].shared is found[1].shared  # built once


def test_break_even():
    def row(who, per_query):
        about = {"implementation": who, "mode": "batch", "per_query": per_query}
        return about | ({"build_seconds": {"median": 10.0}} if who == ours else {})

    ours, theirs = sketch_searchers.SKETCH, sketch_searchers.SDPA
    rows = [row(ours, 1.0), row(theirs, 5.0), row(ours, 6.0)]
    sketch_search._break_even(rows)
    assert [row.get("break_even", "none") for row in rows] == [3, "none", None]


def test_far_and_near_agree_with_the_closed_form(monkeypatch):
    monkeypatch.setattr(sketch_far_near, "QUICK_DRAWS", 40)
    monkeypatch.setattr(sketch_far_near, "QUICK_FAR_KEYS", 101)
    monkeypatch.setattr(sketch_far_near, "RATIOS", (2.0, 4.0, 22.6))
    rows = sketch_far_near.far_near(quick=True, log=lambda line: None)
    for row in rows:
        assert row["near"] >= 0.99
        # a million times a share of at most 101 keys: one more key is 250 more
        off = abs(row["measured"] - row["candidates"])
        assert off < 5 * row["standard_error"] + 2000
    assert all(row["candidates"] > 8e5 for row in rows if row["ratio"] == 2.0)


# Crossover


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ([2.0, 2.0, 1.0, 1.0], {"faster_from": 200 * 2**0.5, "relative": 0.4}),
        ([0.5, 2.0, 2.0, 2.0], {"faster_from": None, "relative": None}),
        ([0.5, 0.5, 0.5, 0.5], {"faster_from": 100, "relative": 0.1, "from_the_first": True}),
        ([0.5, 2.0, 1.0, 1.0], {"faster_from": 200 * 2**0.5, "relative": 0.4}),
    ],
)
def test_faster_from(ours, expected):
    def points(times):
        pairs = zip((100, 200, 400, 800), times, strict=True)
        return [{"n": n, "per_query": time, "relative": n / 1000} for n, time in pairs]

    found = sketch_self_attention.faster_from(points(ours), points([2**0.5] * 4))
    assert found == pytest.approx(expected | {"measured_up_to": 800})


# Tables


@needs_numba
@pytest.mark.parametrize("load", [0.25, 0.9])
def test_linear_probing_finds_what_is_there_as_far_away_on_average(load):
    keys = np.random.default_rng(1).permutation(10_000)[: 2 * int(load * 1009)] - 5000
    present, absent = np.split(keys, 2)
    linear = sketch_tables.LinearTable(1009)
    swapped = sketch_tables.RobinHoodTable(1009, 0.95, impl="numba")
    for table in (linear, swapped):
        table.insert_many(present, np.arange(len(present)))
        assert np.array_equal(table.get_many(present), np.arange(len(present)))
        assert np.all(table.get_many(absent) == -1)
    assert swapped.n_slots == 1009
    # the swap moves displacement from one key to another, and takes away the largest
    assert linear.displacements().sum() == swapped.displacements().sum()
    assert linear.displacements().max() >= swapped.displacements().max()


def test_sorted_table_answers_as_a_map():
    keys = np.array([7, -3, 2**60, 0])
    table = sketch_tables.SortedTable()
    table.insert_many(keys, np.arange(4))
    assert table.get_many(np.array([0, 5, 7, -3])).tolist() == [3, -1, 0, 1]
