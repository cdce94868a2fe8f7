"""What the benchmark of search compares with is right: tuning, recall, fits and hash tables."""

import importlib.util
import json

import numpy as np
import pytest

from attnbook.hashing import SimHash, plan
from benchmarks import (
    harness,
    search,
    search_cuda,
    search_growth,
    search_maps,
    search_near,
    search_planted,
    search_rivals,
    tables,
)

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="Numba is not installed"
)


@pytest.fixture
def data():
    return search_planted.planted(701, 67)


def test_planted_queries_that_choose_and_that_test_are_apart(data):
    for query, row in (data.chosen_by, data.test):
        near = np.linalg.norm(query - data.key[row], axis=1)
        np.testing.assert_allclose(near, search_planted.DISTANCE, rtol=1e-4)
    assert not np.isin(data.chosen_by[0], data.test[0]).any()
    wide = search_planted.planted(701, 67, ratio=4.0)
    others = np.linalg.norm(wide.test[0][:, None] - wide.key[None], axis=2)
    near = others[np.arange(67), wide.test[1]]
    assert np.mean(others) / np.mean(near) == pytest.approx(4, rel=0.1)


@needs_numba
@pytest.mark.parametrize("n_probes", [1, 3])
def test_recall_is_that_of_the_sketch(data, n_probes):
    hash = SimHash.init(0, 64, 1, 40).to(dtype="float32")
    one = search_rivals.of_hash(data.key, hash, n_probes, settings="")
    ids, found = one.built().query(data.test[0])
    holds = ((ids == data.test[1][:, None]) & found).any(axis=1)
    np.testing.assert_array_equal(one.found(one.built(), *data.test), holds)
    assert 0.1 < one.recall(*data.test) < 1
    facts = one.facts(one.built(), data.test[0])
    assert facts["candidates"] == pytest.approx(found.sum(axis=1).mean())


@needs_numba
def test_a_build_lasts_until_queries_can_be_answered(monkeypatch, data):
    told = []

    class Spy(search_rivals.SketchAttention):
        def update(self, key, value=None):
            told.append("update")
            return super().update(key, value)

        def merge(self):
            told.append("merge")
            super().merge()

    monkeypatch.setattr(search_rivals, "SketchAttention", Spy)
    one = search_rivals.sketch(data.key, plan(701, 0.01, 0.5, n_projections=1))
    one.synchronize = lambda: told.append("wait")
    one.built()
    assert told == ["wait", "update", "merge", "wait"]


@needs_numba
def test_a_gpu_answers_before_it_is_asked_again(data):
    told = []
    one = search_rivals.sketch(data.key, plan(701, 0.01, 0.5, n_projections=1))
    one.ask = lambda built, query: told.append(len(query))
    one.synchronize = lambda: told.append("wait")
    one.built()
    told.clear()
    run, n = search_planted.asking(one, data.test[0][:3], "single")
    run()
    assert (told, n) == ([1, "wait"] * 3, 3)


