"""The array libraries under test and the random inputs that the tests draw for them."""

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import attnbook
from attnbook import kernels

WEEKLY = bool(os.environ.get("ATTNBOOK_WEEKLY"))
"""Whether the long tests run, too."""

HALF = ("float16", "bfloat16")
DTYPES = (*HALF, "float32", "float64")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
"""Distance from 1 to the next number, and the smallest number above 0."""

# What the messages of errors have in common.
NOT_AN_ARRAY = "must be an array of NumPy, CuPy, PyTorch or another Array API library, got "
NOT_BOOLEAN = "mask must be boolean, True = may attend, got "
AS_NUMBERS = "; it looks like a boolean mask stored as numbers: pass mask == 1"
ADDITIVE = "; it looks like an additive mask: pass mask == 0, which is True where it allows"
IN_BIAS = "; numbers that are added to the scores go in bias="
SCORES = "must broadcast to the shape of the scores (..., n_q, n_k) = "


def load(path: Path) -> ModuleType:
    """Return the module at `path`, of no package; it may import what lies beside it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    finally:
        sys.path.remove(str(path.parent))
    return module


def recorded(function: Any, *arguments: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Return the output of a function, and the attention weights of each of its calls."""
    recorder = kernels.Recorder()
    return function(*arguments, **options, impl=recorder), recorder.weights


def calls_in_package(function: Any, *arguments: Any, **options: Any) -> list[tuple[str, str]]:
    """Return file and name of each Python function of the package that a warm call runs."""
    root, calls = attnbook.__path__[0], []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    function(*arguments, **options)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(before)
    return calls


