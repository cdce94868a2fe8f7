"""The CUDA rungs of the ladder against loops and against PyTorch in the same precision.

Each test runs twice: with the kernels compiled for the CPU (see cupy_on_cpu.py), and on a GPU
where there is one (`pytest -m gpu`). That NVIDIA's compiler takes the same source, without a spill,
is tested here too; it needs no GPU.
"""

import contextlib
import dataclasses
import importlib
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

import cupy_on_cpu
import numpy as np
import nvrtc
import oracle
import pytest
from cases import close
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import kernels
from attnbook.compilers import cuda as _cuda

NAIVE_SOURCE = _cuda.Source(
    ("compilers/numbers.cu", "kernels/cuda/layout.cu", "kernels/cuda/naive.cu")
)
TILED_SOURCE = _cuda.Source(
    ("compilers/numbers.cu", "kernels/cuda/layout.cu", "kernels/cuda/tiled.cu")
)
MODULES = (
    "attnbook.kernels.cuda.arrays",
    "attnbook.kernels.cupy_naive",
    "attnbook.kernels.cupy_tiled",
)

BLOCKS = ("64, 8, 4", "128, 8, 4", "256, 4, 2", "64, 1, 4", "128, 1, 4", "256, 1, 2")
TILED = (
    *(f"attend<float, {block}>" for block in BLOCKS),
    *(f"attend<{half}, 64, {r}, 4>" for half in ("float16", "bfloat16") for r in (1, 8)),
    *(f"merge<{type}>" for type in ("float", "float16", "bfloat16")),
)
NAIVE = tuple(
    f"{kernel}<{type}>"
    for kernel in ("scores", "times_values")
    for type in ("float", "float16", "bfloat16")
)


@contextlib.contextmanager
def imported(cupy):
    """Import the rungs with this CuPy; afterwards all is as before."""
    package = importlib.import_module("attnbook.kernels")
    names = [*MODULES, "cupy"]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules["cupy"] = cupy
    try:
        yield tuple(importlib.import_module(name) for name in MODULES)
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        for name in MODULES:
            short = name.rpartition(".")[2]
            if name in before:
                setattr(package, short, before[name])
            elif hasattr(package, short):
                delattr(package, short)


@dataclass(frozen=True)
class Gpu:
    """CuPy or its stand-in, and the rungs that were imported with it."""

    cupy: Any
    naive: Any
    tiled: Any

    def to(self, x):
        return None if x is None else self.cupy.asarray(x)

    def host(self, x):
        return x.get() if hasattr(x, "get") else np.array(x)

    def attention(self, impl, query, key, value, mask=None, bias=None, scale=0.5, is_causal=False):
        rung = {"naive": self.naive, "tiled": self.tiled}[impl]
        arrays = [self.to(x) for x in (query, key, value, mask, bias)]
        return self.host(rung.attention(*arrays, scale, is_causal))


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request, tmp_path_factory):
    if request.param == "gpu":
        cupy = pytest.importorskip("cupy", reason="cupy is not installed")
        if not cupy.cuda.is_available():
            pytest.skip("cupy sees no CUDA device")
        with imported(cupy) as (_, naive, tiled):
            yield Gpu(cupy, naive, tiled)
        return
    cupy_on_cpu.compiler()  # skips without one
    cupy = cupy_on_cpu.CupyOnCpu(tmp_path_factory.mktemp("kernels"), strided=True)
    with imported(cupy) as (_, naive, tiled), pytest.MonkeyPatch.context() as patch:
        for rung, templates in ((naive, NAIVE), (tiled, TILED)):
            together = dataclasses.replace(rung.KERNELS, together=templates)
            patch.setattr(rung, "KERNELS", together)  # one run of the compiler
        yield Gpu(cupy, naive, tiled)


def drawn(seed, leading, n_q, n_k, d_k, d_v, dtype="float32"):
    """Return query, key and value of normal numbers."""
    rng = np.random.default_rng(seed)
    shapes = ((*leading, n_q, d_k), (*leading, n_k, d_k), (*leading, n_k, d_v))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(query, key, value, mask=None, bias=None, scale=0.5, is_causal=False):
    """Return the output by loops over float64 numbers."""
    n_q, n_k = query.shape[-2], key.shape[-2]
    if is_causal:
        causal = oracle.mask_of(n_q, n_k, lambda place, j: j <= place)
        mask = causal if mask is None else mask & causal
    return oracle.attention(query, key, value, mask, bias, scale)


