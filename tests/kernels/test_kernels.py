"""The ladder as a set: each rung, in every library it takes, against float64 loops."""

import contextlib
import functools
import importlib
import itertools
import math
import sys
import threading
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import formula
import numpy as np
import oracle
import pytest
import torch
from cases import (
    EPSILON,
    HALF,
    ArrayLibrary,
    Case,
    attention_cases,
    close,
    examples,
    need_gpu,
    register_lanes,
)
from error_table import assert_raises, error_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import kernels

HERE = (("numpy", "cpu"), ("torch", "cpu"), ("array_api_strict", "cpu"))
HERE += (("torch", "cuda"), ("cupy", "cuda"))
ON_CPU = [kernel for kernel in kernels.LADDER if kernel.device != "cuda"]
TRAINABLE = [kernel.name for kernel in ON_CPU if kernel.trainable]
LINEAR = [k.name for k in ON_CPU if k.trainable or kernels.KERNELS.get(k.reference)]
"""Rungs on the CPU whose memory grows with n alone: they have tiles."""

SMALL = {"ROWS": 8, "COLUMNS": 16}
VARIANTS = {
    "packed-numpy": {f"{lanes} lanes": {"lanes": lambda n=lanes: n} for lanes in register_lanes()},
    "tiled-numpy": {"": {}, "small tiles": SMALL},
    "threads-numpy": {"": {}, "small tiles": SMALL},
}
"""What is set in a rung's module: tiles for the registers of a processor; and tiles so small that
small arrays have many."""


@dataclass(frozen=True)
class Rung:
    """A kernel with arrays of one library on one device."""

    kernel: kernels.Kernel
    library: Any
    changes: Any = ()  # of its module

    @property
    def dtypes(self):
        return [d for d in self.library.dtypes if d in (self.kernel.dtypes or self.library.dtypes)]

    @property
    def trainable(self):
        return self.kernel.trainable

    @property
    def sizes(self):
        """Large sizes to run: few in small tiles."""
        if self.changes is SMALL:
            return "high", "decode"
        return tuple(SIZES)

    def __call__(self, *arrays, **options):
        attend = getattr(self.library, "attention", None)  # of the stand-in for CuPy
        if attend is not None:
            return attend(self.kernel.name, *arrays, **options)
        return attnbook.attention(*arrays, **options, impl=self.kernel.name)

    def vjp(self, *arrays, **options):
        return attnbook.attention_vjp(*arrays, **options, impl=self.kernel.name)


def rungs(wanted=lambda kernel, name: True):
    """Return kernels in every library that they take, as parameters of the fixture `rung`."""
    found = []
    for kernel in kernels.LADDER:
        for name, device in HERE:
            fits = name in (kernel.takes or (name,)) and device == (kernel.device or device)
            if not (fits and wanted(kernel, name)):
                continue
            marks = [pytest.mark.gpu] if device == "cuda" else []
            label = f"{kernel.name}-{name}" + ("-cuda" if device == "cuda" else "")
            for variant, changes in VARIANTS.get(label, {"": {}}).items():
                rung = Rung(kernel, ArrayLibrary(name, device), changes)
                own = "-".join(filter(None, (label, variant)))
                found.append(pytest.param(rung, id=own, marks=marks))
        if "cupy" in kernel.takes and wanted(kernel, "cupy"):
            found.append(pytest.param(Rung(kernel, None), id=f"{kernel.name}-stand-in"))
    return found


@pytest.fixture(scope="module", params=rungs())
def rung(request):
    """Each rung that can run here; the others skip and say why."""
    rung = request.param
    if rung.library is None:
        yield replace(rung, library=request.getfixturevalue("stand_in"))
        return
    library = rung.library
    for package in {library.name, rung.kernel.needs} - {""}:
        pytest.importorskip(package, reason=f"{package} is not installed")
    if library.device == "cuda":
        need_gpu(library.name)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in rung.changes.items():
            patch.setattr(f"attnbook.kernels.{rung.kernel.name}.{name}", value)
        if library.name == "array_api_strict":
            strict = importlib.import_module("array_api_strict")
            off = {"boolean_indexing": False, "data_dependent_shapes": False}
            stack.enter_context(strict.ArrayAPIStrictFlags(**off, enabled_extensions=()))
        yield rung


trainable = pytest.mark.parametrize("rung", rungs(lambda k, name: k.trainable), indirect=True)
in_torch = pytest.mark.parametrize(
    "rung", rungs(lambda k, name: k.trainable and name == "torch"), indirect=True
)
on_the_cpu = pytest.mark.parametrize(
    "rung", rungs(lambda k, name: name == "numpy" and k.name in LINEAR), indirect=True
)


