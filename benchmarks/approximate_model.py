"""What the heads of a model need, how wrong each becomes, and what the model loses by layer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from attnbook import kernels
from benchmarks import approximate_keys, real_keys
from benchmarks.approximate_keys import TEST, Case
from benchmarks.approximate_methods import BY_NAME

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)

ABOUT = {
    "concentration": (
        "Head by head, over queries of the second half: the median number of keys that hold 50, 90 "
        "and 99 % of the weight; the share of the weight on the last 256 keys (causal); the error "
        "of the best possible choice of a share of the keys, those of largest weight."
    ),
    "heads": (
        "The error of every head of the writer, `error[layer][head]`, for the settings that were "
        "chosen for these keys; test data, one seed."
    ),
    "loss": (
        "Nats a token of the test plays with the attention of one `layer` replaced, or of all of "
        "them (null); of the tokens in the second half of the window. `more_loss`: above exact "
        "attention, `loss_error`: the standard error of that mean over tokens."
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
    for way in different(ways):
        output = BY_NAME[way["method"]].run(query, key, value, way["set_to"], True)
        errors = approximate_keys.errors(output[:, rows], expected)
        yield way | {"error": errors.reshape(approximate_keys.LAYERS, -1).tolist()}


def losses(
    case: Case,
    ways: list[dict[str, Any]],
    log: Callable[[str], None],
    layers: Sequence[int] = tuple(range(approximate_keys.LAYERS)),
) -> Iterator[dict[str, Any]]:
    """Yield the loss of a writer in all whose layers, or in one, attention is one of the ways."""
    name, half = case.keys.replace(" ", "_"), case.n // 2

    def measured(attend):
        return real_keys.losses(attend, case.n, part=TEST, name=name)[half:].astype(np.float64)

    exact = measured(real_keys.EXACT)
    for way in different(ways):
        for layer in (None, *layers):
            loss = measured(replaced(way, layer))
            more = loss - exact
            row = {"layer": layer, "loss": float(loss.mean()), "exact": float(exact.mean())}
            row["more_loss"] = float(more.mean())
            row["loss_error"] = float(more.std(ddof=1) / np.sqrt(len(more)))
            yield way | row
            told = f"{way['method']}, layer {layer}: {row['more_loss']:+.4f}"
            log(f"loss, {case.keys}, n = {case.n}: {told} ± {row['loss_error']:.4f}")


def replaced(way: dict[str, Any], layer: int | None) -> Callable[..., np.ndarray]:
    """Return what attends one way in a layer, or in all, and exactly in the others."""
    method, calls = BY_NAME[way["method"]], iter(range(approximate_keys.LAYERS))

    def attend(query, key, value, *how):
        if layer in (None, next(calls)):
            return method.run(query, key, value, way["set_to"], True)
        return kernels.attention(real_keys.EXACT, query, key, value, *how)

    return attend


def different(ways: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ways whose settings differ, the first of each."""
    found: dict[str, dict[str, Any]] = {}
    for way in ways:
        found.setdefault(repr((way["method"], way["set_to"])), way)
    return list(found.values())