@needs_numba
def test_a_million_on_a_gpu_beside_exact_attention(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(search_planted, "QUICK_N", 700)
    lines = []
    batches, singles = search_cuda.million(quick=True, log=lines.append, device="cpu")
    rows = [*batches.run(), *singles.run()]
    assert [row["mode"] for row in rows[:: len(rows) - 1]] == ["batch", "single"]
    ours = [row for row in rows if row["implementation"] == search_rivals.SKETCH]
    assert {row["mode"] for row in ours} == {"single", "batch"}
    assert len(ours) == 2 * len(search_cuda.PLANS)
    assert all(row["recall"] > 0.9 and row["index_bytes"] > 0 for row in ours)
    exact = [row for row in rows if row not in ours]
    assert [row["speed"] == 1 for row in exact if row["mode"] == "batch"] == [True, False]
    assert len(lines) == len(rows)


def test_a_million_on_a_gpu_is_kept_step_by_step(monkeypatch):
    steps = [tables.Step({"mode": mode}, 1, lambda m=mode: [{"mode": m}]) for mode in ("a", "b")]
    monkeypatch.setattr(search_cuda, "million", lambda *, quick, log: steps)
    growing = tables.Tables({})
    search.measure("cuda", quick=True, tables=growing)
    assert growing.record["million"] == [{"mode": "a"}, {"mode": "b"}]


@needs_numba
def test_exact_rivals_return_the_neighbour(data):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    query, row = data.test
    for one in search_rivals.exact(data.key):
        output = np.asarray(one.ask(one.built(), query)).reshape(67, 64)
        np.testing.assert_allclose(output, data.key[row], atol=1e-3)
    ours = search_rivals.sketch(data.key, plan(701, 1e-6, 0.5, 8, 8))
    np.testing.assert_allclose(ours.ask(ours.built(), query), data.key[row], atol=1e-3)


def test_faiss_is_tuned_to_the_first_setting_that_is_enough():
    pytest.importorskip("faiss", reason="faiss is not installed")
    data = search_planted.planted(701, 67, ratio=1.3)  # a neighbour is hard to tell from the others
    make = search_rivals.inverted(data.key, 16)
    recalls = [make(nprobe).recall(*data.chosen_by) for nprobe in (1, 2, 3, 16)]
    assert recalls == sorted(recalls)
    least = (recalls[1] + recalls[2]) / 2
    ((one, recall),) = search_rivals.tuned([(make, (1, 2, 3, 16))], *data.chosen_by, least=least)
    assert (one.settings, recall) == ("lists 16, nprobe 3", recalls[2])
    ((one, recall),) = search_rivals.tuned([(make, (1, 2))], *data.chosen_by, least=1.1)
    assert (one.settings, recall) == ("lists 16, nprobe 2", recalls[1])
    assert make(1).kept is make(2).kept  # built once
    for other in (
        search_rivals.flat(data.key),
        search_rivals.graph(data.key, 8, 40)(64),
        search_rivals.codes(data.key, 512),
    ):
        assert other.recall(*data.test) > 0.5


def test_the_fastest_setting_that_is_enough_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(search_planted, "FOLDER", tmp_path)
    asked = []

    def maker(walk):
        def make(setting):
            name = f"{walk}{setting}"
            one = search_rivals.Rival(name, "", object, lambda *_: None, lambda *_: 0.0)
            one.recall = lambda *_: asked.append(name) or recalls[name]
            return one

        return make

    recalls = {"a1": 0.5, "a2": 0.995, "a3": 1.0, "b1": 0.992, "c1": 0.4, "c2": 0.6, "d1": 0.7}
    grid = {
        "x": [(maker("c"), (1, 2)), (maker("a"), (1, 2, 3)), (maker("b"), (1,))],
        "y": [(maker("c"), (1, 2)), (maker("d"), (1,))],
    }
    query = np.zeros((3, 2))
    given = (grid, (query, query), query, ("single", "batch"))
    for seconds, best in (((2.0, 1.0), "b1"), ((1.0, 2.0), "a2")):
        how = {"times_of": lambda asks, s=seconds: {j: {"per_query": s[j]} for j in asks}}
        found = search_planted.chosen("x", *given, batch=7, quick=False, **how)
        for mode in ("single", "batch"):
            one, recall = found[mode]["x"]
            assert (one.implementation, recall, one.batch) == (best, recalls[best], 7)
            assert found[mode]["y"][0].implementation == "d1"  # none is enough
    assert asked == ["c1", "c2", "a1", "a2", "b1", "c1", "c2", "d1"]  # kept, and never a3


def test_queries_of_states_are_of_other_plays_and_their_neighbours_are_right():
    data = search_near.states(512, 1, windows=1)
    np.testing.assert_allclose(np.linalg.norm(data.key, axis=1), 1, rtol=1e-6)
    for part, (query, row) in enumerate((data.chosen_by, data.test)):
        angles = np.arccos(np.clip(query.astype(float) @ data.key.T.astype(float), -1, 1))
        np.testing.assert_allclose(angles[np.arange(len(row)), row], angles.min(axis=1), atol=1e-5)
        near = angles.min(axis=1) <= search_near.NEAR
        assert np.array_equal(data.is_near[part], near)
        assert 0 < near.mean() < 1
        assert len(data.near(part)[0]) == near.sum()
    assert not np.isin(data.chosen_by[0], data.test[0]).all(axis=1).any()


def test_an_index_is_kept_in_a_file_with_the_time_of_its_build(data, tmp_path):
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    made = []

    def build():
        made.append(faiss.IndexFlatL2(64))
        made[-1].add(data.key)
        return made[-1]

    kept = {}
    for _ in range(2):
        index = search_rivals._stored(tmp_path / "flat", build, kept)
        assert index.ntotal == 701
    assert len(made) == 1
    assert (
        kept["stored_seconds"] == json.loads((tmp_path / "flat.json").read_text())["build_seconds"]
    )


def test_times_are_compared_per_query(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(harness.time, "sleep", lambda seconds: None)
    found = search_planted.timed({"a": (lambda: None, 1), "b": (lambda: None, 10)}, quick=True)
    assert found["a"]["per_query"] == 10 * found["b"]["per_query"]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_fit_recovers_an_exponent(exponent):
    sizes = [10, 30, 100, 1000]
    found = search_growth.fit(sizes, [3.0 * n**exponent for n in sizes])
    assert found["exponent"] == pytest.approx(exponent, abs=1e-12)
    assert found["half_width"] == pytest.approx(0, abs=1e-9)


def test_interval_of_a_fit_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    sizes = np.array([10, 30, 100, 300, 1000, 3000, 10_000])
    covered = []
    for noise in 0.1 * rng.standard_normal((1000, 7)):
        found = search_growth.fit(sizes, sizes**0.8 * np.exp(noise))
        covered.append(abs(found["exponent"] - 0.8) < found["half_width"])
    assert 0.93 < np.mean(covered) < 0.97


# Tables


@needs_numba
@pytest.mark.parametrize("load", [0.25, 0.9])
def test_linear_probing_finds_what_is_there_as_far_away_on_average(load):
    keys = np.random.default_rng(1).permutation(10_000)[: 2 * int(load * 1009)] - 5000
    present, absent = np.split(keys, 2)
    linear = search_maps.LinearTable(1009)
    swapped = search_maps.RobinHoodTable(1009, 0.95, impl="numba")
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
    table = search_maps.SortedTable()
    table.insert_many(keys, np.arange(4))
    assert table.get_many(np.array([0, 5, 7, -3])).tolist() == [3, -1, 0, 1]