# Cases. Sizes are different primes, so that no swapped axis slips through.


def drawn(query, key, value, **options):
    """Return a case of normal numbers in these shapes."""
    rng = np.random.default_rng(5)
    arrays = (rng.standard_normal(shape) for shape in (query, key, value))
    return Case(*arrays, **({"mask": None, "bias": None, "scale": None} | options))


def some(*shape):
    return np.random.default_rng(8).random(shape) < 0.6


def numbers(*shape):
    return np.random.default_rng(9).standard_normal(shape)


def empty_rows(n_q, n_k):
    mask = some(n_q, n_k)
    mask[1] = mask[-1] = False
    return mask


def huge():
    """Return logits of ±10,000: two keys lead each row, 1 apart."""
    query = np.array([[100.0, 0.0], [-100.0, 0.0], [0.0, 100.0]])
    key = np.array([[100.0, 0.0], [99.99, 0.0], [-100.0, 0.5], [0.0, -100.0], [3.0, 100.0]])
    return Case(query, key, numbers(5, 3), None, None, 1.0)


FEW = ((19, 5), (37, 5), (37, 3))
MANY = ((37, 5), (19, 5), (19, 3))
CASES = {
    "fewer queries": (drawn(*FEW), False),
    "more queries": (drawn(*MANY), False),
    "fewer queries, causal": (drawn(*FEW), True),
    "more queries, causal": (drawn(*MANY), True),
    "mask": (drawn(*FEW, mask=some(19, 37)), False),
    "mask with empty rows": (drawn(*FEW, mask=empty_rows(19, 37)), False),
    "mask of keys": (drawn(*FEW, mask=some(37)), False),
    "mask of queries": (drawn(*FEW, mask=some(19, 1)), False),
    "one mask for all": (drawn(*FEW, mask=np.array(False)), False),
    "bias": (drawn(*FEW, bias=numbers(19, 37)), False),
    "bias of keys": (drawn(*FEW, bias=numbers(37)), False),
    "everything": (
        drawn(*FEW, mask=empty_rows(19, 37), bias=numbers(19, 37), scale=0.3),
        True,
    ),
    "everything, more queries": (drawn(*MANY, mask=some(37, 19), bias=numbers(19)), True),
    "grouped heads": (
        drawn(
            *((2, 3, 2, 7, 5), (2, 3, 1, 11, 5), (2, 3, 1, 11, 3)),
            mask=some(2, 1, 1, 1, 11),
            bias=numbers(3, 2, 7, 11),
        ),
        True,
    ),
    "grouped heads, one query": (
        drawn(
            *((2, 3, 2, 1, 5), (2, 3, 1, 29, 5), (2, 3, 1, 29, 3)),
            mask=some(2, 1, 1, 1, 29),
            bias=numbers(3, 2, 1, 29),
        ),
        True,
    ),
    "axes that do not merge": (
        drawn(
            *((2, 1, 2, 1, 7, 5), (1, 2, 1, 3, 5, 5), (1, 2, 1, 3, 5, 3)),
            mask=some(2, 1, 1, 3, 1, 5),
        ),
        False,
    ),
    "leading axes": (
        drawn((2, 1, 7, 5), (3, 11, 5), (5, 1, 1, 11, 2), mask=some(2, 1, 1, 11)),
        False,
    ),
    "wide values": (drawn((5, 3), (7, 3), (7, 17)), False),
    "one feature": (drawn((5, 1), (7, 1), (7, 1)), False),
    "one token": (drawn((1, 3), (1, 3), (1, 2)), True),
    "one query": (drawn((2, 1, 3), (2, 29, 3), (2, 29, 2)), True),
    "no queries": (drawn((2, 0, 3), (2, 5, 3), (2, 5, 7)), True),
    "no keys": (drawn((2, 5, 3), (2, 0, 3), (2, 0, 7)), True),
    "no heads": (drawn((0, 5, 3), (0, 7, 3), (0, 7, 2)), False),
    "no features": (drawn((5, 0), (7, 0), (7, 2), scale=1.0), False),
    "no values": (drawn((5, 3), (7, 3), (7, 0)), False),
    "scale": (drawn(*FEW, scale=2.5), False),
    "scale of 0": (drawn(*FEW, scale=0.0), True),
    "large logits": (huge(), False),
}


