"""A state in place of a cache: the forms of linear attention beside exact attention.

Measures one head of width 64 in float32. The first table reads a sequence of n tokens, causal; the
second answers one query after n tokens, from a cache or from a state. On the CPU the baseline is
exact attention with `impl="packed"`, on a GPU it is PyTorch's. A form that needs memory for all
n × n pairs is left out where n is large.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, linear_attention, move
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

WIDTH = 64
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
QUICK_SIZES = (256, 1024)
MOST_PAIRS = 4096  # tokens of the parallel form
MOST_STEPS = {"cpu": 65536, "cuda": 1024}  # tokens of the recurrence; a GPU waits for each launch
CHECKED = 64  # queries of exact attention that are compared
BASELINE = {"rule": "softmax"}
Run = Callable[[], Any]


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure times on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "heads": 1, "width": WIDTH},
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        decoding_baseline=BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    sizes = QUICK_SIZES if quick else SIZES
    for name, one in (("rows", timings), ("decoding", decoding)):
        found = steps(one, device, sizes, ("float32",), quick=quick)
        tables.measure(name, found, "implementation", "rule")


def timings(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each rule and form that reads `n` tokens."""
    library, exact, given = _drawn(device, dtype, n)
    candidates = [_softmax(library, given, exact, n)]
    for rule, names in RULES.items():
        function = getattr(linear_attention, FUNCTIONS[rule])
        expected = _recurrence(rule, **exact)[0]
        for implementation in _forms(device, n):
            run = partial(function, *(given[name] for name in names), impl=implementation)
            about = {"implementation": implementation, "rule": rule, "library": library}
            compare = partial(_errors_of_output, expected=expected)
            candidates.append(harness.Candidate(about, run, compare))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=BASELINE, quick=quick)


def decoding(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each rule that answers one query after `n` tokens."""
    library, exact, given = _drawn(device, dtype, n)
    one = given | {"query": given["query"][-1:, :]}
    candidates = [_softmax(library, one, exact, 1, cache_bytes=8 * n * WIDTH)]
    for rule, names in RULES.items():
        function = getattr(linear_attention, FUNCTIONS[rule])
        before = {name: x[:-1] for name, x in exact.items()}
        state = _recurrence(rule, **before)[1].astype("f4")
        moved = move(state, library, device=device if library == "torch" else None)
        last = [given[name][-1:] for name in names]
        run = partial(function, *last, state=moved)
        about = {"implementation": "reference", "rule": rule, "library": library}
        about |= {"cache_bytes": 4 * WIDTH * WIDTH}
        expected = _recurrence(rule, **exact)[0][-1:]
        compare = partial(_errors_of_output, expected=expected)
        candidates.append(harness.Candidate(about, run, compare))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=BASELINE, quick=quick)


RULES = {
    "decayed": ("query", "key", "value", "log_decay"),
    "delta": ("query", "key", "value", "beta", "log_decay"),
}
FUNCTIONS = {"decayed": "decayed_attention", "delta": "delta_rule"}


def _drawn(device: str, dtype: str, n: int) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """Return a library, the arrays in float64, and in this library on the device."""
    drawn = inputs.draw(n, (n, WIDTH))
    drawn["query"] /= np.float32(np.sqrt(WIDTH))
    drawn["key"] /= np.linalg.norm(drawn["key"], axis=-1, keepdims=True)
    rng = np.random.default_rng(n)
    drawn["beta"] = rng.random(n, dtype=np.float32)
    drawn["log_decay"] = -0.01 * rng.exponential(size=n).astype("f4")
    library = "numpy" if device == "cpu" else "torch"
    return library, *inputs.place(drawn, library, device, dtype)


def _forms(device: str, n: int) -> Iterator[str]:
    if n <= MOST_STEPS[device]:
        yield "reference"
    if n <= MOST_PAIRS:
        yield "parallel"
    yield "chunkwise"
    yield "numba" if device == "cpu" else "triton"


def _softmax(
    library: str, given: dict[str, Any], exact: dict[str, np.ndarray], n: int, **more: Any
) -> harness.Candidate:
    """Return exact attention of the last n queries, with the scale 1."""
    heads = [given[name][None, None] for name in ("query", "key", "value")]
    n_k = exact["key"].shape[0]
    about: dict[str, Any] = {"implementation": "packed", "rule": "softmax", "library": library}
    if library == "numpy":
        run = partial(attention, *heads, is_causal=True, scale=1.0, impl="packed")
    else:
        from torch.nn.functional import scaled_dot_product_attention

        about["implementation"] = "scaled_dot_product_attention"
        run = partial(scaled_dot_product_attention, *heads, is_causal=n > 1, scale=1.0)
    rows = np.unique(np.linspace(n_k - n, n_k - 1, min(n, CHECKED)).astype(int))
    mask = np.arange(n_k) <= rows[:, np.newaxis]
    query = exact["query"][rows] * np.sqrt(WIDTH)  # the reference divides by this root
    expected = inputs.reference(query, exact["key"], exact["value"], mask)

    def compare(output: Any) -> dict[str, float]:
        found = move(output, "numpy", dtype="float64")[0, 0]
        return inputs.errors(found[rows - (n_k - n)], expected)

    return harness.Candidate(about | more, run, compare)


def _recurrence(
    rule: str,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    beta: np.ndarray,
    log_decay: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return output and last state in float64, token by token, written apart from the package."""
    state, output = np.zeros((WIDTH, WIDTH)), np.empty_like(value)
    for t in range(len(query)):
        state *= np.exp(log_decay[t])
        new = value[t] if rule == "decayed" else beta[t] * (value[t] - key[t] @ state)
        state += key[t][:, np.newaxis] * new
        output[t] = query[t] @ state
    return output, state


def _errors_of_output(found: tuple[Any, Any], expected: np.ndarray) -> dict[str, float]:
    return inputs.errors(found[0], expected)
