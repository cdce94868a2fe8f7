"""Near keys by every engine against loops over dictionaries in float64."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cases import every_day, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sketch_gpu import GPUS, opened
from slow_sketch import buckets, mix, union

from attnbook.hashing import GivenHash, SimHash, StableHash
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.engines import Reference
from attnbook.sketch.reference_query import near
from attnbook.sketch.state import Settings, SketchState
from attnbook.sketch.updates import insert
from attnbook.sketch.visible_keys import Visible

CLOSE = {"float16": 3e-3, "float32": 3e-5, "float64": 1e-11}


@dataclass
class Case:
    """Keys, queries and their signatures; the last `n_late` keys come one by one, some go."""

    n: int
    n_q: int = 11
    d: int = 5
    d_v: int = 3
    n_tables: int = 3
    n_signatures: int = 5
    dtype: str = "float64"
    seed: int = 0
    n_late: int = 0
    n_removed: int = 0
    hash: Any = None
    factor: float = 1.0
    alive: Any = field(init=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        sizes = ((self.n_q, self.d), (self.n, self.d), (self.n, self.d_v))
        self.query, self.key, self.value = (
            rng.standard_normal(size).astype(self.dtype) for size in sizes
        )
        self.query *= np.asarray(self.factor, self.dtype)
        self.stored = rng.integers(0, self.n_signatures, size=(self.n, self.n_tables))
        self.asked = rng.integers(0, self.n_signatures + 1, size=(self.n_q, self.n_tables))
        self.removed = rng.choice(self.n, size=self.n_removed, replace=False)
        self.alive = ~np.isin(np.arange(self.n), self.removed)

    def loop(self, scale, estimator="union", before=None, weigh=True):
        """Return what an engine has to, query after query and key after key."""
        n_q = self.n_q
        found = {name: np.full(n_q, -np.inf) for name in ("mass", "largest", "expected")}
        found |= {"count": np.zeros(n_q, dtype=int), "best": np.full(n_q, -1)}
        found["output"] = np.zeros((n_q, self.d_v))
        query, key, value = (x.astype(float) for x in (self.query, self.key, self.value))
        tables = buckets(self.asked, self.stored, np.flatnonzero(self.alive))
        for i in range(n_q):
            scores = {row: scale * math.fsum(query[i] * key[row]) for row in union(tables[i])}
            if before is not None:
                scores = {row: score for row, score in scores.items() if row < before[i]}
            if not scores:
                continue
            chance = dict.fromkeys(scores, 1.0)
            if self.hash is not None:
                p = self.hash.retrieval_probability
                chance = {row: float(p(query[i][None], key[row][None])[0]) for row in scores}
            best = max(scores, key=scores.get)
            top = scores[best]
            mass = {row: math.exp(s - top) for row, s in scores.items()}
            found["count"][i], found["best"][i], found["largest"][i] = len(scores), best, top
            found["mass"][i] = top + math.log(math.fsum(mass.values()))
            expected = math.fsum(mass[row] / chance[row] for row in scores)
            found["expected"][i] = top + math.log(expected)
            kept = [[row for row in bucket if row in scores] for bucket in tables[i]]
            found["output"][i] = mix(estimator, kept, scores, value, chance)
        if self.hash is None or not (weigh or estimator == "importance"):
            del found["expected"]
        return found

    def index(self, index, to=np.asarray):
        """Return the index with the keys of the case."""
        index.add(to(self.stored[: self.n - self.n_late]))
        index.merge()
        for row in range(self.n - self.n_late, self.n):
            index.add(to(self.stored[row : row + 1]))
        index.remove(self.removed)
        return index


def by_reference(case, scale, estimator="union", before=None, weigh=True):
    hash = case.hash or GivenHash(*[len] * case.n_tables)
    state = SketchState(Settings(hash, estimator=estimator, scale=scale), Reference(hash))
    insert(state, case.key, case.value, case.stored)
    state.index.remove(case.removed)
    return near(state, case.query, case.asked, Visible(before), weigh)


def by_numba(case, scale, estimator="union", **options):
    from attnbook.sketch.numba_query import Prepared, RetrievalTable

    chances = None if case.hash is None else RetrievalTable.of(case.hash)
    tables = case.index(BucketIndex(case.n_tables, seed=case.seed)).tables
    assert (tables.n_side, tables.n_dead) == (case.n_late, case.n_removed)
    chosen = {"scale": scale, "estimator": estimator, "chances": chances}
    prepared = Prepared(None, case.key, case.value, tables, **chosen)
    return prepared.ask(case.query, case.asked, **({"weigh": True} | options))


def by_gpu(gpu, case, scale, estimator="union", before=None, weigh=True):
    from attnbook.sketch.cuda_hash import CudaHash
    from attnbook.sketch.cuda_index import CudaIndex
    from attnbook.sketch.cuda_query import Prepared

    hash = None if case.hash is None else CudaHash(case.hash, case.dtype)
    query, key, value, asked = (gpu.to(x) for x in (case.query, case.key, case.value, case.asked))
    index = case.index(CudaIndex(case.n_tables), gpu.to)
    prepared = Prepared(hash, key, value, index.tables, scale=scale, estimator=estimator)
    before = None if before is None else gpu.to(before)
    found = prepared.ask(query, asked, before=before, weigh=weigh)
    return type(found)(*(x if x is None else gpu.host(x) for x in found))


@pytest.fixture(scope="module", params=["reference", "numba", *GPUS])
def ask(request):
    """The engines, as functions of a case."""
    if request.param == "reference":
        yield by_reference
    elif request.param == "numba":
        pytest.importorskip("numba")
        yield by_numba
    else:
        with opened(request.param) as gpu:
            yield lambda case, scale, **options: by_gpu(gpu, case, scale, **options)


def check(case, found, scale=0.3, **options):
    """Compare what an engine found with the loop; in half precision within its own rounding."""
    wide = "float64" if case.dtype == "float64" else "float32"
    for name, exact in case.loop(scale, **options).items():
        got = getattr(found, name)
        if name in ("count", "best"):
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, exact, name)
            continue
        # a table with linear interpolation, and acos, lose digits of the chance
        by_chance = name == "expected" or options.get("estimator") == "importance"
        close = CLOSE[case.dtype if name == "output" else wide]
        close = max(close, 2e-4) if by_chance else close
        np.testing.assert_allclose(got, exact, rtol=close, atol=close, err_msg=name)
        assert got.dtype == wide or name == "output"


SIZES = [
    {"n": 1, "n_q": 3, "d": 1, "d_v": 1, "n_tables": 1, "n_signatures": 1},
    {"n": 61, "n_q": 7, "n_signatures": 11},
    {"n": 97, "n_q": 37, "d": 64, "d_v": 64, "n_tables": 5, "n_signatures": 13},
    {"n": 211, "n_q": 71, "d": 13, "d_v": 17, "n_tables": 4, "n_signatures": 23},
    {"n": 307, "n_q": 11, "n_signatures": 2},
]


@pytest.mark.parametrize(
    ("estimator", "dtype"),
    every_day(
        [("union", "float32"), ("duplicates", "float64")],
        itertools.product(["union", "duplicates"], ["float32", "float64"]),
    ),
)
@pytest.mark.parametrize("size", every_day(SIZES[::2], SIZES), ids=lambda size: f"n={size['n']}")
def test_near_keys_are_those_of_a_loop(ask, size, estimator, dtype):
    case = Case(**size, dtype=dtype)
    found = ask(case, 0.3, estimator=estimator)
    check(case, found, estimator=estimator)
    assert found.expected is None


@pytest.mark.parametrize("estimator", ["union", "duplicates", "importance"])
@pytest.mark.parametrize(
    "hash", [SimHash.init(0, 5, 3, 2), StableHash.init(0, 5, 2.7, 3, 2)], ids=["simhash", "stable"]
)
def test_the_chance_to_be_found(ask, hash, estimator):
    case = Case(61, 7, hash=hash)
    check(case, ask(case, 0.3, estimator=estimator), estimator=estimator)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_near_keys_of_any_case(ask, data):
    draw = data.draw
    n = draw(st.integers(0, 40))
    case = Case(
        n, draw(st.integers(0, 5)), 3, 2, draw(st.integers(1, 4)), draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 99)), n_late=draw(st.integers(0, n)),
        n_removed=draw(st.integers(0, n)),
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    options = {"estimator": draw(st.sampled_from(["union", "duplicates"]))}
    if draw(st.booleans()):
        options["before"] = rng.integers(0, n + 2, size=case.n_q)
    check(case, ask(case, 0.7, **options), 0.7, **options)


@pytest.mark.parametrize("n", [23, 24, 25, 256, 513, 1511])  # about the windows of the loops
def test_one_bucket_holds_everything(ask, n):
    """Identical keys, found in every table: each counts once."""
    case = Case(n, n_q=2, d=3, d_v=2, n_signatures=1)
    case.key[:], case.query[:], case.asked[:] = 1, [1.0, 2.0, 3.0], 0
    found = ask(case, 0.5)
    np.testing.assert_array_equal(found.count, n)
    np.testing.assert_array_equal(found.best, 0)
    np.testing.assert_allclose(found.mass, 3.0 + math.log(n))
    np.testing.assert_allclose(found.output, np.tile(case.value.mean(axis=0), (2, 1)))


@pytest.mark.parametrize(("n", "n_q"), [(0, 3), (11, 3), (11, 0)])
def test_nothing_to_ask_and_nothing_to_find(ask, n, n_q):
    case = Case(n, n_q, d_v=4, dtype="float32")
    case.asked[:] = 99
    check(case, ask(case, 1.0), 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_scores_do_not_overflow(ask, dtype):
    case = Case(61, n_signatures=3, dtype=dtype, factor=300.0)
    found, wanted = ask(case, 1.0), case.loop(1.0)
    assert np.abs(found.largest[found.count > 0]).max() > 500
    for name in ("best", "count"):
        np.testing.assert_array_equal(getattr(found, name), wanted[name])
    for name in ("output", "mass", "largest"):
        np.testing.assert_allclose(getattr(found, name), wanted[name], rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_product_of_minus_infinity_has_no_weight(ask):
    case = Case(2, 1, 1, 1, 1, 1)
    case.asked[:], case.query[:] = 0, 1e200
    case.key[:, 0], case.value[:, 0] = [0, -1e250], [3, 5]
    found = ask(case, 1.0)
    assert (found.mass[0], found.best[0], found.output[0, 0]) == (0, 0, 3)
    case.key[:, 0] = [-1e200, -1e250]
    found = ask(case, 1.0)
    assert (found.mass[0], found.largest[0], found.output[0, 0]) == (-np.inf, -np.inf, 0)


# The compiled loops


def test_threads_and_kinds_of_arrays_change_nothing():
    pytest.importorskip("numba")
    case = Case(211, 331, n_signatures=17, dtype="float32", n_late=31, n_removed=13)
    before = np.arange(331) % 211
    wanted = by_numba(case, 0.3, n_threads=1, before=before)
    wide = np.zeros((211, 6), dtype="float32")
    wide[:, ::2] = case.value
    case.value = wide[:, ::2]
    case.query.flags.writeable = False
    case.key, case.asked = np.asfortranarray(case.key), np.asfortranarray(case.asked)
    got = by_numba(case, 0.3, n_threads=3, before=before)
    for a, b in zip(got[:5], wanted[:5], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["stable", "simhash"])
@pytest.mark.parametrize(("n_tables", "n_projections"), [(1, 1), (5, 16), (75, 14), (1000, 1)])
def test_the_table_of_chances(kind, n_tables, n_projections):
    pytest.importorskip("numba")
    from attnbook.sketch.numba_query import Prepared, RetrievalTable

    zeros = np.zeros((400, 3))
    key, query, rows = zeros.copy(), zeros.copy(), np.arange(400)[:, None]
    if kind == "stable":
        hash = StableHash.init(0, 3, 1.7, n_tables, n_projections)
        key[:, 0] = np.concatenate([[0.0], np.geomspace(1e-9, 1e3, 399)])
    else:
        hash = SimHash.init(0, 3, n_tables, n_projections)
        angle = np.linspace(0, math.pi - 1e-3, 400)
        key[:, 0], key[:, 1] = 5 * np.cos(angle), 5 * np.sin(angle)
        query[:, 0] = 0.3
    index, table = BucketIndex(1), RetrievalTable.of(hash)
    index.add(rows)

    def chances(query, key, table):
        prepared = Prepared(None, key, key, index.tables, scale=0.0, chances=table)
        return np.exp(-prepared.ask(query, rows[: len(query)], weigh=True).expected)

    exact = hash.retrieval_probability(query, key)
    told = exact > 1e-300
    assert told.sum() > 250
    np.testing.assert_allclose(chances(query, key, table)[told], exact[told], rtol=2e-5)
    at_zero = hash.retrieval_probability(zeros[0], zeros[0])
    np.testing.assert_allclose(chances(zeros[:1], zeros[:1], table), at_zero, rtol=1e-6)
    # where it underflows, the weight is the largest that is safe
    never = np.array([[1e300 if kind == "stable" else -1.0, 0, 0]])
    least = chances(never, np.array([[1.0, 0, 0]]), table._replace(n_projections=60))
    np.testing.assert_allclose(least, np.finfo(float).smallest_normal, rtol=1e-6)
