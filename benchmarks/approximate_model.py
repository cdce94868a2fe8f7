"""What the heads of a model need, and how wrong each becomes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import approximate_keys
from benchmarks.approximate_keys import TEST, Case
from benchmarks.approximate_methods import BY_NAME, SEEDS

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)

ABOUT = {
    "concentration": (
        "Head by head, over queries of the second half: the median number of keys that hold 50, 90 "
        "and 99 % of the weight; the share of the weight on the last 256 keys (causal); the error "
        "of the best possible choice of a share of the keys, those of largest weight."
    ),
    "heads": (
        "The error of every head of the writer, `error[layer][head]`, for the settings that were "
        f"chosen; test data, the mean over {SEEDS} seeds where the way is random."
    ),
}


def concentration(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each head."""
    query, key, value = case.draw(TEST)
    rows = approximate_keys.checked_rows(case.n, case.n // 2)
    weights = approximate_keys.weights_of(query, key, rows, case.is_causal)
    for i, (w, v) in enumerate(zip(weights, value, strict=True)):
        expected, order = w @ v, np.argsort(-w, axis=1)
        held = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1)
        found: dict[str, Any] = case.place(i)
        for share in (50, 90, 99):
            found[f"keys_{share}"] = float(np.median((held < share / 100).sum(axis=1) + 1))
        near = [w[j, max(0, r - 255) : r + 1].sum() for j, r in enumerate(rows)]
        found["window_256"] = float(np.mean(near)) if case.is_causal else None
        for share in SHARES:
            count = max(1, round(share * case.n))
            best = np.zeros_like(w)
            kept = order[:, :count]
            np.put_along_axis(best, kept, np.take_along_axis(w, kept, axis=1), axis=1)
            best /= best.sum(axis=1, keepdims=True)
            found[f"best_{share}"] = float(approximate_keys.errors(best @ v, expected))
        yield case.about | found


def heads(case: Case, ways: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the error of each head of a writer in each of the ways."""
    case = case.every()
    query, key, value = case.draw(TEST)
    rows = approximate_keys.checked_rows(case.n)
    expected = approximate_keys.exact(query, key, value, rows, True)
    for way in ways:
        method = BY_NAME[way["method"]]
        outputs = (
            method.run(query, key, value, way["set_to"], True, seed)
            for seed in range(SEEDS if method.is_random else 1)
        )
        errors = np.mean([approximate_keys.errors(o[:, rows], expected) for o in outputs], axis=0)
        yield way | {"error": errors.reshape(approximate_keys.LAYERS, -1).tolist()}