def every_day(few: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the parameters of a long test: a few of `cases` in every run, all of them weekly."""
    return list(cases if WEEKLY else few)


def examples(weekly: int) -> int:
    """Return how many cases Hypothesis draws: so many weekly, half of them in every run."""
    return weekly if WEEKLY else weekly // 2


def register_lanes() -> list[int]:
    """Return the lanes for which *packed* is tested: here this processor's, weekly those of all.

    They are those of AVX-512, of AVX2, and of SSE2 or Neon.
    """
    if importlib.util.find_spec("numba") is None:
        return []
    tiles = importlib.import_module("attnbook.compilers.register_tiles")
    return every_day([tiles.lanes()], tiles.TILES)


@dataclass(frozen=True)
class ArrayLibrary:
    """One library on one device: makes arrays from NumPy's and turns them back."""

    name: str
    device: str = "cpu"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The real floating dtypes that the library has."""
        absent = {"torch": (), "array_api_strict": HALF}.get(self.name, ("bfloat16",))
        return tuple(dtype for dtype in DTYPES if dtype not in absent)

    def array(self, x: Any, dtype: str | None = None) -> Any:
        """Return `x` in this library; NumPy arrays are read-only, so that a write raises."""
        x = np.array(x)
        if self.name == "torch":
            torch = importlib.import_module("torch")
            wanted = getattr(torch, dtype or x.dtype.name)
            return torch.tensor(x, device=self.device).to(wanted)
        x = x.astype(dtype or x.dtype)
        if self.name == "numpy":
            x.setflags(write=False)
            return x
        return importlib.import_module(self.name).asarray(x)

    def numpy(self, x: Any) -> np.ndarray:
        """Return the numbers of `x` as a NumPy array, floats as float64."""
        if self.name == "torch":
            x = x.detach().cpu()
            return (x.double() if x.is_floating_point() else x).numpy()
        x = x.get() if self.name == "cupy" else np.asarray(x)
        return x.astype(np.float64) if x.dtype.kind == "f" else x

    def same_kind(self, x: Any, like: Any) -> bool:
        """Say whether two arrays share library, dtype and device."""
        devices = [getattr(array, "device", "cpu") for array in (x, like)]
        # NumPy gives single numbers a type of their own
        kinds = [np.ndarray if isinstance(a, np.generic) else type(a) for a in (x, like)]
        return kinds[0] is kinds[1] and x.dtype == like.dtype and devices[0] == devices[1]

    def place(self, weights: Any, dtype: str | None = None) -> Any:
        """Return the weights of one head or of many in this library."""
        device = self.device if self.name == "torch" else None
        return weights.to(self.name, device=device, dtype=dtype)


def need(library: ArrayLibrary, dtype: str) -> None:
    """Skip where the library lacks the dtype."""
    if dtype not in library.dtypes:
        pytest.skip(f"{library.name} has no {dtype}")


@functools.cache
def absent(library: ArrayLibrary) -> str:
    """Return why a library cannot run here, or nothing if it can."""
    if importlib.util.find_spec(library.name) is None:
        return f"{library.name} is not installed"
    if library.device == "cuda" and not importlib.import_module(library.name).cuda.is_available():
        return f"{library.name} sees no CUDA device"
    return ""


def need_gpu(name: str) -> ModuleType:
    """Return the library `name`; skip where it is not installed or sees no GPU."""
    if reason := absent(ArrayLibrary(name, "cuda")):
        pytest.skip(reason)
    return importlib.import_module(name)


def close(got: np.ndarray, exact: np.ndarray, dtype: str, size: float = 1.0, steps: float = 16):
    """Assert that `got`, computed for `dtype`, is as near to `exact` as that dtype allows.

    Half precision is computed in float32 and rounded once: the error is at most twice that of
    rounding the exact result, plus what float32 loses. float32 and float64 may lose `steps`
    roundings of numbers of the size `size`, the largest that enter the sum.
    """
    assert got.shape == exact.shape
    wide = "float32" if dtype in HALF else dtype
    allowed = steps * EPSILON[wide] * (size + np.abs(exact)) + TINY[dtype]
    if dtype in HALF:
        allowed = allowed + EPSILON[dtype] * np.abs(exact)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    both = np.isfinite(exact)
    np.testing.assert_array_equal(got[~both], exact[~both])
    error = np.abs(got[both] - exact[both])
    allowed = np.broadcast_to(allowed, exact.shape)[both]
    assert np.all(error <= allowed), f"off by {np.max(error / allowed)} times what {dtype} allows"


@dataclass(frozen=True)
class Case:
    """Inputs of attention as float64 NumPy arrays."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None
    bias: np.ndarray | None
    scale: float | None

    def arrays(self, library: ArrayLibrary, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        """Return (query, key, value) and the options in `library`, rounded to `dtype`."""
        positional = [library.array(x, dtype) for x in (self.query, self.key, self.value)]
        options = {
            "mask": None if self.mask is None else library.array(self.mask),
            "bias": None if self.bias is None else library.array(self.bias, dtype),
            "scale": self.scale,
        }
        return positional, options

    def rounded(self, library: ArrayLibrary, dtype: str) -> "Case":
        """Return the case with the numbers that `dtype` makes of it."""
        q, k, v = (library.numpy(x) for x in self.arrays(library, dtype)[0])
        bias = None
        if self.bias is not None:
            bias = library.numpy(library.array(self.bias, dtype))
        return Case(q, k, v, self.mask, bias, self.scale)


SIZES = st.sampled_from((0, 1, 2, 3, 5, 7))


@st.composite
def leading_axes(draw, min_side=0):
    """Draw leading axes of query, key and value that broadcast; grouped heads among them."""
    grouped = ((2, 3), (2, 1), (2, 1))
    free = npst.mutually_broadcastable_shapes(
        num_shapes=3, max_dims=2, min_side=min_side, max_side=3
    ).map(lambda shapes: shapes.input_shapes)
    return draw(st.just(((), (), ())) | st.just(grouped) | free)


class Fixed(np.random.Generator):
    """A generator that draws one number again and again."""

    def __init__(self, u):
        super().__init__(np.random.PCG64(0))
        self.u = u

    def random(self):
        return self.u

    def spawn(self, n):
        return [self] * n


def masks(rng, shape):
    """Return the masks worth trying for scores of `shape`: every size it may broadcast from."""
    *_, n_q, n_k = shape
    random = rng.random(shape) < 0.6
    empty_row = random.copy()
    empty_row[..., : n_q // 2, :] = False
    return {
        "none": None,
        "random": random,
        "full": np.ones(shape, dtype=bool),
        "empty row": empty_row,
        "empty": np.zeros(shape, dtype=bool),
        "of keys": rng.random(n_k) < 0.6,
        "of queries": rng.random((n_q, 1)) < 0.6,
        "causal": np.tril(np.ones((n_q, n_k), dtype=bool), n_k - n_q),
    }


MASKS = tuple(masks(np.random.default_rng(0), (3, 3)))


@st.composite
def attention_cases(draw, sizes=SIZES, min_side=0, spread=1.0):
    """Draw inputs of attention of every shape that it takes."""
    lead_q, lead_k, lead_v = draw(leading_axes(min_side))
    n_q, n_k, d_v = draw(sizes), draw(sizes), draw(sizes)
    scale = draw(st.none() | st.sampled_from((0.0, 0.25, 1.0, 3.0)))
    d_k = draw(sizes)
    if scale is None:
        d_k = max(d_k, 1)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    query = spread * rng.standard_normal((*lead_q, n_q, d_k))
    key = rng.standard_normal((*lead_k, n_k, d_k))
    value = rng.standard_normal((*lead_v, n_k, d_v))
    shape = (*np.broadcast_shapes(lead_q, lead_k), n_q, n_k)
    mask = masks(rng, shape)[draw(st.sampled_from(MASKS))]
    bias = draw(
        st.sampled_from((None, rng.standard_normal(shape), rng.standard_normal((n_q, 1))))
        if n_q
        else st.none()
    )
    return Case(query, key, value, mask, bias, scale)


def many_heads(seed, h, g=None, d_k=2, d_v=3, widths=(5, 11, 7), d_out=None, bias=False):
    """Return `MultiHeadWeights` of random numbers, biases too: `init` has a test of its own."""
    rng = np.random.default_rng(seed)
    g = h if g is None else g
    shapes = [(widths[0], h * d_k), (widths[1], g * d_k), (widths[2], g * d_v)]
    shapes += [] if d_out is None else [(h * d_v, d_out)]
    matrices = [rng.standard_normal(shape) / np.sqrt(max(shape[0], 1)) for shape in shapes]
    weights = attnbook.MultiHeadWeights(*matrices, n_heads=h, n_kv_heads=g)
    if not bias:
        return weights
    biases = [rng.standard_normal(shape[1]) for shape in shapes]
    named = zip(("b_Q", "b_K", "b_V", "b_O"), biases, strict=False)
    return replace(weights, **dict(named))


HEAD_OPTIONS = ("q_norm", "k_norm", "sinks", "W_gate", "cap", "window")


def with_head_options(weights, seed=0, names=HEAD_OPTIONS, **changed):
    """Return the weights with random numbers in the options of these names."""
    rng = np.random.default_rng(seed)
    d_k, (d_query, _) = weights.d_k, weights.W_Q.shape
    drawn = {
        # an epsilon of some size, since two features may be almost equal
        "q_norm": attnbook.RMSNormWeights(rng.uniform(0.5, 2, d_k), 0.1),
        "k_norm": attnbook.LayerNormWeights(
            rng.uniform(0.5, 2, d_k), rng.standard_normal(d_k), 0.5
        ),
        "sinks": rng.standard_normal(weights.n_heads),
        "W_gate": rng.standard_normal((d_query, weights.n_heads * weights.d_v)),
        "cap": 0.7,
        "window": 2,
    } | changed
    return replace(weights, **{name: drawn[name] for name in names})


@dataclass(frozen=True)
class HeadsCase:
    """Inputs and weights of multi-head attention as float64 NumPy arrays."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    weights: attnbook.MultiHeadWeights
    mask: np.ndarray | None

    def arguments(self, library: ArrayLibrary, dtype: str) -> tuple[Any, ...]:
        """Return (query, key, value, weights, mask) in `library`, rounded to `dtype`."""
        arrays = [library.array(x, dtype) for x in (self.query, self.key, self.value)]
        mask = None if self.mask is None else library.array(self.mask)
        return *arrays, library.place(self.weights, dtype), mask

    def arguments_of_numpy(self) -> tuple[Any, ...]:
        """Return (query, key, value, weights, mask) as they are, in arrays that may be changed."""
        return self.query.copy(), self.key.copy(), self.value.copy(), self.weights, self.mask

    def exact(self, library: ArrayLibrary, dtype: str, **options: Any) -> Any:
        """Return output and weights of the loop, from the numbers that `dtype` makes of these."""
        *arrays, weights, _ = self.arguments(library, dtype)
        numbers = {name: library.numpy(x) for name, x in weights.arrays().items()}
        return oracle.multi_head_attention(
            *map(library.numpy, arrays),
            **vars(self.weights.filled(numbers)),
            mask=self.mask,
            **options,
        )


@st.composite
def heads_cases(draw):
    """Draw inputs, weights and masks of multi-head attention of every shape that it takes."""
    lead_q, lead_k, lead_v = draw(leading_axes())
    n_q, n_k = draw(SIZES), draw(SIZES)
    h = draw(st.sampled_from((1, 2, 3, 4, 6)))
    g = draw(st.sampled_from([n for n in range(1, h + 1) if h % n == 0]))
    widths = tuple(draw(st.sampled_from((0, 1, 3, 5))) for _ in range(3))
    seed = draw(st.integers(0, 2**32 - 1))
    weights = many_heads(
        *(seed, h, g),
        d_k=draw(st.sampled_from((1, 2, 3))),
        d_v=draw(st.sampled_from((0, 1, 2))),
        widths=widths,
        d_out=draw(st.sampled_from((None, 0, 1, 5))),
        bias=draw(st.booleans()),
    )
    rng = np.random.default_rng(seed)
    shapes = ((*lead_q, n_q), (*lead_k, n_k), (*lead_v, n_k))
    arrays = (rng.standard_normal((*s, d)) for s, d in zip(shapes, widths, strict=True))
    leading = np.broadcast_shapes(lead_q, lead_k)
    drawn = {
        **masks(rng, (*leading, h, n_q, n_k)),
        "for each head": rng.random((1,) * len(leading) + (h, n_q, n_k)) < 0.6,
        "for each sequence": rng.random((*leading, 1, n_q, n_k)) < 0.6,
    }
    return HeadsCase(*arrays, weights, drawn[draw(st.sampled_from(sorted(drawn)))])


def shaken(weights, seed=0):
    """Return the weights with random numbers in every array: gains are not 1, biases not 0."""
    rng = np.random.default_rng(seed)
    drawn = {}
    for name, x in weights.arrays().items():
        spread = 1 / np.sqrt(x.shape[0]) if x.ndim == 2 else 0.5
        drawn[name] = spread * rng.standard_normal(x.shape)
        if name.split(".")[-1] == "gain":
            drawn[name] += 1.0
        drawn[name].setflags(write=False)
    return weights.with_arrays(drawn)


def held(library: ArrayLibrary, weights: Any, dtype: str | None = None) -> Any:
    """Return the weights as float64 of NumPy, with the numbers that `dtype` makes of them."""
    placed = library.place(weights, dtype)
    numbers = {name: library.numpy(x) for name, x in placed.arrays().items()}
    return weights.with_arrays(numbers)


def leaves_of(weights: Any) -> tuple[Any, dict[str, Any]]:
    """Return weights of PyTorch whose arrays ask for gradients, and those arrays by name."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in weights.arrays().items()}
    return weights.with_arrays(leaves), leaves


def layer_mask(rng: Any, kind: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a mask for scores of `shape` (..., h, n_q, n_k) that says which axis is which."""
    *leading, h, n_q, n_k = shape
    batch = (*leading, 1) if leading else ()
    drawn = {
        "none": None,
        "causal": np.tril(np.ones((n_q, n_k), dtype=bool), n_k - n_q),
        "padding": rng.random((*batch, 1, n_k)) < 0.6,
        "heads": rng.random((*(1 for _ in leading), h, n_q, n_k)) < 0.6,
        "all": rng.random(shape) < 0.6,
        "empty": np.zeros((n_q, n_k), dtype=bool),
    }
    return drawn[kind]


LAYER_MASKS = ("none", "causal", "padding", "heads", "all", "empty")


def with_cloud(query, key, value, found, scale):
    """Return attention to the found keys of large score and to a cloud of moments for the others.

    `found` (n_q, n) says which keys the tables have. Return the output, and how many were scored.
    """
    from attnbook.sketch import Moments

    cloud, output, n_scored = Moments.fit(key, value), [], []
    limit = cloud.limit(query, scale)
    mass, mean = cloud.tail(query, scale, below=limit)
    for i, q in enumerate(query):
        rows = np.flatnonzero(found[i] & (scale * (key @ q) > limit[i]))
        scores = np.append(scale * (key[rows] @ q), mass[i])
        weights = np.exp(scores - scores.max())
        output.append(weights @ np.vstack([value[rows], mean[i]]) / weights.sum())
        n_scored.append(len(rows))
    return np.stack(output), np.array(n_scored)