@contextlib.contextmanager
def named(*what):
    """Let an error inside of a loop say at which case it came up."""
    try:
        yield
    except Exception as error:
        error.add_note(", ".join(what))
        raise


def seen(case, is_causal):
    """Return the case with the causal mask in its mask."""
    if not is_causal:
        return case
    n_q, n_k = case.query.shape[-2], case.key.shape[-2]
    causal = oracle.mask_of(n_q, n_k, lambda place, j: j <= place)
    return replace(case, mask=causal if case.mask is None else case.mask & causal)


@functools.cache
def expected(name, dtype):
    """Return the exact output for the case as `dtype` rounds it, and the size of its sums."""
    library = ArrayLibrary("torch" if dtype == "bfloat16" else "numpy")
    case = seen(*CASES[name]).rounded(library, dtype)
    return oracle.attention(**vars(case)), size_of(case)


def size_of(case):
    """Return the size of the largest numbers that enter a sum, which bounds what rounding loses."""
    scores = oracle.scores(case.query, case.key, case.mask, case.bias, case.scale)
    score = np.max(np.abs(scores), initial=0, where=np.isfinite(scores))
    return float((1 + score) * np.max(np.abs(case.value), initial=0))


def by_case(wanted=lambda kernel, name: True):
    """Return every kernel with the names of all cases; on a GPU with one.

    There a case takes seconds to compile, and tests run side by side.
    """
    found = []
    for rung in rungs(wanted):
        (kernel,) = rung.values
        for names in [(name,) for name in CASES] if rung.marks else [tuple(CASES)]:
            own = "-".join((rung.id, *(names if rung.marks else ())))
            found.append(pytest.param(kernel, names, id=own, marks=rung.marks))
    return pytest.mark.parametrize(("rung", "names"), found, indirect=["rung"])


@by_case()
def test_every_case(rung, names):
    for name, dtype in itertools.product(names, rung.dtypes):
        case, is_causal = CASES[name]
        with named(name, dtype):
            arrays, options = case.arrays(rung.library, dtype)
            got = rung(*arrays, **options, is_causal=is_causal)
            assert rung.library.same_kind(got, arrays[0])
            exact, size = expected(name, dtype)
            close(rung.library.numpy(got), exact, dtype, size=size)


def test_what_runs_on_a_gpu():
    """No test that compiles kernels for all cases."""
    cases = [test.values for test in by_case().args[1] if test.marks]
    assert {len(names) for _, names in cases} == {1}
    assert {names[0] for _, names in cases} == set(CASES)


@settings(max_examples=examples(12))
@given(attention_cases(), st.booleans())
@example(drawn((5, 3), (5, 3), (5, 2), mask=np.zeros((5, 5), dtype=bool)), True)
def test_any_case(rung, case, is_causal):
    arrays, options = case.arrays(rung.library, "float32")
    got = rung(*arrays, **options, is_causal=is_causal)
    exact = seen(case, is_causal).rounded(rung.library, "float32")
    wanted = oracle.attention(**vars(exact))
    close(rung.library.numpy(got), wanted, "float32", size=size_of(exact))


def test_a_query_that_sees_nothing_gets_exact_zeros(rung):
    case = CASES["more queries, causal"][0]  # the first 18 of 37 queries see none of 19 keys
    for dtype in rung.dtypes:
        output = rung.library.numpy(rung(*case.arrays(rung.library, dtype)[0], is_causal=True))
        assert np.all(output[:18] == 0)
        assert np.all(output[18:] != 0)


def test_nan_and_infinity_stay_in_their_row_and_masked_keys_out(rung):
    library = rung.library
    query = np.array([[1.0], [np.nan], [2.0]])
    value = library.array([[1.0], [1.0]], "float32")
    key = library.array([[1.0], [1.0]], "float32")
    got = library.numpy(rung(library.array(query, "float32"), key, value))
    np.testing.assert_array_equal(got, [[1], [np.nan], [1]])
    key = library.array([[1.0], [np.nan], [np.inf], [2.0]], "float32")
    mask = library.array(np.array([True, False, False, True]))
    value = library.array([[1.0], [5.0], [7.0], [3.0]], "float32")
    got = library.numpy(rung(library.array([[1.0]], "float32"), key, value, mask, scale=1.0))
    share = 1 / (1 + math.e)
    np.testing.assert_allclose(got, [[share + 3 * (1 - share)]], rtol=1e-6)


# Beyond one tile.


