"""One problem of exact attention: its shape, its numbers in each library, and what it costs."""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks import exact_errors, inputs


class Entry(NamedTuple):
    """Somebody who can solve a problem."""

    about: dict[str, Any]  # the fields of a row that name who and how
    run: Callable[[], Any]
    back: Callable[[Any], Any] = lambda x: x  # from its order of axes to (…, heads, n, width)


@dataclass(frozen=True)
class Problem:
    """One shape, dtype and pass."""

    device: str
    dtype: str
    n: int  # keys; and queries, unless n_q says otherwise
    width: int = 64
    heads: int = 8
    batch: int = 1
    n_q: int | None = None
    kv_heads: int | None = None  # each shared by heads / kv_heads queries
    is_causal: bool = False
    backward: bool = False

    @property
    def queries(self) -> int:
        """How many queries a head."""
        return self.n if self.n_q is None else self.n_q

    @property
    def flops(self) -> float:
        """Products and sums of the matrix products, as if no score were computed twice.

        Two products of n_q × n_k × width forward, and 5 more backward, where one is made again.
        """
        n_q, n_k = self.queries, self.n
        scores = n_q * n_k - n_q * (n_q - 1) / 2 if self.is_causal else n_q * n_k
        return (3.5 if self.backward else 1) * 4 * scores * self.width * self.heads * self.batch

    @property
    def bytes(self) -> int:
        """What must be read and written at least: query, key, value and output, once each."""
        kv_heads = self.kv_heads or self.heads
        numbers = 2 * self.width * self.batch * (self.heads * self.queries + kv_heads * self.n)
        return numbers * (8 if self.dtype == "float64" else 4 if self.dtype == "float32" else 2)

    def about(self) -> dict[str, Any]:
        """Return the fields of a row."""
        fields = asdict(self) | {"n_q": self.queries, "kv_heads": self.kv_heads or self.heads}
        fields |= {"flops": self.flops, "bytes": self.bytes}
        return {name: field for name, field in fields.items() if name != "device"}

    def draw(self) -> dict[str, np.ndarray]:
        """Return query (batch, heads, n_q, width), key and value, and the gradient of the output.

        Grouped heads are (batch, kv_heads, group, n_q, width) and (batch, kv_heads, 1, n, width).
        """
        rng = np.random.default_rng(self.n)
        many, few = (self.batch, self.heads), (self.batch, self.heads)
        if self.kv_heads is not None:
            many = (self.batch, self.kv_heads, self.heads // self.kv_heads)
            few = (self.batch, self.kv_heads, 1)
        shapes = {"query": (*many, self.queries), "key": (*few, self.n), "value": (*few, self.n)}
        if self.backward:
            shapes["grad"] = shapes["query"]
        return {
            name: rng.standard_normal((*shape, self.width), dtype=np.float32)
            for name, shape in shapes.items()
        }


class Arrays:
    """The numbers of a problem in each library, moved when first asked for."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.drawn = problem.draw()
        self._moved: dict[str, dict[str, Any]] = {}
        self._rounded: dict[str, np.ndarray] = {}

    def of(self, library: str) -> dict[str, Any]:
        """Return the arrays of `library`."""
        if library not in self._moved:
            given = (library, self.problem.device, self.problem.dtype)
            self._rounded, self._moved[library] = inputs.place(self.drawn, *given)
        return self._moved[library]

    def errors(self, is_causal: bool) -> Callable[[Any], dict[str, float]]:
        """Return the function that compares what a candidate returns with float64."""
        if not self._rounded:
            raise RuntimeError("no library has its arrays yet")  # rounding is the same in each
        make = exact_errors.output_errors
        if self.problem.backward:
            make = exact_errors.gradient_errors
        return make(self._rounded, is_causal)


@functools.lru_cache(maxsize=2)
def _kept(problem: Problem) -> Arrays:
    return Arrays(problem)


def arrays(problem: Problem) -> Arrays:
    """Return the numbers of `problem`; on a GPU those of the last two shapes are not drawn anew."""
    if problem.device == "cpu":
        return Arrays(problem)
    return _kept(replace(problem, is_causal=False))  # whose numbers are the same
