"""The CUDA side of the sketches against loops and against the NumPy side.

Each test runs twice: with the kernels compiled for the CPU (see cupy_on_cpu.py), and on a GPU
where there is one (`pytest -m gpu`). What only a GPU can show is that the compiler of its maker
builds the same source (tested here by NVRTC, which needs no GPU) and that it runs there.
"""

import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cupy_on_cpu
import numpy as np
import nvrtc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbook.hashing.robin_hood import displacement_limit, find_slot, slots_for
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.sketch import cuda_hash as _cuda
from attnbook.sketch import cuda_query as _cuda_query
from attnbook.sketch.attention import SketchAttention
from attnbook.sketch.bucket_tables import build_tables
from attnbook.sketch.cuda_hash import CudaHash
from attnbook.sketch.cuda_index import CudaIndex
from attnbook.sketch.cuda_query import answer
from attnbook.sketch.engines import Cupy
from attnbook.sketch.sorted_index import SortedIndex

INT64 = np.iinfo(np.int64)
EXACT = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-12}


@dataclass(frozen=True)
class Gpu:
    """CuPy or its stand-in, and the ways to and from it."""

    cupy: Any

    def to(self, x, dtype=None):
        return self.cupy.asarray(np.asarray(x, dtype=dtype))

    def host(self, x):
        return x.get() if hasattr(x, "get") else np.array(x)

    def index(self, signatures, seed=0):
        index = CudaIndex(np.shape(signatures)[1], seed=seed)
        index.add(self.to(signatures, np.int64))
        return index


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request, tmp_path_factory):
    if request.param == "gpu":
        cupy = pytest.importorskip("cupy", reason="cupy is not installed")
        if not cupy.cuda.is_available():
            pytest.skip("cupy sees no CUDA device")
        yield Gpu(cupy)
        return
    cupy_on_cpu.compiler()  # skips without one
    with pytest.MonkeyPatch.context() as patch:
        module = cupy_on_cpu.CupyOnCpu(tmp_path_factory.mktemp("kernels"))
        patch.setitem(sys.modules, "cupy", module)
        # a real CuPy loads this when it is looked at, as Hypothesis does; and would ask `module`
        patch.setitem(sys.modules, "cupyx", ModuleType("cupyx"))
        yield Gpu(module)