def falling(n_k):
    """Return one query that meets its largest scores first, and scores far below 0 after them."""
    key = np.linspace(-1e4, -1.1e4, n_k)[:, None]
    key[:7] = 3.0
    return Case(np.array([[1.0]]), key, numbers(n_k, 3), None, None, 1.0)


BEYOND = {
    "the first tiles are hidden": drawn(
        *((3, 5), (1301, 5), (1301, 3)), mask=np.arange(1301) >= 1153
    ),
    "a tile in the middle is hidden": drawn(
        *((3, 5), (1601, 5), (1601, 3)), mask=(np.arange(1601) < 97) | (np.arange(1601) >= 1409)
    ),
    "the largest scores first": falling(1103),
    "scores far below zero alone": Case(
        np.array([[1.0]]), -1e4 - numbers(11, 1), numbers(11, 3), None, None, 1.0
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_tiles_that_differ_in_what_they_show(rung, name):
    case = BEYOND[name]
    rounded = case.rounded(rung.library, "float32")
    arrays, options = case.arrays(rung.library, "float32")
    got = rung.library.numpy(rung(*arrays, **options))
    close(got, oracle.attention(**vars(rounded)), "float32", size=size_of(rounded))


def large(n_q, n_k, d_k=37, d_v=29, heads=2):
    """Return many scores, of standard deviation 3: no tile size divides either length."""
    rng = np.random.default_rng(n_q)
    shapes = ((heads, n_q, d_k), (1, n_k, d_k), (heads, n_k, d_v))
    arrays = [rng.standard_normal(shape) for shape in shapes]
    mask = rng.random((n_q, n_k)) < 0.9
    mask[n_q // 2] = False
    return Case(3 * arrays[0], *arrays[1:], mask, rng.standard_normal((n_q, n_k)), None)


SIZES = {"wide": (263, 1031), "high": (577, 331), "decode": (1, 4099)}


@functools.cache
def compared(size, is_causal, dtype):
    """Return a large case, its exact output, and the error that PyTorch makes in `dtype`."""
    case = large(*SIZES[size])
    case = case.rounded(ArrayLibrary("torch"), dtype)
    mask = torch.tensor(seen(case, is_causal).mask)
    found = {}
    for precision in ("float64", dtype):
        query, key, value, bias = (
            torch.tensor(x).to(getattr(torch, precision))
            for x in (case.query, case.key, case.value, case.bias)
        )
        output, _ = formula.attention(query, key, value, mask, bias, query.shape[-1] ** -0.5)
        found[precision] = output.double().numpy()
    exact = found["float64"]
    return case, exact, np.abs(found[dtype] - exact).max()


@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("size", SIZES)
def test_the_error_is_at_most_twice_that_of_torch(rung, size, is_causal):
    if size not in rung.sizes:
        pytest.skip("it takes long, and shows nothing more")
    for dtype in rung.dtypes:
        if dtype == "float64":  # what the others are measured by
            continue
        case, exact, error_of_torch = compared(size, is_causal, dtype)
        arrays, options = case.arrays(rung.library, dtype)
        got = rung.library.numpy(rung(*arrays, **options, is_causal=is_causal))
        np.testing.assert_array_equal(got[:, len(got[0]) // 2], 0)
        assert np.abs(got - exact).max() <= 2 * error_of_torch, dtype


def bits(library, x):
    """Return the numbers, exactly; float64 holds those of every dtype."""
    return library.numpy(x).tobytes()


def test_the_same_call_gives_the_same_bits_whatever_the_threads(rung, monkeypatch):
    for size in {"wide", "decode"} & set(rung.sizes):
        case = large(*SIZES[size])
        arrays, options = case.arrays(rung.library, "float32")
        found = set()
        for n_cores in (1, 3, 3):
            monkeypatch.setattr("attnbook.arrays.threads._cores", lambda n=n_cores: n)
            got = [rung(*arrays, **options, is_causal=True)]
            if rung.kernel.trainable:
                got += rung.vjp(*arrays, got[0], **options, is_causal=True)
            found.add(tuple(bits(rung.library, x) for x in got))
        assert len(found) == 1


class Blas:
    """A stand-in for that of the process, of two threads."""

    n_threads = 2

    @contextlib.contextmanager
    def limit(self, limits):
        before, self.n_threads = self.n_threads, limits
        yield
        self.n_threads = before


def test_calls_at_once_leave_the_blas_its_threads(monkeypatch):
    need_rung("threads")
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    threads, x, blas = kernels.KERNELS["threads"].load(), np.ones((3, 2)), Blas()
    both, one_left, turns = threading.Event(), threading.Event(), []

    def work(*_):
        turns.append(blas.n_threads)
        if len(turns) == 2:
            both.set()
            one_left.wait(60)
        both.wait(0.2)  # where calls take turns, nobody comes

    def call():
        attnbook.attention(x, x, x, impl="threads")
        one_left.set()

    monkeypatch.setattr(threads, "_blas", lambda: blas)
    monkeypatch.setattr(threads, "in_parts", work)
    calls = [threading.Thread(target=call) for _ in range(2)]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    assert (turns, blas.n_threads) == ([1, 1], 2)


def test_a_call_within_a_turn_does_not_wait_for_its_end(monkeypatch):
    """As of a handler of a signal, which may also begin a child process."""
    need_rung("threads")
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    threads, x, blas, inner = kernels.KERNELS["threads"].load(), np.ones((3, 2)), Blas(), []

    def work(*_):
        if not inner:
            inner.append(1)
            call()
            inner.append(blas.n_threads)

    def call():
        attnbook.attention(x, x, x, impl="threads")

    monkeypatch.setattr(threads, "_blas", lambda: blas)
    monkeypatch.setattr(threads, "in_parts", work)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert (inner, blas.n_threads) == ([1, 1], 2)


@on_the_cpu
def test_memory_grows_with_the_length_alone(rung):
    if rung.changes is SMALL:
        pytest.skip("so many tiles take long")
    case = drawn((2, 2039, 16), (2, 2039, 16), (2, 2039, 16))
    arrays = case.arrays(rung.library, "float32")[0]
    rung(*arrays)  # what is made once, machine code among it, does not count
    peaks = {}
    for impl in (rung.kernel.name, "naive"):
        tracemalloc.start()
        attnbook.attention(*arrays, impl=impl)
        peaks[impl] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    scores = 4 * 2 * 2039**2
    assert peaks["naive"] > scores
    assert peaks[rung.kernel.name] < scores / 4


# Arrays of every form.


def strided(library, x, dtype):
    """Return `x` as every second number of a larger array, in both of its last axes."""
    wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2] + 1, 3 * x.shape[-1] + 1))
    wide[..., 1::2, 1::3] = x
    return library.array(wide, dtype)[..., 1::2, 1::3]


def transposed(library, x, dtype):
    """Return `x` with its last two axes in the other order in memory."""
    other = library.array(np.ascontiguousarray(np.swapaxes(x, -1, -2)), dtype)
    # the standard has mT alone, and CuPy 13 lacks it
    return other.swapaxes(-1, -2) if hasattr(other, "swapaxes") else other.mT


@pytest.mark.parametrize("form", [strided, transposed])
def test_strides_do_not_matter(rung, form):
    case = drawn((2, 19, 5), (2, 37, 5), (2, 37, 3), mask=some(19, 37), bias=numbers(19, 37))
    arrays, options = case.arrays(rung.library, "float32")
    wanted = rung.library.numpy(rung(*arrays, **options))
    arrays = [form(rung.library, x, "float32") for x in (case.query, case.key, case.value)]
    options["bias"] = form(rung.library, case.bias, "float32")
    mask = form(rung.library, case.mask.astype(float), "float32")
    options["mask"] = mask == 1
    got = rung.library.numpy(rung(*arrays, **options))
    np.testing.assert_allclose(got, wanted, atol=1e-6)  # a BLAS sums a transpose in another order


@pytest.mark.parametrize("impl", [k.name for k in ON_CPU])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_byte_but_0_is_true(impl, order):
    pytest.importorskip(kernels.KERNELS[impl].needs or "numpy")
    mask = np.array([[2, 0]] * 67, np.uint8, order=order).view(bool)
    query, key = np.zeros((67, 3), np.float32), np.zeros((2, 3), np.float32)
    value = np.array([[1], [3]], np.float32)
    output = attnbook.attention(query, key, value, mask, impl=impl)
    np.testing.assert_array_equal(output, np.ones((67, 1)))
    if kernels.KERNELS[impl].trainable:
        grads = attnbook.attention_vjp(query, key, value, output, mask, impl=impl)
        np.testing.assert_array_equal(grads[2], [[67], [0]])


def test_inputs_are_not_written_to(rung):
    case = drawn(*FEW, mask=some(19, 37), bias=numbers(19, 37))
    arrays, options = case.arrays(rung.library, "float32")  # NumPy's are read-only
    everything = [*arrays, options["mask"], options["bias"]]
    before = [bits(rung.library, x) for x in everything]
    output = rung(*arrays, **options)
    if rung.kernel.trainable:
        rung.vjp(*arrays, output, **options)
    assert [bits(rung.library, x) for x in everything] == before


def test_broadcast_views_cost_no_memory():
    # a view of 3,000 heads whose numbers exist once
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal(s).astype(np.float32) for s in ((3, 2), (5, 2), (5, 1))
    )
    wide = np.broadcast_to(query, (3000, 3, 2))
    for kernel in kernels.LADDER:
        if "numpy" in (kernel.takes or ("numpy",)) and (kernel.needs in sys.modules | {"": 0}):
            got = attnbook.attention(wide, key, value, impl=kernel.name)
            np.testing.assert_allclose(got[-1], oracle.attention(query, key, value), rtol=1e-5)


@pytest.mark.parametrize("impl", [k.name for k in ON_CPU])
@pytest.mark.parametrize("dtype", [">f4", ">f2"])
def test_numbers_in_the_byte_order_of_another_processor(impl, dtype):
    pytest.importorskip(kernels.KERNELS[impl].needs or "numpy")
    shapes = ((5, 3), (7, 3), (7, 2), (5, 7))
    *arrays, bias = (numbers(*shape).astype(dtype) for shape in shapes)
    grad_output = numbers(5, 2).astype(dtype)
    calls = [lambda i: [attnbook.attention(*arrays, bias=bias, impl=i)]]
    if kernels.KERNELS[impl].trainable:
        calls.append(lambda i: attnbook.attention_vjp(*arrays, grad_output, bias=bias, impl=i))
    for call in calls:
        for got, wanted in zip(call(impl), call("reference"), strict=True):
            assert got.dtype == wanted.dtype == np.dtype(dtype)
            atol = 4e-6 if dtype == ">f4" else 4e-3
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), atol=atol)