both = pytest.mark.parametrize("impl", ["naive", "tiled"])


@both
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1),  # n_q, n_k, d_k, d_v
        (3, 7, 5, 2),
        (13, 67, 11, 37),
        (71, 29, 64, 64),
        (67, 131, 33, 7),
        (5, 71, 65, 3),
        (11, 67, 3, 127),
        (3, 5, 129, 2),
        (37, 41, 7, 251),
    ],
    ids=str,
)
def test_output(gpu, impl, sizes, is_causal):
    arrays = drawn(0, (), *sizes)
    got = gpu.attention(impl, *arrays, is_causal=is_causal)
    close(got, exact(*arrays, is_causal=is_causal), "float32")


# --------------------------------------------------------------------------- the compiler of CUDA


def test_nvrtc_compiles_the_naive_kernels():
    usage = nvrtc.compile_all(NAIVE_SOURCE, NAIVE)
    assert max(registers for registers, _ in usage) <= 64


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("attend<float, 64, 8, 4>", 3), ("attend<bfloat16, 64, 8, 4>", 3)],
    ids=["float32", "bfloat16"],
)
def test_nvrtc_compiles_the_tiled_kernel(name, blocks):
    usage = nvrtc.compile_all(TILED_SOURCE, (name, "merge<float>"))
    registers, shared = map(max, zip(*usage, strict=True))
    assert shared == 0  # all of it is asked for at the launch
    assert 128 * registers * blocks <= 65_536  # of a multiprocessor


# ----------------------------------------------------------------------------------- the result


@both
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n_q", [3, 71], ids=["few", "many"])
def test_mask_and_bias(gpu, impl, n_q, is_causal):
    n_k = 67
    arrays = drawn(1, (2,), n_q, n_k, 5, 3)
    rng = np.random.default_rng(2)
    mask = rng.random((2, n_q, n_k)) < 0.6
    mask[0, [0, n_q - 1]] = False  # these see nothing
    mask[1, :, 11:] = False
    bias = rng.standard_normal((2, n_q, n_k)).astype("float32")
    for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        got = gpu.attention(impl, *arrays, **options, is_causal=is_causal)
        close(got, exact(*arrays, **options, is_causal=is_causal), "float32")
        if "mask" in options:
            np.testing.assert_array_equal(got[0, [0, -1]], 0.0)


@both
@pytest.mark.parametrize(
    "shape", [(67,), (1, 67), (13, 1), (1, 1), (3, 1, 13, 67), (2, 1, 67), (3, 2, 1, 1)], ids=str
)
def test_broadcast_mask_and_bias(gpu, impl, shape):
    arrays = drawn(3, (3, 2), 13, 67, 5, 7)
    rng = np.random.default_rng(4)
    mask, bias = rng.random(shape) < 0.5, rng.standard_normal(shape).astype("float32")
    got = gpu.attention(impl, *arrays, mask, bias)
    close(got, exact(*arrays, mask, bias), "float32")


@both
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n_q", [1, 5])
def test_grouped_heads(gpu, impl, n_q, is_causal):
    rng = np.random.default_rng(5)
    shapes = ((2, 2, 3, n_q, 5), (2, 2, 1, 71, 5), (2, 2, 1, 71, 7))
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    expected = exact(*arrays, is_causal=is_causal)
    close(gpu.attention(impl, *arrays, is_causal=is_causal), expected, "float32")
    for shape in ((3, 1, 71), (2, 2, 1, n_q, 71), (2, 1, 3, n_q, 1)):
        mask, bias = rng.random(shape) < 0.5, rng.standard_normal(shape).astype("float32")
        got = gpu.attention(impl, *arrays, mask, bias, is_causal=is_causal)
        close(got, exact(*arrays, mask, bias, is_causal=is_causal), "float32")