def drawn(seed, n, d, d_v, dtype="float64"):
    """Return keys and values in clusters, so that buckets hold some."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(n // 7, 1), d))
    key = centres[rng.integers(len(centres), size=n)] + 0.3 * rng.standard_normal((n, d))
    return key.astype(dtype), rng.standard_normal((n, d_v)).astype(dtype)


# --------------------------------------------------------------------------- the compiler of CUDA


def test_nvrtc_compiles_the_kernels():
    usage = nvrtc.compile_all(_cuda.KERNELS, _cuda.TEMPLATES)
    assert max(registers for registers, _ in usage) <= 128  # 512 threads fit a multiprocessor


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for make in (lambda: CudaIndex(2), lambda: CudaHash(SimHash.init(0, 3))):
        with pytest.raises(ImportError, match=r"pip install 'attnbook\[gpu-cuda13\]'"):
            make()


# --------------------------------------------------------------------------------------- hashing


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["sim", "stable", "stable one"])
def test_signatures(gpu, kind, dtype):
    n, d, n_tables = 103, 13, 3
    key = drawn(1, n, d, 1, dtype)[0]
    if kind == "sim":
        hash = SimHash.init(2, d, n_tables, 63)
    else:
        hash = StableHash.init(2, d, 0.7, n_tables, 1 if "one" in kind else 5)
    ours = gpu.host(CudaHash(hash, dtype).signatures(gpu.to(key)))
    assert ours.dtype == np.int64
    theirs = hash.signatures(key.astype(np.float64))
    # where no projection is within rounding of the end of an interval, or of a plane
    along = np.einsum("nd,tkd->ntk", key.astype(np.float64), hash.directions)
    if kind != "sim":
        along = (along + hash.offsets) / hash.width
    clear = np.abs(along - np.round(along)) if kind != "sim" else np.abs(along)
    clear = np.all(clear > (1e-9 if dtype == "float64" else 1e-4), axis=-1)
    assert np.mean(clear) > 0.9
    np.testing.assert_array_equal(ours[clear], theirs[clear])


def test_hash_is_taken_from_any_library(gpu):
    torch = pytest.importorskip("torch")
    key = drawn(1, 19, 5, 1, "float32")[0]
    hash = SimHash.init(2, 5, 2, 7)
    moved = hash.to("torch", dtype="float32")
    assert isinstance(moved.directions, torch.Tensor)
    ours = (CudaHash(h).signatures(gpu.to(key)) for h in (hash, moved))
    np.testing.assert_array_equal(*map(gpu.host, ours))


def test_signatures_in_parts(gpu, monkeypatch):
    key = gpu.to(drawn(1, 29, 5, 1, "float32")[0])
    hash = CudaHash(StableHash.init(2, 5, 0.7, 3, 2))
    whole = hash.signatures(key)
    monkeypatch.setattr(_cuda, "POINTS_AT_ONCE", 7)
    np.testing.assert_array_equal(*(gpu.host(x) for x in (hash.signatures(key), whole)))
    assert hash.signatures(key[:0]).shape == (0, 3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("kind", ["sim", "stable"])
def test_points_without_signature(gpu, kind, wrong):
    hash = SimHash.init(2, 5) if kind == "sim" else StableHash.init(2, 5, 1e-3)
    key = drawn(1, 7, 5, 1, "float32")[0]
    key[3] = wrong
    if kind == "sim" and wrong == 3e38:
        key[3] = [3e38, 3e38, -3e38, 3e38, 3e38]  # the sum of products overflows
    with pytest.raises(ValueError, match=r"x must be finite and within 2\*\*62 widths of 0"):
        CudaHash(hash).signatures(gpu.to(key))


def test_hash_errors(gpu):
    hash = SimHash.init(2, 5)
    with pytest.raises(TypeError, match="hash must be a SimHash or StableHash, got int"):
        CudaHash(3)
    with pytest.raises(TypeError, match=r"dtype must have a dtype among float16, .*, got int8"):
        CudaHash(hash, "int8")
    ours = CudaHash(hash)
    with pytest.raises(TypeError, match="x must be a CuPy array, got ndarray"):
        ours.signatures(np.zeros((3, 5), dtype=np.float32))
    with pytest.raises(ValueError, match=r"x must have shape \(n, 5\), got \(3, 4\)"):
        ours.signatures(gpu.to(np.zeros((3, 4)), "float32"))
    with pytest.raises(TypeError, match=r"x must have a dtype among float16, .*, got int64"):
        ours.signatures(gpu.to(np.zeros((3, 5)), "int64"))
    with pytest.raises(TypeError, match="the hash was made for, float32, got float64"):
        ours.signatures(gpu.to(np.zeros((3, 5))))


# ----------------------------------------------------------------------------------------- index

SIGNATURES = {
    "none": np.zeros((0, 3)),
    "one": [[5, -5, 0]],
    "equal": np.full((211, 2), -7),
    "distinct": np.random.default_rng(0).permutation(503 * 2).reshape(503, 2) - 500,
    "some": np.random.default_rng(1).integers(-20, 20, size=(307, 3)),
    "extreme": [[INT64.min, INT64.max], [INT64.max, INT64.min], [0, -1], [INT64.min, INT64.max]],
    "few slots": np.arange(6)[:, None],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_build(gpu, name):
    signatures = np.array(SIGNATURES[name], dtype=np.int64)
    index = gpu.index(signatures, seed=3)
    index.merge()
    n, n_tables = signatures.shape
    order, slots, slot_starts, mixer = (
        gpu.host(x) for x in (index.order, index.slots, index.slot_starts, index.mixer)
    )
    assert order.dtype == np.int32
    assert index.n == n
    _, expected, expected_starts, *_ = build_tables(signatures, mixer)
    np.testing.assert_array_equal(slot_starts, expected_starts)
    # entries of one home may stand in another order, but all are as far from home
    np.testing.assert_array_equal(slots[:, 2], expected[:, 2])
    for t in range(n_tables):
        table = slots[slot_starts[t] : slot_starts[t + 1]]
        np.testing.assert_array_equal(np.sort(order[t]), np.arange(n))
        distinct = np.unique(signatures[:, t])
        assert np.count_nonzero(table[:, 2] >= 0) == len(distinct)
        for key in distinct:
            start, count = divmod(table[find_slot(table, mixer, key), 1], 2**31)
            bucket = order[t, start : start + count]
            np.testing.assert_array_equal(bucket, np.flatnonzero(signatures[:, t] == key))
        sizes = gpu.host(index.bucket_sizes(t))
        np.testing.assert_array_equal(sizes, np.unique(signatures[:, t], return_counts=True)[1])


def test_build_is_the_same_in_every_order_of_threads(gpu):
    signatures = SIGNATURES["distinct"]
    built = [gpu.index(signatures) for _ in range(8)]
    for index in built:
        index.merge()
        np.testing.assert_array_equal(gpu.host(index.slots), gpu.host(built[0].slots))


def test_crowded_keys_get_another_hash_function(gpu):
    n = 151
    index = gpu.index(np.arange(n)[:, None])
    assert n > displacement_limit(202, 0.75)
    index.mixer = index.mixer * 0  # every key wants slot 0
    index.merge()
    assert gpu.host(index.mixer).any()
    rows, found = index.lookup(gpu.to(np.arange(n)[:, None]))
    np.testing.assert_array_equal(gpu.host(rows)[:, 0, 0], np.arange(n))
    assert gpu.host(found).all()
    # and where the second one is no better, the map is only slow
    index.mixer = index.mixer * 0
    keys, runs = index._cupy.arange(n, dtype=np.int64), [index._cupy.ones(n, dtype=np.int64)] * 2
    assert not index._fill([(keys, *runs)], careful=True)
    assert index._fill([(keys, *runs)], careful=False)
    np.testing.assert_array_equal(gpu.host(index.slots)[:n, 2], np.arange(n))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 13), st.booleans()), max_size=5),
    st.sampled_from((None, 1, 2, 5)),
    st.integers(0, 2**32 - 1),
)
def test_index_as_sorted_index(gpu, n_tables, steps, max_bucket, seed):
    rng = np.random.default_rng(seed)
    ours, theirs = CudaIndex(n_tables), SortedIndex(n_tables)
    for m, remove in steps:
        added = rng.integers(-2, 3, size=(m, n_tables))
        rows = ours.add(gpu.to(added))
        np.testing.assert_array_equal(gpu.host(rows), theirs.add(added))
        if remove and theirs.n:
            gone = rng.permutation(theirs._rows)[: rng.integers(theirs.n + 1)]
            ours.remove(gpu.to(gone))
            theirs.remove(gone)
        asked = rng.integers(-3, 4, size=(7, n_tables))
        counts = ours.counts(gpu.to(asked), max_bucket=max_bucket)
        np.testing.assert_array_equal(gpu.host(counts), theirs.counts(asked, max_bucket))
        for x, y in zip(
            ours.lookup(gpu.to(asked), max_bucket), theirs.lookup(asked, max_bucket), strict=True
        ):
            np.testing.assert_array_equal(gpu.host(x), y)
            assert x.dtype == y.dtype
        assert ours.n == theirs.n
        if theirs._rows is not None:
            np.testing.assert_array_equal(gpu.host(ours.live()), theirs._rows)


def test_signatures_in_any_memory_order(gpu):
    signatures = SIGNATURES["some"]
    asked = np.asfortranarray(signatures[:11])
    index = CudaIndex(3)
    index.add(gpu.cupy.asarray(np.asfortranarray(signatures)))
    rows, found = map(gpu.host, index.lookup(gpu.cupy.asarray(asked)))
    for i in range(11):
        for t in range(3):
            expected = np.flatnonzero(signatures[:, t] == asked[i, t])
            np.testing.assert_array_equal(rows[i, t, found[i, t]], expected)


def test_additions_wait_for_the_next_build(gpu):
    index = gpu.index([[5], [6]])
    index.add(gpu.to(np.zeros((0, 1)), np.int64))
    asked = gpu.to([[5], [6]])
    assert gpu.host(index.counts(asked)).tolist() == [[1], [1]]
    index.remove([1])
    index.add(gpu.to(np.zeros((0, 1)), np.int64))
    assert gpu.host(index.counts(asked)).tolist() == [[1], [0]]


def test_memory_is_counted(gpu):
    index = CudaIndex(2)
    empty = index.memory_bytes
    index.add(gpu.to(SIGNATURES["distinct"], np.int64))
    index.merge()
    n, n_slots = 503, slots_for(503, 0.75)
    more = n * (2 * 8 + 1 + 2 * 4) + 2 * 24 * (n_slots - slots_for(0, 0.75))
    assert index.memory_bytes == empty + more


def test_index_errors(gpu):
    with pytest.raises(ValueError, match="n_tables must be at least 1, got 0"):
        CudaIndex(0)
    index = gpu.index([[1, 2], [3, 4]])
    with pytest.raises(TypeError, match="signatures must be a CuPy array, got ndarray"):
        index.add(np.zeros((1, 2), dtype=np.int64))
    with pytest.raises(TypeError, match="signatures must have dtype int64, got int32"):
        index.add(gpu.to(np.zeros((1, 2)), np.int32))
    with pytest.raises(ValueError, match=r"signatures must have shape \(n, 2\), got \(1, 3\)"):
        index.lookup(gpu.to(np.zeros((1, 3)), np.int64))
    with pytest.raises(ValueError, match="max_bucket must be at least 1, got 0"):
        index.lookup(gpu.to(np.zeros((1, 2)), np.int64), max_bucket=0)
    with pytest.raises(TypeError, match="rows must be"):
        index.remove(gpu.to([0.0]))
    for wrong, named in (([0, 2], 2), ([1, 0, 1], 1)):
        with pytest.raises(ValueError, match=f"each named once, got {named}"):
            index.remove(gpu.to(wrong))
    assert index.n == 2
    with pytest.raises(ValueError, match="each named once, got 0"):
        CudaIndex(2).remove([0])
    index.remove([])
    index.remove([1])
    with pytest.raises(ValueError, match="each named once, got 1"):
        index.remove(gpu.to([1]))
    with pytest.raises(ValueError, match="t must be below the number of tables, 2, got 2"):
        index.bucket_sizes(2)


# --------------------------------------------------------------------------------------- answers


@dataclass(frozen=True)
class Asked:
    """A sketch and queries, on the host in float64 and on the GPU in `dtype`."""

    hash: Any
    query: Any
    key: Any
    value: Any
    signatures: Any  # of the queries
    index: CudaIndex
    key_signatures: Any
    live: Any

    @classmethod
    def of(cls, gpu, kind="sim", *, dtype="float32", n=211, n_q=13, d=13, d_v=37, n_tables=5,
           n_projections=5, removed=0, seed=0):  # fmt: skip
        key, value = drawn(seed, n, d, d_v, dtype)
        rng = np.random.default_rng(seed + 1)
        near = key[rng.integers(n, size=n_q)] if n else np.zeros((n_q, d))
        query = (near + 0.2 * rng.standard_normal((n_q, d))).astype(dtype)
        if kind == "sim":
            hash = SimHash.init(seed, d, n_tables, n_projections)
        else:
            hash = StableHash.init(seed, d, 2.0 * np.sqrt(d), n_tables, n_projections)
        cuda_hash = CudaHash(hash, dtype)
        key_signatures = cuda_hash.signatures(gpu.to(key))
        signatures = cuda_hash.signatures(gpu.to(query))
        index = CudaIndex(n_tables)
        index.add(key_signatures)
        gone = rng.permutation(n)[:removed]
        index.remove(gone)
        return cls(
            *(hash, query, key, value, gpu.host(signatures), index),
            *(gpu.host(key_signatures), np.setdiff1d(np.arange(n), gone)),
        )

    def arrays(self, gpu, dtype=None):
        return [gpu.to(x, dtype) for x in (self.query, self.key, self.value)]

    def exact(self, i, *, scale, estimator="union", max_bucket=None, before=None, above=None,
              allowed=None):  # fmt: skip
        """Return output, mass, largest, expected, best and count for query i, by loops."""
        times = {}
        for t in range(self.signatures.shape[1]):
            same = self.key_signatures[self.live, t] == self.signatures[i, t]
            for row in self.live[same][:max_bucket]:
                times[row] = times.get(row, 0) + 1
        q, key = self.query[i].astype(np.float64), self.key.astype(np.float64)
        kept = {}
        for row in sorted(times):
            score = scale * float(key[row] @ q)
            if (
                (before is None or row < before[i])
                and (above is None or score > above[i])
                and (allowed is None or allowed[row])
            ):
                kept[row] = score
        if not kept:
            zeros = np.zeros(self.value.shape[1])
            return zeros, -np.inf, -np.inf, -np.inf, -1, 0
        rows, scores = np.array(list(kept)), np.array(list(kept.values()))
        chance = self.hash.retrieval_probability(q[None], key[rows])
        factor = {"union": 1, "duplicates": [times[r] for r in rows], "importance": 1 / chance}
        top = scores.max()
        shares = np.exp(scores - top)
        weights = shares * factor[estimator]
        return (
            weights @ self.value.astype(np.float64)[rows] / weights.sum(),
            top + np.log(shares.sum()),
            top,
            top + np.log((shares / chance).sum()),
            rows[scores.argmax()],
            len(rows),
        )

    def check(self, gpu, got, dtype, **options):
        """Compare an answer with the loops; half precision within its own rounding."""
        output, mass, largest, best, count = (
            gpu.host(getattr(got, n)) for n in ("output", "mass", "largest", "best", "count")
        )
        expected = None if got.expected is None else gpu.host(got.expected)
        assert output.dtype == dtype
        wide = "float64" if dtype == "float64" else "float32"
        assert mass.dtype == largest.dtype == wide
        near = EXACT[wide]
        for i in range(len(self.query)):
            exact = self.exact(i, **options)
            np.testing.assert_allclose(output[i], exact[0], rtol=EXACT[dtype], atol=EXACT[dtype])
            np.testing.assert_allclose(mass[i], exact[1], rtol=near, atol=near)
            np.testing.assert_allclose(largest[i], exact[2], rtol=near, atol=near)
            if expected is not None:
                # acos and differences lose digits that the chance has
                np.testing.assert_allclose(expected[i], exact[3], rtol=30 * near, atol=30 * near)
            assert best[i] == exact[4]
            assert count[i] == exact[5]


@pytest.mark.parametrize("n_warps", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["sim", "stable"])
@pytest.mark.parametrize("estimator", _cuda_query.ESTIMATORS)
def test_answer(gpu, estimator, kind, dtype, n_warps, monkeypatch):
    monkeypatch.setattr(_cuda_query, "WARPS", ((2**63, n_warps),))
    asked = Asked.of(gpu, kind, dtype=dtype, n_q=3)
    hash = CudaHash(asked.hash, dtype)
    options = {"scale": 0.3, "estimator": estimator}
    for signatures in (gpu.to(asked.signatures), hash):
        arrays = asked.arrays(gpu)
        got = answer(*arrays, signatures, asked.index, probability=hash, **options)
        asked.check(gpu, got, dtype, **options)
    assert gpu.host(got.count).max() > 10


@pytest.mark.parametrize("d", [1, 31, 32, 97, 259])
@pytest.mark.parametrize("d_v", [0, 1, 33, 300])
def test_answer_for_every_width(gpu, d, d_v):
    asked = Asked.of(gpu, n=67, n_q=2, d=d, d_v=d_v, n_tables=3, n_projections=2)
    got = answer(*asked.arrays(gpu), CudaHash(asked.hash), asked.index, scale=1 / d)
    asked.check(gpu, got, "float32", scale=1 / d)
    assert got.expected is None


@pytest.mark.parametrize("estimator", ["union", "duplicates"])
@pytest.mark.parametrize("n_warps", [1, 4])
@pytest.mark.parametrize("limits", ["max_bucket", "before", "above", "allowed", "removed", "all"])
def test_answer_within_limits(gpu, limits, n_warps, estimator, monkeypatch):
    monkeypatch.setattr(_cuda_query, "WARPS", ((2**63, n_warps),))
    chosen = ("max_bucket", "before", "above", "allowed") if limits == "all" else (limits,)
    n, n_q = 211, 7
    removed = 60 if limits in ("removed", "all") else 0
    # few projections: buckets of more than 32 rows, and most rows in several
    asked = Asked.of(gpu, n_projections=2, n_q=n_q, removed=removed, dtype="float64")
    rng = np.random.default_rng(5)
    options = {
        "max_bucket": 9,
        "before": rng.integers(n + 1, size=n_q),
        "above": rng.standard_normal(n_q),
        "allowed": rng.random(n) < 0.5,
    }
    options = {name: options[name] for name in chosen if name in options}
    moved = {name: x if name == "max_bucket" else gpu.to(x) for name, x in options.items()}
    arrays, signatures = asked.arrays(gpu), gpu.to(asked.signatures)
    got = answer(*arrays, signatures, asked.index, scale=0.5, estimator=estimator, **moved)
    asked.check(gpu, got, "float64", scale=0.5, estimator=estimator, **options)
    free = answer(*arrays, signatures, asked.index, scale=0.5)
    if limits != "removed":
        assert (gpu.host(got.count) < gpu.host(free.count)).any()


def test_answer_with_many_tables(gpu):
    # more tables than lanes, more codes than fit a round of the warps
    asked = Asked.of(gpu, n=67, n_q=2, d=7, d_v=3, n_tables=71, n_projections=9)
    got = answer(*asked.arrays(gpu), CudaHash(asked.hash), asked.index, scale=1.0)
    asked.check(gpu, got, "float32", scale=1.0)


@pytest.mark.parametrize("n_warps", [1, 4])
def test_equal_keys(gpu, n_warps, monkeypatch):
    monkeypatch.setattr(_cuda_query, "WARPS", ((2**63, n_warps),))
    n = 157
    key = np.tile(np.array([1.0, 2.0, 0.5, -1.0, 3.0]), (n, 1))
    value = np.arange(float(n))[:, None]
    index = gpu.index(np.zeros((n, 3), dtype=np.int64))
    for cap, best in ((None, 0), (10, 0)):
        got = answer(
            *(gpu.to(x) for x in (key[:2], key, value, np.zeros((2, 3), dtype=np.int64))),
            *(index,),
            scale=1.0,
            max_bucket=cap,
        )
        seen = cap or n
        np.testing.assert_allclose(gpu.host(got.output), np.full((2, 1), (seen - 1) / 2))
        assert gpu.host(got.count).tolist() == [seen, seen]
        assert gpu.host(got.best).tolist() == [best, best]


def test_nothing_found(gpu):
    for n in (0, 11):
        index = gpu.index(np.zeros((n, 2)))
        zeros = [gpu.to(np.ones(shape), "float32") for shape in ((3, 5), (n, 5), (n, 4))]
        got = answer(*zeros, gpu.to(np.ones((3, 2)), np.int64), index, scale=1.0)
        assert gpu.host(got.output).tolist() == [[0.0] * 4] * 3
        for x in (got.mass, got.largest):
            assert gpu.host(x).tolist() == [-np.inf] * 3
        assert gpu.host(got.count).tolist() == [0] * 3
        assert gpu.host(got.best).tolist() == [-1] * 3


def test_no_queries(gpu):
    index = gpu.index(np.zeros((11, 2)))
    empty = [gpu.to(np.ones(shape), "float32") for shape in ((0, 5), (11, 5), (11, 4))]
    got = answer(*empty, gpu.to(np.ones((0, 2)), np.int64), index, scale=1.0)
    assert got.output.shape == (0, 4)
    assert {x.shape for x in got if x is not None} == {(0, 4), (0,)}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_a_query_without_signature_gets_nan(gpu, wrong):
    asked = Asked.of(gpu, "stable", n_q=3)
    asked.query[1, 2] = wrong
    hash = CudaHash(asked.hash)
    got = answer(*asked.arrays(gpu), hash, asked.index, scale=0.3, probability=hash)
    for x in (got.output, got.mass, got.largest, got.expected):
        numbers = gpu.host(x)
        assert np.isnan(numbers[1]).all()
        assert np.isfinite(numbers[[0, 2]]).all()
    assert gpu.host(got.count)[1] == 0
    assert gpu.host(got.best)[1] == -1


def test_large_scores_and_rare_keys(gpu):
    # far apart scores in either order, and a key that is found against all odds
    for sign in (1, -1):
        key = np.array([[sign * 500.0], [-sign * 500.0], [1.0]], dtype="float32")
        index = gpu.index(np.zeros((3, 2)))
        hash = StableHash.init(0, 1, 1e-3, 2, 9)
        got = answer(
            *(gpu.to(x) for x in (np.ones((1, 1), "float32"), key, key)),
            *(gpu.to(np.zeros((1, 2)), np.int64), index),
            scale=1.0,
            probability=CudaHash(hash),
            estimator="importance",
        )
        np.testing.assert_allclose(gpu.host(got.output), [[500.0]])
        np.testing.assert_allclose(gpu.host(got.mass), [500.0])
        # its chance is below 1e-30
        np.testing.assert_allclose(gpu.host(got.expected), [500 + 30 * np.log(10)], rtol=1e-6)


@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
def test_every_half_number_goes_through_unchanged(gpu, bits, monkeypatch):
    monkeypatch.setitem(_cuda.TYPES, "uint16", f"{bits}, float")
    every = np.arange(2**16, dtype=np.uint16).reshape(128, 512)
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}[bits]
    n = len(every)
    vectors = [gpu.to(np.zeros((n, 2)), np.uint16)] * 2
    index = gpu.index(np.arange(n)[:, None])
    asked = gpu.to(np.arange(n)[:, None], np.int64)
    got = gpu.host(answer(*vectors, gpu.to(every), asked, index, scale=1.0).output)
    is_nan = (every & exponent == exponent) & (every & (0xFFFF ^ exponent ^ 0x8000) > 0)
    zero = every == 0x8000  # sums start at +0
    np.testing.assert_array_equal(got[~is_nan & ~zero], every[~is_nan & ~zero])
    assert (got[is_nan] & exponent == exponent).all()
    # between two numbers: to the nearest, halves to even
    low, high = 0x3F01, 0x3F02
    for shares, nearest in (((1, 1), high), ((3, 1), low), ((1, 3), high)):
        pair = np.repeat(np.array([low, high], dtype=np.uint16), shares)[:, None]
        index = gpu.index(np.zeros((len(pair), 1)))
        zeros = gpu.to(np.zeros((len(pair), 2)), np.uint16)
        asked = gpu.to(np.zeros((1, 1)), np.int64)
        got = answer(zeros[:1], zeros, gpu.to(pair), asked, index, scale=1.0)
        assert gpu.host(got.output) == nearest


def test_places_beyond_32_bits(gpu):
    """Rows far out in arrays of which only the last part is there."""
    d, d_v, n_tables, row = 130, 65, 3, 2**31 - 2
    rng = np.random.default_rng(0)
    last = [rng.standard_normal((1, width)).astype("float32") for width in (d, d_v)]
    index = gpu.index(np.arange(n_tables)[None])
    index.merge()
    index.order = index.order * 0 + row
    held = [gpu.to(last[0]), gpu.to(last[1]), index.stored]

    class Far:
        """Starts `row` rows before the memory that there is."""

        def __init__(self, x):
            before = row * x.shape[1] * x.dtype.itemsize
            self.address = np.uint64((address(x) - before) % 2**64)

    key, value, signatures = map(Far, held)
    seen = {}

    def launch(cupy, name, n_blocks, n_threads, args, shared_bytes=0):
        args = list(args)
        args[1], args[2], args[12] = key.address, value.address, signatures.address
        seen["rows"] = _cuda.launch(cupy, name, n_blocks, n_threads, tuple(args), shared_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cuda_query, "launch", launch)
        query = rng.standard_normal((1, d)).astype("float32")
        asked = gpu.to(np.arange(n_tables)[None], np.int64)
        got = answer(gpu.to(query), *held[:2], asked, index, scale=0.5)
    assert seen
    assert gpu.host(got.count).tolist() == [1]
    assert gpu.host(got.best).tolist() == [row]
    np.testing.assert_allclose(gpu.host(got.output), last[1], rtol=1e-6)
    np.testing.assert_allclose(gpu.host(got.mass), 0.5 * (query @ last[0].T)[0], rtol=1e-5)


def address(x):
    """Return where an array of CuPy, or of its stand-in, begins."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr


def test_answer_errors(gpu):
    asked = Asked.of(gpu, n_q=3)
    query, key, value = asked.arrays(gpu)
    signatures, index, hash = gpu.to(asked.signatures), asked.index, CudaHash(asked.hash)
    for wrong, match in (
        ((asked.query, key, value, signatures), "query must be a CuPy array, got ndarray"),
        ((query[0], key, value, signatures), r"query must have shape \(n_q, d\), got \(13,\)"),
        ((query, key[1:], value, signatures), r"key must have shape \(211, 13\), got"),
        ((query, key, value[1:], signatures), r"value must have shape \(211, d_v\), got"),
        ((query, key.astype("float64"), value, signatures), "key must have the dtype of query"),
        ((query, key, value, signatures[1:]), r"signatures must have shape \(3, 5\), got"),
        ((query.astype("int64"), key, value, signatures), "query must have a dtype among"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            answer(*wrong, index, scale=1.0)
    for options, match in (
        ({"estimator": "mean"}, "estimator must be one of"),
        ({"estimator": "importance"}, "probability must be a hash for estimator 'importance'"),
        ({"probability": asked.hash}, "probability must be a CudaHash, got SimHash"),
        ({"scale": -1.0}, "scale must be finite and at least 0"),
        ({"max_bucket": 0}, "max_bucket must be at least 1, got 0"),
        ({"before": gpu.to([1, 2])}, r"before must have shape \(3,\), got \(2,\)"),
        ({"before": gpu.to([1.0, 2.0, 3.0])}, "before must have dtype int64, got float64"),
        ({"above": gpu.to([1, 2, 3])}, "above must have dtype float32, got int64"),
        ({"allowed": gpu.to([1] * 211)}, "allowed must have dtype bool, got int64"),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            answer(query, key, value, signatures, index, **{"scale": 1.0, **options})
    other = CudaHash(SimHash.init(0, 13, 5, 2))
    with pytest.raises(ValueError, match="probability must be the hash that makes the signatures"):
        answer(query, key, value, hash, index, scale=1.0, probability=other)
    for other in (SimHash.init(0, 12, 5, 2), SimHash.init(0, 13, 4, 2)):
        with pytest.raises(ValueError, match="must be a hash of 5 tables, of width 13"):
            answer(query, key, value, CudaHash(other), index, scale=1.0)
    wide = [gpu.to(np.zeros((n, 7000)), "float32") for n in (3, 211, 211)]
    with pytest.raises(ValueError, match="narrow enough for 6144 numbers of shared memory, got"):
        answer(*wide, signatures, index, scale=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "importance"},
        {"estimator": "duplicates", "max_bucket": 5},
        {"tail": "moments", "n_heavy": 7},
        {"tail": "uniform"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
@pytest.mark.parametrize("kind", ["sim", "stable"])
def test_sketch_attention_as_reference(gpu, kind, options, monkeypatch):
    if isinstance(gpu.cupy, cupy_on_cpu.CupyOnCpu):
        # the layers above take any library, here NumPy
        plain = cupy_on_cpu.CupyOnCpu(gpu.cupy.folder, ndarray=np.ndarray)
        monkeypatch.setitem(sys.modules, "cupy", plain)
        monkeypatch.setattr(Cupy, "library", "numpy")
    key, value = drawn(3, 97, 11, 7)
    query = key[:5] + 0.1 * np.random.default_rng(4).standard_normal((5, 11))
    hash = SimHash.init(0, 11, 5, 4) if kind == "sim" else StableHash.init(0, 11, 8.0, 5, 3)
    answers = []
    for impl, move in (("reference", np.asarray), ("cupy", sys.modules["cupy"].asarray)):
        sketch = SketchAttention(hash.to("numpy"), impl=impl, **options)
        if impl == "cupy" and not isinstance(gpu.cupy, cupy_on_cpu.CupyOnCpu):
            sketch = SketchAttention(hash.to("cupy"), impl=impl, **options)
        for part in (slice(60), slice(60, None)):
            sketch.update(move(key[part]), move(value[part]))
        sketch.remove([3, 70])
        output, evidence = sketch.attention_output(move(query), return_evidence=True)
        names = ("candidates", "found_probability", "missed_mass", "bound")
        answers.append([output, *(getattr(evidence, name) for name in names)])
    for ours, theirs in zip(*reversed(answers), strict=True):
        np.testing.assert_allclose(gpu.host(ours), theirs, rtol=1e-7, atol=1e-9)


def test_names_taken_from_cupy_are_there(tmp_path):
    """The stand-in has no function that CuPy lacks."""
    if PathFinder.find_spec("cupy") is None:
        pytest.skip("cupy is not installed")
    cupy_on_cpu.compiler()
    with pytest.MonkeyPatch.context() as patch:
        module = cupy_on_cpu.CupyOnCpu(tmp_path)
        patch.setitem(sys.modules, "cupy", module)
        gpu = Gpu(module)
        asked = Asked.of(gpu, n=11, removed=3)
        answer(*asked.arrays(gpu), gpu.to(asked.signatures), asked.index, scale=1.0)
        asked.index.lookup(gpu.to(asked.signatures))
        asked.index.bucket_sizes(0)
        asked.index.live()
    code = "import sys, cupy; sys.exit([n for n in sys.argv[1:] if not hasattr(cupy, n)] or 0)"
    subprocess.run([sys.executable, "-c", code, *sorted(module.asked)], check=True)