# Gradients.


def leaves_of(case, dtype="float64", device="cpu"):
    """Return query, key and value as leaves of a graph, and the options."""
    arrays, options = case.arrays(ArrayLibrary("torch", device), dtype)
    return [x.requires_grad_() for x in arrays], options


@functools.cache
def exact_gradients(name, dtype):
    """Return grad_output and the gradients by autograd of the reference, in float64."""
    case, is_causal = CASES[name]
    case = case.rounded(ArrayLibrary("torch"), dtype)
    leaves, options = leaves_of(case)
    output = attnbook.attention(*leaves, **options, is_causal=is_causal)
    # rounded to what every dtype holds
    grad_output = np.round(8 * np.random.default_rng(3).standard_normal(output.shape)) / 8
    output.backward(torch.tensor(grad_output))
    return grad_output, [x.grad.numpy() for x in leaves]


@pytest.mark.parametrize("impl", TRAINABLE)
@pytest.mark.parametrize("offset", [-1e4, 1e4, 1e8])
def test_gradients_of_rows_whose_scores_are_all_large(impl, offset):
    pytest.importorskip(kernels.KERNELS[impl].needs or "numpy")
    case = drawn((5, 3), (7, 3), (7, 2))
    q, k, v = (x.astype(np.float32) for x in (case.query, case.key, case.value))
    grad_output = numbers(5, 2).astype(np.float32)
    bias = np.full((5, 7), offset, dtype=np.float32)
    q *= 0  # all weights are 1/7, whatever rounding does to the scores
    exact = attnbook.attention_vjp(q, k, v, grad_output)
    got = attnbook.attention_vjp(q, k, v, grad_output, bias=bias, impl=impl)
    for x, y in zip(got, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-6, atol=3e-6)


