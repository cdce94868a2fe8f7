"""What only the CUDA side of the sketches has: its hash, its kernel's own hashing, its limits.

Each test runs twice: with the kernels compiled for the CPU (see cupy_on_cpu.py), and on a GPU
where there is one (`pytest -m gpu`). What only a GPU can show is that the compiler of its maker
builds the same source (tested here by NVRTC, which needs no GPU) and that it runs there.
"""

import subprocess
import sys
from importlib.machinery import PathFinder

import cupy_on_cpu
import numpy as np
import nvrtc
import pytest
from sketch_gpu import Gpu
from slow_sketch import buckets, mix, union

from attnbook.hashing import SimHash, StableHash
from attnbook.sketch import SketchAttention, cuda_hash, cuda_query
from attnbook.sketch.cuda_hash import CudaHash
from attnbook.sketch.cuda_index import CudaIndex
from attnbook.sketch.cuda_query import Prepared


@pytest.fixture
def counted(gpu):
    """The stand-in, which counts what a GPU would have to do and how often the host would wait."""
    if not gpu.stands_in:
        pytest.skip("the stand-in counts")
    return gpu


def drawn(seed, n, d, d_v, dtype="float64"):
    """Return keys and values in clusters, so that buckets hold some."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(n // 7, 1), d))
    key = centres[rng.integers(len(centres), size=n)] + 0.3 * rng.standard_normal((n, d))
    return key.astype(dtype), rng.standard_normal((n, d_v)).astype(dtype)


def test_nvrtc_compiles_the_kernels():
    usage = nvrtc.compile_all(cuda_hash.KERNELS, cuda_hash.TEMPLATES)
    assert len(usage) == 9
    assert max(registers for registers, _ in usage) <= 128  # 512 threads fit a multiprocessor
    # a block of an H100 has 227 KiB
    assert max(shared for _, shared in usage) + 8 * cuda_query.MOST_SHARED <= 227 * 1024


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for make in (lambda: CudaIndex(2), lambda: CudaHash(SimHash.init(0, 3))):
        with pytest.raises(ImportError, match=r"pip install 'cupy-cuda13x\[ctk\]'"):
            make()


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
    monkeypatch.setattr(cuda_hash, "POINTS_AT_ONCE", 7)
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
    with pytest.raises(TypeError, match=r"x must have dtype float16 or .*, got int64"):
        ours.signatures(gpu.to(np.zeros((3, 5)), "int64"))
    with pytest.raises(TypeError, match="the hash was made for, float32, got float64"):
        ours.signatures(gpu.to(np.zeros((3, 5))))


def asked_of(gpu, kind="sim", *, dtype="float32", n=211, n_q=3, d=13, d_v=37, n_tables=5,
             n_projections=5, seed=0):  # fmt: skip
    """Return a hash, and the same for the GPU; query, key and value there; an index of the keys."""
    key, value = drawn(seed, n, d, d_v, dtype)
    query = key[:n_q] + np.asarray(0.1, dtype)
    if kind == "sim":
        hash = SimHash.init(seed, d, n_tables, n_projections)
    else:
        hash = StableHash.init(seed, d, 2.0 * np.sqrt(d), n_tables, n_projections)
    on_gpu = CudaHash(hash, dtype)
    index = CudaIndex(n_tables)
    index.add(on_gpu.signatures(gpu.to(key)))
    return hash, on_gpu, [gpu.to(x) for x in (query, key, value)], index


SMALL = {"dtype": "float32", "n": 67, "n_tables": 3, "n_projections": 2}
WIDTHS = [(1, 300), (31, 1), (32, 0), (97, 33), (259, 300), (300, 1)]
ESTIMATORS = ("union", "duplicates", "importance")
CASES = [
    *({"estimator": name} for name in ESTIMATORS),
    {"n_warps": 1, "n_q": 67, "n": 311},
    *({"n_warps": n, "dtype": dtype} for n in (1, 4, 16) for dtype in ("float16", "float32")),
    # more tables than lanes
    {"n_tables": 71, "n_projections": 9, "d": 7, "d_v": 3, "dtype": "float32"},
    *({**SMALL, "d": d, "d_v": d_v} for d, d_v in WIDTHS),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("kind", ["sim", "stable"])
def test_one_launch_answers_as_a_loop(gpu, kind, case, monkeypatch):
    """Once the kernel hashes the queries, and once it is told their signatures."""
    case = {"dtype": "float64", "n_warps": 16, "estimator": "union"} | case
    monkeypatch.setattr(cuda_query, "WARPS", ((2**63, case.pop("n_warps")),))
    options = {"estimator": case.pop("estimator"), "scale": 0.3}
    hash, on_gpu, arrays, index = asked_of(gpu, kind, **case)
    asked, stored = (on_gpu.signatures(x) for x in arrays[:2])
    tables = buckets(gpu.host(asked), gpu.host(stored))
    wanted = []
    query, key, value = (gpu.host(x).astype(np.float64) for x in arrays)
    for q, own in zip(query, tables, strict=True):
        chance = hash.retrieval_probability(q[None], key)
        wanted.append(mix(options["estimator"], own, 0.3 * (key @ q), value, chance))
    prepared = Prepared(on_gpu, *arrays[1:], index.tables, **options)
    told, hashed = prepared.ask(arrays[0], asked, weigh=True), prepared.ask(arrays[0])
    close = {"float16": 3e-3, "float32": 3e-5, "float64": 1e-11}[case["dtype"]]
    if options["estimator"] == "importance":
        close = 1e-7  # acos loses half of the digits near 0
    counts = [len(union(own)) for own in tables]
    for found in (told, hashed):
        np.testing.assert_allclose(gpu.host(found.output), wanted, rtol=close, atol=close)
        assert gpu.host(found.count).tolist() == counts
    assert min(counts) > 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_a_query_without_signature_is_told(gpu, wrong):
    _, hash, (query, key, value), index = asked_of(gpu, "stable")
    query = gpu.host(query)
    query[1, 2] = wrong
    prepared = Prepared(hash, key, value, index.tables, scale=0.3)
    assert prepared.ask(gpu.to(query)) is None
    assert prepared.output(gpu.to(query)) is None
    assert prepared.output(gpu.to(query[:1])).shape == (1, 37)


def test_large_scores_and_rare_keys(gpu):
    # far apart scores in either order, and a key that is found against all odds
    for sign in (1, -1):
        key = np.array([[sign * 500.0], [-sign * 500.0], [1.0]], dtype="float32")
        index = gpu.index(np.zeros((3, 2)))
        hash = StableHash.init(0, 1, 1e-3, 2, 9)
        query, key = (gpu.to(x) for x in (np.ones((1, 1), "float32"), key))
        prepared = Prepared(
            CudaHash(hash), key, key, index.tables, scale=1.0, estimator="importance"
        )
        got = prepared.ask(query, gpu.to(np.zeros((1, 2)), np.int64))
        np.testing.assert_allclose(gpu.host(got.output), [[500.0]])
        np.testing.assert_allclose(gpu.host(got.mass), [500.0])
        # its chance is below 1e-30
        np.testing.assert_allclose(gpu.host(got.expected), [500 + 30 * np.log(10)], rtol=1e-6)


@pytest.mark.parametrize("bits", ["float16", "bfloat16"])
def test_every_half_number_goes_through_unchanged(gpu, bits, monkeypatch):
    monkeypatch.setitem(cuda_hash.TYPES, "uint16", f"{bits}, float")
    every = np.arange(2**16, dtype=np.uint16).reshape(128, 512)
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}[bits]
    n = len(every)
    zeros = gpu.to(np.zeros((n, 2)), np.uint16)
    index = gpu.index(np.arange(n)[:, None])
    asked = gpu.to(np.arange(n)[:, None], np.int64)
    prepared = Prepared(None, zeros, gpu.to(every), index.tables, scale=1.0)
    got = gpu.host(prepared.ask(zeros, asked).output)
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
        prepared = Prepared(None, zeros, gpu.to(pair), index.tables, scale=1.0)
        got = prepared.ask(zeros[:1], asked)
        assert gpu.host(got.output) == nearest


def test_places_beyond_32_bits(gpu):
    """Rows far out in arrays of which only the last part is there."""
    d, d_v, n_tables, row = 130, 65, 3, 2**31 - 2
    rng = np.random.default_rng(0)
    last = [rng.standard_normal((1, width)).astype("float32") for width in (d, d_v)]
    index = gpu.index(np.arange(n_tables)[None])
    tables = index.tables._replace(entries=index.tables.entries + np.uint64(row))
    tables.entries[:, 0] = index.tables.entries[:, 0]
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
        seen["rows"] = cuda_hash.launch(cupy, name, n_blocks, n_threads, tuple(args), shared_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_query, "launch", launch)
        query = rng.standard_normal((1, d)).astype("float32")
        asked = gpu.to(np.arange(n_tables)[None], np.int64)
        prepared = Prepared(None, *held[:2], tables, scale=0.5)
        got = prepared.ask(gpu.to(query), asked)
    assert seen
    assert gpu.host(got.count).tolist() == [1]
    assert gpu.host(got.best).tolist() == [row]
    np.testing.assert_allclose(gpu.host(got.output), last[1], rtol=1e-6)
    np.testing.assert_allclose(gpu.host(got.mass), 0.5 * (query @ last[0].T)[0], rtol=1e-5)


def address(x):
    """Return where an array of CuPy, or of its stand-in, begins."""
    return x.data.ptr


def test_vectors_that_are_too_wide(gpu):
    _, hash, (query, *_), index = asked_of(gpu)
    wide = [gpu.to(np.zeros((n, 7000)), "float32") for n in (3, 211, 211)]
    prepared = Prepared(None, *wide[1:], index.tables, scale=1.0)
    with pytest.raises(ValueError, match="narrow enough for 6144 numbers of shared memory, got"):
        prepared.ask(wide[0], hash.signatures(query))


# Launches, waits and graphs


def made(gpu, n=97, n_q=7, n_tables=5, dtype="float32", d=11, d_v=7, **options):
    """Return a sketch on the GPU, and queries, keys and values there."""
    key, value = drawn(3, n, d, d_v, dtype)
    query = key[:n_q] + np.asarray(0.1, dtype)
    hash = StableHash.init(0, d, 8.0, n_tables, 3)
    sketch = SketchAttention(hash, impl="cupy", **options)
    return sketch, *(gpu.to(x) for x in (query, key, value))


def reference(gpu, sketch, query):
    """Return the answer of the plain functions on NumPy arrays."""
    state, settings = sketch.state, sketch.state.settings
    plain = SketchAttention(sketch.hash, estimator=settings.estimator)
    plain.update(gpu.host(state.key.array()), gpu.host(state.value.array()))
    gone = np.setdiff1d(np.arange(state.key.n), gpu.host(state.index.live()))
    plain.remove(gone)
    return plain.attention_output(gpu.host(query))


@pytest.mark.parametrize("n_tables", [1, 5])
def test_launches_and_waits(counted, n_tables):
    """A GPU needs some microseconds for each."""
    sketch, query, key, value = made(counted, n_tables=n_tables)
    with cupy_on_cpu.watched() as traffic:
        sketch.update(key)
    on_the_gpu = [name for name in traffic.work if name != "asarray"]  # the hash is copied once
    hashing = ["matmul", "signatures_of<float>"]
    assert on_the_gpu == [*hashing, "concatenate", "ones", "concatenate", "arange"]
    assert traffic.waits == 1  # to know whether the keys are finite
    with cupy_on_cpu.watched() as traffic:
        sketch.merge()
    assert traffic.work == ["zeros", "scramble", "argsort", "fill_tables"]
    assert traffic.waits == 0
    for n_q in (1, 7, 7):
        with cupy_on_cpu.watched() as traffic:
            output = sketch.attention_output(query[:n_q])
        assert (traffic.work, traffic.waits) == (["attend<float, float>"], 1)
        wanted = reference(counted, sketch, query[:n_q])
        np.testing.assert_allclose(counted.host(output), wanted, rtol=1e-5, atol=1e-5)
    with cupy_on_cpu.watched() as traffic:
        sketch.merge()
    assert (traffic.work, traffic.waits) == ([], 0)  # all is in place
    sketch, _, key, value = made(counted)
    with cupy_on_cpu.watched() as traffic:
        sketch.update(key, value)
    assert traffic.waits == 2  # values are not hashed, so they are looked through


def test_keys_and_queries_without_hash_are_named(gpu):
    sketch, query, key, value = made(gpu)
    for wrong, message in (
        (np.nan, "must be finite, got NaN or infinity"),
        (1e30, r"x must be finite and within 2\*\*62 widths of 0 along every direction"),
    ):
        bad = gpu.host(key).copy()
        bad[2, 3] = wrong
        with pytest.raises(ValueError, match=message):
            sketch.update(gpu.to(bad))
        assert len(sketch) == 0
        with pytest.raises(ValueError, match=message):
            sketch.update(gpu.to(bad), value)
    bad = gpu.host(value).copy()
    bad[2, 3] = np.inf
    with pytest.raises(ValueError, match="value must be finite"):
        sketch.update(key, gpu.to(bad))
    sketch.update(key, value)
    bad = gpu.host(query).copy()
    bad[2, 3] = np.nan
    for ask in (sketch.attention_output, sketch.query):
        with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
            ask(gpu.to(bad))


def test_names_taken_from_cupy_are_there():
    """The stand-in has no function that CuPy lacks."""
    if PathFinder.find_spec("cupy") is None:
        pytest.skip("cupy is not installed")
    cupy_on_cpu.compiler()
    with cupy_on_cpu.installed(module := cupy_on_cpu.CupyOnCpu()):
        gpu = Gpu(module)
        _, hash, arrays, index = asked_of(gpu, n=11)
        index.remove([3, 4])
        sketch = SketchAttention(SimHash.init(0, 13), impl="cupy")
        sketch.update(arrays[1])
        sketch.attention_output(arrays[0])
        index.lookup(hash.signatures(arrays[0]))
        index.bucket_sizes(0)
        index.signatures()
    code = "import sys, cupy, operator; operator.attrgetter(*sys.argv[1:])(cupy)"
    subprocess.run([sys.executable, "-c", code, *sorted(module.asked)], check=True)
