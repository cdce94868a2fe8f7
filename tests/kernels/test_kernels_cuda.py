"""What the CUDA rung alone can get wrong: memory, widths, split keys, and NVIDIA's compiler.

What every rung must do is in test_kernels.py. Each test runs twice: with the kernels compiled for
the CPU (see cupy_on_cpu.py), and on a GPU where there is one (`pytest -m gpu`). That NVIDIA's
compiler takes the same source, without a spill, is tested here too; it needs no GPU.
"""

import subprocess
import sys
from importlib.machinery import PathFinder

import cupy_on_cpu
import formula
import numpy as np
import nvrtc
import pytest
from cases import close, need_gpu

import attnbook
from attnbook.compilers import cuda
from attnbook.compilers.cuda import Source
from attnbook.masking import Causal, Chunks, Documents, FirstKeys, SlidingWindow

FILES = ("compilers/numbers.cu", "kernels/cuda/layout.cu")
TILED = Source((*FILES, "kernels/cuda/tiled.cu"))


def drawn(seed, leading, n_q, n_k, d_k, d_v, dtype="float32"):
    """Return query, key and value of normal numbers."""
    rng = np.random.default_rng(seed)
    shapes = ((*leading, n_q, d_k), (*leading, n_k, d_k), (*leading, n_k, d_v))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(query, key, value, mask=None, bias=None, scale=0.5, is_causal=False):
    """Return the output in float64."""
    arrays = [None if x is None else x.copy() for x in (query, key, value, mask, bias)]
    return formula.exact(*arrays, scale, is_causal)[0]


def run(gpu, query, key, value, mask=None, bias=None, is_causal=False):
    """Return the numbers of the output for arrays of NumPy."""
    arrays = [None if x is None else gpu.array(x) for x in (query, key, value, mask, bias)]
    return gpu.numpy(gpu.modules["cupy_tiled"].attention(*arrays, 0.5, is_causal))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "sizes",  # n_q, n_k, d_k, d_v
    [(71, 29, 64, 64), (67, 131, 33, 7), (5, 71, 65, 3), (11, 67, 3, 127), (3, 5, 129, 2)],
    ids=str,
)
def test_every_width(gpu, sizes, is_causal):
    arrays = drawn(0, (), *sizes)
    got = run(gpu, *arrays, is_causal=is_causal)
    close(got, exact(*arrays, is_causal=is_causal), "float32")


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
@pytest.mark.parametrize(("rule", "n_blocks"), [("", 3), (", true", 2)], ids=["mask", "rule"])
def test_nvrtc_compiles_the_tiled_kernel(dtype, rule, n_blocks):
    names = (f"attend<{dtype}, 64, 8, 4{rule}>", "merge<float>")
    registers, shared = map(max, zip(*nvrtc.compile_all(TILED, names), strict=True))
    assert shared == 0  # all of it is asked for at the launch
    assert 128 * registers * n_blocks <= 65_536  # so many blocks on a multiprocessor


@pytest.mark.parametrize("d", [8, 3])
def test_arrays_in_any_memory_order(gpu, d):
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
        got = gpu.modules["cupy_tiled"].attention(*moved, 0.5, False)
        assert got.flags.c_contiguous
        close(gpu.numpy(got), exact(*arrays, mask[:, :n_k], bias[:, :n_k]), "float32")


@pytest.mark.parametrize(("left", "more"), [(4, 8), (5, 8), (4, 9)], ids=["whole", "off", "rows"])
def test_nothing_around_the_arrays_counts(gpu, left, more):
    """Not the rows after the last one, and not the features beside the ones that are asked for."""
    places = []
    for x in drawn(22, (), 5, 67, 12, 8):
        n, d = x.shape
        around = np.full((n + 130, d + more), np.nan, dtype="float32")
        places.append(around[4 : n + 4, left : d + left])
        places[-1][:] = x
    moved = [as_it_lies(gpu, x) for x in places]
    got = gpu.numpy(gpu.modules["cupy_tiled"].attention(*moved, None, None, 0.5, True))
    close(got, exact(*places, is_causal=True), "float32")