def need_rung(impl):
    """Skip where the ladder has no such rung, as in the package that students fill in."""
    if impl not in kernels.KERNELS:
        pytest.skip(f"there is no rung {impl}")


def test_scores_that_leave_no_digits_are_refused_in_the_backward_pass():
    need_rung("packed")
    pytest.importorskip("numba")
    q, k, v = (x.astype(np.float32) for x in (numbers(5, 3), numbers(7, 3), numbers(7, 2)))
    bias = np.full((5, 7), np.finfo(np.float32).min)
    with pytest.raises(
        ValueError, match=r"scores must be within ±1e\+09 .* got 3.4e\+38; hide keys"
    ):
        attnbook.attention_vjp(q, k, v, np.ones((5, 2), np.float32), bias=bias, impl="packed")


@by_case(lambda kernel, name: kernel.trainable)
def test_vjp_equals_autograd_of_the_reference(rung, names):
    for name, dtype in itertools.product(names, rung.dtypes):
        case, is_causal = CASES[name]
        with named(name, dtype):
            arrays, options = case.arrays(rung.library, dtype)
            grad_output, exact = exact_gradients(name, dtype)
            grad_output = rung.library.array(grad_output, dtype)
            grads = rung.vjp(*arrays, grad_output, **options, is_causal=is_causal)
            size = 64 * (size_of(seen(case, is_causal)) + 1)
            if dtype in HALF:  # the backward pass reads the output as it was rounded
                size *= EPSILON[dtype] / EPSILON["float32"] / 64
            for x, grad, wanted in zip(arrays, grads, exact, strict=True):
                assert rung.library.same_kind(grad, x)
                close(rung.library.numpy(grad), wanted, dtype, size=size)