@both
def test_leading_axes_broadcast(gpu, impl):
    rng = np.random.default_rng(6)
    for leading in (((3, 1), (2,), ()), ((), (), (3,)), ((1,), (2, 3, 1), (5,)), ((), (2,), (1,))):
        sizes = ((2, 5), (7, 5), (7, 3))
        arrays = [
            rng.standard_normal((*lead, *size)).astype("float32")
            for lead, size in zip(leading, sizes, strict=True)
        ]
        close(gpu.attention(impl, *arrays), exact(*arrays), "float32")


@both
@pytest.mark.parametrize("d", [8, 3])
def test_arrays_in_any_memory_order(gpu, impl, d):
    """Heads beside each other in a row, rows backwards, features apart, places off a float4."""
    rng = np.random.default_rng(7)
    joined = rng.standard_normal((37, 3, 2, d)).astype("float32")  # n, of Q K V, h, d
    query, key, value = joined.transpose(1, 2, 0, 3)
    apart = np.asfortranarray(key)
    shifted = rng.standard_normal(37 * 2 * d + 1).astype("float32")[1:].reshape(2, 37, d)
    mask = (rng.random((37, 37)) < 0.5).T
    bias = rng.standard_normal((37, 74)).astype("float32")[:, ::2]
    for arrays in (
        (query, key, value),
        (query[:, ::-1], key[:, ::-2], value[::-1, ::-2]),
        (query, apart, shifted),
        (shifted, query, value),
    ):
        n_k = arrays[1].shape[-2]
        moved = [as_it_lies(gpu, x) for x in (*arrays, mask[:, :n_k], bias[:, :n_k])]
        rung = {"naive": gpu.naive, "tiled": gpu.tiled}[impl]
        got = rung.attention(*moved, 0.5, False)
        assert got.flags.c_contiguous
        close(gpu.host(got), exact(*arrays, mask[:, :n_k], bias[:, :n_k]), "float32")


@both
@pytest.mark.parametrize(("left", "more"), [(4, 8), (5, 8), (4, 9)], ids=["whole", "off", "rows"])
def test_nothing_around_the_arrays_counts(gpu, impl, left, more):
    """Not the rows after the last one, and not the features beside the ones that are asked for."""
    places = []
    for x in drawn(22, (), 5, 67, 12, 8):
        n, d = x.shape
        around = np.full((n + 130, d + more), np.nan, dtype="float32")
        places.append(around[4 : n + 4, left : d + left])
        places[-1][:] = x
    rung = {"naive": gpu.naive, "tiled": gpu.tiled}[impl]
    moved = [as_it_lies(gpu, x) for x in places]
    got = gpu.host(rung.attention(*moved, None, None, 0.5, True))
    close(got, exact(*places, is_causal=True), "float32")