def as_it_lies(gpu, x):
    """Move an array with its strides: the same view of the same numbers."""
    base = x
    while base.base is not None:
        base = base.base
    flat = base.ravel(order="K")
    offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    moved = gpu.array(flat)[offset // x.itemsize :]
    return gpu.cupy.ndarray(x.shape, x.dtype, moved.data, strides=x.strides)


@pytest.mark.parametrize("n_q", [5, 67], ids=["few", "many"])
def test_bfloat16(gpu, n_q, monkeypatch):
    """At most twice the error of PyTorch in the same precision."""
    torch = pytest.importorskip("torch")
    arrays = [x * 2 for x in drawn(12, (2,), n_q, 131, 32, 31)]
    bias = drawn(13, (), n_q, 1, 131, 1)[0]
    halves = [torch.from_numpy(x).bfloat16() for x in (*arrays, bias)]
    wide = [x.double().numpy() for x in halves]
    mask = np.random.default_rng(14).random((n_q, 131)) < 0.8
    expected = exact(*wide[:3], mask, wide[3], 0.25)
    scores = halves[0] @ halves[1].mT * 0.25 + halves[3]
    plain = torch.softmax(scores.masked_fill(~torch.from_numpy(mask), -torch.inf), -1) @ halves[2]
    # CuPy need not have the type: numbers of its size will do
    monkeypatch.setitem(gpu.modules["arrays"].TYPES, "uint16", "bfloat16")
    *arrays, bias = (gpu.array(x.view(torch.uint16).numpy()) for x in halves)
    got = gpu.modules["cupy_tiled"].attention(*arrays, gpu.array(mask), bias, 0.25, False)
    bits = got.get() if hasattr(got, "get") else np.array(got)
    got = torch.from_numpy(bits.view(np.uint16)).view(torch.bfloat16).double().numpy()
    error, theirs = (np.abs(x - expected).max() for x in (got, plain.double().numpy()))
    assert 0 < error <= 2 * theirs
    close(got, expected, "bfloat16")  # and rounded once


@pytest.mark.parametrize("sizes", [(1, 997, 9, 5), (9, 997, 3, 2), (67, 997, 1, 2)], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_keys_split_among_blocks(gpu, sizes, is_causal, monkeypatch):
    n_q, n_k = sizes[:2]
    arrays = drawn(15, (2,), *sizes)
    mask = np.random.default_rng(16).random((2, n_q, n_k)) < 0.7
    mask[0, 0] = False
    mask[1, :, :400] = False  # whole parts see nothing
    launched = []
    launch = cuda.Source.launch

    def noted(self, cupy, name, n_blocks, *rest):
        launched.append((name, n_blocks))
        return launch(self, cupy, name, n_blocks, *rest)

    monkeypatch.setattr(cuda.Source, "launch", noted)
    expected = exact(*arrays, mask, is_causal=is_causal)
    for n_processors, n_parts in ((0, 1), (5, None), (132, 4)):
        monkeypatch.setattr(
            gpu.modules["cupy_tiled"], "_n_processors", lambda *_, n=n_processors: n
        )
        launched.clear()
        got = run(gpu, *arrays, mask, is_causal=is_causal)
        n_tiles = 2 * -(-n_q // (8 if n_q <= 8 else 64))
        (_, n_blocks), *merged = launched
        if n_parts is not None:
            assert n_blocks == n_parts * n_tiles
            assert len(merged) == (n_parts > 1)
        close(got, expected, "float32")
        np.testing.assert_array_equal(got[0, 0], 0.0)


RULES = (
    Causal() & SlidingWindow(left=9),
    FirstKeys(2) | SlidingWindow(left=70, right=3),
    Documents(np.arange(997) % 3) & Causal(),
    ~(Chunks(150) | FirstKeys([400, 5])),
)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules(gpu, rule, monkeypatch):
    """By many queries and by few, in one part of the keys and in several."""
    for n_q, n_k, n_processors in ((131, 271, 0), (67, 997, 5), (5, 997, 132), (1, 997, 132)):
        monkeypatch.setattr(
            gpu.modules["cupy_tiled"], "_n_processors", lambda *_, n=n_processors: n
        )
        query, key, value = drawn(23, (2, 3), n_q, n_k, 9, 5)
        key, value = key[:, :1], value[:, :1]
        seen, mask = rule.intervals(n_q, n_k), rule.dense(n_q, n_k)
        if rule.leading:
            seen, mask = seen.with_axes(1), mask[:, None]
        arrays = [gpu.array(x) for x in (query, key, value)]
        bias = np.linspace(0, 3, n_k, dtype="float32")
        for added in (None, bias):
            moved = None if added is None else gpu.array(added)
            got = gpu.modules["cupy_tiled"].attention(*arrays, seen, moved, 0.5, False)
            close(gpu.numpy(got), exact(query, key, value, mask, added), "float32")


def test_tiles_that_no_query_sees_are_not_read(gpu):
    """A weight of 0 times NaN would be NaN."""
    rule = FirstKeys(3) | (Causal() & SlidingWindow(left=30))
    for n_q in (5, 64):
        query, key, value = drawn(24, (), n_q, 997, 9, 5)
        unread = slice(64, 960 - (64 if n_q > 8 else 0) - 64)  # whole tiles of 64 keys
        key[unread] = value[unread] = np.nan
        arrays = [gpu.array(x) for x in (query, key, value)]
        got = gpu.modules["cupy_tiled"].attention(
            *arrays, rule.intervals(n_q, 997), None, 0.5, False
        )
        assert np.isfinite(gpu.numpy(got)).all()


def test_wide_heads(gpu):
    for d_k, d_v, name, width in ((257, 3, "query", 257), (3, 300, "value", 300)):
        arrays = drawn(19, (), 3, 5, d_k, d_v)
        match = f"{name} must have a width of at most 256 for impl='cupy_tiled', got {width}"
        with pytest.raises(ValueError, match=match):
            run(gpu, *arrays)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_by_name_on_a_gpu(dtype):
    """At sizes where every block of a GPU has something to do, against the reference there."""
    cupy = need_gpu("cupy")
    for n_q, n_k, d in ((1, 100_003, 64), (2053, 2053, 64), (1031, 1537, 128), (257, 259, 256)):
        arrays = [cupy.asarray(x) for x in drawn(20, (3,), n_q, n_k, d, d, dtype)]
        for is_causal in (False, True):
            got = attnbook.attention(*arrays, is_causal=is_causal, impl="cupy_tiled")
            expected = attnbook.attention(
                *(x.astype("float64") for x in arrays), is_causal=is_causal
            )
            close(got.get().astype("float64"), expected.get(), dtype)


def test_names_taken_from_cupy_are_there(gpu):
    """The stand-in has no function that CuPy lacks."""
    if not isinstance(gpu.cupy, cupy_on_cpu.CupyOnCpu) or PathFinder.find_spec("cupy") is None:
        pytest.skip("cupy is not installed, or there is no stand-in for it")
    query, key, value = drawn(21, (), 1, 997, 5, 3)
    moved = gpu.array(query[None]), as_it_lies(gpu, np.asfortranarray(key)), gpu.array(value)
    gpu.modules["cupy_tiled"].attention(*moved, None, None, 1.0, True)
    code = (
        "import sys, cupy\n"
        "missing = [name for name in sys.argv[1:] if not hasattr(cupy, name)]\n"
        "kernel = cupy.RawKernel\n"
        "kernel.max_dynamic_shared_size_bytes, kernel.preferred_shared_memory_carveout\n"
        "sys.exit(missing or 0)"
    )
    subprocess.run([sys.executable, "-c", code, *sorted(gpu.cupy.asked)], check=True)