TINY = 2.0**-12  # beside 1, half precision loses it


@trainable
def test_gradients_of_what_is_broadcast_are_rounded_once(rung):
    signs = [[[1], [-1]], [[-1], [1]]]  # two heads: what the first one gives, the second takes
    ones = [[[1], [1]], [[1], [1]]]
    for which, query, key, value, grad_output, exact in (
        (0, [[0]], [[[2], [-2 * TINY]], [[2], [0]]], signs, [[[1]], [[1]]], [[TINY]]),
        (1, [[[2], [2 * TINY]], [[2], [0]]], [[0], [0]], signs, ones, [[TINY], [-TINY]]),
        (2, [[0], [0]], [[[0]], [[0]]], [[1]], [[[1], [TINY]], [[-1], [0]]], [[TINY]]),
    ):
        for dtype in set(rung.dtypes) & set(HALF):
            arrays = (rung.library.array(x, dtype) for x in (query, key, value, grad_output))
            grad = rung.vjp(*arrays, scale=1.0)[which]
            np.testing.assert_array_equal(rung.library.numpy(grad), exact)


@in_torch
@pytest.mark.parametrize("name", ["everything", "grouped heads", "leading axes", "no keys"])
def test_autograd_equals_the_vjp(rung, name):
    case, is_causal = CASES[name]
    leaves, options = leaves_of(case, "float32", rung.library.device)
    output = rung(*leaves, **options, is_causal=is_causal)
    output.sum().backward()  # whose gradient is one number with strides of 0
    grads = rung.vjp(
        *(*(x.detach() for x in leaves), torch.ones_like(output)), **options, is_causal=is_causal
    )
    for leaf, grad in zip(leaves, grads, strict=True):
        assert torch.equal(leaf.grad, grad)


@functools.cache
def compared_gradients(size, dtype):
    """Return a large case, its exact gradients, and the errors of PyTorch's own fused attention."""
    case = large(*SIZES[size], d_k=16, d_v=16).rounded(ArrayLibrary("torch"), dtype)
    mask = torch.tensor(seen(case, True).mask)
    found = []
    for precision in ("float64", dtype):
        leaves, options = leaves_of(case, precision)
        added = torch.where(mask, options["bias"], -math.inf)[None]
        query, key, value = (x.expand(2, -1, -1)[None] for x in leaves)
        attend = torch.nn.functional.scaled_dot_product_attention
        output = attend(query, key, value, attn_mask=added)[0]
        output = torch.where(mask.any(dim=-1, keepdim=True), output, 0)
        output.backward(grad_output_of(output))
        found.append([torch.nan_to_num(x.grad.double()) for x in leaves])  # NaN in empty rows
    return case, found[0], [x - y for x, y in zip(*found, strict=True)]


def grad_output_of(output):
    return torch.tensor(numbers(*output.shape), device=output.device).to(output.dtype)


@in_torch
@pytest.mark.parametrize("size", ["wide", "high"])
def test_the_error_of_gradients_is_about_that_of_torch(rung, size):
    for dtype in rung.dtypes:
        if dtype == "float64":
            continue
        case, exact, errors_of_torch = compared_gradients(size, dtype)
        leaves, options = leaves_of(case, dtype, rung.library.device)
        output = rung(*leaves, **options, is_causal=True)
        output.backward(grad_output_of(output))
        for leaf, wanted, theirs in zip(leaves, exact, errors_of_torch, strict=True):
            error = leaf.grad.double().cpu() - wanted
            assert error.square().mean() <= 2**2 * theirs.square().mean(), dtype
            assert error.abs().max() <= 4 * theirs.abs().max(), dtype  # one number: luck decides