def as_it_lies(gpu, x):
    """Move an array with its strides: the same view of the same numbers."""
    base = x
    while base.base is not None:
        base = base.base
    flat = base.ravel(order="K")
    offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    moved = gpu.to(flat)[offset // x.itemsize :]
    if isinstance(gpu.cupy, cupy_on_cpu.CupyOnCpu):
        return np.lib.stride_tricks.as_strided(moved, x.shape, x.strides, subok=True)
    return gpu.cupy.ndarray(x.shape, x.dtype, moved.data, strides=x.strides)


@both
@pytest.mark.parametrize(
    "sizes",
    [(0, 3, 5, 2), (3, 0, 5, 2), (3, 5, 0, 2), (3, 5, 2, 0), (0, 0, 0, 0)],
    ids=str,
)
def test_empty(gpu, impl, sizes):
    for leading in ((), (2,), (0,), (2, 0, 3)):
        for is_causal in (False, True):
            arrays = drawn(8, leading, *sizes)
            got = gpu.attention(impl, *arrays, is_causal=is_causal)
            close(got, exact(*arrays, is_causal=is_causal), "float32")


@both
def test_more_queries_than_keys_causal(gpu, impl):
    """The first queries stand before every key: they see nothing."""
    arrays = drawn(9, (), 83, 5, 3, 2)
    got = gpu.attention(impl, *arrays, is_causal=True)
    np.testing.assert_array_equal(got[:78], 0.0)
    close(got, exact(*arrays, is_causal=True), "float32")


@both
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits(gpu, impl, size):
    query, key, value = drawn(10, (), 11, 71, 4, 3)
    query, key = np.ones_like(query), np.zeros_like(key)
    key[:, 0] = np.arange(71) % 7 * size
    got = gpu.attention(impl, query, key, value, scale=1.0)
    close(got, exact(query, key, value, scale=1.0), "float32")
    key[:, 0] = size
    got = gpu.attention(impl, query, key, value, scale=1.0)
    close(got, exact(query, key, value, scale=1.0), "float32")
    # a bias as large, and far apart in either order
    bias = np.where(np.arange(71) == 30, size, 0).astype("float32")
    for order in (slice(None), slice(None, None, -1)):
        got = gpu.attention(impl, query * 0, key, value, None, bias[order])
        close(got, exact(query * 0, key, value, None, bias[order]), "float32")


@both
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_not_a_number(gpu, impl, wrong):
    query, key, value = drawn(11, (), 13, 71, 5, 3)
    query = np.abs(query)
    key[[0, 68]] = wrong
    mask = np.ones((13, 71), dtype=bool)
    mask[3, [0, 68]] = mask[5, 0] = mask[7, 68] = False
    got = gpu.attention(impl, query, key, value, mask)
    expected = exact(query, key, value, mask)
    assert np.isnan(got).all(axis=1).sum() == 12
    close(got, expected, "float32")
    assert np.isnan(gpu.attention(impl, query, key + wrong, value)).all()


@both
@pytest.mark.parametrize("n_q", [5, 67], ids=["few", "many"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(gpu, impl, dtype, n_q, monkeypatch):
    """At most twice the error of PyTorch in the same precision."""
    torch = pytest.importorskip("torch")
    arrays = [x * 2 for x in drawn(12, (2,), n_q, 131, 32, 31)]
    bias = drawn(13, (), n_q, 1, 131, 1)[0]
    halves = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (*arrays, bias)]
    wide = [x.double().numpy() for x in halves]
    mask = np.random.default_rng(14).random((n_q, 131)) < 0.8
    expected = exact(*wide[:3], mask, wide[3], 0.25)
    scores = halves[0] @ halves[1].mT * 0.25 + halves[3]
    plain = torch.softmax(scores.masked_fill(~torch.from_numpy(mask), -torch.inf), -1) @ halves[2]
    bits = [x.view(torch.uint16).numpy() for x in halves]
    if dtype == "bfloat16":  # CuPy need not have the type: numbers of its size will do
        monkeypatch.setitem(importlib.import_module(MODULES[0]).TYPES, "uint16", dtype)
    else:
        bits = [x.view(np.float16) for x in bits]
    got = gpu.attention(impl, *bits[:3], mask, bits[3], 0.25)
    got = torch.from_numpy(got.view(np.uint16)).view(getattr(torch, dtype)).double().numpy()
    error, theirs = (np.abs(x - expected).max() for x in (got, plain.double().numpy()))
    assert 0 < error <= 2 * theirs
    # and rounded once
    close(got, expected, dtype)


@pytest.mark.parametrize("sizes", [(1, 997, 9, 5), (9, 997, 3, 2), (67, 997, 1, 2)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_keys_split_among_blocks(gpu, sizes, is_causal, monkeypatch):
    n_q, n_k = sizes[:2]
    arrays = drawn(15, (2,), *sizes)
    mask = np.random.default_rng(16).random((2, n_q, n_k)) < 0.7
    mask[0, 0] = False
    mask[1, :, :400] = False  # whole parts see nothing
    launched = []
    launch = _cuda.Source.launch

    def noted(self, cupy, name, n_blocks, *rest):
        launched.append((name, n_blocks))
        return launch(self, cupy, name, n_blocks, *rest)

    monkeypatch.setattr(_cuda.Source, "launch", noted)
    expected = exact(*arrays, mask, is_causal=is_causal)
    for n_processors, n_parts in ((0, 1), (5, None), (132, 4)):
        monkeypatch.setattr(gpu.tiled, "_n_processors", lambda *_, n=n_processors: n)
        launched.clear()
        got = gpu.attention("tiled", *arrays, mask, is_causal=is_causal)
        n_tiles = 2 * -(-n_q // (8 if n_q <= 8 else 64))
        (_, n_blocks), *merged = launched
        if n_parts is not None:
            assert n_blocks == n_parts * n_tiles
            assert len(merged) == (n_parts > 1)
        close(got, expected, "float32")
        np.testing.assert_array_equal(got[0, 0], 0.0)


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_same_bits_every_time(gpu, is_causal):
    """Blocks and threads run in another order on every call."""
    for n_q in (1, 71):
        arrays = drawn(17, (2,), n_q, 521, 5, 3)
        for impl in ("naive", "tiled"):
            first, *others = (
                gpu.attention(impl, *arrays, is_causal=is_causal).tobytes() for _ in range(3)
            )
            assert all(other == first for other in others)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sizes(gpu, data):
    n_q, n_k, d_k, d_v = (data.draw(st.integers(0, most)) for most in (20, 140, 9, 9))
    leading = data.draw(st.sampled_from([(), (2,), (1, 3)]))
    arrays = drawn(data.draw(st.integers(0, 99)), leading, n_q, n_k, d_k, d_v)
    rng = np.random.default_rng(18)
    mask = rng.random((n_q, n_k)) < 0.5 if data.draw(st.booleans()) else None
    bias = rng.standard_normal((n_q, n_k)).astype("float32") if data.draw(st.booleans()) else None
    options = {"scale": data.draw(st.sampled_from([0.0, 0.3, 1.0]))}
    options["is_causal"] = data.draw(st.booleans())
    for impl in ("naive", "tiled"):
        got = gpu.attention(impl, *arrays, mask, bias, **options)
        close(got, exact(*arrays, mask, bias, **options), "float32")


def test_wide_heads(gpu):
    for d_k, d_v, name, width in ((257, 3, "query", 257), (3, 300, "value", 300)):
        arrays = drawn(19, (), 3, 5, d_k, d_v)
        match = f"{name} must have a width of at most 256 for impl='cupy_tiled', got {width}"
        with pytest.raises(ValueError, match=match):
            gpu.attention("tiled", *arrays)
        close(gpu.attention("naive", *arrays), exact(*arrays), "float32")


@both
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_by_name_on_a_gpu(impl, dtype):
    """At sizes where every block of a GPU has something to do, against the reference there."""
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("cupy sees no CUDA device")
    for n_q, n_k, d in ((1, 100_003, 64), (2053, 2053, 64), (1031, 1537, 128), (257, 259, 256)):
        arrays = [cupy.asarray(x) for x in drawn(20, (3,), n_q, n_k, d, d, dtype)]
        for is_causal in (False, True):
            got = attnbook.attention(*arrays, is_causal=is_causal, impl=f"cupy_{impl}")
            expected = attnbook.attention(
                *(x.astype("float64") for x in arrays), is_causal=is_causal
            )
            close(got.get().astype("float64"), expected.get(), dtype)


@both
def test_without_cupy(impl, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=r"needs cupy.*pip install 'attnbook\[gpu-cuda13\]'"):
        kernels.KERNELS[f"cupy_{impl}"].load()


def test_names_taken_from_cupy_are_there(gpu):
    """The stand-in has no function that CuPy lacks."""
    if not isinstance(gpu.cupy, cupy_on_cpu.CupyOnCpu) or PathFinder.find_spec("cupy") is None:
        pytest.skip("cupy is not installed, or there is no stand-in for it")
    query, key, value = drawn(21, (), 1, 997, 5, 3)
    moved = gpu.to(query[None]), as_it_lies(gpu, np.asfortranarray(key)), gpu.to(value)
    gpu.tiled.attention(*moved, None, None, 1.0, True)
    code = (
        "import sys, cupy\n"
        "missing = [name for name in sys.argv[1:] if not hasattr(cupy, name)]\n"
        "kernel = cupy.RawKernel\n"
        "kernel.max_dynamic_shared_size_bytes, kernel.preferred_shared_memory_carveout\n"
        "sys.exit(missing or 0)"
    )
    subprocess.run([sys.executable, "-c", code, *sorted(gpu.cupy.asked)], check=True)