@in_torch
def test_gradients_of_empty_rows_are_zero_and_finite(rung):
    for name in ("more queries, causal", "mask with empty rows", "large logits"):
        case, is_causal = CASES[name]
        leaves, options = leaves_of(case, "float32", rung.library.device)
        rung(*leaves, **options, is_causal=is_causal).sum().backward()
        assert all(bool(torch.isfinite(x.grad).all()) for x in leaves)
        hidden = ~seen(case, is_causal).mask.any(axis=-1) if name != "large logits" else []
        assert bool((leaves[0].grad[np.flatnonzero(hidden)] == 0).all())


@pytest.mark.parametrize("impl", [k.name for k in kernels.LADDER if not (k.trainable or k.needs)])
def test_what_is_not_trainable_says_so(impl):
    x = np.ones((5, 3))
    able = ", ".join(["reference", *(k.name for k in kernels.LADDER if k.trainable)])
    message = rf"^impl must have a backward pass \({able}\), got '{impl}'$"
    with pytest.raises(ValueError, match=message):
        attnbook.attention_vjp(x, x, x, x, impl=impl)


# What is refused.


def test_unknown_names_are_refused():
    x = np.ones((3, 2))
    message = f"^impl must be one of {', '.join(kernels.IMPLS)}, got 'fastest'$"
    with pytest.raises(ValueError, match=message):
        attnbook.attention(x, x, x, impl="fastest")
    with pytest.raises(ValueError, match=message):
        attnbook.attention_vjp(x, x, x, x, impl="fastest")
    for impl in (None, 3, kernels.LADDER[0]):
        message = f"^impl must be a str or a function, got {type(impl).__name__}$"
        with pytest.raises(TypeError, match=message):
            attnbook.attention(x, x, x, impl=impl)


WRONG_HOME = """
attend(torch.ones(3, 2), "in_place")
    TypeError: query must be an array of numpy for impl='in_place', got torch
attend(torch.ones(3, 2), "threads")
    TypeError: query must be an array of numpy for impl='threads', got torch
attend(np.ones((3, 2), "f"), "triton")
    TypeError: query must be an array of torch for impl='triton', got numpy
attend(torch.ones(3, 2), "cupy_tiled")
    TypeError: query must be an array of cupy for impl='cupy_tiled', got torch
attend(torch.ones(3, 2, device="meta"), "packed")
    ValueError: query must be on device 'cpu' for impl='packed', got 'meta'
attend(np.ones((3, 2)), "packed")
    TypeError: query must have dtype float16, bfloat16 or float32 for impl='packed', got float64
attend(torch.ones(3, 2).double(), "packed")
    TypeError: query must have dtype float16, bfloat16 or float32 for impl='packed', got float64
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(WRONG_HOME))
def test_arrays_of_another_home_are_refused(call, kind, message):
    need_rung(call.split('"')[-2])
    if "packed" in call:
        pytest.importorskip("numba", reason="numba is not installed")
    for attend in (
        attnbook.attention,
        lambda x, *rest, impl: attnbook.attention_vjp(x, x, x, x, impl=impl),
    ):
        names = {
            "np": np,
            "torch": torch,
            "attend": lambda x, impl, f=attend: f(x, x, x, impl=impl),
        }
        assert_raises(call, kind, message, names)


CUPY = r"'cupy-cuda13x\[ctk\]' \(or 'cupy-cuda12x\[ctk\]', as the driver asks\)"
PACKAGES = {"threads": "threadpoolctl", "packed": "numba"}
PACKAGES |= {"cupy_tiled": CUPY, "triton": "triton"}


@pytest.mark.parametrize("impl", PACKAGES)
def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch, impl):
    need_rung(impl)
    kernel = kernels.KERNELS[impl]
    for name in list(sys.modules):
        if name.startswith(("attnbook.kernels.", "attnbook.compilers.jit")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kernel.needs, None)
    message = f"^impl='{impl}' needs {kernel.needs}: .*; pip install {PACKAGES[impl]}$"
    with pytest.raises(ImportError, match=message):
        kernel.load()


def test_the_ladder_names_its_own_rungs():
    names = [kernel.name for kernel in kernels.LADDER]
    assert len(set(names)) == len(names)
    assert list(kernels.IMPLS) == ["reference", *names]
    for kernel in kernels.LADDER:
        assert kernel.reference in kernels.IMPLS[: kernels.IMPLS.index(kernel.name)]
        assert kernel.about
        assert bool(PACKAGES.get(kernel.name)) == bool(kernel.needs)
